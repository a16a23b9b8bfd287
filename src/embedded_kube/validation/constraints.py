"""Checks of single values, with the messages of a real API server; the rule tables are made of them."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.schema.decoding import FieldPath, format_path

FieldCheck = Callable[[Any, FieldPath, list[Cause]], None]
"""(value, its path, causes): appends a cause if the value is invalid."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    f" an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    f" end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_DNS1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_DNS1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is"
    f" '{_DNS1035}')"
)
_NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    f" '{_QUALIFIED}')"
)
_TWO_SLASHES = (
    "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    f" '{_QUALIFIED}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_ENV_NAME_TEXT = "a valid environment variable name must consist only of printable ASCII characters other than '='"
_CONFIG_KEY_TEXT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or"
    " 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)

_match_label = re.compile(_LABEL).fullmatch
_match_subdomain = re.compile(_SUBDOMAIN).fullmatch
_match_dns1035 = re.compile(_DNS1035).fullmatch
_match_qualified = re.compile(_QUALIFIED).fullmatch
_match_env = re.compile(r"[ -<>-~]+").fullmatch
_match_port = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?").fullmatch
_match_config_key = re.compile(r"[-._a-zA-Z0-9]+").fullmatch


def show(value: Any) -> str:
    """A value as messages quote it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def add_invalid(causes: list[Cause], path: FieldPath, value: Any, why: str) -> None:
    """Adds the cause "Invalid value"."""
    causes.append(Cause(format_path(path), f"Invalid value: {show(value)}: {why}"))


def add_required(causes: list[Cause], path: FieldPath, why: str = "") -> None:
    """Adds the cause "Required value"."""
    causes.append(Cause(format_path(path), "Required value" + (f": {why}" if why else ""), "FieldValueRequired"))


def add_forbidden(causes: list[Cause], path: FieldPath, why: str) -> None:
    """Adds the cause "Forbidden"."""
    causes.append(Cause(format_path(path), f"Forbidden: {why}", "FieldValueForbidden"))


def add_duplicate(causes: list[Cause], path: FieldPath, value: Any) -> None:
    """Adds the cause "Duplicate value"."""
    causes.append(Cause(format_path(path), f"Duplicate value: {show(value)}", "FieldValueDuplicate"))


def add_unsupported(causes: list[Cause], path: FieldPath, value: Any, options: Iterable[str]) -> None:
    """Adds the cause "Unsupported value"."""
    known = ", ".join(show(option) for option in options)
    causes.append(
        Cause(
            format_path(path), f"Unsupported value: {show(value)}: supported values: {known}", "FieldValueNotSupported"
        )
    )


def one_of(*options: str) -> FieldCheck:
    """One of these values."""
    known = frozenset(options)

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        if value not in known:
            add_unsupported(causes, path, value, options)

    return check


def each(check_item: FieldCheck) -> FieldCheck:
    """Every item of a list."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        for index, item in enumerate(value or ()):
            check_item(item, (path, index), causes)

    return check


def at_least(low: int) -> FieldCheck:
    """A number of at least `low`."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        if value < low:
            add_invalid(causes, path, value, f"must be greater than or equal to {low}")

    return check


def above(low: int, word: str = "") -> FieldCheck:
    """A number above `low`; messages name it `word`."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        if value <= low:
            add_invalid(causes, path, value, f"must be greater than {word or low}")

    return check


def between(low: int, high: int, why: str = "") -> FieldCheck:
    """A number in a range, both ends included."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        if not low <= value <= high:
            add_invalid(causes, path, value, why or f"must be between {low} and {high}, inclusive")

    return check


def at_most_items(limit: int) -> FieldCheck:
    """A list of at most `limit` items."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        if len(value) > limit:
            text = f"Too many: {len(value)}: must have at most {limit} items"
            causes.append(Cause(format_path(path), text, "FieldValueTooMany"))

    return check


HOST_PATHS = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")


def selector_operator(*known: str) -> FieldCheck:
    """The operator of a selector."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        if value not in known:
            add_invalid(causes, path, value, "not a valid selector operator")

    return check


def toleration_effect(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """The effect of a toleration."""
    if value not in ("", *EFFECTS):
        add_unsupported(causes, path, value, EFFECTS)


EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PORTS = "must be between 1 and 65535, inclusive"


def port_or_none(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A port number, or 0 for none."""
    if value and not 1 <= value <= 65535:
        add_invalid(causes, path, value, _PORTS)


def required_port(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A required port number."""
    if not value:
        add_required(causes, path)
    port_or_none(value, path, causes)


def port_or_name(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A port number or a port name."""
    if isinstance(value, str):
        port_name(value, path, causes)
    elif not 1 <= value <= 65535:
        add_invalid(causes, path, value, _PORTS)


def plain_path(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A path without ".." steps."""
    if ".." in value.split("/"):
        add_invalid(causes, path, value, "must not contain '..'")


def ip_address(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """An IP address."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        add_invalid(causes, path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")


def amount(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A number of pods, or a percentage."""
    if isinstance(value, str):
        if not value.endswith("%") or not value[:-1].isdecimal():
            text = "a valid percent string must be a numeric string followed by an ending '%'"
            add_invalid(causes, path, value, f"{text} (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')")
        elif int(value[:-1]) > 100:
            add_invalid(causes, path, value, "must not be greater than 100%")
    elif value < 0:
        add_invalid(causes, path, value, "must be greater than or equal to 0")


def gates(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """The scheduling gates of a pod."""
    seen: set[str] = set()
    for index, gate in enumerate(value):
        name = gate.get("name", "")
        label_key(name, (path, index), causes)
        if name in seen:
            add_duplicate(causes, (path, index), name)
        seen.add(name)


def _pattern(match: Callable[[str], Any], longest: int, text: str) -> FieldCheck:
    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        if not value:
            return  # reported as a missing required value
        if len(value) > longest:
            add_invalid(causes, path, value, f"must be no more than {longest} characters")
        if not match(value):
            add_invalid(causes, path, value, "must not contain dots" if text == _LABEL_TEXT and "." in value else text)

    return check


dns_label = _pattern(_match_label, 63, _LABEL_TEXT)
dns_subdomain = _pattern(_match_subdomain, 253, _SUBDOMAIN_TEXT)
dns1035_label = _pattern(_match_dns1035, 63, _DNS1035_TEXT)
env_name = _pattern(_match_env, 2**20, _ENV_NAME_TEXT)
_config_key = _pattern(_match_config_key, 253, _CONFIG_KEY_TEXT)


def config_key(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A key of a ConfigMap or Secret, which can become a file name."""
    _config_key(value, path, causes)
    if value in (".", ".."):
        add_invalid(causes, path, value, f"must not be '{value}'")
    elif value.startswith(".."):
        add_invalid(causes, path, value, "must not start with '..'")


def port_name(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """The name of a container's port."""
    if len(value) > 15:
        add_invalid(causes, path, value, "must be no more than 15 characters")
    if not _match_port(value):
        add_invalid(causes, path, value, "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    elif "--" in value:
        add_invalid(causes, path, value, "must not contain consecutive hyphens")
    elif not any(letter.isalpha() for letter in value):
        add_invalid(causes, path, value, "must contain at least one letter (a-z)")


def path_segment(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A name that is valid as a path segment of a URL."""
    if value in (".", ".."):
        add_invalid(causes, path, value, f"may not be '{value}'")
    for letter in ("/", "%"):
        if letter in value:
            add_invalid(causes, path, value, f"may not contain '{letter}'")


def key_problems(key: str) -> list[str]:
    """The problems of a qualified name: the key of a label, annotation, taint or resource."""
    prefix, slash, name = key.partition("/")
    problems = []
    if "/" in name:
        return [_TWO_SLASHES]
    if not slash:
        prefix, name = "", key
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        elif len(prefix) > 253:
            problems.append("prefix part must be no more than 253 bytes")
        elif not _match_subdomain(prefix):
            problems.append(f"prefix part {_SUBDOMAIN_TEXT}")
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not _match_qualified(name):
        problems.append(_NAME_PART)
    return problems


def label_key(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A qualified name: the key of a label, annotation, taint or resource."""
    if value:
        for problem in key_problems(value):
            add_invalid(causes, path, value, problem)


def label_value(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """The value of a label."""
    if len(value) > 63:
        add_invalid(causes, path, value, "must be no more than 63 bytes")
    if value and not _match_qualified(value):
        add_invalid(causes, path, value, _LABEL_VALUE)


def label_map(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A map of labels."""
    for key, text in value.items():
        # Fast path: nearly all labels are valid.
        if not (len(key) <= 63 and _match_qualified(key)):
            for problem in key_problems(key):
                add_invalid(causes, path, key, problem)
        if text and (len(text) > 63 or not _match_qualified(text)):
            label_value(text, path, causes)


def annotation_map(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """A map of annotations: keys as of labels, at most 256 KiB in total."""
    size = 0
    for key, text in value.items():
        size += len(key) + (len(text) if text.isascii() else len(text.encode()))
        if not (len(key) <= 63 and _match_qualified(key)):
            for problem in key_problems(key.lower()):
                add_invalid(causes, path, key, problem)
    if size > 262144:
        text = "Too long: may not be more than 262144 bytes"
        causes.append(Cause(format_path(path), text, "FieldValueTooLong"))


def unique(*keys: str) -> FieldCheck:
    """A list with items that differ in these fields, or in their value if none is named."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        if len(value) < 2:
            return
        seen = set()
        for index, item in enumerate(value):
            mark = tuple(show(item.get(key)) for key in keys) if keys else show(item)
            if mark in seen:
                place: FieldPath = (path, index)
                shown = item if not keys else item.get(keys[0]) if len(keys) == 1 else {k: item.get(k) for k in keys}
                add_duplicate(causes, (place, keys[0]) if len(keys) == 1 else place, shown)
            seen.add(mark)

    return check


def both(*checks: FieldCheck) -> FieldCheck:
    """All of these checks."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        for one in checks:
            one(value, path, causes)

    return check
