"""Compares two replies to the same request: what differs, and which differences are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.kubernetes.differential.known import Known, find_known
from tests.kubernetes.differential.steps import Step

_ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    """One place at which two replies differ."""

    path: str
    real: Any
    local: Any

    def show(self) -> str:
        """The difference as text."""
        return f"  {self.path}\n    real:  {_short(self.real)}\n    local: {_short(self.local)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 1500 else text[:1500] + " ..."


def differences(real: Any, local: Any, path: str = "") -> list[Difference]:
    """Every difference between two values."""
    if isinstance(real, dict) and isinstance(local, dict):
        found = []
        for name in sorted({*real, *local}, key=str):
            below = f"{path}.{name}" if path else str(name)
            found += differences(real.get(name, _ABSENT), local.get(name, _ABSENT), below)
        return found
    if isinstance(real, list) and isinstance(local, list) and len(real) == len(local):
        found = []
        for index, pair in enumerate(zip(real, local, strict=True)):
            found += differences(*pair, f"{path}[{index}]")
        return found
    if type(real) is type(local) and real == local:
        return []
    return [Difference(path, real, local)]


def _outline(answer: Any) -> str:
    """A reply in one line, for when one server refuses what the other accepts."""
    body = answer["body"] if isinstance(answer["body"], dict) else {}
    if body.get("kind") != "Status" or body.get("status") != "Failure":
        return f"{answer['code']} {body.get('kind', '')}"
    causes = [f"{one.get('field')}: {one.get('message')} ({one.get('reason')})" for one in body.get("causes", ())]
    return f"{answer['code']} {body.get('reason', '')} {body.get('message', '')}{'; '.join(causes)}"


def manner(real: Any, local: Any) -> str:
    """How two replies differ, in one word."""
    refused, refused_here = real["code"] >= 400, local["code"] >= 400
    if refused != refused_here:
        return "accepted" if refused else "refused"
    if real["code"] != local["code"]:
        return "code"
    if not refused:
        return "warnings" if real["body"] == local["body"] else "object"
    return "message" if _without_message(real) == _without_message(local) else "causes"


def _without_message(answer: Any) -> Any:
    """An error without its message: code, reason, and the invalid fields with their causes."""
    body = answer["body"] if isinstance(answer["body"], dict) else {}
    causes = {(one.get("field"), one.get("reason")) for one in body.get("causes", ())}
    return body.get("reason"), body.get("details"), causes


def compare(minor: str, step: Step, real: Any, local: Any) -> tuple[list[Difference], list[Known]]:
    """The unknown differences, and the rules that explained the others."""
    if real["code"] != local["code"]:
        found = [Difference("answer", _outline(real), _outline(local))]
    else:
        found = differences(real, local)
    used: list[Known] = []
    left = []
    for one in found:
        rule = find_known(minor, step, one.path, one.real, one.local)
        if rule is None:
            left.append(one)
        else:
            used.append(rule)
    return left, used
