"""Our CustomResourceDefinitions in the local API server, and the patches of dialects against it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from embedded_kube.schema.crds import kinds_of
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.model import GangKey, Notes
from gpu_scheduler.gangs.contract import PLACEMENTS, QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.definitions import DEFINITIONS, load_definitions, load_gang_definitions
from gpu_scheduler.gangs.dialects import StatusMessage, StatusUpdate, choose_resources, dialect_of
from gpu_scheduler.gangs.queues import QueueRegistry, QueueUse
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.discovery import find_served
from gpu_scheduler.k8s.errors import Conflict, Refused
from gpu_scheduler.k8s.objects import Json, RawObject
from tests.embedded_kube.servers import api_server
from tests.unit.gangs.gang_fixtures import LATER, NOW, context, status
from tests.unit.gangs.pods import GPU, GPUS


@asynccontextmanager
async def client(version: str = "1.35") -> AsyncIterator[Client]:
    """An API server with all kinds of gangs and queues."""
    kinds = tuple(kind for found in (*load_definitions(), *load_gang_definitions()) for kind in kinds_of(found))
    async with api_server(version, kinds) as api, Client(Connection(str(api.client.make_url("")))) as found:
        yield found


async def test_the_definitions_are_accepted_as_they_are() -> None:
    async with client() as api:
        for definition in load_definitions():
            made = await api.create(DEFINITIONS, definition)
            assert made["spec"]["versions"] == definition["spec"]["versions"]


def test_short_names_do_not_collide_with_those_of_other_gang_kinds() -> None:
    ours = [name for found in load_definitions() for name in found["spec"]["names"]["shortNames"]]
    theirs = [name for found in load_gang_definitions() for name in found["spec"]["names"]["shortNames"]]
    assert sorted(ours) == ["gpl", "gq"]
    assert not set(ours) & set(theirs)


def test_the_schema_of_placements_lists_every_cause_of_a_delete() -> None:
    spec = load_definitions()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert spec["x-kubernetes-validations"][0]["rule"] == "self == oldSelf"
    causes = spec["properties"]["deletes"]["items"]["properties"]["cause"]["enum"]
    assert set(causes) == {cause.value for cause in DeleteCause}


def placement(**spec: Any) -> Json:
    """A Placement."""
    bind = {"uid": "u", "namespace": "x", "name": "p", "attempt": 0, "node": "n1", "devices": [0, 1]}
    base = {"epoch": 1, "sequence": 2, "chunk": 0, "chunks": 1, "size": 1, "binds": [bind], "deletes": []}
    return {
        "apiVersion": "gpu-scheduler.io/v1alpha1",
        "kind": "Placement",
        "metadata": {"name": "1-2-0"},
        "spec": base | spec,
    }


async def test_a_placement_is_stored_unchanged() -> None:
    async with client() as api:
        made = await api.create(PLACEMENTS, placement(), "default")
        assert made["spec"] == placement()["spec"]
        whim = placement(deletes=[{"uid": "u", "namespace": "x", "name": "p", "cause": "whim"}])
        with pytest.raises(Refused, match="cause"):
            await api.create(PLACEMENTS, whim, "default")
        sizeless = placement()
        del sizeless["spec"]["size"]
        with pytest.raises(Refused, match="size"):
            await api.create(PLACEMENTS, sizeless, "default")


def queue(name: str = "blue", **spec: Any) -> Json:
    """A queue of ours."""
    return {"apiVersion": "gpu-scheduler.io/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def test_the_page_about_queues_has_a_row_for_every_field() -> None:
    spec = load_definitions()[1]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    fields = dict(spec["properties"])
    fields |= {f"preemption.{name}": one for name, one in fields.pop("preemption")["properties"].items()}
    page = (Path(__file__).parents[3] / "docs" / "queues.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` \| .* \| (.*) \| .* \|$", page, re.MULTILINE))
    assert rows.keys() == fields.keys()
    for name, field in fields.items():
        if "default" in field:
            assert rows[name] == f"`{json.dumps(field['default']).strip(chr(34))}`", name


async def test_a_queue_gets_its_defaults_and_the_status_of_its_use() -> None:
    async with client() as api:
        made = await api.create(QUEUES, queue(quota={GPU: 8, "cpu": "500m"}), type=RawObject)
        assert made.spec == {
            "priority": 0,
            "weight": 1,
            "quota": {GPU: 8, "cpu": "500m"},
            "lending": True,
            "borrowing": True,
            "reclaimable": True,
            "minRuntimeSeconds": 0,
            "closed": False,
        }
        ruled = await api.create(QUEUES, queue("green", preemption={}))
        assert ruled["spec"]["preemption"] == {"withinQueue": "LowerPriority", "acrossQueues": "Fair"}
        volcano = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "red"}}
        registry = QueueRegistry()
        registry.on_changed(QUEUES, made)
        registry.on_changed(VOLCANO_QUEUES, await api.create(VOLCANO_QUEUES, volcano | {"spec": {}}, type=RawObject))
        use = QueueUse(1, 1, 2, 0, {GPU: 9500, "cpu": 250})
        for name, resource in (("blue", QUEUES), ("red", VOLCANO_QUEUES)):
            for patch in registry.encode(name, use, GPUS):
                await api.patch(resource, patch.name, patch.body, subresource=patch.subresource)
            registry.on_changed(resource, await api.get(resource, name, type=RawObject))
            assert registry.encode(name, use, GPUS) == []


@pytest.mark.parametrize(
    "spec", [{"weight": 0}, {"quota": {GPU: "many"}}, {"limit": {GPU: "-1"}}, {"allowedNamespaces": "x"}]
)
async def test_an_invalid_queue_is_refused(spec: Json) -> None:
    async with client() as api:
        with pytest.raises(Refused):
            await api.create(QUEUES, queue(**spec))


NATIVE = {"schedulingPolicy": {"gang": {"minCount": 4}}}
LIVES = (
    status(Phase.GATHERING, 0, 2),
    status(Phase.WAITING, 0, 4, timed_out=True, notes=Notes(target=("n1",))),
    status(Phase.COMMITTING, 0, 0),
    status(Phase.RUNNING, 4),
    status(Phase.HOLDING, 3, failed=1, notes=Notes(below_since=NOW)),
    status(Phase.RESTARTING, 2),
    status(Phase.RUNNING, 4),
    status(Phase.FINISHED, succeeded=4),
)


@pytest.mark.parametrize(
    ("version", "key", "spec"),
    [
        ("1.35", GangKey("volcano", "default", "train"), {"minMember": 4, "minResources": {"cpu": "4"}}),
        ("1.35", GangKey("scheduler-plugins", "default", "train"), {"minMember": 4}),
        (
            "1.35",
            GangKey("workload", "default", "train/workers/0"),
            {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": 4, "timeout": 5}}}]},
        ),
        ("1.36", GangKey("podgroup", "default", "train"), NATIVE),
        ("1.37", GangKey("podgroup", "default", "train"), NATIVE),
    ],
)
async def test_an_api_server_accepts_every_status_of_a_gang(version: str, key: GangKey, spec: Json) -> None:
    dialect = dialect_of(key)
    async with client(version) as api:
        served = await find_served(api)
        resource = choose_resources(served.has)[key.dialect]
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "train"}, "spec": spec}
        raw = await api.create(resource, body, "default", type=RawObject)
        around = context(workload_status=True)
        around.resources = {key.dialect: resource}
        for number, life in enumerate(LIVES):
            telling = StatusUpdate(
                life, StatusMessage("Reason", f"message {number}"), NOW + number, (key,), "default/job"
            )
            for patch in dialect.encode(key, raw, telling, around):
                await api.patch(resource, patch.name, patch.body, patch.namespace, patch.subresource)
            raw = await api.get(resource, "train", "default", type=RawObject)
            assert dialect.encode(key, raw, telling._replace(now=LATER), around) == []
            gang = dialect.decode(key, raw, (), around)
            assert gang is not None
            assert (gang.notes.below_since, gang.notes.target) == (life.notes.below_since, life.notes.target)


async def test_a_patch_does_not_apply_to_a_later_object_of_the_same_name() -> None:
    key = GangKey("volcano", "default", "train")
    async with client() as api:
        resource = choose_resources((await find_served(api)).has)["volcano"]
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "train"}, "spec": {}}
        raw = await api.create(resource, body, "default", type=RawObject)
        found: Status = status(Phase.HOLDING, 3, notes=Notes(below_since=NOW))
        patches = dialect_of(key).encode(key, raw, StatusUpdate(found, StatusMessage("R", "m"), NOW), context())
        await api.delete(resource, "train", "default")
        await api.create(resource, body, "default")
        for patch in patches:
            with pytest.raises((Conflict, Refused)):
                await api.patch(resource, patch.name, patch.body, patch.namespace, patch.subresource)
