"""Label and field selectors: from the text of a query to a test that an object passes or not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from embedded_kube import errors
from embedded_kube.printing.jsonpath import compile_path
from embedded_kube.storage.kinds import Kind
from embedded_kube.storage.store import Entry

LabelTest = Callable[[Mapping[str, str]], bool]

_KEY = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.\-]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[\w.\-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[\w.\-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"""\s*(?: (?P<no>!)\s*(?P<absent>{_KEY})
            | (?P<key>{_KEY})
              (?: \s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
                | \s*(?P<op>===?|=|!=|>|<)\s*(?P<value>[^,]*?) )? )\s*(?:,|$)""",
    re.VERBOSE,
)


def parse_labels(text: str) -> list[LabelTest]:
    """The requirements of a label selector, all of which must hold; 400 for text that is none."""
    tests: list[LabelTest] = []
    position = 0
    text = text.strip()
    while position < len(text):
        found = _REQUIREMENT.match(text, position)
        if found is None or found["op"] == "===" or (found.end() == len(text) and text.endswith(",")):
            raise errors.bad_request(f"unable to parse requirement: found '{text[position:]}' in label selector")
        tests.append(_label_test(found))
        position = found.end()
    return tests


def _label_test(found: re.Match[str]) -> LabelTest:
    if found["no"]:
        absent = found["absent"]
        return lambda labels: absent not in labels
    key = found["key"]
    if found["set"]:
        values = {_checked(key, value.strip()) for value in found["values"].split(",")}
        if found["set"] == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: key not in labels or labels[key] not in values
    operator, value = found["op"], found["value"]
    if operator is None:
        return lambda labels: key in labels
    if operator in (">", "<"):
        return _comparison(key, operator, value)
    _checked(key, value)
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def _comparison(key: str, operator: str, value: str) -> LabelTest:
    try:
        bound = int(value)
    except ValueError:
        message = f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": '
        raise errors.bad_request(message + "for 'Gt', 'Lt' operators, the value must be an integer") from None

    def test(labels: Mapping[str, str]) -> bool:
        try:
            have = int(labels[key])
        except (KeyError, ValueError):
            return False
        return have > bound if operator == ">" else have < bound

    return test


def _checked(key: str, value: str) -> str:
    if len(value) > 63 or not re.fullmatch(_VALUE, value):
        message = f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": a valid label has at most '
        raise errors.bad_request(
            message + "63 letters, digits, '-', '_' or '.', and begins and ends with a letter or digit"
        )
    return value


# -- field selectors


class Field(NamedTuple):
    """A field that can be selected by: where it is, and what a missing one counts as."""

    path: str
    missing: str = ""


class _Term(NamedTuple):
    label: str
    equal: bool
    value: str


def _plain(*labels: str) -> dict[str, Field]:
    return {label: Field(f".{label}") for label in labels}


_ABOUT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT = {
    **_plain("reason", "type", "reportingComponent", *(f"involvedObject.{name}" for name in _ABOUT)),
    "source": Field(".source.component"),
}
_FIELDS: dict[str, dict[str, Field]] = {
    "services": _plain("spec.type", "spec.clusterIP"),
    "pods": {
        **_plain("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        **_plain("status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName"),
        "spec.hostNetwork": Field(".spec.hostNetwork", "false"),
    },
    "nodes": {"spec.unschedulable": Field(".spec.unschedulable", "false")},
    "namespaces": {**_plain("status.phase"), "name": Field(".metadata.name")},
    "secrets": _plain("type"),
    "jobs.batch": {"status.successful": Field(".status.succeeded", "0")},
    "events": {
        **_EVENT,
        # The names that the group events.k8s.io gives to the same fields.
        **{f"regarding.{name}": Field(f".involvedObject.{name}") for name in _ABOUT},
        "reportingController": Field(".reportingComponent"),
    },
}
_OWN = {"metadata.name", "metadata.namespace"}


def parse_fields(kind: Kind, text: str) -> list[_Term]:
    """The terms of a field selector; 400 for a field that cannot be selected by."""
    known = fields_of(kind)
    terms = []
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        found = re.match(r"((?:[^=!\\]|\\.)*)(==|=|!=)(.*)", part, re.DOTALL)
        if found is None:
            raise errors.bad_request(f"invalid field selector '{text}'; can't understand '{part}'")
        label = found[1].strip()
        if label not in known and label not in _OWN:
            raise errors.bad_request(f"field label not supported: {label}")
        terms.append(_Term(label, found[2] != "!=", re.sub(r"\\(.)", r"\1", found[3])))
    return terms


def fields_of(kind: Kind) -> Mapping[str, Field]:
    """The fields of a kind that can be selected by, besides name and namespace."""
    if kind.selectable:
        return {path.removeprefix("."): Field(path) for path in kind.selectable}
    return _FIELDS.get(kind.resource, {})


@lru_cache(maxsize=4096)
def _values(entry: Entry, fields: tuple[Field, ...]) -> tuple[str, ...]:
    """The fields of an object. Kept, because many watchers ask the same of each change."""
    found = entry.object()
    values = []
    for field in fields:
        at = compile_path(field.path)(found)
        value = at[0] if at else None
        if isinstance(value, bool):
            value = "true" if value else "false"
        values.append(field.missing if value is None else str(value))
    return tuple(values)


class Selection:
    """Which objects of a kind a request is about."""

    def __init__(self, kind: Kind, namespace: str, labels: str = "", fields: str = "") -> None:
        self.namespace = namespace
        self._labels = parse_labels(labels)
        terms = parse_fields(kind, fields)
        self._own = [term for term in terms if term.label in _OWN]
        others = [term for term in terms if term.label not in _OWN]
        known = fields_of(kind)
        self._fields = tuple(known[term.label] for term in others)
        self._wanted = tuple((term.equal, term.value) for term in others)
        self.selective = bool(labels or fields)

    def matches(self, entry: Entry) -> bool:
        """Whether an object is among them."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        if not self.selective:
            return True
        for term in self._own:
            value = entry.name if term.label == "metadata.name" else entry.namespace
            if (value == term.value) != term.equal:
                return False
        labels = entry.labels
        for test in self._labels:
            if not test(labels):
                return False
        if not self._fields:
            return True
        values = _values(entry, self._fields)
        return all((have == value) is equal for have, (equal, value) in zip(values, self._wanted, strict=True))
