"""The test run of `validate`: reads the cluster, starts the test pods, waits for them, and removes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from gpu_scheduler.base.text import count, join, one_line
from gpu_scheduler.cli.checks.cluster import CheckLevel
from gpu_scheduler.cli.checks.webhook import check_webhook, read_webhook_status
from gpu_scheduler.cli.render.leader import leader_problem
from gpu_scheduler.cli.render.text import draw_age
from gpu_scheduler.cli.validation.comparison import (
    NAMESPACE,
    NODE_LABEL,
    REFUSED,
    ObservedCluster,
    ObservedNode,
    ObservedPod,
    ObservedScheduler,
    read_printed,
    read_trouble,
    read_values,
    read_wanted,
)
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound, Refused, Undecided
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import LEASES, NAMESPACES, NODES, PODS
from gpu_scheduler.k8s.times import parse_time
from gpu_scheduler.scheduler.commit.commit_log import CommitLease
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.snapshot import LeaseView

T = TypeVar("T")

POLL_INTERVAL = 0.5
"""Seconds between two reads of the pods."""

LOG_TIMEOUT = 30.0
"""Seconds until a running container must have printed its line; a simulated one never does."""

ACCOUNT_TIMEOUT = 15.0
"""Seconds until a new namespace must have its default service account, without which no pod can be created."""

CLEANUP_TIMEOUT = 60.0
"""Seconds for the removal of all objects."""


class ValidationSetupError(Exception):
    """The test pods cannot be started."""


# -- the cluster


async def read_cluster(client: Client, gpu_resources: Iterable[str]) -> ObservedCluster:
    """Reads the server version and the nodes."""
    version = await client.server_version()
    nodes = (await client.list(NODES)).items
    seen = sorted((_read_node(node, gpu_resources) for node in nodes), key=lambda node: node.name)
    return ObservedCluster(client.connection.server, version, tuple(seen), time.time())


def _read_node(node: Json, gpu_resources: Iterable[str]) -> ObservedNode:
    meta, status = node["metadata"], node.get("status") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    offered = status.get("allocatable") or {}
    gpus = sum(int(offered.get(name, 0)) for name in gpu_resources)
    return ObservedNode(meta["name"], (meta.get("labels") or {}).get(NODE_LABEL, ""), ready, gpus)


async def read_scheduler(client: Client, settings: Settings) -> ObservedScheduler:
    """Reads the leader and the state of the webhook."""
    leader, problem = await _read_leader(client, settings)
    webhook, trouble = await _read_webhook(client, settings.namespace)
    return ObservedScheduler(leader, problem, webhook, trouble)


async def _read_leader(client: Client, settings: Settings) -> tuple[str, str]:
    lease = None
    try:
        found = await client.get(LEASES, settings.lease_name, settings.namespace, type=CommitLease)
        lease = LeaseView(found.spec.holder_identity, found.epoch, parse_time(found.spec.renew_time), 0)
    except NotFound:
        pass
    except ApiError as error:
        return "", f"Cannot read the Lease: {one_line(error.message)}"
    now = time.time()
    problem = leader_problem(lease, now)
    if problem or lease is None:
        return "", problem
    return f"{lease.holder}, renewed {draw_age(now - (lease.renewed or now))} ago", ""


async def _read_webhook(client: Client, system: str) -> tuple[str, str]:
    """What is in order about the webhook and what is not, as `doctor` reports it; empty when there is none."""
    status = await read_webhook_status(client, system)
    if not status.hooks and not status.hidden:
        return "", ""
    checks = list(check_webhook(status, time.time()))
    texts = {check: check.message if check.name == "webhook" else f"{check.name} {check.message}" for check in checks}
    good = [text for check, text in texts.items() if check.level is CheckLevel.OK]
    return ", ".join(good), "; ".join(check.message for check in checks if check.level is not CheckLevel.OK)


# -- the pods


class ValidationRun:
    """The test pods of one run. It records every object that it creates, so that `clean_up` removes exactly those."""

    def __init__(self, client: Client, manifest: list[Json], report: Callable[[str], None]) -> None:
        self._client = client
        self._namespace, *self._pods = manifest
        self._report = report
        self._namespace_uid: str | None = None
        self._uids: dict[str, str] = {}
        """The created pods by name; the uid is empty while it is unknown whether the server has created the pod."""
        self._refusals: dict[str, str] = {}
        self._running_since: dict[str, float] = {}

    async def prepare(self, replace: bool, timeout: float) -> None:  # noqa: ASYNC109
        """Creates the namespace if it does not exist; with `replace`, deletes existing pods with the same names."""
        async with asyncio.timeout(timeout):
            while (found := await self._find_namespace()) is not None and found["metadata"].get("deletionTimestamp"):
                self._report(f"Namespace {NAMESPACE} is being deleted; waiting.")
                await self._until_gone(self._find_namespace)
            if found is None:
                await _uncancelled(self._create_namespace())
                return
            taken = await self._find_pods({pod["metadata"]["name"] for pod in self._pods})
            if taken and not replace:
                names = ", ".join(sorted(taken))
                raise ValidationSetupError(
                    f"{names} already exist in namespace {NAMESPACE}, from an earlier run or from examples/08-gpu-map; "
                    "delete them, or use --replace"
                )
            for name, pod in taken.items():
                self._report(f"Deleting {name} of an earlier run.")
                await self._delete(name, pod["metadata"]["uid"])
            await self._until_gone(lambda: self._find_pods(set(taken)))

    async def start(self) -> None:
        """Creates the pods, and records the reason for each that the server refuses."""
        end = time.monotonic() + ACCOUNT_TIMEOUT
        for pod in self._pods:
            name = pod["metadata"]["name"]
            while True:
                try:
                    await _uncancelled(self._create_pod(name, pod))
                except ApiError as error:
                    no_account = error.status == 403 and "serviceaccount" in error.message and time.monotonic() < end
                    if no_account:
                        await asyncio.sleep(POLL_INTERVAL)
                        continue
                    self._refusals[name] = one_line(error.message)
                break

    async def wait(self, cluster: ObservedCluster, timeout: float) -> tuple[ObservedPod, ...]:  # noqa: ASYNC109
        """Waits until no pod will change any more, or for the timeout; returns the pods."""
        end, reported = time.monotonic() + timeout, ""
        while True:
            found = await self._find_pods(set(self._uids))
            seen = [await self._observe(pod, found.get(pod["metadata"]["name"])) for pod in self._pods]
            scheduled, running = sum(bool(p.node) for p in seen), sum(p.status == "Running" for p in seen)
            progress = f"{scheduled} of {count(len(seen), 'pod')} scheduled, {running} running"
            if progress != reported:
                self._report(progress)
                reported = progress
            if time.monotonic() >= end or all(_is_settled(pod, cluster) for pod in seen):
                return tuple(seen)
            await asyncio.sleep(POLL_INTERVAL)

    async def clean_up(self) -> list[str]:
        """Removes the pods, and the namespace if it was created; returns what could not be removed, and why."""
        return await _uncancelled(self._clean_up())

    async def _clean_up(self) -> list[str]:
        left: list[str] = []
        try:
            async with asyncio.timeout(CLEANUP_TIMEOUT):
                for name, uid in self._uids.items():
                    await _collect(left, f"pod {NAMESPACE}/{name}", self._delete(name, uid))
                await _collect(left, f"pods in {NAMESPACE}", self._until_gone(lambda: self._find_pods(set(self._uids))))
                if self._namespace_uid is not None:
                    await _collect(left, f"namespace {NAMESPACE}", self._remove_namespace(self._namespace_uid))
        except TimeoutError:
            names = join(sorted(self._uids))
            left.append(f"{names} in {NAMESPACE}: not deleted within {CLEANUP_TIMEOUT:g} s")
        return left

    # -- single requests

    async def _find_namespace(self) -> Json | None:
        try:
            return await self._client.get(NAMESPACES, NAMESPACE)
        except NotFound:
            return None

    async def _find_pods(self, names: set[str]) -> dict[str, Json]:
        if not names:
            return {}
        found = {pod["metadata"]["name"]: pod for pod in (await self._client.list(PODS, NAMESPACE)).items}
        return {name: found[name] for name in found if name in names and _is_ours(found[name], self._uids)}

    async def _create_namespace(self) -> None:
        self._namespace_uid = ""
        try:
            created = await self._client.create(NAMESPACES, self._namespace)
        except ApiError as error:
            if not isinstance(error, Undecided):
                self._namespace_uid = None
            raise
        self._namespace_uid = created["metadata"]["uid"]

    async def _create_pod(self, name: str, pod: Json) -> None:
        self._uids[name] = ""
        try:
            created = await self._client.create(PODS, pod, NAMESPACE)
        except ApiError as error:
            if not isinstance(error, Undecided):
                del self._uids[name]
            raise
        self._uids[name] = created["metadata"]["uid"]

    async def _delete(self, name: str, uid: str) -> None:
        with suppress(NotFound, Conflict):  # deleted, or replaced by another pod with this name
            await self._client.delete(PODS, name, NAMESPACE, uid=uid)

    async def _remove_namespace(self, uid: str) -> None:
        others = [pod["metadata"]["name"] for pod in (await self._client.list(PODS, NAMESPACE)).items]
        if others:
            self._report(f"Namespace {NAMESPACE} is kept: it now contains {join(others)}.")
            return
        with suppress(NotFound, Conflict):
            await self._client.delete(NAMESPACES, NAMESPACE, uid=uid)

    async def _until_gone(self, find: Callable[[], Awaitable[object]]) -> None:
        while await find():  # noqa: ASYNC110 - polls the API
            await asyncio.sleep(POLL_INTERVAL)

    # -- the outcome of a pod

    async def _observe(self, pod: Json, found: Json | None) -> ObservedPod:
        wanted = read_wanted(pod)
        if found is None:
            refusal = self._refusals.get(wanted.pod)
            if refusal is not None:
                return ObservedPod(wanted, REFUSED, trouble=refusal)
            return ObservedPod(wanted, "gone", trouble="it was deleted")
        status, trouble = read_trouble(found)
        printed, problem = await self._read_log(found) if status == "Running" else (None, "")
        node = found["spec"].get("nodeName", "")
        return ObservedPod(wanted, status, node, read_values(found), trouble, printed, problem)

    async def _read_log(self, pod: Json) -> tuple[str | None, str]:
        """The value that the container printed, or the problem with its log; neither while it may still come."""
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        since = self._running_since.setdefault(name, time.monotonic())
        try:
            path = PODS.path(NAMESPACE, name, "log")
            text = (await self._client.request("GET", path, params={"container": container})).decode(errors="replace")
        except Refused as error:
            problem = one_line(error.message)
            return None, problem if error.status != 400 or time.monotonic() - since > LOG_TIMEOUT else ""
        except ApiError as error:
            return None, one_line(error.message)
        printed = read_printed(text)
        late = printed is None and time.monotonic() - since > LOG_TIMEOUT
        return printed, "it is empty" if late else ""


def _is_ours(pod: Json, uids: dict[str, str]) -> bool:
    """Whether this run created the pod, as far as is known."""
    known = uids.get(pod["metadata"]["name"], "")
    return not known or pod["metadata"]["uid"] == known


def _is_settled(pod: ObservedPod, cluster: ObservedCluster) -> bool:
    """Whether the pod will not change any more."""
    if pod.values is None or pod.status in ("Succeeded", "Failed"):
        return True
    if not pod.node:
        return len(cluster.find(pod.wanted.node)) != 1
    return pod.status == "Running" and (pod.printed is not None or bool(pod.log_problem))


async def _collect(left: list[str], what: str, work: Awaitable[None]) -> None:
    try:
        await work
    except ApiError as error:
        left.append(f"{what}: {one_line(error.message)}")


async def _uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Completes a request even when the task is cancelled: only recorded objects can be removed."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
