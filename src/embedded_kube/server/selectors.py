"""Label and field selectors of queries: parsing and matching."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from embedded_kube import errors
from embedded_kube.printing.jsonpath import compile_path
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.storage.store import StoreEntry

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
    """Parses a label selector to its requirements, which must all hold; BadRequest (400) if it is malformed."""
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


def _label_test(obj: re.Match[str]) -> LabelTest:
    if obj["no"]:
        absent = obj["absent"]
        return lambda labels: absent not in labels
    key = obj["key"]
    if obj["set"]:
        values = {_check_value(key, value.strip()) for value in obj["values"].split(",")}
        if obj["set"] == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: key not in labels or labels[key] not in values
    operator, value = obj["op"], obj["value"]
    if operator is None:
        return lambda labels: key in labels
    if operator in (">", "<"):
        return _comparison(key, operator, value)
    _check_value(key, value)
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


def _check_value(key: str, value: str) -> str:
    if len(value) > 63 or not re.fullmatch(_VALUE, value):
        message = f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": a valid label has at most '
        raise errors.bad_request(
            message + "63 letters, digits, '-', '_' or '.', and begins and ends with a letter or digit"
        )
    return value


# -- field selectors


class SelectableField(NamedTuple):
    """A field that field selectors support: its path, and the value of a missing field."""

    path: str
    missing: str = ""


class _Term(NamedTuple):
    label: str
    equal: bool
    value: str


def _plain(*labels: str) -> dict[str, SelectableField]:
    return {label: SelectableField(f".{label}") for label in labels}


_REFERENCE_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT = {
    **_plain("reason", "type", "reportingComponent", *(f"involvedObject.{name}" for name in _REFERENCE_FIELDS)),
    "source": SelectableField(".source.component"),
}
_FIELDS: dict[str, dict[str, SelectableField]] = {
    "services": _plain("spec.type", "spec.clusterIP"),
    "pods": {
        **_plain("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        **_plain("status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName"),
        "spec.hostNetwork": SelectableField(".spec.hostNetwork", "false"),
    },
    "nodes": {"spec.unschedulable": SelectableField(".spec.unschedulable", "false")},
    "namespaces": {**_plain("status.phase"), "name": SelectableField(".metadata.name")},
    "secrets": _plain("type"),
    "jobs.batch": {"status.successful": SelectableField(".status.succeeded", "0")},
    "events": {
        **_EVENT,
        # The names of the same fields in the group events.k8s.io.
        **{f"regarding.{name}": SelectableField(f".involvedObject.{name}") for name in _REFERENCE_FIELDS},
        "reportingController": SelectableField(".reportingComponent"),
    },
}
_METADATA_FIELDS = {"metadata.name", "metadata.namespace"}


def parse_fields(kind: ServedKind, text: str) -> list[_Term]:
    """Parses a field selector; BadRequest (400) for an unsupported field."""
    known = fields_of(kind)
    terms = []
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        found = re.match(r"((?:[^=!\\]|\\.)*)(==|=|!=)(.*)", part, re.DOTALL)
        if found is None:
            raise errors.bad_request(f"invalid field selector '{text}'; can't understand '{part}'")
        label = found[1].strip()
        if label not in known and label not in _METADATA_FIELDS:
            raise errors.bad_request(f"field label not supported: {label}")
        terms.append(_Term(label, found[2] != "!=", re.sub(r"\\(.)", r"\1", found[3])))
    return terms


def fields_of(kind: ServedKind) -> Mapping[str, SelectableField]:
    """The fields of a kind that selectors support, besides name and namespace."""
    if kind.selectable:
        return {path.removeprefix("."): SelectableField(path) for path in kind.selectable}
    return _FIELDS.get(kind.resource, {})


@lru_cache(maxsize=4096)
def _values(entry: StoreEntry, fields: tuple[SelectableField, ...]) -> tuple[str, ...]:
    """The values of fields of an object. Cached, because many watches evaluate the same selector."""
    found = entry.object()
    values = []
    for field in fields:
        at = compile_path(field.path)(found)
        value = at[0] if at else None
        if isinstance(value, bool):
            value = "true" if value else "false"
        values.append(field.missing if value is None else str(value))
    return tuple(values)


class SelectionPredicate:
    """The namespace and selectors of a list or watch (compare storage.SelectionPredicate)."""

    def __init__(self, kind: ServedKind, namespace: str, labels: str = "", fields: str = "") -> None:
        self.namespace = namespace
        self._labels = parse_labels(labels)
        terms = parse_fields(kind, fields)
        self._metadata_terms = [term for term in terms if term.label in _METADATA_FIELDS]
        others = [term for term in terms if term.label not in _METADATA_FIELDS]
        known = fields_of(kind)
        self._fields = tuple(known[term.label] for term in others)
        self._wanted = tuple((term.equal, term.value) for term in others)
        self.selective = bool(labels or fields)

    def matches(self, entry: StoreEntry) -> bool:
        """Whether an object is selected."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        if not self.selective:
            return True
        for term in self._metadata_terms:
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
