"""The check service: its page, its JSON and its log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html.parser import HTMLParser

import aiohttp
import pytest

from gpu_scheduler.cli.check_page import SERVICE, PodIdentity, as_json, describe, draw_page, read_identity
from gpu_scheduler.cli.check_service import make_routes
from gpu_scheduler.cli.nvidia_smi import Gpu, Gpus, NvidiaSmi
from gpu_scheduler.k8s.health import Health

PLACE = PodIdentity("web-0", "team", "node1", "0,1")
GPUS = Gpus((Gpu(0, "A100", "GPU-1", 81920, 1024, 37), Gpu(1, "A100", "GPU-2", None, None, None)))
EVIL = "<script>alert('1')</script>\"&"

ENVIRONMENTS: dict[str, tuple[Mapping[str, str], PodIdentity]] = {
    "everything": (
        {"POD_NAME": "web-0", "POD_NAMESPACE": "team", "NODE_NAME": "node1", "CUDA_VISIBLE_DEVICES": "0,1"},
        PLACE,
    ),
    "nothing": ({}, PodIdentity("host", "unknown", "unknown", None)),
    "empty values": ({"POD_NAME": "", "CUDA_VISIBLE_DEVICES": ""}, PodIdentity("host", "unknown", "unknown", "")),
}


@pytest.mark.parametrize(("environment", "identity"), ENVIRONMENTS.values(), ids=list(ENVIRONMENTS))
def test_identity_is_read_from_an_environment_with(environment: Mapping[str, str], identity: PodIdentity) -> None:
    assert read_identity(environment, "host") == identity


LOGS: dict[str, tuple[PodIdentity, list[str]]] = {
    "devices": (PLACE, ["CUDA_VISIBLE_DEVICES=0,1", "Pod team/web-0 on node node1"]),
    "none": (PodIdentity("p", "n", "m", None), ["CUDA_VISIBLE_DEVICES is not set", "Pod n/p on node m"]),
    "line breaks": (PodIdentity("p", "n", "m", "0\nfake"), ["CUDA_VISIBLE_DEVICES=0 fake", "Pod n/p on node m"]),
}


@pytest.mark.parametrize(("identity", "lines"), LOGS.values(), ids=list(LOGS))
def test_log_begins_with_the_variable_given(identity: PodIdentity, lines: list[str]) -> None:
    assert describe(identity) == lines


def test_json_has_the_whole_report() -> None:
    found = as_json(PLACE, GPUS)
    assert found["cuda_visible_devices"] == "0,1"
    assert found["gpus"][0] == {
        "index": 0,
        "name": "A100",
        "uuid": "GPU-1",
        "memory_total": 81920,
        "memory_used": 1024,
        "utilization_percent": 37,
    }
    assert found["problem"] is None
    assert as_json(PodIdentity("p", "n", "m", None), Gpus(problem="no"))["problem"] == "no"


class Reader(HTMLParser):
    """The elements and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_page_shows_the_pod_the_devices_and_the_gpus() -> None:
    texts = Reader(draw_page(PLACE, GPUS)).texts
    for text in ("web-0", "team", "node1", "0", "1", "A100", "GPU-1", " 1024 of 81920 MiB", " 37 %", " ? of ? MiB"):
        assert text in texts


HOSTILE: dict[str, tuple[PodIdentity, Gpus]] = {
    "a place": (PodIdentity(EVIL, EVIL, EVIL, EVIL), Gpus()),
    "a card": (PLACE, Gpus((Gpu(0, EVIL, EVIL, 1, 1, 1),))),
    "a failure": (PLACE, Gpus(problem=EVIL)),
}


@pytest.mark.parametrize(("identity", "gpus"), HOSTILE.values(), ids=list(HOSTILE))
def test_page_escapes_the_names_of(identity: PodIdentity, gpus: Gpus) -> None:
    page = Reader(draw_page(identity, gpus))
    assert "script" not in page.tags
    assert EVIL in page.texts
    assert not [name for name, _ in page.attributes if name.startswith("on")]


DEVICES = {"none": (None, "not set"), "an empty value": ("", "empty: no GPU is visible"), "blanks": (" , ", "empty")}


@pytest.mark.parametrize(("devices", "said"), DEVICES.values(), ids=list(DEVICES))
def test_page_describes_a_variable_with(devices: str | None, said: str) -> None:
    assert said in draw_page(PodIdentity("p", "n", "m", devices), Gpus())


def test_page_loads_nothing_from_elsewhere() -> None:
    page = draw_page(PLACE, GPUS)
    assert "http:" not in page
    assert "https:" not in page
    assert {value for name, value in Reader(page).attributes if name in ("src", "href")} == {"/api"}


@asynccontextmanager
async def service() -> AsyncIterator[aiohttp.ClientSession]:
    smi = NvidiaSmi()
    async with (
        Health(SERVICE, routes=make_routes(PLACE, smi)).serving("127.0.0.1:0") as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        yield session
    await smi.close()


FORMS: dict[str, tuple[str, str, str]] = {
    "a browser": ("/", "text/html,application/xhtml+xml,application/json;q=0.5,*/*;q=0.8", "text/html"),
    "curl": ("/", "*/*", "text/html"),
    "a program": ("/", "application/json", "application/json"),
    "a browser at /api": ("/api", "text/html", "application/json"),
    "a probe": ("/health", "*/*", "application/json"),
}


@pytest.mark.parametrize(("path", "accept", "form"), FORMS.values(), ids=list(FORMS))
async def test_response_has_the_format_for(path: str, accept: str, form: str) -> None:
    async with service() as session, session.get(path, headers={"Accept": accept}) as answer:
        assert (answer.status, answer.content_type) == (200, form)
        text = await answer.text()
    assert ("web-0" in text) is (path != "/health")


async def test_page_may_run_no_scripts() -> None:
    async with service() as session, session.get("/") as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


async def test_service_is_healthy_and_lists_its_endpoints() -> None:
    async with service() as session:
        async with session.get("/health") as answer:
            assert await answer.text() == '{"service":"gpu-scheduler-check","status":"healthy"}'
        async with session.get("/nothing") as answer:
            assert answer.status == 404
            assert "GET /, /api, /health" in await answer.text()
        async with session.post("/api") as answer:
            assert answer.status == 405
