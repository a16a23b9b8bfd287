"""The API server in this process, for tests over HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.registry.options import RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.server import ApiServerConfig, make_app
from embedded_kube.storage.store import Store
from gpu_scheduler.k8s.objects import Json

PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


async def admit_all(
    _op: str, _kind: ServedKind, found: Json, _old: Json | None, _options: RequestOptions
) -> tuple[Json, list[str]]:
    """Admission that changes nothing."""
    return found, []


class ApiClient:
    """An HTTP client of an API server in this process."""

    def __init__(self, registry: ObjectRegistry, client: TestClient[Any, Any]) -> None:
        self.registry = registry
        self.client = client

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Json]:
        """Sends a request; returns status code and body."""
        response = await self.send(method, path, body, **more)
        return response.status, json.loads(await response.read())

    async def send(self, method: str, path: str, body: Any = None, **more: Any) -> ClientResponse:
        """Sends a request; returns the response, whose body is not read yet."""
        if body is not None and not isinstance(body, (bytes, str)):
            more["json"] = body
        elif body is not None:
            more["data"] = io.BytesIO(body if isinstance(body, bytes) else body.encode())
        return await self.client.request(method, path, **more)

    async def create(self, path: str, found: Json) -> Json:
        """Creates an object."""
        status, answer = await self.ask("POST", path, found)
        assert status == 201, answer
        return answer

    async def names(self, path: str) -> list[str]:
        """The names of the objects in a list."""
        status, answer = await self.ask("GET", path)
        assert status == 200, answer
        return [item["metadata"]["name"] for item in answer["items"]]


@asynccontextmanager
async def api_server(
    version: str = "1.35", kinds: tuple[ServedKind, ...] = (), **config: Any
) -> AsyncIterator[ApiClient]:
    """A server with the namespaces "default" and "other", and a client of it."""
    store = Store(None)
    table = KindTable(builtin_kinds(version))
    for kind in kinds:
        table.put(kind)
    schemas = Schemas(version)
    api = ObjectRegistry(store, table, schemas, admit_all)
    for name in ("default", "other"):
        await api.create(api.find("namespaces"), "", {"metadata": {"name": name}}, RequestOptions())
    app = make_app(api, ApiServerConfig(schemas, version, **config))
    try:
        async with TestClient(TestServer(app)) as client:
            yield ApiClient(api, client)
    finally:
        store.close()


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> Json:
    """A ConfigMap."""
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def pod(name: str, **spec: Any) -> Json:
    """A pod of one container."""
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "x"}], **spec}}


def widget(version: str = "v1", group: str = "example.org", **more: Any) -> ServedKind:
    """A custom kind that accepts any content."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return ServedKind(group, version, "Widget", "widgets", crd_schema=schema, **more)
