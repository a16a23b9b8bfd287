"""The controllers' decisions as tables: values in, actions out."""

from __future__ import annotations

from typing import Any

import pytest

from embedded_kube.controllers.disruption import count_budget
from embedded_kube.controllers.garbage_collector import GcAction, decide_gc_action
from embedded_kube.controllers.machinery.conditions import condition, find_condition, set_condition
from embedded_kube.controllers.machinery.hashes import short_hash
from embedded_kube.controllers.machinery.objects import (
    COMPLETION_INDEX,
    DELETION_COST,
    MetaView,
    NodeView,
    OwnerView,
    PodView,
    TaintView,
    TolerationView,
)
from embedded_kube.controllers.node_lifecycle import plan_taints
from embedded_kube.controllers.taint_eviction import eviction_time
from embedded_kube.controllers.workloads.daemonset import DaemonGoal, plan_daemons
from embedded_kube.controllers.workloads.job_plan import FINALIZER, JobGoal, backoff_left, plan_job, tally_job
from embedded_kube.controllers.workloads.job_policy import (
    match_failure_policy,
    met_success_rule,
    read_indexes,
    write_indexes,
)
from embedded_kube.controllers.workloads.job_status import count_released
from embedded_kube.controllers.workloads.pod_control import pick_victims
from embedded_kube.controllers.workloads.replicaset import plan_replicas
from embedded_kube.controllers.workloads.rollout import (
    ReplicaSetSize,
    RolloutBounds,
    read_bounds,
    scale_down_old,
    scale_proportionally,
    scale_up_new,
)
from embedded_kube.controllers.workloads.statefulset_plan import (
    REVISION_LABEL,
    CreateReplica,
    DeleteReplica,
    StatefulSetGoal,
    plan_statefulset,
)
from embedded_kube.registry.label_selectors import matches
from gpu_scheduler.k8s.objects import Json

NOW = 1_000_000.0


def pod(name: str, phase: str = "Running", *, deleting: bool = False, tracked: bool = True, **more: Any) -> PodView:
    revision = more.pop("revision", None)
    index = more.pop("index", None)
    created = more.pop("created", NOW - 100)
    annotations = dict(more.pop("annotations", {}))
    if index is not None:
        annotations[COMPLETION_INDEX] = str(index)
    meta = MetaView(
        namespace="default",
        name=name,
        uid=f"uid-{name}",
        created=created,
        deleting=NOW if deleting else 0.0,
        labels={REVISION_LABEL: revision} if revision else {},
        finalizers=(FINALIZER,) if tracked else (),
    )
    more.setdefault("ready", phase == "Running")
    return PodView(meta=meta, phase=phase, annotations=annotations, **more)


# -- replicas


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(pod("a", "Pending", node=""), pod("b", "Pending", node="n"), id="without a node"),
        pytest.param(pod("a", "Pending", node="n"), pod("b", node="n"), id="pending"),
        pytest.param(pod("a", node="n", ready=False), pod("b", node="n"), id="not ready"),
        pytest.param(
            pod("a", node="n", annotations={DELETION_COST: "-5"}),
            pod("b", node="n", annotations={DELETION_COST: "5"}),
            id="lower deletion cost",
        ),
        pytest.param(pod("a", node="n", ready_since=NOW), pod("b", node="n", ready_since=NOW - 50), id="ready later"),
        pytest.param(pod("a", node="n", restarts=3), pod("b", node="n"), id="restarted more"),
        pytest.param(pod("a", node="n", created=NOW), pod("b", node="n", created=NOW - 50), id="younger"),
    ],
)
def test_the_least_useful_pod_is_deleted_first(first: PodView, second: PodView) -> None:
    assert pick_victims([second, first], 1) == [first]


def test_of_equal_pods_the_one_on_the_fuller_node_is_deleted_first() -> None:
    pods = [pod("a", node="empty"), pod("b", node="full"), pod("c", node="full")]
    assert pick_victims(pods, 1)[0].node == "full"


