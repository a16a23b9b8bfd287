"""The report of `validate` as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpu_scheduler.base.text import count
from gpu_scheduler.cli.render.text import Row, TableColumn, draw_table
from gpu_scheduler.cli.validation.comparison import (
    ObservedPod,
    Validation,
    describe_node,
    describe_value,
    find_advice,
    find_differences,
    map_name_of,
)
from gpu_scheduler.k8s.times import format_time

MOST_NODES = 20
"""The most nodes that are listed."""


def draw_report(found: Validation) -> str:
    """The report as text, which ends with the verdict."""
    parts = [
        ("GPU Scheduler Validation Report", [f"{format_time(found.cluster.now)}  {found.cluster.server}"]),
        ("Cluster Status", _draw_cluster(found)),
        ("Scheduler Status", _draw_scheduler(found)),
        ("Test Pods Status", _draw_pods(found)),
        ("Environment Variable Validation", [line for pod in found.pods for line in _draw_pod(pod, found)]),
    ]
    blocks = ["\n".join([f"=== {title} ===", *lines]) for title, lines in parts]
    blocks += ["\n".join(lines) for lines in (_draw_left(found), find_advice(found)) if lines]
    return "\n\n".join([*blocks, say_verdict(found)]) + "\n"


def say_verdict(found: Validation) -> str:
    """The verdict in one line."""
    total = count(len(found.pods), "pod")
    wrong = sum(bool(find_differences(pod, found.cluster)) for pod in found.pods)
    if wrong:
        return f"Validation failed: {wrong} of {total} {'does' if wrong == 1 else 'do'} not match the map."
    if found.left_behind:
        return f"Validation failed: all {total} match the map, but not everything could be removed."
    return f"Validation passed: all {total} run on the nodes and with the GPUs of the map."


def _draw_cluster(found: Validation) -> list[str]:
    nodes = found.cluster.nodes
    ready = sum(node.ready for node in nodes)
    head = f"Kubernetes {found.cluster.version}, {ready} of {count(len(nodes), 'node')} ready"
    columns = (TableColumn("NODE"), TableColumn("READY"), TableColumn("GPU-NODE-NAME"), TableColumn("GPUS", right=True))
    rows: list[Row] = [
        (node.name, "yes" if node.ready else "no", node.label, str(node.gpus) if node.gpus else "")
        for node in nodes[:MOST_NODES]
    ]
    more = [f"and {len(nodes) - MOST_NODES} more"] if len(nodes) > MOST_NODES else []
    return [head, *_draw_table(columns, rows), *more]


def _draw_scheduler(found: Validation) -> list[str]:
    seen = found.scheduler
    leader = seen.leader_problem or seen.leader
    webhook = ": ".join(said for said in (seen.webhook, seen.webhook_problem) if said) or "not installed"
    return [f"Leader: {leader}", f"Webhook: {webhook}"]


def _draw_pods(found: Validation) -> list[str]:
    columns = (TableColumn("POD"), TableColumn("STATUS"), TableColumn("NODE"), TableColumn("EXPECTED"))
    rows: list[Row] = [
        (pod.wanted.pod, pod.status, describe_node(pod.node, found.cluster) if pod.node else "", pod.wanted.node)
        for pod in found.pods
    ]
    return _draw_table(columns, rows)


def _draw_pod(pod: ObservedPod, found: Validation) -> list[str]:
    """One line for a pod, and one below it for each difference."""
    differences = find_differences(pod, found.cluster)
    where = f"Scheduled to {map_name_of(pod.node, found.cluster)}" if pod.node else "Not scheduled"
    mark = "❌" if differences else "✅"
    value = pod.status if pod.values is None else describe_value(pod.value)
    lines = [f"{pod.wanted.pod}: {value}    {mark} ({where})"]
    lines += [f"    {difference}" for difference in differences]
    if pod.log_problem:
        lines.append(f"    its log was not compared: {pod.log_problem}")
    return lines


def _draw_left(found: Validation) -> list[str]:
    return [f"Not removed: {what}" for what in found.left_behind]


def _draw_table(columns: tuple[TableColumn, ...], rows: list[Row]) -> list[str]:
    return [line.plain for line in draw_table(columns, rows, None)]


def report_as_json(found: Validation) -> dict[str, Any]:
    """The report as JSON."""
    cluster, seen = found.cluster, found.scheduler
    return {
        "passed": found.passed,
        "verdict": say_verdict(found),
        "time": format_time(cluster.now),
        "cluster": {
            "server": cluster.server,
            "version": cluster.version,
            "nodes": [asdict(node) for node in cluster.nodes],
        },
        "scheduler": {name: value or None for name, value in asdict(seen).items()},
        "pods": [_pod_as_json(pod, found) for pod in found.pods],
        "left_behind": list(found.left_behind),
        "advice": find_advice(found),
    }


def _pod_as_json(pod: ObservedPod, found: Validation) -> dict[str, Any]:
    differences = find_differences(pod, found.cluster)
    return {
        "name": pod.wanted.pod,
        "passed": not differences,
        "status": pod.status,
        "expected": {"node": pod.wanted.node, "cuda_visible_devices": pod.wanted.devices},
        "actual": {
            "node": pod.node or None,
            "cuda_visible_devices": dict(pod.values or {}),
            "printed": pod.printed,
        },
        "differences": differences,
        "log_problem": pod.log_problem or None,
    }
