"""What an operator decides about admission."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.gangs.contract import SYSTEM


class Denial(Enum):
    """What a pod of ours should better not do. It is refused where that is asked for, else warned of."""

    NVIDIA_VISIBLE_DEVICES = "nvidia-visible-devices"
    PRIVILEGED = "privileged"
    NODE_NAME = "node-name"


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """`scheduler_names` are ours, `gpu_resources` are GPUs; `inject` is about pods without a map.

    `scheduler_account` is the one user who may write reserved annotations.
    """

    scheduler_names: frozenset[str]
    gpu_resources: tuple[str, ...]
    inject: bool = True
    deny: frozenset[Denial] = frozenset()
    scheduler_account: str = f"system:serviceaccount:{SYSTEM}:gpu-scheduler"
