"""The webhook configurations: which requests an API server asks us about, so that it never asks about any others.

And the policies by which it refuses what is not for others to write, without asking anybody.

Pods fail closed: without an answer a pod of ours is not let in. Match conditions (CEL) are decided by the API server
itself, so that every other pod goes its way whatever has become of the webhook. What makes pods and what is a gang
does not have to wait for us: their mistakes are told again when the pods come.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from gpu_scheduler.gangs.contract import DEVICE_MAP, GROUP, WEBHOOK
from gpu_scheduler.gangs.dialects import DIALECTS
from gpu_scheduler.gangs.jobs import INDEX_LABELS, JOB_KINDS
from gpu_scheduler.gangs.jobs.batch_job import COMPLETION_INDEX
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.policy import AdmissionPolicy
from gpu_scheduler.webhook.reserved import IMMUTABLE, RESERVED, RESERVED_ON_GANGS, RESERVED_PREFIX

TIMEOUT_SECONDS: Final = 5

_SCHEDULER_OF_POD: Final = "spec.schedulerName"
_SCHEDULER_OF_TEMPLATE: Final = "spec.template.spec.schedulerName"


def make_configurations(
    client_config: Json, rules: AdmissionPolicy, *, system_namespace: str, guard: bool
) -> tuple[Json, Json]:
    """The mutating and the validating configuration. `client_config` says where we are, without a path.

    With `guard` reserved annotations are refused by the webhook: for API servers without ValidatingAdmissionPolicy.
    """
    common = {
        "namespaceSelector": _all_namespaces_but("kube-system", system_namespace),
        "objectSelector": {},
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "admissionReviewVersions": ["v1"],
    }
    mutating = {**common, "clientConfig": _with_path(client_config, "/mutate"), "reinvocationPolicy": "IfNeeded"}
    validating = {**common, "clientConfig": _with_path(client_config, "/validate")}
    return (
        _configuration("Mutating", [{**mutating, **hook} for hook in _mutating_hooks(rules)]),
        _configuration("Validating", [{**validating, **hook} for hook in _validating_hooks(rules, guard)]),
    )


def make_policies(rules: AdmissionPolicy) -> dict[str, Json]:
    """What ValidatingAdmissionPolicies are to say, by their names: what `guard` does, and the same for gang objects."""
    stranger = _condition("not-the-scheduler", _write_stranger(rules))
    keep = "metadata.annotations: only the scheduler may write"
    return {
        "gpu-scheduler-reserved": _policy(
            _rules_of_guard(),
            [stranger, _condition("reserved-annotation", _write_forgery())],
            f"{keep} {GROUP}/devices, visible-devices, attempt, notes and status, and {RESERVED_PREFIX}*;"
            " leave them as they are",
        ),
        "gpu-scheduler-gangs": _policy(
            [{**rule, "resources": [*rule["resources"], f"{rule['resources'][0]}/*"]} for rule in _rules_of_gangs()],
            [stranger, _condition("told-annotation", _write_gain(f"k in {_list(RESERVED_ON_GANGS)}"))],
            f"{keep} {' and '.join(RESERVED_ON_GANGS)} on a gang; leave them as they are",
        ),
        "gpu-scheduler-bindings": _policy(
            [_rule("CREATE", "bindings,pods/binding")],
            [_condition("settled", _write_unsettling())],
            f"metadata: {', '.join(IMMUTABLE)} and labels with a pod's index are settled when the pod is made, not when"
            " it is bound; leave them out",
        ),
    }


# -- webhooks


def _mutating_hooks(rules: AdmissionPolicy) -> Iterator[Json]:
    ours = _condition("ours", _write_ours(_SCHEDULER_OF_POD, rules))
    rules_of_pods = [_rule("CREATE", "pods"), _rule("UPDATE", "pods/ephemeralcontainers")]
    yield _hook("pods", "Fail", rules_of_pods, [ours])
    ours = _condition("ours", _write_ours(_SCHEDULER_OF_TEMPLATE, rules))
    # The updates that match would be refused without us anyway: so they are told why.
    rules_of_sets = [_rule("CREATE,UPDATE", "statefulsets", group="apps")]
    yield _hook("statefulsets", "Fail", rules_of_sets, [ours, _condition("order", _write_reordering())])


def _validating_hooks(rules: AdmissionPolicy, guard: bool) -> Iterator[Json]:
    yield _hook(
        "pods",
        "Fail",
        [_rule("CREATE", "pods"), _rule("UPDATE", "pods,pods/*")],
        [_condition("ours", _write_ours(_SCHEDULER_OF_POD, rules)), _condition("news", _write_news(rules))],
    )
    yield _hook("jobs", "Ignore", list(_rules_of_makers()), [_condition("ours", _write_maker_is_ours(rules))])
    yield _hook("gangs", "Ignore", list(_rules_of_gangs()), [_condition("annotated", _write_annotated())])
    if guard:
        yield _hook(
            "reserved",
            "Fail",
            _rules_of_guard(),
            [_condition("forged", f"({_write_stranger(rules)} && ({_write_forgery()})) || ({_write_unsettling()})")],
        )


def _rules_of_guard() -> list[Json]:
    return [_rule("CREATE,UPDATE", "pods,pods/*"), _rule("CREATE", "bindings")]


def _rules_of_makers() -> Iterator[Json]:
    """One rule for every API group of the table of job kinds."""
    for group in sorted({kind.group for kind in JOB_KINDS}):
        kinds = [kind for kind in JOB_KINDS if kind.group == group]
        plurals = ",".join(sorted(kind.plural for kind in kinds))
        versions = list(dict.fromkeys(version for kind in kinds for version in kind.versions))
        yield _rule("CREATE,UPDATE", plurals, group=group, versions=versions)


def _rules_of_gangs() -> Iterator[Json]:
    for dialect in DIALECTS:
        if dialect.resources:
            one = dialect.resources[0]
            versions = [resource.version for resource in dialect.resources]
            yield _rule("CREATE,UPDATE", one.plural, group=one.group, versions=versions)


def _hook(name: str, failure_policy: str, rules: list[Json], conditions: list[Json]) -> Json:
    return {
        "name": f"{name}.{GROUP}",
        "failurePolicy": failure_policy,
        "rules": rules,
        "matchConditions": conditions,
    }


def _rule(operations: str, resources: str, group: str = "", versions: list[str] | None = None) -> Json:
    return {
        "operations": operations.split(","),
        "apiGroups": [group],
        "apiVersions": versions or ["v1"],
        "resources": resources.split(","),
        "scope": "Namespaced",
    }


def _policy(rules: list[Json], conditions: list[Json], message: str) -> Json:
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": conditions,
        "validations": [{"expression": "false", "reason": "Forbidden", "message": message}],
    }


def _condition(name: str, expression: str) -> Json:
    return {"name": name, "expression": expression}


def _configuration(kind: str, hooks: list[Json]) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": WEBHOOK},
        "webhooks": hooks,
    }


def _with_path(client_config: Json, path: str) -> Json:
    if "url" in client_config:
        return {**client_config, "url": client_config["url"].rstrip("/") + path}
    return {**client_config, "service": {**client_config["service"], "path": path}}


def _all_namespaces_but(*names: str) -> Json:
    label = "kubernetes.io/metadata.name"
    return {"matchExpressions": [{"key": label, "operator": "NotIn", "values": list(dict.fromkeys(names))}]}


# -- CEL


def _write_ours(path: str, rules: AdmissionPolicy, variable: str = "object") -> str:
    """That a field names a scheduler of ours; false, not an error, where the field is not there.

    In a path `tasks[]` stands for each item of a list, `*Specs{}` for each value of the maps whose names end so.
    """
    known: list[str] = []
    parts = path.split(".")
    for number, part in enumerate(parts):
        rest = ".".join(parts[number + 1 :])
        if part.endswith("[]"):
            items = f"{variable}.{part[:-2]}"
            return " && ".join([*known, f"has({items})", f"{items}.exists(item, {_write_ours(rest, rules, 'item')})"])
        if part.endswith("{}"):
            ends = f"field.endsWith({_text(part.removeprefix('*')[:-2])})"
            one = _write_ours(rest, rules, f"{variable}[field][key]")
            return " && ".join([*known, f"{variable}.exists(field, {ends} && {variable}[field].exists(key, {one}))"])
        variable = f"{variable}.{part}"
        known.append(f"has({variable})")
    return " && ".join([*known, f"{variable} in {_list(sorted(rules.scheduler_names))}"])


def _write_maker_is_ours(rules: AdmissionPolicy) -> str:
    """That a template of a job, or the job for all its templates, names a scheduler of ours."""
    paths = dict.fromkeys(
        path for kind in JOB_KINDS for path in (kind.scheduler_at, f"{kind.templates_at}.{_SCHEDULER_OF_POD}") if path
    )
    return " || ".join(f"({_write_ours(path, rules)})" for path in paths)


def _write_news(rules: AdmissionPolicy) -> str:
    """That there is something to check: a new pod or container, or others changed what we read of its metadata.

    An update without news, such as a finalizer that is taken off, must not depend on the webhook.
    """
    noted = _write_change(f"k in {_list([DEVICE_MAP, COMPLETION_INDEX])} || k.startsWith({_text(f'{GROUP}/')})")
    labelled = _write_change(f"k in {_list(INDEX_LABELS)}", "labels")
    added = 'has(request.subResource) && request.subResource == "ephemeralcontainers"'
    changed = f"{_write_stranger(rules)} && ({noted} || {labelled})"
    return f'request.operation == "CREATE" || ({added}) || ({changed})'


def _write_stranger(rules: AdmissionPolicy) -> str:
    """That whoever asks is not the scheduler."""
    return f"request.userInfo.username != {_text(rules.scheduler_account)}"


def _write_forgery() -> str:
    """That an annotation that only the scheduler writes is set, changed or removed."""
    return _write_change(f"k in {_list(RESERVED)} || k.startsWith({_text(RESERVED_PREFIX)})")


def _write_unsettling() -> str:
    """That a Binding brings something that was settled when its pod was made."""
    of_pod = 'has(request.subResource) && request.subResource == "binding"'
    binding = f'(request.resource.resource == "bindings" || ({of_pod}))'
    noted = _write_gain(f"k in {_list(IMMUTABLE)}")
    labelled = _write_gain(f"k in {_list(INDEX_LABELS)}", "labels")
    return f"{binding} && ({noted} || {labelled})"


def _write_reordering() -> str:
    """That a StatefulSet is new, or its pods would no longer start at once: then its update would be refused."""
    policy = "spec.podManagementPolicy"
    parallel = 'has({0}) && {0} == "Parallel"'
    was, stays = (parallel.format(f"{one}.{policy}") for one in ("oldObject", "object"))
    return f'request.operation == "CREATE" || ({was} && !({stays}))'


def _write_annotated() -> str:
    return f"{_has('object')} && object.metadata.annotations.exists(k, k.startsWith({_text(f'{GROUP}/')}))"


def _write_change(which: str, what: str = "annotations") -> str:
    """That an annotation `k` of this sort differs between the old and the new object, either of which may have none."""
    new, old = f"object.metadata.{what}", f"oldObject.metadata.{what}"
    has_new, has_old = _has("object", what), f"oldObject != null && {_has('oldObject', what)}"
    lost = f"{has_old} && {old}.exists(k, ({which}) && !({has_new} && k in {new}))"
    return f"{_write_gain(which, what)} || ({lost})"


def _write_gain(which: str, what: str = "annotations") -> str:
    """That an annotation `k` of this sort is set or changed."""
    new, old = f"object.metadata.{what}", f"oldObject.metadata.{what}"
    has_old = f"oldObject != null && {_has('oldObject', what)}"
    same = f"{has_old} && k in {old} && {old}[k] == {new}[k]"
    return f"({_has('object', what)} && {new}.exists(k, ({which}) && !({same})))"


def _has(variable: str, what: str = "annotations") -> str:
    return f"has({variable}.metadata) && has({variable}.metadata.{what})"


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


def _text(text: str) -> str:
    return json.dumps(text)
