"""The local API server replies as a real one does: the whole catalogue of bad inputs, and a few random sequences.

    python -m tests.kubernetes.differential.api --version 1.35 --sequences 2000 --start 1

is the long form, and replays one seed with `--sequences 1 --start SEED`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.kubernetes.differential.api import Report, run_catalogue, run_sequences
from tests.kubernetes.differential.servers import Pair, servers

SEEDS = range(1, 26)


@pytest.fixture
async def pair(minor: str) -> AsyncIterator[Pair]:
    """Both servers, without anything else that changes objects."""
    if "CONTROL_PLANE_FOLDER" not in os.environ:
        pytest.skip("KUBECONFIG names a cluster whose controllers would interfere")
    async with servers(minor) as found:
        yield found


async def test_both_servers_reply_alike(pair: Pair) -> None:
    report = Report()
    await run_catalogue(pair, report)
    await run_sequences(pair, SEEDS, report)
    assert not report.problems, "\n\n".join(report.problems)
    assert report.codes.keys() >= {200, 201, 400, 404, 409, 422}, f"too little was asked: {report.codes}"