@pytest.mark.parametrize(
    ("wanted", "pods", "create", "delete"),
    [
        pytest.param(3, [], 3, 0, id="from nothing"),
        pytest.param(2, [pod("a"), pod("b")], 0, 0, id="enough"),
        pytest.param(2, [pod("a"), pod("b", deleting=True)], 1, 0, id="deleting pods do not count"),
        pytest.param(2, [pod("a"), pod("b", "Failed")], 1, 0, id="ended pods do not count"),
        pytest.param(1, [pod("a"), pod("b"), pod("c")], 0, 2, id="too many"),
        pytest.param(1000, [], 500, 0, id="at most a burst"),
    ],
)
def test_pods_are_created_or_deleted_to_reach_the_desired_number(
    wanted: int, pods: list[PodView], create: int, delete: int
) -> None:
    plan = plan_replicas(wanted, pods)
    assert (plan.create, len(plan.delete)) == (create, delete)


# -- rollouts


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        pytest.param(10, "25%", "25%", RolloutBounds(10, 3, 2), id="surge rounds up, unavailable down"),
        pytest.param(1, "25%", "25%", RolloutBounds(1, 1, 0), id="one replica"),
        pytest.param(4, 0, 0, RolloutBounds(4, 0, 1), id="both zero"),
        pytest.param(3, 1, 5, RolloutBounds(3, 1, 3), id="at most all replicas"),
    ],
)
def test_rollout_bounds_are_numbers_or_percentages(
    replicas: int, surge: Any, unavailable: Any, expected: RolloutBounds
) -> None:
    assert read_bounds(replicas, surge, unavailable) == expected


@pytest.mark.parametrize(
    ("bounds", "new", "old", "size"),
    [
        pytest.param(
            RolloutBounds(4, 1, 1), ReplicaSetSize("n", 0), [ReplicaSetSize("o", 4, 4)], 1, id="only the surge"
        ),
        pytest.param(
            RolloutBounds(4, 1, 1), ReplicaSetSize("n", 1), [ReplicaSetSize("o", 4, 4)], 1, id="surge used up"
        ),
        pytest.param(
            RolloutBounds(4, 1, 1), ReplicaSetSize("n", 1), [ReplicaSetSize("o", 2, 2)], 3, id="old set scaled down"
        ),
        pytest.param(RolloutBounds(4, 1, 1), ReplicaSetSize("n", 6), [], 4, id="too large"),
        pytest.param(RolloutBounds(4, 0, 1), ReplicaSetSize("n", 0), [], 4, id="first rollout"),
    ],
)
def test_the_new_set_scales_up_within_the_surge(
    bounds: RolloutBounds, new: ReplicaSetSize, old: list[ReplicaSetSize], size: int
) -> None:
    assert scale_up_new(bounds, new, old) == size


@pytest.mark.parametrize(
    ("bounds", "new", "old", "sizes"),
    [
        pytest.param(
            RolloutBounds(4, 1, 1),
            ReplicaSetSize("n", 1, 0),
            [ReplicaSetSize("o", 4, 4)],
            {"o": 3},
            id="one may be unavailable",
        ),
        pytest.param(
            RolloutBounds(4, 1, 0),
            ReplicaSetSize("n", 1, 0),
            [ReplicaSetSize("o", 4, 4)],
            {},
            id="none may be unavailable",
        ),
        pytest.param(
            RolloutBounds(4, 1, 0),
            ReplicaSetSize("n", 1, 1),
            [ReplicaSetSize("o", 4, 4)],
            {"o": 3},
            id="the new pod is available",
        ),
        pytest.param(
            RolloutBounds(4, 1, 1),
            ReplicaSetSize("n", 1, 0),
            [ReplicaSetSize("unavailable", 2, 0, 1.0), ReplicaSetSize("available", 2, 2, 0.0)],
            {"unavailable": 1},
            id="unavailable pods first, although younger",
        ),
        pytest.param(
            RolloutBounds(4, 1, 1), ReplicaSetSize("n", 4, 4), [ReplicaSetSize("o", 1, 1)], {"o": 0}, id="the last"
        ),
    ],
)
def test_old_sets_scale_down_as_far_as_availability_allows(
    bounds: RolloutBounds, new: ReplicaSetSize, old: list[ReplicaSetSize], sizes: dict[str, int]
) -> None:
    assert scale_down_old(bounds, new, old) == sizes


