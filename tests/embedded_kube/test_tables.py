"""The tables of `kubectl get`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from embedded_kube.printing.columns import CELL_FUNCTIONS
from embedded_kube.printing.durations import human_duration
from embedded_kube.printing.jsonpath import compile_path
from embedded_kube.printing.pod_columns import summarise
from embedded_kube.printing.tables import RowPrinter, column_definitions
from embedded_kube.registry.builtin_kinds import VERSIONS, builtin_kinds
from embedded_kube.registry.kinds import KindTable, PrinterColumn, ServedKind

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
KINDS = KindTable(builtin_kinds("1.35"))


def ago(**length: float) -> str:
    return (NOW - timedelta(**length)).strftime("%Y-%m-%dT%H:%M:%SZ")


def shown(resource: str, found: dict[str, Any]) -> dict[str, Any]:
    kind = KINDS.of_resource(resource)
    assert kind is not None
    found.setdefault("metadata", {}).setdefault("name", "a")
    cells = RowPrinter(kind, "None").row(found, NOW)["cells"]
    return dict(zip((column["name"] for column in column_definitions(kind)), cells, strict=True))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (0, "0s"), (119, "119s"), (120, "2m"), (302, "5m2s"), (599, "9m59s"), (600, "10m"),
        (3 * 3600 - 1, "179m"), (3 * 3600, "3h"), (4 * 3600 + 300, "4h5m"), (8 * 3600, "8h"), (47 * 3600, "47h"),
        (48 * 3600, "2d"), (50 * 3600, "2d2h"), (8 * 86400, "8d"), (400 * 86400, "400d"), (3 * 365 * 86400, "3y"),
        (3 * 365 * 86400 + 86400, "3y1d"), (9 * 365 * 86400, "9y"),
    ],
)  # fmt: skip
def test_durations_have_the_format_of_kubectl(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


def container(state: dict[str, Any], ready: bool = False, name: str = "main", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "ready": ready, "restartCount": 0, **more}


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def ended(reason: str = "", code: int = 0, signal: int = 0) -> dict[str, Any]:
    return {"terminated": {"reason": reason, "exitCode": code, "signal": signal}}


def one(phase: str, state: dict[str, Any], ready: bool = False) -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [container(state, ready)]}


RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("status", "more", "word", "ready"),
    [
        pytest.param({"phase": "Pending"}, {}, "Pending", 0, id="pending"),
        pytest.param({"phase": "Failed", "reason": "Evicted"}, {}, "Evicted", 0, id="evicted"),
        pytest.param(
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}, {},
            "SchedulingGated", 0, id="gated",
        ),
        pytest.param(one("Pending", waiting("ContainerCreating")), {}, "ContainerCreating", 0, id="creating"),
        pytest.param(one("Running", RUNNING, True), {}, "Running", 1, id="running"),
        pytest.param(one("Succeeded", ended("Completed")), {}, "Completed", 0, id="completed"),
        pytest.param(one("Failed", ended("Error", 1)), {}, "Error", 0, id="error"),
        pytest.param(one("Failed", ended("OOMKilled", 137)), {}, "OOMKilled", 0, id="oom"),
        pytest.param(one("Failed", ended("", 3)), {}, "ExitCode:3", 0, id="exit-code"),
        pytest.param(one("Failed", ended("", 137, 9)), {}, "Signal:9", 0, id="signal"),
        pytest.param(one("Running", waiting("CrashLoopBackOff")), {}, "CrashLoopBackOff", 0, id="crash-loop"),
        pytest.param(
            {"phase": "Pending", "initContainerStatuses": [container(waiting("PodInitializing"), name="i")]},
            {"initContainers": [{"name": "i"}]}, "Init:0/1", 0, id="init",
        ),
        pytest.param(
            {"phase": "Pending", "initContainerStatuses": [container(ended("Error", 2), name="i")]},
            {"initContainers": [{"name": "i"}]}, "Init:Error", 0, id="init-error",
        ),
        pytest.param(
            {"phase": "Running", "containerStatuses": [container(ended("Completed")), container(RUNNING, True, "b")],
             "conditions": [{"type": "Ready", "status": "False"}]}, {}, "NotReady", 1, id="half-done",
        ),
        pytest.param(
            {"phase": "Running", "containerStatuses": [container(RUNNING, True)],
             "initContainerStatuses": [container(RUNNING, True, "side", started=True)]},
            {"initContainers": [{"name": "side", "restartPolicy": "Always"}]}, "Running", 2, id="sidecar",
        ),
    ],
)  # fmt: skip
def test_pod_status_is_the_one_that_kubectl_shows(status: Any, more: Any, word: str, ready: int) -> None:
    found = {"metadata": {}, "spec": {"containers": [{"name": "main"}], **more}, "status": status}
    assert (summarise(found).status, summarise(found).ready) == (word, ready)


def test_pod_that_is_being_deleted_is_terminating() -> None:
    found = {"metadata": {"deletionTimestamp": ago(seconds=1)}, "status": {"phase": "Running"}}
    assert summarise(found).status == "Terminating"


def test_restarts_include_the_time_of_the_last_one() -> None:
    last = {"lastState": {"terminated": {"finishedAt": ago(minutes=5)}}, "restartCount": 3}
    status = {"phase": "Running", "containerStatuses": [{**container(RUNNING, True), **last}]}
    assert shown("pods", {"spec": {"containers": [{}]}, "status": status})["Restarts"] == "3 (5m ago)"


def test_node_row_has_status_and_roles() -> None:
    meta = {"labels": {"node-role.kubernetes.io/worker": ""}, "creationTimestamp": ago(hours=3)}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.35.0"}}
    row = shown("nodes", {"metadata": meta, "spec": {"unschedulable": True}, "status": status})
    assert row["Status"] == "Ready,SchedulingDisabled"
    assert (row["Roles"], row["Age"], row["Version"], row["Internal-IP"]) == ("worker", "3h", "v1.35.0", "<none>")


def test_event_row_has_the_columns_of_kubectl() -> None:
    event = {"type": "Warning", "reason": "Failed", "message": "no room\n", "lastTimestamp": ago(minutes=5),
             "involvedObject": {"kind": "Pod", "name": "p"}}  # fmt: skip
    row = shown("events", event)
    assert list(row)[:4] == ["Last Seen", "Type", "Reason", "Object"]
    assert [row[name] for name in ("Last Seen", "Object", "Message")] == ["5m", "pod/p", "no room"]


def test_repeated_event_shows_its_count() -> None:
    row = shown("events", {"firstTimestamp": ago(minutes=10), "lastTimestamp": ago(minutes=5), "count": 4})
    assert row["Last Seen"] == "5m (x4 over 10m)"


@pytest.mark.parametrize(
    ("resource", "found", "column", "cell"),
    [
        ("deployments.apps", {"spec": {"replicas": 3}, "status": {"readyReplicas": 1}}, "Ready", "1/3"),
        ("deployments.apps", {}, "Available", 0),
        ("configmaps", {"data": {"a": "1"}, "binaryData": {"b": ""}}, "Data", 2),
        ("jobs.batch", {"spec": {"completions": 4}, "status": {"succeeded": 2}}, "Completions", "2/4"),
        ("jobs.batch", {"spec": {"parallelism": 3}}, "Completions", "0/1 of 3"),
        ("jobs.batch", {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, "Status", "Failed"),
        ("jobs.batch", {"status": {"startTime": ago(minutes=3), "completionTime": ago(minutes=1)}}, "Duration", "2m"),
        ("services", {"spec": {"ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}]}}, "Port(s)",
         "80:30080/TCP,53/UDP"),
        ("services", {"spec": {"type": "LoadBalancer"}}, "External-IP", "<pending>"),
        ("persistentvolumeclaims", {"spec": {"accessModes": ["ReadWriteMany"]}}, "Access Modes", "RWX"),
        ("mutatingwebhookconfigurations.admissionregistration.k8s.io", {"webhooks": [{}, {}]}, "Webhooks", 2),
        ("priorityclasses.scheduling.k8s.io", {"value": 7}, "Global-Default", False),
        ("workloads.scheduling.k8s.io", {"spec": {"podGroups": [
            {"name": "w", "policy": {"gang": {"minCount": 4}}}, {"name": "p", "policy": {}}]}}, "Min", "4,-"),
        ("workloads.scheduling.k8s.io", {"status": {"conditions": [
            {"type": "GangScheduled", "status": "True", "lastTransitionTime": "2"}]}}, "Condition", "GangScheduled"),
        ("storageclasses.storage.k8s.io", {}, "Name", "a"),
        ("storageclasses.storage.k8s.io", {"metadata": {"name": "x", "annotations": {
            "storageclass.kubernetes.io/is-default-class": "true"}}}, "Name", "x (default)"),
        ("poddisruptionbudgets.policy", {"spec": {"minAvailable": "50%"}}, "Max Unavailable", "N/A"),
    ],
)  # fmt: skip
def test_cell_has_the_value_that_kubectl_shows(resource: str, found: Any, column: str, cell: Any) -> None:
    assert shown(resource, found)[column] == cell


SCHEDULED = {"type": "PodGroupInitiallyScheduled", "status": "True"}


@pytest.mark.parametrize(
    ("conditions", "word"),
    [
        ([], "Pending"),
        ([SCHEDULED], "Scheduled"),
        ([{**SCHEDULED, "status": "False"}], "Unschedulable"),
        ([{"type": "PodGroupScheduled", "status": "True"}], "Scheduled"),
        ([SCHEDULED, {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
         "PreemptionByScheduler"),
    ],
)  # fmt: skip
def test_a_pod_group_has_the_status_of_kubernetes_own_table(conditions: list[Any], word: str) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "workloadRef": {"workloadName": "train"}}
    found = {"metadata": {"name": "a"}, "spec": spec, "status": {"conditions": conditions}}
    kinds = KindTable(builtin_kinds("1.37"))
    kind = kinds.of_resource("podgroups.scheduling.k8s.io")
    assert kind is not None
    assert [column["name"] for column in column_definitions(kind)] == ["Name", "Policy", "Workload", "Status", "Age"]
    assert RowPrinter(kind, "None").row(found, NOW)["cells"][:4] == ["a", "Gang", "train", word]


def test_custom_kind_without_columns_shows_name_and_age() -> None:
    kind = ServedKind("example.org", "v1", "Widget", "widgets", crd_schema={})
    assert [column["name"] for column in column_definitions(kind)] == ["Name", "Age"]


def test_custom_column_shows_the_value_at_its_path_or_null() -> None:
    columns = (
        PrinterColumn("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        PrinterColumn("Since", ".status.since", "date"),
        PrinterColumn("Size", ".spec.size", "integer"),
    )
    kind = ServedKind("example.org", "v1", "Widget", "widgets", columns=columns, crd_schema={})
    status = {"conditions": [{"type": "X", "status": "no"}, {"type": "Ready", "status": "True"}], "since": ago(days=3)}
    row = RowPrinter(kind, "None").row({"metadata": {"name": "w"}, "status": status}, NOW)
    assert row["cells"] == ["w", "True", "3d", None]


def test_column_with_an_invalid_path_is_empty() -> None:
    columns = (PrinterColumn("Deep", ".spec..name"), PrinterColumn("Size", ".spec.size", "integer"))
    kind = ServedKind("example.org", "v1", "Widget", "widgets", columns=columns, crd_schema={})
    row = RowPrinter(kind, "None").row({"metadata": {"name": "w"}, "spec": {"size": 2}}, NOW)
    assert row["cells"] == ["w", None, 2]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".a.b", [1]), ("{.a.b}", [1]), (".list[0].n", ["x"]), (".list[-1].n", ["y"]), (".list[-1:].n", ["y"]),
        (".list[:1].n", ["x"]), (".list[5:].n", []), (".list[*].n", ["x", "y"]),
        (".a['b']", [1]), (r".map.with\.dot", [2]), (".missing.b", []), (".list[9]", []),
        ('.list[?(@.n=="y")].v', [5]), (".list[?(@.v)].n", ["y"]),
    ],
)  # fmt: skip
def test_json_path_returns_all_values(path: str, values: list[Any]) -> None:
    found = {"a": {"b": 1}, "list": [{"n": "x"}, {"n": "y", "v": 5}], "map": {"with.dot": 2}}
    assert compile_path(path)(found) == values


@pytest.mark.parametrize("version", VERSIONS)
def test_every_column_of_every_kind_accepts_an_empty_object(version: str) -> None:
    for kind in builtin_kinds(version):
        row = RowPrinter(kind, "Metadata").row({"metadata": {"name": "a"}}, NOW)
        assert len(row["cells"]) == len(column_definitions(kind))


def test_all_column_functions_exist_and_are_used() -> None:
    used = {
        c.path[1:] for version in VERSIONS for k in builtin_kinds(version) for c in k.columns if c.path.startswith("=")
    }
    assert used == set(CELL_FUNCTIONS)
