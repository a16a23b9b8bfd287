"""The GPUs that a running pod holds on its node, as its annotations record them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gpu_scheduler.gangs.contract import DEVICE_MAP, DEVICES, GPU_MILLI
from gpu_scheduler.gangs.pods.device_map import MapError, map_group

# Indices stand alone or after a container's name ("main=0,1"); digits inside a name are not indices.
_INDEX = re.compile(r"(?<![\w.-])\d+(?![\w.-])")


class PodDevices(NamedTuple):
    """GPU indices, the share of each in thousandths, and the group that may share them ("": no sharing)."""

    devices: tuple[int, ...]
    milli: int = 1000
    sharing: str = ""


def read_device_claim(pod: Mapping[str, Any]) -> PodDevices | None:
    """Reads the GPUs recorded on a pod, in JSON form; None if there are none. A node agent admits pods by them."""
    meta = pod["metadata"]
    annotations = meta.get("annotations") or {}
    devices = tuple(sorted({int(number) for number in _INDEX.findall(annotations.get(DEVICES, ""))}))
    if not devices:
        return None
    milli = annotations.get(GPU_MILLI, "")
    sharing = ""
    if annotations.get(DEVICE_MAP):
        with suppress(MapError):
            sharing = map_group(meta.get("namespace", ""), annotations[DEVICE_MAP])
    return PodDevices(devices, int(milli) if milli.isdecimal() else 1000, sharing)
