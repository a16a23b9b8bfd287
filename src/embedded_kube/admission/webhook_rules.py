"""Webhook configurations: parsing, validation, and matching of requests."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from embedded_kube.admission.match_conditions import MatchConditionError, Variables, compile_condition
from embedded_kube.errors import Cause
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.registry.label_selectors import matches
from gpu_scheduler.k8s.objects import Json

GROUP = "admissionregistration.k8s.io"
MUTATING = f"mutatingwebhookconfigurations.{GROUP}"
VALIDATING = f"validatingwebhookconfigurations.{GROUP}"


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook of a configuration, with the defaults of the API filled in."""

    name: str
    client: Json
    rules: tuple[Json, ...]
    ignore_failure: bool
    exact: bool
    """matchPolicy Exact: equivalent versions of a resource do not match."""
    namespaces: Json
    objects: Json
    timeout: int
    conditions: tuple[tuple[str, Callable[[Variables], bool]], ...]
    reinvoked: bool
    dry_runs: bool

    @classmethod
    def read(cls, webhook: Json) -> Webhook:
        """Parses a webhook of a valid configuration."""
        conditions = webhook.get("matchConditions") or []
        return cls(
            name=webhook["name"],
            client=webhook["clientConfig"],
            rules=tuple(webhook.get("rules") or ()),
            ignore_failure=webhook.get("failurePolicy") == "Ignore",
            exact=webhook.get("matchPolicy") == "Exact",
            namespaces=webhook.get("namespaceSelector") or {},
            objects=webhook.get("objectSelector") or {},
            timeout=webhook.get("timeoutSeconds") or 10,
            conditions=tuple((c["name"], compile_condition(c["expression"])) for c in conditions),
            reinvoked=webhook.get("reinvocationPolicy") == "IfNeeded",
            dry_runs=webhook.get("sideEffects") in ("None", "NoneOnDryRun"),
        )

    def find_kind(
        self, operation: str, kind: ServedKind, subresource: str, equivalents: tuple[ServedKind, ...]
    ) -> ServedKind | None:
        """The version of the kind that the rules match; None if they do not match the request."""
        if any(_matches_rule(rule, operation, kind, subresource) for rule in self.rules):
            return kind
        if not self.exact:
            for other in equivalents:
                if any(_matches_rule(rule, operation, other, subresource) for rule in self.rules):
                    return other
        return None

    def selects(self, obj: Json | None, old: Json | None, namespace_labels: Mapping[str, str] | None) -> bool:
        """Whether the selectors match. `namespace_labels` is None for a cluster-scoped object, which always matches."""
        if namespace_labels is not None and not matches(self.namespaces, namespace_labels):
            return False
        if not self.objects:
            return True
        present = [one for one in (obj, old) if one is not None]
        return any(matches(self.objects, one.get("metadata", {}).get("labels") or {}) for one in present)

    def meets_conditions(self, variables: Variables) -> bool:
        """Whether all match conditions are true; MatchConditionError if one fails and none is false."""
        problem: MatchConditionError | None = None
        for name, condition in self.conditions:
            try:
                if not condition(variables):
                    return False
            except MatchConditionError as error:
                problem = MatchConditionError(f"expression of matchCondition {name!r}: {error}")
        if problem is not None:
            raise problem
        return True


def _matches_rule(rule: Json, operation: str, kind: ServedKind, subresource: str) -> bool:
    return (
        _has(rule.get("operations"), operation)
        and _has(rule.get("apiGroups"), kind.group)
        and _has(rule.get("apiVersions"), kind.version)
        and any(_matches_resource(pattern, kind.plural, subresource) for pattern in rule.get("resources") or ())
        and _matches_scope(rule.get("scope") or "*", kind)
    )


def _has(wanted: list[str] | None, value: str) -> bool:
    return wanted is not None and (value in wanted or "*" in wanted)


def _matches_resource(pattern: str, plural: str, subresource: str) -> bool:
    """`pods`, `pods/status`, `pods/*`, `*/status`, `*` (no subresources) and `*/*` (everything)."""
    resource, _, sub = pattern.partition("/")
    return resource in ("*", plural) and (sub == subresource or (sub == "*"))


def _matches_scope(scope: str, kind: ServedKind) -> bool:
    return scope == "*" or kind.namespaced == (scope == "Namespaced")


