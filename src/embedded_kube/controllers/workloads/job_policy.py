"""podFailurePolicy, successPolicy and completion indexes of Jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from embedded_kube.controllers.machinery.objects import PodView
from gpu_scheduler.k8s.objects import Json


def read_indexes(text: str | None) -> set[int]:
    """Parses indexes as in a status: "0-2,5"."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def write_indexes(indexes: Iterable[int]) -> str:
    """Formats indexes as in a status: "0-2,5"."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(
        str(first) if first == last else f"{first},{last}" if last == first + 1 else f"{first}-{last}"
        for first, last in parts
    )


def match_failure_policy(policy: Json | None, pod: PodView) -> tuple[str, str]:
    """Returns the action of the first podFailurePolicy rule that matches a failed pod, or Count, and a message."""
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        why = _matches_exit(rule.get("onExitCodes"), pod) or _matches_condition(rule.get("onPodConditions"), pod)
        if why:
            return rule["action"], f"{why} matching {rule['action']} rule at index {number}"
    return "Count", ""


def _matches_exit(rule: Json | None, pod: PodView) -> str:
    if not rule:
        return ""
    for container, code in pod.exits:
        if code == 0 or rule.get("containerName") not in (None, container):
            continue
        if (code in rule["values"]) == (rule["operator"] == "In"):
            return f"Container {container} for pod {pod.meta.namespace}/{pod.meta.name} failed with exit code {code}"
    return ""


def _matches_condition(patterns: Collection[Json] | None, pod: PodView) -> str:
    for pattern in patterns or ():
        if (pattern["type"], pattern.get("status", "True")) in pod.conditions:
            return f"Pod {pod.meta.namespace}/{pod.meta.name} has condition {pattern['type']}"
    return ""


def met_success_rule(policy: Json | None, succeeded: Collection[int]) -> int | None:
    """Returns the index of the first successPolicy rule that is met."""
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        named = read_indexes(rule.get("succeededIndexes")) if rule.get("succeededIndexes") else None
        done = len(named & set(succeeded)) if named is not None else len(succeeded)
        least = rule.get("succeededCount") or (len(named) if named is not None else 0)
        if least and done >= least:
            return number
    return None