def test_scaling_during_a_rollout_is_proportional() -> None:
    sets = [ReplicaSetSize("old", 8, 8, 0.0, 11), ReplicaSetSize("new", 3, 3, 1.0, 11)]
    sizes = scale_proportionally(RolloutBounds(20, 2, 2), sets)
    assert sizes == {"old": 16, "new": 6}
    assert scale_proportionally(RolloutBounds(0, 0, 0), sets) == {"old": 0, "new": 0}


# -- stateful sets


def by_ordinal(*pods: PodView) -> dict[int, PodView]:
    return {int(one.meta.name.rsplit("-", 1)[1]): one for one in pods}


def available(name: str, revision: str = "r1") -> PodView:
    return pod(name, revision=revision)


unready = pod("db-1", ready=False, revision="r1")
GOAL = StatefulSetGoal(3, current="r1", update="r1")


@pytest.mark.parametrize(
    ("goal", "pods", "actions"),
    [
        pytest.param(GOAL, {}, [CreateReplica(0, "r1")], id="ordered starts with the first"),
        pytest.param(
            GOAL._replace(parallel=True), {}, [CreateReplica(n, "r1") for n in range(3)], id="parallel creates all"
        ),
        pytest.param(GOAL, by_ordinal(available("db-0"), unready), [], id="ordered waits for a pod that is not ready"),
        pytest.param(
            GOAL._replace(parallel=True),
            by_ordinal(available("db-0"), unready),
            [CreateReplica(2, "r1")],
            id="parallel does not wait",
        ),
        pytest.param(
            GOAL._replace(replicas=1),
            by_ordinal(available("db-0"), available("db-1"), available("db-2")),
            [DeleteReplica(available("db-2"))],
            id="scale down from the top",
        ),
        pytest.param(
            GOAL._replace(replicas=1),
            by_ordinal(available("db-0"), available("db-1"), pod("db-2", deleting=True)),
            [],
            id="one at a time",
        ),
        pytest.param(
            GOAL._replace(replicas=1, parallel=True),
            by_ordinal(available("db-0"), available("db-1"), available("db-2")),
            [DeleteReplica(available("db-2")), DeleteReplica(available("db-1"))],
            id="all at once in parallel",
        ),
        pytest.param(
            GOAL._replace(update="r2"),
            by_ordinal(available("db-0"), available("db-1"), available("db-2")),
            [DeleteReplica(available("db-2"))],
            id="update from the top",
        ),
        pytest.param(
            GOAL._replace(update="r2"),
            by_ordinal(available("db-0"), available("db-1"), available("db-2", "r2")),
            [DeleteReplica(available("db-1"))],
            id="then the next",
        ),
        pytest.param(
            GOAL._replace(update="r2", partition=2),
            by_ordinal(available("db-0"), available("db-1"), available("db-2", "r2")),
            [],
            id="not below the partition",
        ),
        pytest.param(
            GOAL._replace(update="r2", partition=2),
            by_ordinal(available("db-0")),
            [CreateReplica(1, "r1")],
            id="below the partition the old template",
        ),
        pytest.param(
            GOAL._replace(update="r2", on_delete=True),
            by_ordinal(available("db-0"), available("db-1"), available("db-2")),
            [],
            id="OnDelete leaves them",
        ),
        pytest.param(
            GOAL._replace(start=5, replicas=1),
            by_ordinal(available("db-0")),
            [CreateReplica(5, "r1")],
            id="ordinals may start later",
        ),
        pytest.param(
            GOAL,
            by_ordinal(pod("db-0", "Failed")),
            [DeleteReplica(pod("db-0", "Failed"), ended=True)],
            id="an ended one is replaced",
        ),
    ],
)
def test_a_stateful_set_plans_its_next_step(
    goal: StatefulSetGoal, pods: dict[int, PodView], actions: list[CreateReplica | DeleteReplica]
) -> None:
    assert plan_statefulset(goal, pods, NOW) == actions


