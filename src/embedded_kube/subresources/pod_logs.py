"""pods/log: selects the container, checks that it has logs, and streams them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime

from aiohttp import web

from embedded_kube import errors
from embedded_kube.errors import Cause, StatusError
from embedded_kube.subresources.kubelet import Kubelet, Kubelets, PodLogOptions
from gpu_scheduler.k8s.objects import Json

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_WAITING = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}

_FIRST_CHUNK_TIMEOUT = 0.5
"""Seconds to wait for the first chunk before the response starts; an error before that has a status code."""


def is_true(query: Mapping[str, str], name: str) -> bool:
    """A boolean query parameter: true unless missing, "false" or "0"."""
    return name in query and query[name].lower() not in ("false", "0")


def find_container(pod: Json, name: str) -> str:
    """The selected container; BadRequest (400) if it does not exist or is ambiguous."""
    spec, pod_name = pod["spec"], pod["metadata"]["name"]
    if name:
        if not any(c["name"] == name for field in _CONTAINERS for c in spec.get(field) or ()):
            raise errors.bad_request(f"container {name} is not valid for pod {pod_name}")
        return name
    names = [container["name"] for container in spec["containers"]]
    if len(names) == 1:
        return str(names[0])
    message = f"a container name must be specified for pod {pod_name}, choose one of: [{' '.join(names)}]"
    first = [container["name"] for container in spec.get("initContainers") or ()]
    if first:
        message += f" or one of the init containers: [{' '.join(first)}]"
    raise errors.bad_request(message)


def container_status(pod: Json, name: str) -> Json | None:
    """The status of a container, or None."""
    status = pod.get("status", {})
    return next((c for field in _STATUSES for c in status.get(field) or () if c["name"] == name), None)


def find_kubelet(pod: Json, kubelets: Kubelets) -> Kubelet:
    """The node agent of a pod; InternalError (500) if its node has none."""
    node = pod["spec"]["nodeName"]
    kubelet = kubelets.get(node)
    if kubelet is None:
        raise errors.internal_error(f'node "{node}" has no kubelet that can be reached from here')
    return kubelet


def read_log_options(query: Mapping[str, str], container: str) -> PodLogOptions:
    """Parses the query of pods/log; Invalid (422) if it is wrong."""
    numbers = {name: _number(query, name) for name in ("tailLines", "limitBytes", "sinceSeconds")}
    causes = [
        Cause(name, f"Invalid value: {value}: must be greater than {'or equal to ' if least == 0 else ''}0")
        for name, least in (("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1))
        if (value := numbers[name]) is not None and value < least
    ]
    since: float | None = numbers["sinceSeconds"]
    if query.get("sinceTime"):
        if since is not None:
            causes.append(
                Cause("sinceTime", "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified")
            )
        since = _seconds_since(query["sinceTime"])
    if causes:
        raise errors.invalid("PodLogOptions", "", "", causes)
    return PodLogOptions(
        container=container,
        follow=is_true(query, "follow"),
        previous=is_true(query, "previous"),
        timestamps=is_true(query, "timestamps"),
        tail_lines=numbers["tailLines"],
        since_seconds=since,
        limit_bytes=numbers["limitBytes"],
    )


def check_has_logs(pod: Json, options: PodLogOptions) -> None:
    """Raises BadRequest (400), as a kubelet does, for a container that has not started."""
    name, pod_name = options.container, pod["metadata"]["name"]
    status = container_status(pod, name)
    if status is None:
        raise errors.bad_request(f'container "{name}" in pod "{pod_name}" is not available')
    state, ended = status.get("state") or {}, (status.get("lastState") or {}).get("terminated")
    if options.previous:
        if not ended:
            raise errors.bad_request(f'previous terminated container "{name}" in pod "{pod_name}" not found')
    elif "running" not in state and "terminated" not in state and not ended:
        reason = (state.get("waiting") or {}).get("reason")
        why = f": {_WAITING.get(reason, reason)}" if reason else " - no logs yet"
        raise errors.bad_request(f'container "{name}" in pod "{pod_name}" is waiting to start{why}')


async def send_logs(request: web.Request, pod: Json, kubelets: Kubelets) -> web.StreamResponse:
    """Sends the logs of a pod; with `follow`, until the container ends or the client disconnects."""
    options = read_log_options(request.query, find_container(pod, request.query.get("container", "")))
    if not pod["spec"].get("nodeName"):
        return web.Response(status=204)
    check_has_logs(pod, options)
    chunks = find_kubelet(pod, kubelets).logs(pod, options)
    response = web.StreamResponse(headers={"Content-Type": "text/plain", "Cache-Control": "no-cache, private"})
    read_task = asyncio.ensure_future(_read_chunk(chunks))
    try:
        # An error can be sent only before the response has started.
        await asyncio.wait({read_task}, timeout=_FIRST_CHUNK_TIMEOUT)
        if read_task.done():
            read_task.result()
        await response.prepare(request)
        while (chunk := await _next_chunk(request, read_task)) is not None:
            await response.write(chunk)
            read_task = asyncio.ensure_future(_read_chunk(chunks))
        await response.write_eof()
    except ConnectionError:
        pass
    finally:
        read_task.cancel()
        await asyncio.gather(read_task, return_exceptions=True)
        if hasattr(chunks, "aclose"):
            await chunks.aclose()
    return response


async def _read_chunk(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


async def _next_chunk(request: web.Request, read_task: asyncio.Future[bytes | None]) -> bytes | None:
    """The next chunk; None at the end, or when the client has disconnected."""
    while not read_task.done():
        if request.transport is None or request.transport.is_closing():
            return None
        await asyncio.wait({read_task}, timeout=1)
    try:
        return read_task.result()
    except StatusError:
        return None


def _number(query: Mapping[str, str], name: str) -> int | None:
    if not query.get(name):
        return None
    try:
        return int(query[name])
    except ValueError:
        raise errors.bad_request(f"{name}: {query[name]!r} is not a whole number") from None


def _seconds_since(text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise errors.bad_request(f"sinceTime: {text!r} is not a time such as 2025-07-11T01:19:26Z") from None
    return max(0.0, (datetime.now(UTC) - time.astimezone(UTC)).total_seconds())
