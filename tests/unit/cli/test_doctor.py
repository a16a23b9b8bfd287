"""`doctor` with a real API server."""

from __future__ import annotations

from gpu_scheduler.cli.checks.cluster import CheckLevel
from gpu_scheduler.cli.doctor import examine
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.scheduler.settings import Settings
from tests.embedded_kube.servers import ApiClient, api_server


async def look(api: ApiClient) -> dict[str, tuple[CheckLevel, str]]:
    found = await examine(Connection(str(api.client.make_url(""))), Settings())
    return {check.name: (check.level, check.message) for check in found}


async def test_a_bare_cluster_has_neither_crds_nor_a_leader() -> None:
    async with api_server() as api:
        found = await look(api)
    assert found["api"][0] is CheckLevel.OK
    assert found["clock"] == (CheckLevel.OK, "agrees with that of the API server")
    assert found["permissions"][0] is CheckLevel.OK
    assert found["placements"][0] is CheckLevel.FAIL
    assert found["leader"] == (CheckLevel.WARN, "No scheduler has ever run in this cluster")
    assert found["nodes"] == (CheckLevel.WARN, "no node offers nvidia.com/gpu or amd.com/gpu")
    assert found["webhook"][0] is CheckLevel.WARN


async def test_a_server_that_does_not_answer_is_one_failed_check() -> None:
    (check,) = await examine(Connection("http://127.0.0.1:1"), Settings())
    assert (check.name, check.level) == ("api", CheckLevel.FAIL)
    assert check.message.startswith("http://127.0.0.1:1 does not answer")
