"""Health, readiness and metrics endpoints."""

from __future__ import annotations

import socket

import aiohttp
import pytest

from gpu_scheduler.k8s.errors import ConfigError
from gpu_scheduler.k8s.health import Health, split_address


class Service:
    """A service whose health a test sets."""

    def __init__(self) -> None:
        self.well = True
        self.ready = True

    def health(self) -> Health:
        return Health(
            "gpu-scheduler", healthy=lambda: self.well, ready=lambda: self.ready, metrics=lambda: b"things 3\n"
        )


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_a_healthy_service_answers_all_endpoints() -> None:
    async with Service().health().serving("127.0.0.1:0") as port:
        assert await ask(port, "/health") == (200, '{"service":"gpu-scheduler","status":"healthy"}')
        assert await ask(port, "/healthz") == (200, "ok")
        assert await ask(port, "/readyz") == (200, "ok")
        assert await ask(port, "/metrics") == (200, "things 3\n")


async def test_a_service_that_is_not_ready_is_healthy() -> None:
    service = Service()
    service.ready = False
    async with service.health().serving("127.0.0.1:0") as port:
        assert await ask(port, "/readyz") == (503, "not ready")
        assert (await ask(port, "/health"))[0] == 200


async def test_an_unhealthy_service_is_not_ready() -> None:
    service = Service()
    service.well = False
    async with service.health().serving("127.0.0.1:0") as port:
        assert await ask(port, "/health") == (503, '{"service":"gpu-scheduler","status":"unhealthy"}')
        assert await ask(port, "/healthz") == (503, "unhealthy")
        assert await ask(port, "/readyz") == (503, "not ready")


async def test_other_paths_and_methods_are_answered_in_json() -> None:
    async with Service().health().serving("127.0.0.1:0") as port:
        status, text = await ask(port, "/nothing")
        assert (status, text) == (
            404, '{"error": "nothing answers GET here; there is GET /health, /healthz, /readyz, /metrics"}'
        )  # fmt: skip
        assert (await ask(port, "/health", "POST"))[0] == 405


async def test_an_address_in_use_is_reported_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f'cannot listen on "{address}"') as found:
            async with Service().health().serving(address):
                pass
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [(":8080", (None, 8080)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), ("host:1", ("host", 1))],
)
def test_address_is_a_port_with_or_without_a_host(text: str, found: tuple[str | None, int]) -> None:
    assert split_address(text) == found


@pytest.mark.parametrize("text", ["", "8080", "host", ":", ":x", ":70000", ":-1", "::1:80"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a port"):
        split_address(text)