def configuration_causes(resource: str, obj: Json) -> Iterator[Cause]:
    """The causes that make a webhook configuration invalid, beyond the types of its fields."""
    names: set[str] = set()
    for index, webhook in enumerate(obj.get("webhooks") or ()):
        field = f"webhooks[{index}]"
        name = webhook.get("name", "")
        if name.count(".") < 2:
            yield _invalid(f"{field}.name", name, "should be a domain with at least three segments separated by dots")
        if name in names:
            yield Cause(f"{field}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
        names.add(name)
        yield from _enum_causes(webhook, field, resource)
        yield from _client_config_causes(webhook.get("clientConfig") or {}, f"{field}.clientConfig")
        versions = webhook.get("admissionReviewVersions") or []
        if "v1" not in versions:
            yield _invalid(f"{field}.admissionReviewVersions", versions, "must include v1, the one version served here")
        seconds = webhook.get("timeoutSeconds")
        if seconds is not None and not 1 <= seconds <= 30:
            yield _invalid(f"{field}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")
        for at, condition in enumerate(webhook.get("matchConditions") or ()):
            try:
                compile_condition(condition.get("expression", ""))
            except ValueError as error:
                where = f"{field}.matchConditions[{at}].expression"
                yield _invalid(where, condition.get("expression", ""), str(error))


_ENUMS = {
    "sideEffects": ("None", "NoneOnDryRun"),
    "failurePolicy": ("Fail", "Ignore"),
    "matchPolicy": ("Equivalent", "Exact"),
    "reinvocationPolicy": ("IfNeeded", "Never"),
}
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")


def _enum_causes(webhook: Json, field: str, resource: str) -> Iterator[Cause]:
    for name, choices in _ENUMS.items():
        value = webhook.get(name)
        if name == "sideEffects" and value is None:
            supported = "must specify one of None, NoneOnDryRun"
            yield Cause(f"{field}.sideEffects", f"Required value: {supported}", "FieldValueRequired")
        elif value is not None and value not in choices and (name != "reinvocationPolicy" or resource == MUTATING):
            yield _unsupported(f"{field}.{name}", value, choices)
    for at, rule in enumerate(webhook.get("rules") or ()):
        where = f"{field}.rules[{at}]"
        for name in ("operations", "apiGroups", "apiVersions", "resources"):
            if not rule.get(name):
                yield Cause(f"{where}.{name}", "Required value", "FieldValueRequired")
        for operation in rule.get("operations") or ():
            if operation not in _OPERATIONS:
                yield _unsupported(f"{where}.operations", operation, _OPERATIONS)
        if rule.get("scope", "*") not in ("*", "Cluster", "Namespaced"):
            yield _unsupported(f"{where}.scope", rule["scope"], ("*", "Cluster", "Namespaced"))


def _client_config_causes(client: Json, field: str) -> Iterator[Cause]:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        yield Cause(field, "Required value: exactly one of url or service is required", "FieldValueRequired")
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            yield _invalid(f"{field}.url", url, "must be a URL of the form https://host[:port]/path")
        elif parts.username is not None or parts.query or parts.fragment:
            yield _invalid(f"{field}.url", url, "user information, query and fragment are not permitted")
    if service is not None and not (service.get("name") and service.get("namespace")):
        yield Cause(f"{field}.service", "Required value: service name and namespace are required", "FieldValueRequired")
    bundle = client.get("caBundle")
    if bundle:
        try:
            client_tls_context(bundle)
        except (ValueError, ssl.SSLError) as error:
            yield _invalid(f"{field}.caBundle", bundle[:16] + "...", f"unable to load root certificates: {error}")


def client_tls_context(bundle: str) -> ssl.SSLContext:
    """The TLS context for calls to a webhook: trusts its caBundle, or the system's CAs if it is empty."""
    try:
        authorities = base64.b64decode(bundle, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("it must be PEM certificates in base64") from None
    context = ssl.create_default_context(cadata=authorities or None)
    # As an API server does: trust a self-signed certificate in the bundle, and do not enforce RFC 5280 strictly.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _invalid(field: str, value: Any, why: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else value
    return Cause(field, f"Invalid value: {shown}: {why}")


def _unsupported(field: str, value: str, choices: tuple[str, ...]) -> Cause:
    supported = ", ".join(f'"{choice}"' for choice in choices)
    return Cause(field, f'Unsupported value: "{value}": supported values: {supported}', "FieldValueNotSupported")