# -- daemon sets

DAEMONS = DaemonGoal(frozenset("abc"), frozenset("abc"), "r1")


@pytest.mark.parametrize(
    ("goal", "pods", "create", "delete"),
    [
        pytest.param(DAEMONS, {}, "abc", [], id="every node"),
        pytest.param(DAEMONS, {"a": [available("x")]}, "bc", [], id="nodes without a pod"),
        pytest.param(DAEMONS, {n: [available(n)] for n in "abcd"}, "", ["d"], id="deleted from other nodes"),
        pytest.param(DAEMONS, {"a": [pod("x", deleting=True)]}, "bc", [], id="waits for the old pod"),
        pytest.param(DAEMONS, {"a": [pod("x", "Failed")]}, "bc", ["x"], id="an ended pod is deleted"),
        pytest.param(DAEMONS._replace(update="r2"), {n: [available(n)] for n in "abc"}, "", ["a"], id="one by one"),
        pytest.param(
            DAEMONS._replace(update="r2"),
            {"a": [pod("a", revision="r2", ready=False)], "b": [available("b")], "c": [available("c")]},
            "",
            [],
            id="waits for an updated pod",
        ),
        pytest.param(
            DAEMONS._replace(update="r2", on_delete=True), {n: [available(n)] for n in "abc"}, "", [], id="OnDelete"
        ),
    ],
)
def test_daemon_pods_run_on_every_eligible_node(
    goal: DaemonGoal, pods: dict[str, list[PodView]], create: str, delete: list[str]
) -> None:
    plan = plan_daemons(goal, pods, NOW)
    assert (list(plan.create), [one.meta.name for one in plan.delete]) == (list(create), delete)


# -- jobs


def plan(goal: JobGoal, pods: list[PodView], status: Json | None = None) -> Any:
    current = status or {}
    return plan_job(goal, current, tally_job(goal, current, pods), pods, NOW)


INDEXED = JobGoal(parallelism=2, completions=4, indexed=True, backoff=0.0)


@pytest.mark.parametrize(
    ("goal", "pods", "status", "create"),
    [
        pytest.param(JobGoal(3, 5), [], {}, [None] * 3, id="parallelism"),
        pytest.param(JobGoal(3, 5), [pod("a"), pod("b", "Succeeded")], {"succeeded": 3}, [], id="missing completions"),
        pytest.param(JobGoal(3, None), [], {}, [None] * 3, id="a work queue"),
        pytest.param(JobGoal(3, None), [pod("a"), pod("b", "Succeeded")], {}, [], id="a draining work queue"),
        pytest.param(INDEXED, [], {}, [0, 1], id="the lowest indexes"),
        pytest.param(INDEXED, [pod("a", index=1)], {"completedIndexes": "0"}, [2], id="free indexes"),
        pytest.param(INDEXED, [pod("a", deleting=True, index=0)], {}, [0, 1], id="a deleting pod is replaced"),
        pytest.param(
            INDEXED._replace(replaces_failed_only=True),
            [pod("a", deleting=True, index=0)],
            {},
            [1],
            id="unless only failed pods are replaced",
        ),
        pytest.param(JobGoal(3, 5, suspended=True), [], {}, [], id="suspended"),
    ],
)
def test_a_job_creates_missing_pods(goal: JobGoal, pods: list[PodView], status: Json, create: list[int | None]) -> None:
    assert list(plan(goal, pods, status).create) == create


def failed(name: str, **more: Any) -> PodView:
    return pod(name, "Failed", **more)


