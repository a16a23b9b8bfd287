"""Annotations that mean the same in every dialect, and the scheduler's notes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import Gang, GangKey, Notes, OnMemberLost, Role, Slot, TopologyRule
from gpu_scheduler.gangs.contract import ANNOTATIONS, GROUP, NOTES
from gpu_scheduler.gangs.dialects import DIALECTS, Membership, choose_resources, read_membership
from gpu_scheduler.gangs.notes import MAX_BYTES, change_notes, with_notes
from gpu_scheduler.gangs.options import OPTIONS, find_bad_options, find_unknown_keys, with_options
from gpu_scheduler.gangs.roles import rank_roles
from tests.unit.gangs.gang_fixtures import status
from tests.unit.gangs.pods import pod

GANG = Gang(GangKey("volcano", "x", "train"))
NO_TIME = 'is not a time; write date, time and zone by RFC 3339, for example "2025-06-15T15:06:40Z"'


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("queue", "blue", "queue", "blue"),
        ("queue", "default", "queue", ""),
        ("timeout-seconds", "300", "timeout", 300.0),
        ("topology", "required:rack", "topology", (TopologyRule("rack"),)),
        (
            "topology",
            "required:example.com/row, preferred:nvlink",
            "topology",
            (TopologyRule("example.com/row"), TopologyRule("nvlink", False)),
        ),
        ("expected-runtime-seconds", "3600.5", "expected_runtime", 3600.5),
        ("paused", "true", "paused", True),
        ("preemptible", "false", "preemptible", False),
        ("preemptible", "true", "preemptible", True),
        ("checkpointed-at", "2025-06-15T15:06:40Z", "checkpointed_at", 1_750_000_000.0),
        ("checkpointed-at", "2025-06-15T17:06:40.5+02:00", "checkpointed_at", 1_750_000_000.5),
        ("on-member-lost", "shrink", "on_member_lost", OnMemberLost.SHRINK),
        ("hold-seconds", "0", "hold", 0.0),
    ],
)
def test_an_option_is_decoded(name: str, text: str, field: str, value: object) -> None:
    gang = with_options(GANG, {f"{GROUP}/{name}": text})
    assert gang.problem == ""
    assert getattr(gang, field) == value


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("timeout-seconds", "soon", "'soon' is not a number of seconds above 0; write for example \"300\""),
        ("timeout-seconds", "-1", "'-1' is not a number of seconds above 0; write for example \"300\""),
        ("timeout-seconds", "inf", "'inf' is not a number of seconds above 0; write for example \"300\""),
        ("hold-seconds", "nan", "'nan' is not a number of seconds above 0; write for example \"300\""),
        ("paused", "yes", '\'yes\' is neither "true" nor "false"'),
        ("preemptible", "no", '\'no\' is neither "true" nor "false"'),
        ("checkpointed-at", "now", f"'now' {NO_TIME}"),
        ("checkpointed-at", "1750000000", f"'1750000000' {NO_TIME}"),
        ("checkpointed-at", "2025-06-15", f"'2025-06-15' {NO_TIME}"),
        ("checkpointed-at", "2025-06-15T15:06:40", f"'2025-06-15T15:06:40' {NO_TIME}"),
        ("checkpointed-at", "2025-13-15T15:06:40Z", f"'2025-13-15T15:06:40Z' {NO_TIME}"),
        ("on-member-lost", "cry", '\'cry\' is not one of "hold", "restart", "shrink"'),
        ("topology", "rack", "'rack' is not a rule; write \"required:rack,preferred:nvlink\" or similar"),
        ("topology", "required:", "'required:' is not a rule; write \"required:rack,preferred:nvlink\" or similar"),
        ("topology", ",".join(["required:a"] * 17), "17 rules are too many; write at most 16"),
        ("topology", "required:a,", "'' is not a rule; write \"required:rack,preferred:nvlink\" or similar"),
    ],
)
def test_an_invalid_option_becomes_a_problem_that_names_the_field(name: str, text: str, line: str) -> None:
    gang = with_options(GANG, {f"{GROUP}/{name}": text})
    assert gang.problem == f"{GROUP}/{name}: {line}"


def test_all_invalid_options_are_reported() -> None:
    annotations = {f"{GROUP}/paused": "1", f"{GROUP}/queue": "a", f"{GROUP}/timeout-seconds": "x", "paused": "1"}
    assert find_bad_options(annotations) == [
        f"{GROUP}/timeout-seconds: 'x' is not a number of seconds above 0; write for example \"300\"",
        f'{GROUP}/paused: \'1\' is neither "true" nor "false"',
    ]


def test_a_problem_is_one_short_line_for_any_value() -> None:
    problem = with_options(GANG, {f"{GROUP}/paused": "x\n" * 100_000}).problem
    assert "\n" not in problem
    assert len(problem) < 200


def test_leader_roles_are_ranked_first() -> None:
    driver = pod("driver", labels={"spark-role": "driver"})
    assert rank_roles([Role("Master", 1), Role("worker", 3)], [driver]) == (
        Role("Master", 1, rank=-1),
        Role("worker", 3),
        Role("driver", rank=-1),
    )


def test_a_pod_without_a_gang_keeps_its_role_and_its_queue() -> None:
    found = read_membership(pod(annotations={f"{GROUP}/queue": "blue", f"{GROUP}/role": "worker"}))
    assert found == Membership(None, "worker", "blue")
    assert read_membership(pod(annotations={"scheduling.volcano.sh/queue-name": "default"})) == Membership()


@pytest.mark.parametrize(
    ("annotations", "labels", "dialect"),
    [
        (
            {f"{GROUP}/gang": "a", "scheduling.k8s.io/group-name": "b"},
            {"scheduling.x-k8s.io/pod-group": "c"},
            "annotation",
        ),
        ({"scheduling.k8s.io/group-name": "b"}, {"scheduling.x-k8s.io/pod-group": "c"}, "volcano"),
        ({}, {"scheduling.x-k8s.io/pod-group": "c"}, "scheduler-plugins"),
        ({}, {}, "podgroup"),
    ],
)
def test_the_first_dialect_of_the_table_counts(
    annotations: dict[str, str], labels: dict[str, str], dialect: str
) -> None:
    found = pod(annotations=annotations, labels=labels, schedulingGroup={"podGroupName": "d"})
    key = read_membership(found).gang
    assert key is not None
    assert key.dialect == dialect


def test_the_best_served_version_of_each_dialect_is_chosen() -> None:
    assert choose_resources(lambda resource: False) == {}
    every = choose_resources(lambda resource: True)
    assert {name: resource.version for name, resource in every.items()} == {
        "volcano": "v1beta1",
        "scheduler-plugins": "v1alpha1",
        "podgroup": "v1beta1",
        "workload": "v1alpha1",
    }
    assert choose_resources(lambda r: r.version == "v1alpha2").keys() == {"podgroup"}
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)


# -- notes

NOMINATION = (Slot("n1", (0, 1), "worker"), Slot("n1", (2, 3), "worker"), Slot("n2", (), "ps"), Slot("n1", (4,), ""))
NOTED = status(
    Phase.NOMINATED,
    notes=Notes(
        below_since=1.25,
        admitted_at=2.0,
        nominated_at=3.5,
        nomination=NOMINATION,
        target=("n1", "n2"),
        target_since=4.5,
    ),
)


def test_notes_survive_a_round_trip() -> None:
    written = change_notes(None, NOTED)
    gang = with_notes(GANG, written)
    assert gang.notes == NOTED.notes
    assert change_notes(written, NOTED) == {}


def test_empty_notes_are_removed() -> None:
    nothing = status(Phase.WAITING)
    assert change_notes(None, nothing) == {}
    assert change_notes(change_notes(None, NOTED), nothing) == {NOTES: None}


def test_notes_of_gangs_that_share_an_object_are_separate() -> None:
    first = change_notes(None, status(Phase.HOLDING, notes=Notes(below_since=1.0)), "a/0", {"a/0", "a/1"})
    both = change_notes(first, status(Phase.HOLDING, notes=Notes(below_since=2.0)), "a/1", {"a/0", "a/1"})
    assert with_notes(GANG, both, "a/0").notes.below_since == 1.0
    assert with_notes(GANG, both, "a/1").notes.below_since == 2.0
    assert with_notes(GANG, both, "a/2") == GANG
    left = change_notes(both, status(Phase.RUNNING), "a/1", {"a/1"})
    assert left == {NOTES: None}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"belowSince": "soon"}', '{"nomination": [["n1"]]}', '{"target": "n1"}', "[" * 5000]
)
def test_malformed_notes_are_ignored(text: str) -> None:
    assert with_notes(GANG, {NOTES: text}) == GANG
    assert with_notes(GANG, {NOTES: text}, "a/0") == GANG


def test_a_nomination_too_long_for_an_annotation_is_left_out() -> None:
    slots = tuple(Slot(f"node-{i}", (0, 1, 2, 3, 4, 5, 6, 7)) for i in range(10_000))
    written = change_notes(
        None, status(Phase.NOMINATED, notes=Notes(nomination=slots, nominated_at=1.0, below_since=2.0))
    )
    assert len(written[NOTES]) < MAX_BYTES
    assert with_notes(GANG, written).notes.nomination == ()
    assert with_notes(GANG, written).notes.below_since == 2.0


def test_a_target_too_long_for_an_annotation_is_left_out_with_its_time() -> None:
    target = tuple(f"node-{number}" for number in range(20_000))
    written = change_notes(None, status(Phase.WAITING, notes=Notes(target=target, target_since=1.0, below_since=2.0)))
    assert with_notes(GANG, written).notes == Notes(below_since=2.0)


def test_a_nomination_of_ten_thousand_pods_on_full_nodes_fits() -> None:
    slots = tuple(Slot(f"node-{i // 8}", (i % 8,), "worker") for i in range(10_000))
    written = change_notes(None, status(Phase.NOMINATED, notes=Notes(nomination=slots, nominated_at=1.0)))
    assert with_notes(GANG, written).notes.nomination == slots


def test_an_unknown_key_is_named_with_the_closest_one_that_users_write() -> None:
    assert find_unknown_keys([f"{GROUP}/gang", f"{GROUP}/gangmin", f"{GROUP}/note", "example.com/gangmin"]) == [
        f"{GROUP}/gangmin: unknown annotation, which has no effect; did you mean {GROUP}/gang-min?",
        f"{GROUP}/note: unknown annotation, which has no effect",
    ]


def test_only_the_first_unknown_keys_are_named() -> None:
    assert len(find_unknown_keys(f"{GROUP}/gang{number}" for number in range(1000))) == 8


def test_every_option_is_a_known_annotation_with_a_row_in_the_guide() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gangs.md").read_text("utf-8")
    assert set(OPTIONS) <= ANNOTATIONS
    assert [name for name in OPTIONS if f"| `{name}` |" not in page] == []


def test_every_annotation_of_the_local_cluster_is_known() -> None:
    page = Path(__file__).parents[3] / "docs" / "local-cluster.md"
    listed = set(re.findall(rf"`({GROUP}/(?:simulate-[a-z-]+|runtime))`", page.read_text("utf-8")))
    assert len(listed) == 7
    assert listed <= ANNOTATIONS
