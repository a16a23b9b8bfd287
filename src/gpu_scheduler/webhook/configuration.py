"""The webhook configurations and admission policies: which requests an API server sends to the webhook.

Pods fail closed: without an answer a pod that names this scheduler is refused. Match conditions (CEL) run in the API
server, so pods of other schedulers never depend on the webhook. Jobs and gang objects fail open: their mistakes are
found again when their pods are created. Queues fail open too: the scheduler closes an invalid one, and its status says
why. ValidatingAdmissionPolicies protect the reserved annotations without a webhook; optional ones close the ways around
queues in namespaces of tenants.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from gpu_scheduler.gangs.contract import DEVICE_MAP, GROUP, QUEUES, WEBHOOK
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
    client_config: Json, policy: AdmissionPolicy, *, system_namespace: str, guard: bool
) -> tuple[Json, Json]:
    """The mutating and the validating configuration. `client_config` is the address of the webhook without a path.

    With `guard` the webhook itself protects reserved annotations, for API servers without ValidatingAdmissionPolicy.
    """
    common = {
        "namespaceSelector": _exclude_namespaces("kube-system", system_namespace),
        "objectSelector": {},
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "admissionReviewVersions": ["v1"],
    }
    mutating = {**common, "clientConfig": _with_path(client_config, "/mutate"), "reinvocationPolicy": "IfNeeded"}
    validating = {**common, "clientConfig": _with_path(client_config, "/validate")}
    return (
        _configuration("Mutating", [{**mutating, **hook} for hook in _mutating_hooks(policy)]),
        _configuration("Validating", [{**validating, **hook} for hook in _validating_hooks(policy, guard)]),
    )


def make_policies(policy: AdmissionPolicy) -> dict[str, Json]:
    """The specs of the ValidatingAdmissionPolicies by name. They do what `guard` does, also for gang objects."""
    not_scheduler = _condition("not-the-scheduler", _is_not_scheduler(policy))
    reserved = "metadata.annotations: only the scheduler may write"
    return {
        "gpu-scheduler-reserved": _policy(
            _pod_and_binding_rules(),
            [not_scheduler, _condition("reserved-annotation", _changes_reserved())],
            f"{reserved} {GROUP}/devices, visible-devices, attempt, charged-queue, notes and status, and"
            f" {RESERVED_PREFIX}*; leave them as they are",
        ),
        "gpu-scheduler-gangs": _policy(
            [{**rule, "resources": [*rule["resources"], f"{rule['resources'][0]}/*"]} for rule in _gang_rules()],
            [not_scheduler, _condition("reserved-annotation", _sets_key(f"k in {_list(RESERVED_ON_GANGS)}"))],
            f"{reserved} {' and '.join(RESERVED_ON_GANGS)} on a gang; leave them as they are",
        ),
        "gpu-scheduler-bindings": _policy(
            [_rule("CREATE", "bindings,pods/binding")],
            [_condition("sets-immutable", _binding_sets_immutable())],
            f"metadata: {', '.join(IMMUTABLE)} and labels with a pod's index cannot change after the pod is created;"
            " leave them out of the Binding",
        ),
    }


def make_tenant_policies(policy: AdmissionPolicy, longest: str = "") -> dict[str, Json]:
    """The specs of the optional policies for namespaces of tenants by name: what would use GPUs beside all queues.

    They exempt no DaemonSet: a tenant may create one, and its pods would be as free as any others. `longest` is written
    instead of the longest grace period of a deletion.
    """
    served = sorted(policy.scheduler_names)
    longest = longest or str(policy.ceilings.longest_deletion)
    return {
        "gpu-scheduler-tenant-schedulers": _policy(
            [_rule("CREATE", "pods")],
            [
                _condition("asks-for-gpus", f"{_requests_gpus(policy)} || {_has_device_annotation()}"),
                _condition("not-ours", f"!({_names_our_scheduler(_SCHEDULER_OF_POD, policy)})"),
            ],
            "spec.schedulerName: pods that ask for GPUs must use the scheduler that charges them to a queue; write"
            f" {served[0]}",
        ),
        "gpu-scheduler-tenant-nodes": _policy(
            [_rule("CREATE", "pods")],
            [_condition("names-a-node", _names_node()), _condition("not-a-kubelet", _is_not_kubelet())],
            "spec.nodeName: bypasses the scheduler and its queues; leave it out",
        ),
        "gpu-scheduler-tenant-requests": _policy(
            [_rule("CREATE", "pods")],
            [
                _condition("map-or-share", _has_device_annotation()),
                _condition("no-request", f"!({_requests_gpus(policy)})"),
            ],
            f"metadata.annotations: {' and '.join(IMMUTABLE)} need a request for GPUs, which a ResourceQuota can count;"
            " request whole GPUs, with a map as many as it lists",
        ),
        "gpu-scheduler-tenant-deletions": _policy(
            [_rule("DELETE", "pods"), _rule("CREATE", "pods/eviction")],
            [_condition("slow-deletion", _deletes_slowly(policy, longest))],
            f"gracePeriodSeconds: is longer than pods may take to end here; write at most {longest}",
        ),
    }


# -- webhooks


def _mutating_hooks(policy: AdmissionPolicy) -> Iterator[Json]:
    pod_rules = [_rule("CREATE", "pods"), _rule("UPDATE", "pods/ephemeralcontainers")]
    yield _hook("pods", "Fail", pod_rules, [_condition("ours", _names_our_scheduler(_SCHEDULER_OF_POD, policy))])
    # An update that matches would be refused by the API server anyway: the webhook repairs it.
    conditions = [
        _condition("ours", _names_our_scheduler(_SCHEDULER_OF_TEMPLATE, policy)),
        _condition("pod-management-policy", _is_new_or_loses_parallel()),
    ]
    yield _hook("statefulsets", "Fail", [_rule("CREATE,UPDATE", "statefulsets", group="apps")], conditions)


def _validating_hooks(policy: AdmissionPolicy, guard: bool) -> Iterator[Json]:
    yield _hook(
        "pods",
        "Fail",
        [_rule("CREATE", "pods"), _rule("UPDATE", "pods,pods/*")],
        [
            _condition("ours", _names_our_scheduler(_SCHEDULER_OF_POD, policy)),
            _condition("relevant-change", _is_relevant_change(policy)),
        ],
    )
    yield _hook(
        "jobs", "Ignore", list(_template_owner_rules()), [_condition("ours", _owner_names_our_scheduler(policy))]
    )
    yield _hook("gangs", "Ignore", list(_gang_rules()), [_condition("annotated", _has_own_annotations())])
    yield _hook("queues", "Ignore", [_queue_rule()], [_condition("new-spec", _is_new_or_changes_spec())])
    if guard:
        yield _hook(
            "reserved",
            "Fail",
            _pod_and_binding_rules(),
            [
                _condition(
                    "reserved",
                    f"({_is_not_scheduler(policy)} && ({_changes_reserved()})) || ({_binding_sets_immutable()})",
                )
            ],
        )


def _pod_and_binding_rules() -> list[Json]:
    return [_rule("CREATE,UPDATE", "pods,pods/*"), _rule("CREATE", "bindings")]


def _template_owner_rules() -> Iterator[Json]:
    """One rule for every API group of the table of job kinds."""
    for group in sorted({kind.group for kind in JOB_KINDS}):
        kinds = [kind for kind in JOB_KINDS if kind.group == group]
        plurals = ",".join(sorted(kind.plural for kind in kinds))
        versions = list(dict.fromkeys(version for kind in kinds for version in kind.versions))
        yield _rule("CREATE,UPDATE", plurals, group=group, versions=versions)


def _gang_rules() -> Iterator[Json]:
    for dialect in DIALECTS:
        if dialect.resources:
            one = dialect.resources[0]
            versions = [resource.version for resource in dialect.resources]
            yield _rule("CREATE,UPDATE", one.plural, group=one.group, versions=versions)


def _queue_rule() -> Json:
    rule = _rule("CREATE,UPDATE", QUEUES.plural, group=QUEUES.group, versions=[QUEUES.version])
    return {**rule, "scope": "Cluster"}


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


def _exclude_namespaces(*names: str) -> Json:
    label = "kubernetes.io/metadata.name"
    return {"matchExpressions": [{"key": label, "operator": "NotIn", "values": list(dict.fromkeys(names))}]}


# -- CEL


def _names_our_scheduler(path: str, policy: AdmissionPolicy, variable: str = "object") -> str:
    """CEL: a field names this scheduler; false, not an error, where the field is absent.

    In a path `tasks[]` stands for each item of a list, `*Specs{}` for each value of the maps with this suffix.
    """
    present: list[str] = []
    parts = path.split(".")
    for number, part in enumerate(parts):
        rest = ".".join(parts[number + 1 :])
        if part.endswith("[]"):
            items = f"{variable}.{part[:-2]}"
            return " && ".join(
                [*present, f"has({items})", f"{items}.exists(item, {_names_our_scheduler(rest, policy, 'item')})"]
            )
        if part.endswith("{}"):
            ends = f"field.endsWith({_text(part.removeprefix('*')[:-2])})"
            one = _names_our_scheduler(rest, policy, f"{variable}[field][key]")
            return " && ".join([*present, f"{variable}.exists(field, {ends} && {variable}[field].exists(key, {one}))"])
        variable = f"{variable}.{part}"
        present.append(f"has({variable})")
    return " && ".join([*present, f"{variable} in {_list(sorted(policy.scheduler_names))}"])


def _owner_names_our_scheduler(policy: AdmissionPolicy) -> str:
    """CEL: a template of a job, or the job for all its templates, names this scheduler."""
    paths = dict.fromkeys(
        path for kind in JOB_KINDS for path in (kind.scheduler_at, f"{kind.templates_at}.{_SCHEDULER_OF_POD}") if path
    )
    return " || ".join(f"({_names_our_scheduler(path, policy)})" for path in paths)


def _is_relevant_change(policy: AdmissionPolicy) -> str:
    """CEL: there is something to check: a new pod or container, or changed metadata that the scheduler reads.

    Any other update, such as the removal of a finalizer, must not depend on the webhook.
    """
    annotated = _changes_key(f"k in {_list([DEVICE_MAP, COMPLETION_INDEX])} || k.startsWith({_text(f'{GROUP}/')})")
    labelled = _changes_key(f"k in {_list(INDEX_LABELS)}", "labels")
    added = 'has(request.subResource) && request.subResource == "ephemeralcontainers"'
    changed = f"{_is_not_scheduler(policy)} && ({annotated} || {labelled})"
    return f'request.operation == "CREATE" || ({added}) || ({changed})'


def _is_not_scheduler(policy: AdmissionPolicy) -> str:
    """CEL: the request does not come from the scheduler."""
    return f"request.userInfo.username != {_text(policy.scheduler_account)}"


def _changes_reserved() -> str:
    """CEL: a reserved annotation is set, changed or removed."""
    return _changes_key(f"k in {_list(RESERVED)} || k.startsWith({_text(RESERVED_PREFIX)})")


def _binding_sets_immutable() -> str:
    """CEL: a Binding sets metadata that is immutable once its pod exists."""
    of_pod = 'has(request.subResource) && request.subResource == "binding"'
    binding = f'(request.resource.resource == "bindings" || ({of_pod}))'
    annotated = _sets_key(f"k in {_list(IMMUTABLE)}")
    labelled = _sets_key(f"k in {_list(INDEX_LABELS)}", "labels")
    return f"{binding} && ({annotated} || {labelled})"


def _requests_gpus(policy: AdmissionPolicy) -> str:
    """CEL: a container requests GPUs, or has a limit for them, which is then its request."""
    gpus, fields = _list(policy.gpu_resources), ("c.resources.requests", "c.resources.limits")
    asks = [f'(has({field}) && {field}.exists(r, r in {gpus} && {field}[r] != "0"))' for field in fields]
    one = f"has(c.resources) && ({' || '.join(asks)})"
    lists = ("containers", "initContainers")
    return " || ".join(f"(has(object.spec.{name}) && object.spec.{name}.exists(c, {one}))" for name in lists)


def _has_device_annotation() -> str:
    """CEL: a pod has a map or a share."""
    return f"({_has('object')} && object.metadata.annotations.exists(k, k in {_list(IMMUTABLE)}))"


def _names_node() -> str:
    return 'has(object.spec.nodeName) && object.spec.nodeName != ""'


def _is_not_kubelet() -> str:
    """CEL: the request does not come from a kubelet, which shows its static pods in the API."""
    return '!(has(request.userInfo.groups) && "system:nodes" in request.userInfo.groups)'


def _deletes_slowly(policy: AdmissionPolicy, longest: str) -> str:
    """CEL: a pod of ours is deleted, or any pod evicted, with a longer grace period. An eviction shows no pod.

    A deletion that names no grace period has that of the pod here, which may be older than the ceiling.
    """
    asked = "has({0}) && has({0}.gracePeriodSeconds) && {0}.gracePeriodSeconds > {1}"
    ours = _names_our_scheduler(_SCHEDULER_OF_POD, policy, "oldObject")
    own = "oldObject.spec.terminationGracePeriodSeconds"
    as_declared = f"has({own}) && {own} == request.options.gracePeriodSeconds"
    slow = f"{asked.format('request.options', longest)} && !({as_declared})"
    deleted = f'request.operation == "DELETE" && {ours} && {slow}'
    evicted = f'request.operation == "CREATE" && {asked.format("object.deleteOptions", longest)}'
    return f"({deleted}) || ({evicted})"


def _is_new_or_loses_parallel() -> str:
    """CEL: a StatefulSet is new, or an update removes its immutable Parallel policy and would be refused."""
    policy = "spec.podManagementPolicy"
    parallel = 'has({0}) && {0} == "Parallel"'
    before, after = (parallel.format(f"{one}.{policy}") for one in ("oldObject", "object"))
    return f'request.operation == "CREATE" || ({before} && !({after}))'


def _is_new_or_changes_spec() -> str:
    """CEL: an object is new, or an update changes its spec."""
    same = "has(object.spec) && has(oldObject.spec) && object.spec == oldObject.spec"
    return f'request.operation == "CREATE" || !({same})'


def _has_own_annotations() -> str:
    """CEL: the object has an annotation under gpu-scheduler.io."""
    return f"{_has('object')} && object.metadata.annotations.exists(k, k.startsWith({_text(f'{GROUP}/')}))"


def _changes_key(which: str, what: str = "annotations") -> str:
    """CEL: a key `k` for which `which` holds differs between the old and the new object."""
    new, old = f"object.metadata.{what}", f"oldObject.metadata.{what}"
    has_new, has_old = _has("object", what), f"oldObject != null && {_has('oldObject', what)}"
    removed = f"{has_old} && {old}.exists(k, ({which}) && !({has_new} && k in {new}))"
    return f"{_sets_key(which, what)} || ({removed})"


def _sets_key(which: str, what: str = "annotations") -> str:
    """CEL: a key `k` for which `which` holds is set or changed."""
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
