"""Gangs by annotation, and lone pods."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey, Notes, OnMemberLost
from gpu_scheduler.gangs.contract import GROUP, NOTES
from gpu_scheduler.gangs.dialects import Membership, read_membership
from gpu_scheduler.k8s.objects import Json, PodObject
from gpu_scheduler.k8s.resources import PODS
from tests.unit.gangs.gang_fixtures import decode, said, status, tell
from tests.unit.gangs.pods import pod

KEY = GangKey("annotation", "x", "train")
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "5f0c2a81-aaaa-bbbb", "controller": True}


def member(name: str = "a", **notes: str) -> PodObject:
    """A pod of gang train; annotations are named without their group, with _ for -."""
    ours = {f"{GROUP}/{key.replace('_', '-')}": text for key, text in notes.items()}
    return pod(name, annotations={f"{GROUP}/gang": "train"} | ours)


def test_a_pod_names_its_gang_in_its_own_namespace() -> None:
    assert read_membership(member(gang_min="4", role="ps")) == Membership(KEY, "ps")
    elsewhere = pod(annotations={f"{GROUP}/gang": "other/train"})
    assert read_membership(elsewhere).gang is None


def test_with_a_minimum_only_the_pods_of_the_controller_are_the_gang() -> None:
    owned = pod(annotations={f"{GROUP}/gang-min": "4"}, meta={"ownerReferences": [OWNER]})
    assert read_membership(owned).gang == GangKey("annotation", "x", "Job/train/5f0c2a81")
    again = pod(annotations={f"{GROUP}/gang-min": "4"}, meta={"ownerReferences": [OWNER | {"uid": "77777777-1"}]})
    assert read_membership(again).gang != read_membership(owned).gang


@pytest.mark.parametrize(
    ("notes", "problem"),
    [
        (
            {f"{GROUP}/gang-min": "4"},
            f"{GROUP}/gang-min: the pod has no controller whose pods could form the gang; "
            f"name the gang in {GROUP}/gang",
        ),
        (
            {f"{GROUP}/gang": "a b\n"},
            f"{GROUP}/gang: 'a b\\n' is not a valid name; write at most 253 letters, digits, '-', '_' and '.'",
        ),
        (
            {f"{GROUP}/gang": "other/train"},
            f"{GROUP}/gang: 'other/train' contains a namespace, but a gang is in the namespace of its pods; "
            "write 'train', and create all its pods in one namespace",
        ),
    ],
)
def test_a_pod_with_an_invalid_gang_does_not_start_alone(notes: Json, problem: str) -> None:
    assert read_membership(pod(annotations=notes)) == Membership(None, problem=problem)


def test_the_options_of_all_pods_are_merged() -> None:
    gang = decode(
        KEY, None, member("a", gang_min="4", queue="blue"), member("b", on_member_lost="restart", timeout_seconds="9")
    )
    assert (gang.problem, gang.minimum, gang.queue, gang.timeout) == ("", 4, "blue", 9.0)
    assert gang.on_member_lost is OnMemberLost.RESTART


def test_contradicting_pods_are_a_problem_that_names_both() -> None:
    gang = decode(KEY, None, member("a", gang_min="4"), member("b", gang_min="5"))
    assert gang.problem == (
        f"{GROUP}/gang-min: pod a has '4' and pod b has '5'; all pods of a gang must have the same value"
    )


def test_of_the_checkpoints_of_several_pods_the_earliest_counts() -> None:
    first, second = "2025-06-15T15:06:40Z", "2025-06-15T17:06:41+02:00"
    pods = [member("a", gang_min="4", checkpointed_at=second), member("b", checkpointed_at=first), member("c")]
    assert decode(KEY, None, *pods).checkpointed_at == 1_750_000_000.0
    wrong = decode(KEY, None, *pods, member("d", checkpointed_at="2025-06-15"))
    assert wrong.problem.startswith(f"{GROUP}/checkpointed-at: '2025-06-15' is not a time")


@pytest.mark.parametrize("text", ["", "0", "-1", "four", "4.0", "٤", "9" * 50])
def test_a_missing_or_invalid_minimum_is_a_problem(text: str) -> None:
    problem = decode(KEY, None, member(gang_min=text)).problem
    assert problem.startswith(f"{GROUP}/gang-min: ")
    assert problem.endswith("write how many pods must start together, from 1 to 20000")


def test_notes_are_on_a_pod() -> None:
    (patch,) = tell(KEY, member(gang_min="4"), status(Phase.HOLDING, 3, notes=Notes(below_since=9.0)))
    assert (patch.resource, patch.name, patch.subresource) == (PODS, "a", "")
    assert (
        decode(KEY, None, member("b", gang_min="4"), member("a", notes=said([patch], "")[NOTES])).notes.below_since
        == 9.0
    )


def test_a_gang_without_an_object_writes_only_notes() -> None:
    assert tell(KEY, member(gang_min="4"), status(Phase.WAITING, 0, 4)) == []


def test_a_pod_alone_may_set_options_too() -> None:
    key = GangKey("pod", "x", "uid-a")
    alone = pod("a", annotations={f"{GROUP}/paused": "true", NOTES: '{"target":["n1"]}'})
    gang = decode(key, None, alone)
    assert (gang.key, gang.minimum, gang.paused, gang.notes.target) == (key, 1, True, ("n1",))
    (patch,) = tell(key, alone, status(Phase.WAITING, 0, 1))
    assert said([patch], "") == {NOTES: None}
