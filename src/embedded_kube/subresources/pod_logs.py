"""The logs of a pod: which container is meant, whether it has any, and how they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime

from aiohttp import web

from embedded_kube import errors
from embedded_kube.errors import ApiError, Cause
from embedded_kube.storage.store import Json
from embedded_kube.subresources.kubelet import Kubelet, Kubelets, LogOptions

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_WAITING = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}

_PATIENCE = 0.5
"""How long an answer waits for a first piece, in case that is an error; then it begins empty."""


def is_true(query: Mapping[str, str], name: str) -> bool:
    """A flag of a query, as API servers read it: there and not clearly false."""
    return name in query and query[name].lower() not in ("false", "0")


def find_container(pod: Json, name: str) -> str:
    """The container that is meant; 400 when that is none, or not clear."""
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
    """What a pod's status says about a container."""
    status = pod.get("status", {})
    return next((c for field in _STATUSES for c in status.get(field) or () if c["name"] == name), None)


def find_kubelet(pod: Json, kubelets: Kubelets) -> Kubelet:
    """The node agent that runs a pod; 500 when nobody answers for the node."""
    node = pod["spec"]["nodeName"]
    kubelet = kubelets.get(node)
    if kubelet is None:
        raise errors.internal(f'node "{node}" has no kubelet that can be reached from here')
    return kubelet


def read_log_options(query: Mapping[str, str], container: str) -> LogOptions:
    """The query of a request for logs; 422 names what is wrong with it."""
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
    return LogOptions(
        container=container,
        follow=is_true(query, "follow"),
        previous=is_true(query, "previous"),
        timestamps=is_true(query, "timestamps"),
        tail_lines=numbers["tailLines"],
        since_seconds=since,
        limit_bytes=numbers["limitBytes"],
    )


def check_has_logs(pod: Json, options: LogOptions) -> None:
    """Refuses, as a kubelet does, to show the logs of a container that has not run; 400."""
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
    """Answers a request for a pod's logs; with `follow` until the container ends or the client has gone."""
    options = read_log_options(request.query, find_container(pod, request.query.get("container", "")))
    if not pod["spec"].get("nodeName"):
        return web.Response(status=204)
    check_has_logs(pod, options)
    pieces = find_kubelet(pod, kubelets).logs(pod, options)
    response = web.StreamResponse(headers={"Content-Type": "text/plain", "Cache-Control": "no-cache, private"})
    reading = asyncio.ensure_future(_next(pieces))
    try:
        # An error can only be told as long as the answer has not begun.
        await asyncio.wait({reading}, timeout=_PATIENCE)
        if reading.done():
            reading.result()
        await response.prepare(request)
        while (piece := await _piece(request, reading)) is not None:
            await response.write(piece)
            reading = asyncio.ensure_future(_next(pieces))
        await response.write_eof()
    except ConnectionError:
        pass
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        if hasattr(pieces, "aclose"):
            await pieces.aclose()
    return response


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _piece(request: web.Request, reading: asyncio.Future[bytes | None]) -> bytes | None:
    """The next piece; None at the end, which is also when nobody listens any more."""
    while not reading.done():
        if request.transport is None or request.transport.is_closing():
            return None
        await asyncio.wait({reading}, timeout=1)
    try:
        return reading.result()
    except ApiError:
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
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise errors.bad_request(f"sinceTime: {text!r} is not a time such as 2025-07-11T01:19:26Z") from None
    return max(0.0, (datetime.now(UTC) - moment.astimezone(UTC)).total_seconds())
