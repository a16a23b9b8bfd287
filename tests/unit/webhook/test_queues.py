"""Reviews of queues: their fields, their place in the tree, and the list of the other queues."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from embedded_kube.schema.crds import kinds_of
from gpu_scheduler.core.model import Queue
from gpu_scheduler.gangs.contract import QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.definitions import load_definitions, load_gang_definitions
from gpu_scheduler.gangs.queue_tree import QueueTree
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.webhook.queues import listing
from gpu_scheduler.webhook.queues.listing import QueueLister
from gpu_scheduler.webhook.requests import BadReview
from tests.embedded_kube.servers import api_server
from tests.unit.webhook.reviewing import GPU, ReviewResult, pod, review, validate

RESOURCE = "gpu-scheduler.io/v1alpha1/queues"
TREE = QueueTree(
    [
        Queue("company", quota={GPU: 16}, limit={GPU: 32}),
        Queue("research", parent="company", quota={GPU: 8}),
        Queue("vision", parent="research"),
    ]
)


def queue(name: str = "sales", meta: Json | None = None, **spec: Any) -> Json:
    """A queue of ours."""
    return {"kind": "Queue", "metadata": {"name": name, **(meta or {})}, "spec": spec}


def check(body: Json, old: Json | None = None, queues: QueueTree | None = TREE) -> ReviewResult:
    """The response to a new queue, or to a changed one."""
    operation = "CREATE" if old is None else "UPDATE"
    return validate(body, RESOURCE, operation=operation, old=old, namespace="", queues=queues)


# -- checks


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (queue(weight=0), "spec.weight: 0 is not a whole number of 1 or more"),
        (queue("root"), "metadata.name: 'root' is reserved for the top of the tree; choose another name"),
        (
            queue(parent="sales"),
            "spec.parent: a queue cannot be its own parent; name another queue, or leave the field out",
        ),
        (
            queue("company", parent="vision"),
            "spec.parent: 'vision' is itself below queue company; name a queue that is not",
        ),
        (queue(parent="reserch"), "spec.parent: there is no queue 'reserch'; did you mean research?"),
        (
            queue(parent="company", quota={GPU: 9}),
            f"spec.quota['{GPU}']: with 9 the children of queue company have 17 together, above its quota of 16; "
            "write at most 8",
        ),
        (
            queue(parent="company", limit={GPU: 33}),
            f"spec.limit['{GPU}']: 33 is above the limit of its parent company, 32; write at most 32",
        ),
        (
            queue("company", quota={GPU: 4}),
            f"spec.quota['{GPU}']: 4 is below the quotas of its children together; write at least 8",
        ),
    ],
)
def test_a_mistake_is_refused_in_one_line_with_the_field(body: Json, problem: str) -> None:
    result = check(body)
    assert (result.code, result.message) == (422, problem)


@pytest.mark.parametrize(
    "body",
    [
        queue(),
        queue(parent="company", quota={GPU: 8}, limit={GPU: 32}, lending=False, minRuntimeSeconds=60),
        queue("vision", parent="research", preemption={"acrossQueues": "Never"}),
        queue("", meta={"generateName": "team-"}, parent="company"),
    ],
    ids=["top-level", "child", "changed", "generated-name"],
)
def test_a_queue_that_fits_the_tree_is_allowed(body: Json) -> None:
    assert check(body).allowed


def test_without_the_other_queues_only_the_fields_of_the_queue_are_checked() -> None:
    assert check(queue(parent="nowhere"), queues=None).allowed
    assert not check(queue(parent="sales"), queues=None).allowed


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ({"weight": 0}, {"weight": 0, "closed": True}, True),
        ({"weight": 0}, {"weight": -1}, False),
        ({"parent": "nowhere"}, {"parent": "nowhere", "weight": 2}, True),
        ({"parent": "nowhere"}, {"parent": "elsewhere"}, False),
        ({"parent": "company", "quota": {GPU: 12}}, {"parent": "company", "quota": {GPU: 10}}, True),
        ({"parent": "company", "quota": {GPU: 12}}, {"parent": "company", "quota": {GPU: 13}}, False),
        ({"weight": 0}, {"parent": "nowhere"}, False),
    ],
)
def test_an_old_mistake_does_not_block_other_changes(old: Json, new: Json, allowed: bool) -> None:
    assert check(queue(**new), queue(**old)).allowed is allowed


def test_a_queue_that_is_being_deleted_is_not_checked() -> None:
    dying = {"deletionTimestamp": "2025-01-02T03:04:05Z"}
    assert check(queue(meta=dying, parent="nowhere"), queue()).allowed


def test_the_status_of_a_queue_is_not_checked() -> None:
    assert validate(queue(weight=0), RESOURCE, operation="UPDATE", old=queue(), subResource="status").allowed


# -- the list of queues


def as_body(resource: Resource, **spec: Any) -> Json:
    return {"apiVersion": resource.api_version, "kind": "Queue", "metadata": {"name": "company"}, "spec": spec}


REVIEW = msgspec.json.encode(review(queue(), RESOURCE))


async def test_queues_of_both_kinds_are_listed_for_the_review_of_a_queue() -> None:
    kinds = tuple(kind for found in (*load_definitions(), *load_gang_definitions()) for kind in kinds_of(found))
    async with api_server("1.35", kinds) as api, Client(Connection(str(api.client.make_url("")))) as client:
        lister = QueueLister(client)
        for resource, spec in ((VOLCANO_QUEUES, {"capability": {GPU: 8}}), (QUEUES, {"limit": {GPU: 4}})):
            await client.create(resource, as_body(resource, **spec))
            tree = await lister.tree_for(REVIEW)
            assert tree is not None
            (found,) = tree.find_problems(Queue("sales", parent="company", limit={GPU: 9}))
            most = 8 if resource == VOLCANO_QUEUES else 4
            assert found.text.endswith(f"above the limit of its parent company, {most}; write at most {most}")


async def test_a_cluster_without_volcano_has_only_our_queues() -> None:
    kinds = tuple(kind for found in load_definitions() for kind in kinds_of(found))
    async with api_server("1.35", kinds) as api, Client(Connection(str(api.client.make_url("")))) as client:
        await client.create(QUEUES, as_body(QUEUES))
        tree = await QueueLister(client).tree_for(REVIEW)
        assert tree is not None
        assert list(tree.find_problems(Queue("sales", parent="company"))) == []


class Unasked(Client):
    """A client that must not be used."""

    async def list(self, *_: Any, **__: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    "asked",
    [
        review(pod()),
        review(pod(annotations={"resource": "queues"})),
        review(queue(), "scheduling.volcano.sh/v1beta1/queues"),
    ],
    ids=["pod", "pod-with-the-word", "queue-of-volcano"],
)
async def test_queues_are_not_listed_for_other_reviews(asked: Json) -> None:
    async with Unasked(Connection("http://127.0.0.1:1")) as client:
        assert await QueueLister(client).tree_for(msgspec.json.encode(asked)) is None


async def test_a_body_that_is_no_review_is_refused() -> None:
    async with Unasked(Connection("http://127.0.0.1:1")) as client:
        with pytest.raises(BadReview, match="not an AdmissionReview"):
            await QueueLister(client).tree_for(b'"queues"')


async def test_queues_that_cannot_be_listed_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LIST_TIMEOUT", 0.05)
    async with asyncio.timeout(10), Client(Connection("http://127.0.0.1:1")) as client:
        assert await QueueLister(client).tree_for(REVIEW) is None
