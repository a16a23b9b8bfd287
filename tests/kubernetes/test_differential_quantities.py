"""Quantities and pod requests are read as Kubernetes reads them; fitting/quantities.py runs any number of cases."""

from __future__ import annotations

import asyncio
from random import Random

from tests.kubernetes.api import Answer, Api
from tests.kubernetes.fitting.helper import KubeFit
from tests.kubernetes.fitting.quantities import EDGES, compare_quantities, compare_requests, make_quantity


def test_quantities_are_read_and_stored_alike(kube: KubeFit) -> None:
    assert compare_quantities(kube, 2000, start=1) == []


def test_pod_requests_are_summed_alike(kube: KubeFit) -> None:
    compared, differences = compare_requests(kube, 500, start=1)
    assert compared == 500
    assert not differences, "\n".join(differences[:3])


async def test_kube_fit_reads_quantities_as_the_api_server_does(kube: KubeFit, api: Api) -> None:
    random = Random(1)
    texts = [text for text in (*EDGES, *(make_quantity(random) for _ in range(100))) if text == text.strip() and text]
    ours = kube.quantities(texts)

    async def store(text: str) -> Answer:
        status = {"capacity": {"memory": text}}
        return await api.ask("POST", "/api/v1/nodes?dryRun=All", {"metadata": {"name": "quantity"}, "status": status})

    for text, mine, real in zip(texts, ours, await asyncio.gather(*map(store, texts)), strict=True):
        if "invalid" in mine:
            assert (real.code, real.reason) == (400, "BadRequest"), f"{text!r}: {real.message}"
        elif mine["stored"].startswith("-"):
            assert real.code == 422, f"{text!r}: {real.message}"
            assert f'Invalid value: "{mine["stored"]}"' in real.message
        else:
            assert real.body["status"]["capacity"]["memory"] == mine["stored"]
