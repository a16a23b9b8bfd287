"""`doctor`: checks the cluster, the scheduler and the webhook, and suggests remedies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from gpu_scheduler.cli.cluster_options import ClusterTarget, cluster_options, describe_api_error, output_option

if TYPE_CHECKING:
    from gpu_scheduler.cli.checks.cluster import Check
    from gpu_scheduler.cli.checks.permissions import Permission
    from gpu_scheduler.k8s.client import Client
    from gpu_scheduler.k8s.connection import Connection
    from gpu_scheduler.scheduler.settings import Settings
    from gpu_scheduler.scheduler.snapshot import ClusterSnapshot

REQUEST_TIMEOUT = 10.0
"""Seconds for each request."""

EXAMPLES = """
\b
Examples:
  gpu-scheduler doctor                   run all checks; exits with 1 when one fails
  gpu-scheduler doctor -o json           for scripts
"""


@click.command(epilog=EXAMPLES)
@output_option("text", "json", "yaml")
@cluster_options
def doctor(target: ClusterTarget, output: str) -> None:
    """Check the cluster and the scheduler, and suggest remedies."""
    from gpu_scheduler.cli.checks.cluster import CheckLevel, worst
    from gpu_scheduler.cli.render.checks import checks_as_json, draw_checks
    from gpu_scheduler.cli.screen import screen_width, show, show_value

    connection, settings = target.connect(), target.settings()
    checks = asyncio.run(examine(connection, settings))
    if output == "text":
        show(draw_checks(checks, screen_width()))
    else:
        show_value(checks_as_json(checks), output)
    if worst(checks) is CheckLevel.FAIL:
        raise click.exceptions.Exit(1)


async def examine(connection: Connection, settings: Settings) -> list[Check]:
    """Runs all checks. A request that fails is a failed check and ends the list."""
    from gpu_scheduler.cli.checks.cluster import Check, CheckLevel
    from gpu_scheduler.k8s.client import Client
    from gpu_scheduler.k8s.errors import ApiError

    checks: list[Check] = []
    async with Client(connection, timeout=REQUEST_TIMEOUT) as client:
        try:
            async for check in _checks(client, connection, settings):
                checks.append(check)  # noqa: PERF401  checks before an error are kept
        except ApiError as error:
            name = "cluster" if checks else "api"
            remedy = "Run kubectl get --raw /version: it shows whether the connection or the account is the problem."
            checks.append(
                Check(name, CheckLevel.FAIL, describe_api_error(connection.server, error.status, error.message), remedy)
            )
    return checks


async def _checks(client: Client, connection: Connection, settings: Settings) -> AsyncIterator[Check]:
    from gpu_scheduler.cli.checks import cluster
    from gpu_scheduler.cli.checks.permissions import needed_permissions
    from gpu_scheduler.cli.checks.webhook import check_webhook, read_webhook_status
    from gpu_scheduler.k8s.discovery import find_served
    from gpu_scheduler.scheduler.snapshot import take_snapshot

    started = time.monotonic()
    version = await client.server_version()
    yield cluster.check_api(connection.server, version, time.monotonic() - started)
    asked = time.time()
    theirs = await client.server_time()
    yield cluster.check_clock(asked, theirs, time.time())
    served = await find_served(client)
    needed = needed_permissions(served, settings.namespace)
    yield cluster.check_permissions(await _find_refused(client, needed), len(needed))
    for check in cluster.check_kinds(served):
        yield check
    view = await take_snapshot(client, settings)
    async for check in _check_scheduler(client, view, settings):
        yield check
    yield cluster.check_nodes(view.engine)
    yield cluster.check_quarantine(view.engine, view.now)
    for check in cluster.check_gangs(view.engine, view.now):
        yield check
    for check in _check_names(view):
        yield check
    for check in check_webhook(await read_webhook_status(client, settings.namespace), view.now):
        yield check


def _check_names(view: ClusterSnapshot) -> Iterator[Check]:
    """Whether annotations, resources and queues are spelt as this cluster knows them."""
    from gpu_scheduler.cli.checks.names import check_annotations, check_queue_names, check_resources

    gangs = view.engine.gangs()
    objects = [view.registry.object_of(gang.key) for gang in gangs]
    pods = [view.pods[pod.uid] for gang in gangs for pod in gang.pods if pod.uid in view.pods]
    found = {one.metadata.uid: one.metadata for one in (*pods, *objects) if one is not None}
    yield check_annotations(found.values())
    yield check_resources(view.engine)
    yield check_queue_names(view.engine)


async def _check_scheduler(client: Client, view: ClusterSnapshot, settings: Settings) -> AsyncIterator[Check]:
    """Checks the leader, and that the Placements agree with the Lease."""
    from gpu_scheduler.cli.checks import cluster
    from gpu_scheduler.gangs.contract import PLACEMENTS
    from gpu_scheduler.k8s.objects import Object
    from gpu_scheduler.k8s.resources import LEASES
    from gpu_scheduler.scheduler.commit.commit_log import CommitLease

    yield cluster.check_leader(view.lease, view.now, view.lease.committed if view.lease is not None else 0)
    if not view.served.has(PLACEMENTS):
        return
    committed: dict[str, str] = {}
    listed = await client.list(PLACEMENTS, settings.namespace, type=Object)
    if view.lease is not None:
        # Read after the Placements: one that is written in between is then at worst not yet committed.
        committed = (await client.get(LEASES, settings.lease_name, settings.namespace, type=CommitLease)).committed
    yield cluster.check_placements({p.metadata.name: p.metadata.uid for p in listed.items}, committed)


async def _find_refused(client: Client, needed: Sequence[Permission]) -> list[Permission]:
    """The permissions that this account does not have."""
    answers = await asyncio.gather(*[_is_allowed(client, permission) for permission in needed])
    return [permission for permission, allowed in zip(needed, answers, strict=True) if not allowed]


async def _is_allowed(client: Client, permission: Permission) -> bool:
    import msgspec

    attributes = {key: value for key, value in permission._asdict().items() if value}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
    return bool(msgspec.json.decode(answer).get("status", {}).get("allowed"))
