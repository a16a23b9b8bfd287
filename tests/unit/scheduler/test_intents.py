"""Intents: writing, reading and deleting Placements."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.events import Bind, Commit, Delete, DeleteCause
from gpu_scheduler.gangs.contract import FINALIZER, PLACEMENTS
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.leader_election import FencedError
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.scheduler.commit import intents as intents_module
from gpu_scheduler.scheduler.commit.intents import BindEntry, Intents, MissingIntentError
from tests.unit.k8s.live_api import answer_with, live_server, lose_request, lose_response, proxied

HERE = "default"


def bind(number: int, devices: tuple[int, ...] = (0, 3)) -> Bind:
    return Bind(f"1b4e28ba-2fa1-11d2-883f-{number:012}", "team", f"train-worker-{number}", 2, "node-17", devices)


def delete(number: int, cause: DeleteCause = DeleteCause.PREEMPTED) -> Delete:
    return Delete(f"uid-{number}", "team", f"old-{number}", cause)


async def names(client: Client) -> list[str]:
    return sorted(p["metadata"]["name"] for p in (await client.list(PLACEMENTS, HERE)).items)


# -- writing and reading


async def test_commit_is_written_under_the_leaders_epoch_and_read_back() -> None:
    commit = Commit(7, (bind(1), bind(2, ())), tuple(delete(i, cause) for i, cause in enumerate(DeleteCause)))
    async with live_server() as (client, _):
        intents = Intents(client, HERE)
        written = await intents.write(3, commit)
        found = await client.get(PLACEMENTS, "3-7-0", HERE)
        assert written == {"3-7-0": found["metadata"]["uid"]}
        assert found["metadata"]["finalizers"] == [FINALIZER]
        about = ("epoch", "sequence", "chunk", "chunks", "size")
        assert [found["spec"][name] for name in about] == [3, 7, 0, 1, 5]
        assert await intents.read(written) == (commit,)


async def test_ten_thousand_binds_are_written_in_chunks_an_api_server_accepts() -> None:
    commit = Commit(0, tuple(bind(i) for i in range(10_000)), tuple(delete(i) for i in range(100)))
    async with proxied() as (client, proxy, bystander):
        async with asyncio.timeout(60):
            written = await Intents(client, HERE).write(12, commit)
        sizes = [sent.size for sent in proxy.sent]
        assert list(written) == [f"12-0-{chunk}" for chunk in range(len(sizes))]
        assert max(sizes) <= 512 * 1024 + 500  # the entries and the metadata
        assert len(sizes) == -(-sum(sizes) // (512 * 1024))
        assert {body["spec"]["chunks"] for body in proxy.bodies("POST")} == {len(sizes)}
        assert sum(body["spec"]["size"] for body in proxy.bodies("POST")) == 10_100
        backwards = dict(reversed(written.items()))
        assert await Intents(bystander, HERE).read(backwards) == (commit,)


async def test_commits_are_read_in_the_order_of_their_sequence() -> None:
    commits = [Commit(number, (bind(number),)) for number in (10, 9, 2)]
    async with live_server() as (client, _):
        intents = Intents(client, HERE)
        written: dict[str, str] = {}
        for epoch, commit in enumerate(commits):
            written |= await intents.write(epoch, commit)
        assert await intents.read(written) == tuple(reversed(commits))
        assert await intents.read({}) == ()


class Shelf:
    """A client that stores created objects."""

    def __init__(self) -> None:
        self.kept: dict[str, Json] = {}

    async def create(self, _resource: Resource, body: object, _namespace: str, **form: type[Any]) -> Any:
        made = msgspec.json.decode(msgspec.json.encode(body))
        made["metadata"]["uid"] = f"uid-{len(self.kept)}"
        self.kept[made["metadata"]["name"]] = made
        return msgspec.convert(made, form["type"])

    async def get(self, _resource: Resource, name: str, _namespace: str, **form: type[Any]) -> Any:
        return msgspec.convert(self.kept[name], form["type"])


texts = st.text(max_size=30)
binds = st.builds(Bind, texts, texts, texts, st.integers(0, 9), texts, st.lists(st.integers(0, 15)).map(tuple))
deletes = st.builds(Delete, texts, texts, texts, st.sampled_from(DeleteCause))
commits = st.builds(Commit, st.integers(0, 99), st.lists(binds).map(tuple), st.lists(deletes).map(tuple))


@given(commit=commits, chunk=st.integers(1_500, 4_000))
@settings(max_examples=80, deadline=None)
def test_every_commit_is_read_as_it_was_written_with_any_chunk_size(commit: Commit, chunk: int) -> None:
    shelf = Shelf()
    intents = Intents(cast(Client, shelf), HERE)

    async def there_and_back() -> None:
        assert await intents.read(await intents.write(1, commit)) == (commit,)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intents_module, "CHUNK", chunk)
        asyncio.run(there_and_back())
    for found in shelf.kept.values():
        entries = found["spec"].get("binds", []), found["spec"].get("deletes", [])
        assert sum(len(msgspec.json.encode(entry)) + 1 for each in entries for entry in each) <= chunk
        assert found["spec"]["chunks"] == len(shelf.kept)


@pytest.mark.parametrize(
    "act", [lose_response, lose_request, answer_with(500)], ids=["response lost", "request lost", "error"]
)
async def test_chunk_is_written_once_although_requests_or_responses_are_lost(act: Any) -> None:
    commit = Commit(0, (bind(1),))
    async with proxied() as (client, proxy, bystander):
        proxy.plan("POST", "/placements", act)
        written = await Intents(client, HERE).write(1, commit)
        assert await names(bystander) == ["1-0-0"]
        assert await Intents(bystander, HERE).read(written) == (commit,)
        assert proxy.count("POST") == 2


async def test_leftover_placement_of_the_same_name_is_replaced() -> None:
    """Epochs start again after a forced deletion of the Lease, so names are used a second time."""
    old, new = Commit(0, (bind(1),)), Commit(0, (bind(2),))
    async with live_server() as (client, _):
        intents = Intents(client, HERE)
        await intents.write(1, old)
        written = await intents.write(1, new)
        assert await intents.read(written) == (new,)


@pytest.mark.parametrize("replaced", [False, True])
async def test_missing_committed_intent_is_an_error(replaced: bool) -> None:
    async with live_server() as (client, _):
        intents = Intents(client, HERE)
        written = await intents.write(1, Commit(0, (bind(1),)))
        await intents.delete(written)
        if replaced:
            await intents.write(1, Commit(0, (bind(1),)))
        with pytest.raises(MissingIntentError, match="the Lease names Placement default/1-0-0, which does not exist"):
            await intents.read(written)


# -- deleting


async def test_deleted_placement_stays_until_its_commit_is_finished() -> None:
    async with live_server() as (client, _):
        intents = Intents(client, HERE)
        commit = Commit(0, (bind(1),))
        written = await intents.write(1, commit)
        await client.delete(PLACEMENTS, "1-0-0", HERE)
        assert await intents.read(written) == (commit,)
        await intents.delete(written)
        assert await names(client) == []


async def test_delete_affects_only_the_placement_with_the_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents_module, "DELETE_ATTEMPTS", 3)
    monkeypatch.setattr(intents_module, "DELETE_BACKOFF", 0.01)
    async with proxied() as (client, proxy, bystander):
        intents = Intents(client, HERE)
        written = await intents.write(1, Commit(0, (bind(1),)))
        other = await intents.write(1, Commit(1, (bind(2),)))
        await intents.delete({"1-9-0": "gone", "1-0-0": "another", **other})
        assert await names(bystander) == ["1-0-0"]
        found = await bystander.get(PLACEMENTS, "1-0-0", HERE)
        assert found["metadata"]["finalizers"] == [FINALIZER]
        for method, act in (("PATCH", answer_with(500)), ("DELETE", lose_request)):
            proxy.plan(method, "1-0-0", act)
        await intents.delete(written)
        assert await names(bystander) == []


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_delete_is_retried_after_a_conflict_of_the_server_with_itself(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intents_module, "DELETE_ATTEMPTS", 3)
    monkeypatch.setattr(intents_module, "DELETE_BACKOFF", 0.01)
    async with proxied() as (client, proxy, bystander):
        intents = Intents(client, HERE)
        written = await intents.write(1, Commit(0, (bind(1),)))
        proxy.plan(method, "1-0-0", answer_with(409))
        await intents.delete(written)
        assert await names(bystander) == []


async def test_failed_deletion_is_repeated_by_the_next_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents_module, "DELETE_ATTEMPTS", 1)
    monkeypatch.setattr(intents_module, "DELETE_BACKOFF", 0.01)
    async with proxied() as (client, proxy, bystander):
        intents = Intents(client, HERE)
        written = await intents.write(1, Commit(0, (bind(1),)))
        kept = await intents.write(1, Commit(1, (bind(2),)))
        proxy.plan("PATCH", "1-0-0", answer_with(500))
        await intents.delete(written)
        assert await names(bystander) == ["1-0-0", "1-1-0"]
        await intents.delete_void(1, kept)
        assert await names(bystander) == ["1-1-0"]


async def test_only_uncommitted_intents_of_earlier_leaders_are_void() -> None:
    async with live_server() as (client, _):
        intents = Intents(client, HERE)
        wrote = [await intents.write(epoch, Commit(epoch, (bind(epoch),))) for epoch in (1, 2, 3, 4)]
        await intents.delete_void(3, wrote[0] | {"2-2-0": "another of that name"})
        assert await names(client) == ["1-1-0", "3-3-0", "4-4-0"]


async def test_fenced_leader_deletes_no_placement_of_another() -> None:
    async def prove() -> None:
        raise FencedError("another leads, by a new Lease whose epochs begin anew")

    async with live_server() as (client, _):
        await Intents(client, HERE).write(1, Commit(0, (bind(1),)))
        late = Intents(client, HERE, prove)
        with pytest.raises(FencedError):
            await late.delete_void(2, {})
        with pytest.raises(FencedError):
            await late.write(1, Commit(0, (bind(2),)))
        assert await names(client) == ["1-0-0"]


@pytest.mark.parametrize("device", [-1, 10**6, "0", 0.5])
def test_a_placement_with_impossible_devices_is_refused(device: object) -> None:
    entry = {"uid": "u", "namespace": "x", "name": "p", "attempt": 0, "node": "n", "devices": [device]}
    with pytest.raises(msgspec.ValidationError, match="devices"):
        msgspec.convert(entry, BindEntry)
