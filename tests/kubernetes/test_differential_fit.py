"""We accept the nodes that kube-scheduler's Filter plugins accept; fitting/fit.py runs any number of cases."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.api import Api
from tests.kubernetes.fitting.fit import compare
from tests.kubernetes.fitting.helper import KubeFit
from tests.kubernetes.fitting.pods import PodGenerator
from tests.kubernetes.fitting.shrink import shrink

CASES = 400


def test_our_rules_accept_the_nodes_that_kube_scheduler_accepts(kube: KubeFit) -> None:
    tally = compare(kube, CASES, start=1)
    assert not tally.differences, "\n\n".join(tally.differences[:3])
    assert tally.cases == CASES
    assert tally.pairs / 10 < tally.accepted < tally.pairs / 2, "cases that are all refused or accepted show nothing"


async def test_kube_fit_sees_pods_as_the_api_server_stores_them(kube: KubeFit, api: Api, namespace: str) -> None:
    maker = PodGenerator(Random(1), ("n1", "n2"), kube.minor)
    pods = [maker.make(f"p{i}") for i in range(60)]
    for pod in pods:
        pod["metadata"]["namespace"] = namespace
        pod["spec"].pop("overhead", None)  # only with a RuntimeClass
    ours = kube.requests(pods)
    stored = await asyncio.gather(
        *(api.ask("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod) for pod in pods)
    )
    for pod, mine, real in zip(pods, ours, stored, strict=True):
        if "invalid" in mine:
            assert real.code in (400, 422), f"{mine['invalid']}: {json.dumps(pod)}"
            continue
        assert real.code == 201, f"{real.message}: {json.dumps(pod)}"
        for part in ("containers", "initContainers", "resources", "affinity", "topologySpreadConstraints"):
            assert _without_mounts(real.body["spec"].get(part)) == mine["pod"]["spec"].get(part)


def _without_mounts(part: Any) -> Any:
    """The mounts of the service account admission do not matter for the fit."""
    if not isinstance(part, list):
        return part
    return [{name: value for name, value in item.items() if name != "volumeMounts"} for item in part]


def test_a_difference_is_shrunk_to_the_smallest_case() -> None:
    whole: Json = {"cluster": {"nodes": [{"a": 1}, {"b": [1, 2, 3], "c": 1}, {"d": 1}]}, "pod": {"spec": {"x": 1}}}
    small = shrink(whole, lambda found: any(2 in node.get("b", ()) for node in found["cluster"].get("nodes", ())))
    assert small == {"cluster": {"nodes": [{"b": [2]}]}, "pod": {}}