@pytest.mark.parametrize(
    ("goal", "pods", "status", "reason"),
    [
        pytest.param(JobGoal(), [pod("a", "Succeeded")], {}, "CompletionsReached", id="complete"),
        pytest.param(JobGoal(3, None), [pod("a", "Succeeded")], {}, "CompletionsReached", id="work queue complete"),
        pytest.param(
            JobGoal(backoff_limit=1), [failed("a"), failed("b")], {}, "BackoffLimitExceeded", id="too many failures"
        ),
        pytest.param(JobGoal(backoff_limit=0), [], {"failed": 1}, "BackoffLimitExceeded", id="counted earlier"),
        pytest.param(
            JobGoal(backoff_limit=2),
            [pod("a", restart_policy="OnFailure", restarts=2)],
            {},
            "BackoffLimitExceeded",
            id="restarted in place",
        ),
        pytest.param(
            JobGoal(deadline=5), [], {"startTime": "1970-01-12T13:46:34Z"}, "DeadlineExceeded", id="deadline passed"
        ),
        pytest.param(
            JobGoal(
                failure_policy={"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
            ),
            [failed("a", exits=(("main", 42),))],
            {},
            "PodFailurePolicy",
            id="a fatal exit code",
        ),
        pytest.param(
            INDEXED._replace(success_policy={"rules": [{"succeededIndexes": "0-1", "succeededCount": 1}]}),
            [pod("a", "Succeeded", index=1)],
            {},
            "SuccessPolicy",
            id="success policy met",
        ),
        pytest.param(
            INDEXED._replace(backoff_limit_per_index=0),
            [failed("a", index=1)],
            {"completedIndexes": "0,2,3"},
            "FailedIndexes",
            id="one index failed, all others complete",
        ),
        pytest.param(JobGoal(), [pod("a")], {}, None, id="running"),
        pytest.param(JobGoal(completions=2), [pod("a", "Succeeded")], {}, None, id="half complete"),
    ],
)
def test_a_job_ends_with_an_outcome(goal: JobGoal, pods: list[PodView], status: Json, reason: str | None) -> None:
    outcome = plan(goal, pods, status).outcome
    assert (outcome.reason if outcome is not None else None) == reason


def test_an_ignored_failure_is_not_counted() -> None:
    policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
    goal = JobGoal(backoff_limit=0, failure_policy=policy)
    tally = tally_job(goal, {}, [failed("a", conditions=(("DisruptionTarget", "True"),))])
    assert (tally.failed, [one.meta.name for one in tally.ignored]) == (0, ["a"])


def test_pods_beyond_the_parallelism_or_with_a_duplicate_index_are_deleted() -> None:
    many = [pod("a"), pod("b"), pod("c", "Pending")]
    assert [one.meta.name for one in plan(JobGoal(2, 5), many).drop] == ["c"]
    duplicates = [pod("a", index=0, created=NOW - 10), pod("b", index=0, created=NOW)]
    assert [one.meta.name for one in plan(INDEXED, duplicates).drop] == ["b"]
    assert [one.meta.name for one in plan(INDEXED._replace(suspended=True), duplicates).drop] == ["a", "b"]


def test_the_backoff_doubles_with_failures_since_the_last_success() -> None:
    goal = JobGoal(backoff=10, backoff_cap=600)
    once = [failed("a", finished=NOW)]
    thrice = [*once, failed("b", finished=NOW), failed("c", finished=NOW)]
    assert backoff_left(goal, once, NOW) == 10
    assert backoff_left(goal, thrice, NOW) == 40
    assert backoff_left(goal, thrice * 5, NOW) == 600
    assert backoff_left(goal, [*thrice, pod("d", "Succeeded", finished=NOW + 1)], NOW) == 0


@pytest.mark.parametrize(
    ("pods", "counted", "left"),
    [
        pytest.param([pod("a", "Failed")], 2, {"failed": ["uid-a"]}, id="finalizer present"),
        pytest.param([pod("a", "Failed", tracked=False)], 3, {}, id="finalizer removed"),
        pytest.param([], 3, {}, id="deleted"),
    ],
)
def test_an_ended_pod_is_counted_after_its_finalizer_is_removed(pods: list[PodView], counted: int, left: Json) -> None:
    status = {"failed": 2, "uncountedTerminatedPods": {"failed": ["uid-a"]}}
    count_released(status, pods)
    assert (status["failed"], status["uncountedTerminatedPods"]) == (counted, left)


@pytest.mark.parametrize(("text", "indexes"), [("", set()), ("0-2,5", {0, 1, 2, 5}), ("1,3", {1, 3}), ("0,1", {0, 1})])
def test_indexes_are_formatted_as_ranges(text: str, indexes: set[int]) -> None:
    assert read_indexes(text) == indexes
    assert write_indexes(indexes) == text


def test_policies_match_exit_codes_of_the_named_container() -> None:
    rule = {"action": "FailIndex", "onExitCodes": {"containerName": "main", "operator": "NotIn", "values": [1]}}
    policy = {"rules": [rule]}
    assert match_failure_policy(policy, failed("a", exits=(("main", 3),)))[0] == "FailIndex"
    assert match_failure_policy(policy, failed("a", exits=(("main", 1),)))[0] == "Count"
    assert match_failure_policy(policy, failed("a", exits=(("side", 3),)))[0] == "Count"
    assert met_success_rule({"rules": [{"succeededCount": 2}]}, {4, 7}) == 0
    assert met_success_rule({"rules": [{"succeededCount": 3}]}, {4, 7}) is None


# -- owners, nodes, budgets


@pytest.mark.parametrize(
    ("owners", "gone", "waiting", "dependents", "action"),
    [
        pytest.param("ab", "", "", False, GcAction(), id="all present"),
        pytest.param("ab", "a", "", False, GcAction(remove_owners=("a",)), id="one gone"),
        pytest.param("ab", "ab", "", False, GcAction(delete=True), id="all gone"),
        pytest.param("ab", "a", "b", False, GcAction(delete=True), id="the last owner waits"),
        pytest.param("a", "", "a", True, GcAction(delete=True, foreground=True), id="waits for its own dependents"),
        pytest.param("ab", "", "a", True, GcAction(remove_owners=("a",)), id="another owner is present"),
    ],
)
def test_an_object_is_deleted_with_its_last_owner(
    owners: str, gone: str, waiting: str, dependents: bool, action: GcAction
) -> None:
    meta = MetaView("default", "x", "x", owners=tuple(OwnerView("v1", "ConfigMap", uid, uid) for uid in owners))
    assert decide_gc_action(meta, list(gone), list(waiting), dependents) == action


LOST, NEW = "node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"


@pytest.mark.parametrize(
    ("conditions", "present", "add", "remove"),
    [
        pytest.param({"Ready": "True"}, [], set(), set(), id="ready"),
        pytest.param({"Ready": "Unknown"}, [], {(LOST, "NoExecute"), (LOST, "NoSchedule")}, set(), id="silent"),
        pytest.param({"Ready": "False"}, [], {(NEW, "NoExecute"), (NEW, "NoSchedule")}, set(), id="not ready"),
        pytest.param({}, [], {(NEW, "NoSchedule")}, set(), id="no Ready condition"),
        pytest.param({"Ready": "True"}, [TaintView(LOST, "NoExecute")], set(), {LOST}, id="ready again"),
        pytest.param({"Ready": "True"}, [TaintView("other", "NoExecute")], set(), set(), id="other taints stay"),
        pytest.param(
            {"Ready": "True", "MemoryPressure": "True"},
            [],
            {("node.kubernetes.io/memory-pressure", "NoSchedule")},
            set(),
            id="under pressure",
        ),
    ],
)
def test_taints_follow_node_conditions(
    conditions: dict[str, str], present: list[TaintView], add: set[tuple[str, str]], remove: set[str]
) -> None:
    node = NodeView(MetaView("", "n", "n"), taints=tuple(present), conditions=conditions)
    added, removed = plan_taints(node)
    assert {(taint.key, taint.effect) for taint in added} == add
    assert {taint.key for taint in removed} == remove


NO_EXECUTE = TaintView("k", "NoExecute", "v", "1970-01-12T13:46:40Z")


@pytest.mark.parametrize(
    ("tolerations", "evicted_at"),
    [
        pytest.param([], 0.0, id="not tolerated"),
        pytest.param([TolerationView("k", "Equal", "other")], 0.0, id="another value"),
        pytest.param([TolerationView("k", "Equal", "v")], None, id="tolerated"),
        pytest.param([TolerationView("", "Exists")], None, id="tolerates everything"),
        pytest.param([TolerationView("k", "Exists", "", "NoSchedule")], 0.0, id="another effect"),
        pytest.param([TolerationView("k", "Exists", "", "NoExecute", 30)], NOW + 30, id="tolerated for 30 seconds"),
    ],
)
def test_a_pod_is_evicted_when_it_does_not_tolerate_a_taint(
    tolerations: list[TolerationView], evicted_at: float | None
) -> None:
    assert eviction_time(pod("a", tolerations=tuple(tolerations)), [NO_EXECUTE]) == evicted_at
    assert eviction_time(pod("a", tolerations=tuple(tolerations)), []) is None


@pytest.mark.parametrize(
    ("spec", "scale", "expected"),
    [
        pytest.param({"minAvailable": 2}, None, (4, 2, 3, 1), id="a number of pods"),
        pytest.param({"minAvailable": "50%"}, 6, (6, 3, 3, 0), id="a percentage of the scale"),
        pytest.param({"maxUnavailable": 1}, 4, (4, 3, 3, 0), id="a number unavailable"),
        pytest.param({"maxUnavailable": "50%"}, 3, (3, 1, 3, 2), id="a percentage unavailable, rounded up"),
    ],
)
def test_a_budget_allows_evictions_of_healthy_pods_beyond_the_minimum(
    spec: Json, scale: int, expected: tuple[int, ...]
) -> None:
    pods = [pod("a"), pod("b"), pod("c"), pod("d", ready=False)]
    found = count_budget(spec, pods, scale, ())
    assert found is not None
    assert (*found, found.allowed) == expected
    assert count_budget({"maxUnavailable": 1}, pods, None, ()) is None


def test_an_allowed_eviction_counts_before_the_pod_is_deleted() -> None:
    found = count_budget({"minAvailable": 1}, [pod("a"), pod("b")], None, ["a"])
    assert found is not None
    assert found.allowed == 0


# -- selectors, hashes, conditions, work queue


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        pytest.param(None, False, id="no selector"),
        pytest.param({}, True, id="an empty one"),
        pytest.param({"matchLabels": {"a": "1"}}, True, id="equal"),
        pytest.param({"matchLabels": {"a": "2"}}, False, id="not equal"),
        pytest.param({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, True, id="in"),
        pytest.param({"matchExpressions": [{"key": "b", "operator": "In", "values": ["1"]}]}, False, id="in, absent"),
        pytest.param({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True, id="not in"),
        pytest.param({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True, id="exists"),
        pytest.param({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False, id="does not exist"),
    ],
)
def test_selectors_match_labels(selector: Json | None, selected: bool) -> None:
    assert matches(selector, {"a": "1"}) is selected


def test_hashes_are_short_stable_and_have_no_vowels() -> None:
    assert short_hash({"a": 1, "b": 2}) == short_hash({"b": 2, "a": 1})
    assert short_hash({"a": 1}) != short_hash({"a": 2})
    assert 1 <= len(short_hash("x")) <= 10
    assert not set(short_hash("x")) & set("aeiou013")


def test_a_condition_keeps_its_transition_time_while_its_status_stays() -> None:
    status: Json = {}
    set_condition(status, condition("Ready", True, "Fine", ""))
    status["conditions"][0]["lastTransitionTime"] = "long ago"
    set_condition(status, condition("Ready", True, "Better", ""))
    assert find_condition(status, "Ready")["lastTransitionTime"] == "long ago"
    set_condition(status, condition("Ready", False, "Worse", ""))
    assert find_condition(status, "Ready")["lastTransitionTime"] != "long ago"
