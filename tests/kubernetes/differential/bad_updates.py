"""The catalogue: forbidden changes of objects, and patches that cannot be applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.differential import bodies as b
from tests.kubernetes.differential.bodies import apply, get, json_patch, merge, named, pod, post, put, strategic
from tests.kubernetes.differential.steps import Step

Entries = Mapping[str, Sequence[Step]]

_CM = b.CONFIG_MAPS


def immutable(minor: str) -> Entries:
    """Immutable fields."""
    found: dict[str, Sequence[Step]] = {}

    def changes(kind: str, path: str, body: Json, table: Mapping[str, Any]) -> None:
        name = body["metadata"]["name"]
        for what, patch in table.items():
            found[f"update {kind}: {what}"] = [post(path, body), merge(f"{path}/{name}", patch), get(f"{path}/{name}")]

    container = {"name": "main", "image": "any:1"}
    changes(
        "pod",
        b.PODS,
        pod(tolerations=[{"key": "a", "operator": "Exists"}], activeDeadlineSeconds=100),
        {
            "node": {"spec": {"nodeName": "n"}},
            "image": {"spec": {"containers": [{**container, "image": "other:2"}]}},
            "empty image": {"spec": {"containers": [{**container, "image": ""}]}},
            "command": {"spec": {"containers": [{**container, "command": ["a"]}]}},
            "added container": {"spec": {"containers": [container, {**container, "name": "b"}]}},
            "restart policy": {"spec": {"restartPolicy": "Never"}},
            "shorter deadline": {"spec": {"activeDeadlineSeconds": 50}},
            "longer deadline": {"spec": {"activeDeadlineSeconds": 150}},
            "no deadline": {"spec": {"activeDeadlineSeconds": None}},
            "more tolerations": {
                "spec": {"tolerations": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]}
            },
            "no tolerations": {"spec": {"tolerations": []}},
            "grace": {"spec": {"terminationGracePeriodSeconds": 1}},
            "priority": {"spec": {"priority": 5}},
            "scheduler": {"spec": {"schedulerName": "other"}},
            "gates": {"spec": {"schedulingGates": [{"name": "a"}]}},
            "labels": {"metadata": {"labels": {"a": "b"}}},
            "status": {"status": {"phase": "Running"}},
            "uid": {"metadata": {"uid": "nope"}},
            "creation": {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}},
            "creation null": {"metadata": {"creationTimestamp": None}},
            "generation": {"metadata": {"generation": 5}},
            "deletion": {"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}},
            "name": {"metadata": {"name": "y"}},
            "namespace": {"metadata": {"namespace": "y"}},
            "kind": {"kind": "Secret"},
            "version": {"apiVersion": "v2"},
            "resource version": {"metadata": {"resourceVersion": "1"}},
            "resource version zero": {"metadata": {"resourceVersion": "0"}},
            "nothing": {},
            "generate name": {"metadata": {"generateName": "g-"}},
        },
    )
    changes(
        "gated pod",
        b.PODS,
        pod(schedulingGates=[{"name": "a"}, {"name": "b"}], nodeSelector={"a": "b"}),
        {
            "one gate less": {"spec": {"schedulingGates": [{"name": "a"}]}},
            "no gates": {"spec": {"schedulingGates": None}},
            "another gate": {"spec": {"schedulingGates": [{"name": "c"}]}},
            "more selector": {"spec": {"nodeSelector": {"c": "d"}}},
            "other selector": {"spec": {"nodeSelector": {"a": "c"}}},
        },
    )
    for kind, path in (
        ("deployment", b.DEPLOYMENTS),
        ("replica set", b.REPLICA_SETS),
        ("stateful set", b.STATEFUL_SETS),
    ):
        changes(
            kind,
            path,
            b.workload(),
            {
                "selector": {"spec": {"selector": {"matchLabels": {"b": "c"}}}},
                "selector and labels": {
                    "spec": {"selector": {"matchLabels": {"b": "c"}}, "template": {"metadata": {"labels": {"b": "c"}}}}
                },
                "replicas": {"spec": {"replicas": 5}},
                "negative replicas": {"spec": {"replicas": -5}},
                "no replicas": {"spec": {"replicas": None}},
                "image": {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other:2"}]}}}},
                "service name": {"spec": {"serviceName": "y"}},
                "pod management": {"spec": {"podManagementPolicy": "Parallel"}},
                "labels": {"metadata": {"labels": {"a": "b"}}},
                "same": {"spec": {"replicas": 1}},
            },
        )
    changes(
        "job",
        b.JOBS,
        b.job(completions=2, parallelism=1),
        {
            "parallelism": {"spec": {"parallelism": 2}},
            "completions": {"spec": {"completions": 3}},
            "mode": {"spec": {"completionMode": "Indexed"}},
            "template": {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other:2"}]}}}},
            "suspend": {"spec": {"suspend": True}},
            "back-off": {"spec": {"backoffLimit": 1}},
            "ttl": {"spec": {"ttlSecondsAfterFinished": 1}},
            "selector": {"spec": {"selector": {"matchLabels": {"a": "b"}}}},
            "node selector": {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}},
        },
    )
    changes(
        "suspended job",
        b.JOBS,
        b.job(suspend=True),
        {
            "node selector": {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}},
            "labels": {"spec": {"template": {"metadata": {"labels": {"z": "y"}}}}},
            "image": {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other:2"}]}}}},
        },
    )
    changes(
        "service",
        b.SERVICES,
        b.service(selector={"a": "b"}),
        {
            "address": {"spec": {"clusterIP": "10.96.77.77"}},
            "no address": {"spec": {"clusterIP": None}},
            "none": {"spec": {"clusterIP": "None"}},
            "type": {"spec": {"type": "NodePort"}},
            "external": {"spec": {"type": "ExternalName", "externalName": "example.org"}},
            "ports": {"spec": {"ports": [{"port": 81, "name": "a"}]}},
            "no ports": {"spec": {"ports": []}},
            "selector": {"spec": {"selector": {"a": None}}},
            "affinity": {"spec": {"sessionAffinity": "ClientIP"}},
        },
    )
    sealed = named(data={"a": "b"}, immutable=True)
    changes(
        "sealed map",
        _CM,
        sealed,
        {"data": {"data": {"a": "c"}}, "unseal": {"immutable": False}, "labels": {"metadata": {"labels": {"a": "b"}}}},
    )
    changes(
        "secret",
        b.SECRETS,
        named(type="example.org/a"),
        {"type": {"type": "example.org/b"}, "data": {"data": {"a": "YQ=="}}, "text": {"stringData": {"a": "b"}}},
    )
    changes(
        "class",
        b.PRIORITIES,
        named("$NS-p", value=5),
        {
            "value": {"value": 6},
            "policy": {"preemptionPolicy": "Never"},
            "description": {"description": "words"},
            "default": {"globalDefault": False},
        },
    )
    changes(
        "budget",
        b.BUDGETS,
        b.budget(minAvailable=1),
        {
            "amount": {"spec": {"minAvailable": 2}},
            "other": {"spec": {"minAvailable": None, "maxUnavailable": 1}},
            "selector": {"spec": {"selector": {"matchLabels": {"app": "b"}}}},
        },
    )
    changes(
        "lease",
        b.LEASES,
        named(spec={"holderIdentity": "a"}),
        {"holder": {"spec": {"holderIdentity": "b"}}, "duration": {"spec": {"leaseDurationSeconds": -1}}},
    )
    changes(
        "node",
        b.NODES,
        named("$NS-n", spec={"podCIDR": "10.1.0.0/24"}),
        {
            "range": {"spec": {"podCIDR": "10.2.0.0/24"}},
            "taints": {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
            "cordon": {"spec": {"unschedulable": True}},
            "provider": {"spec": {"providerID": "a"}},
            "status": {"status": {"capacity": {"cpu": "5"}}},
        },
    )
    changes("event", b.EVENTS, b.event(), {"count": {"count": 5}, "reason": {"reason": "S"}})
    changes(
        "claim",
        b.CLAIMS,
        b.claim(),
        {
            "modes": {"spec": {"accessModes": ["ReadOnlyMany"]}},
            "size": {"spec": {"resources": {"requests": {"storage": "2Gi"}}}},
            "volume": {"spec": {"volumeName": "v"}},
        },
    )
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    changes("role binding", b.BINDINGS, named(roleRef=role), {"role": {"roleRef": {"name": "s"}}})
    gang: Json = {"gang": {"minCount": 2}}
    if minor == "1.35":
        changes(
            "workload",
            b.native(minor, "workloads"),
            named(spec={"podGroups": [{"name": "g", "policy": gang}]}),
            {
                "minimum": {"spec": {"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 3}}}]}},
                "name": {"spec": {"podGroups": [{"name": "h", "policy": gang}]}},
                "controller": {"spec": {"controllerRef": {"kind": "Job", "name": "j"}}},
                "labels": {"metadata": {"labels": {"a": "b"}}},
            },
        )
    else:
        changes(
            "pod group",
            b.native(minor, "podgroups"),
            named(spec={"schedulingPolicy": gang}),
            {
                "minimum": {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}},
                "policy": {"spec": {"schedulingPolicy": {"gang": None, "basic": {}}}},
                "labels": {"metadata": {"labels": {"a": "b"}}},
                "zero": {"spec": {"schedulingPolicy": {"gang": {"minCount": 0}}}},
            },
        )
    return found


def patches() -> Entries:
    """Patches that cannot be applied."""
    path = f"{_CM}/x"
    first = post(_CM, {"metadata": {"name": "x", "labels": {"a": "b"}}, "data": {"k": "v"}})
    operations: dict[str, list[Json]] = {
        "none": [],
        "no op": [{"path": "/data/k", "value": "w"}],
        "unknown op": [{"op": "swap", "path": "/data/k"}],
        "no path": [{"op": "replace", "value": "w"}],
        "bad path": [{"op": "replace", "path": "data/k", "value": "w"}],
        "remove missing": [{"op": "remove", "path": "/data/none"}],
        "replace missing": [{"op": "replace", "path": "/data/none", "value": "w"}],
        "add below missing": [{"op": "add", "path": "/none/deep", "value": "w"}],
        "no value": [{"op": "add", "path": "/data/new"}],
        "test fails": [{"op": "test", "path": "/data/k", "value": "w"}],
        "test holds": [{"op": "test", "path": "/data/k", "value": "v"}, {"op": "add", "path": "/data/n", "value": "w"}],
        "test missing": [{"op": "test", "path": "/data/none", "value": None}],
        "copy": [{"op": "copy", "from": "/data/k", "path": "/data/n"}],
        "move": [{"op": "move", "from": "/data/k", "path": "/data/n"}],
        "move missing": [{"op": "move", "from": "/data/none", "path": "/data/n"}],
        "copy without from": [{"op": "copy", "path": "/data/n"}],
        "escaped": [{"op": "add", "path": "/metadata/labels/example.org~1x", "value": "w"}],
        "root": [{"op": "replace", "path": "", "value": {"metadata": {"name": "x"}}}],
        "into a list": [{"op": "add", "path": "/metadata/finalizers/-", "value": "example.org/f"}],
        "wrong type": [{"op": "replace", "path": "/data", "value": "text"}],
        "number": [{"op": "add", "path": "/data/n", "value": 5}],
        "bad label": [{"op": "add", "path": "/metadata/labels/b", "value": "c d"}],
        "two": [{"op": "remove", "path": "/data/k"}, {"op": "remove", "path": "/data/k"}],
    }
    found: dict[str, Sequence[Step]] = {
        f"json patch: {name}": [first, json_patch(path, *each), get(path)] for name, each in operations.items()
    }
    found["json patch: not a list"] = [first, Step("PATCH", path, {"op": "add"}, b.JSON_PATCH)]
    found["json patch: of numbers"] = [first, Step("PATCH", path, [1], b.JSON_PATCH)]
    found["json patch: malformed"] = [first, Step("PATCH", path, "[{", b.JSON_PATCH)]
    found["json patch: too many"] = [
        first,
        Step("PATCH", path, [{"op": "test", "path": "/data/k", "value": "v"}] * 10_001, b.JSON_PATCH),
    ]
    merges: dict[str, Any] = {
        "list": [],
        "text": "text",
        "null": None,
        "delete all": {"data": None},
        "wrong type": {"data": "text"},
        "number": {"data": {"n": 5}},
        "deep null": {"data": {"k": None, "n": None}},
        "metadata null": {"metadata": None},
        "unknown": {"colour": "red"},
        "labels": {"metadata": {"labels": {"a": None, "c": "d"}}},
        "name": {"metadata": {"name": "y"}},
        "same": {"data": {"k": "v"}},
        "bad": {"metadata": {"labels": {"a": "b c"}}},
    }
    for name, body in merges.items():
        text = "null" if body is None else f'"{body}"' if isinstance(body, str) else body
        found[f"merge patch: {name}"] = [first, merge(path, text), get(path)]
        found[f"strategic patch: {name}"] = [first, strategic(path, text), get(path)]
        found[f"custom merge patch: {name}"] = [
            post(b.WIDGETS, b.widget()),
            merge(f"{b.WIDGETS}/x", text),
            get(f"{b.WIDGETS}/x"),
        ]
    found["merge patch: malformed"] = [first, merge(path, "{")]
    found["strategic patch: malformed"] = [first, strategic(path, "{")]
    found["strategic patch: custom"] = [post(b.WIDGETS, b.widget()), strategic(f"{b.WIDGETS}/x", {"spec": {"size": 2}})]
    pods: dict[str, Json] = {
        "merge by name": {"containers": [{"name": "main", "env": [{"name": "B", "value": "2"}]}]},
        "new container": {"containers": [{"name": "new", "image": "any:2"}]},
        "delete container": {"containers": [{"name": "main", "$patch": "delete"}]},
        "replace containers": {"containers": [{"$patch": "replace"}, {"name": "only", "image": "any:3"}]},
        "no key": {"containers": [{"image": "any:2"}]},
        "not objects": {"containers": ["x"]},
        "bad directive": {"containers": [{"name": "main", "$patch": "burn"}]},
        "replace map": {"nodeSelector": {"$patch": "replace", "x": "y"}},
        "delete env": {"containers": [{"name": "main", "env": [{"name": "A", "$patch": "delete"}]}]},
        "order": {
            "$setElementOrder/containers": [{"name": "side"}, {"name": "main"}],
            "containers": [{"name": "main", "image": "any:9"}],
        },
        "ports by number": {"containers": [{"name": "main", "ports": [{"containerPort": 80, "name": "web"}]}]},
        "null env": {"containers": [{"name": "main", "env": None}]},
        "tolerations": {"tolerations": [{"key": "x", "operator": "Exists"}]},
        "volumes": {"volumes": [{"name": "v", "configMap": {"name": "c"}}]},
        "volumes with retained keys": {
            "volumes": [{"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "c"}}]
        },
        "wrong type": {"containers": {"name": "main"}},
    }
    spec = {
        "containers": [
            {**b.CONTAINER, "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]},
            {"name": "side", "image": "any:1"},
        ],
        "nodeSelector": {"a": "b"},
        "volumes": [{"name": "v", "emptyDir": {}}],
    }
    for name, body in pods.items():
        where = f"{b.DEPLOYMENTS}/x"
        made = post(b.DEPLOYMENTS, b.workload(template={"metadata": {"labels": {"app": "a"}}, "spec": spec}))
        found[f"strategic template: {name}"] = [
            made,
            strategic(where, {"spec": {"template": {"spec": body}}}),
            get(where),
        ]
    lists = {
        "finalizers": {"metadata": {"finalizers": ["example.org/g"]}},
        "delete from": {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.org/f"]}},
        "replace": {"$patch": "replace", "metadata": {"name": "x"}, "data": {"z": "y"}},
        "delete": {"$patch": "delete"},
        "owners": {"metadata": {"ownerReferences": [{"uid": "u", "apiVersion": "v1", "kind": "Pod", "name": "p"}]}},
    }
    held = post(_CM, {"metadata": {"name": "x", "finalizers": ["example.org/f"]}, "data": {"k": "v"}})
    for name, body in lists.items():
        found[f"strategic list: {name}"] = [held, strategic(path, body), get(path)]
    found["put: stale"] = [
        first,
        merge(path, {"data": {"a": "b"}}),
        put(path, {"metadata": {"name": "x", "resourceVersion": f"$FIRST({path})"}}),
        put(path, {"metadata": {"name": "x", "resourceVersion": f"$RV({path})", "uid": f"$UID({path})"}}),
        put(path, {"metadata": {"name": "x", "uid": "nope"}}),
        put(path, {"metadata": {"name": "x", "resourceVersion": "x"}}),
        put(path, named(data={"z": "y"})),
        put(path, named(data={"z": "y"})),
        merge(path, {"metadata": {"resourceVersion": f"$FIRST({path})"}}),
    ]
    return found


def applies() -> Entries:
    """Server-side apply."""
    path = f"{_CM}/x"

    def config(**more: Any) -> Json:
        return {"apiVersion": "v1", "kind": "ConfigMap", **named(), **more}

    def deployment(*containers: Json, **spec: Any) -> Json:
        made = b.workload(**spec)
        made["spec"]["template"] = b.template(containers=list(containers) or [b.CONTAINER])
        return {"apiVersion": "apps/v1", "kind": "Deployment", **made}

    where = f"{b.DEPLOYMENTS}/x"
    env = {**b.CONTAINER, "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]}
    found: dict[str, Sequence[Step]] = {
        "apply: no manager": [Step("PATCH", path, config(), b.APPLY)],
        "apply: no kind": [apply(path, named(data={"a": "b"}))],
        "apply: wrong kind": [apply(path, {**config(), "kind": "Secret"})],
        "apply: wrong version": [apply(path, {**config(), "apiVersion": "v2"})],
        "apply: other name": [apply(path, {**config(), **named("y")})],
        "apply: no name": [apply(path, {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}})],
        "apply: other namespace": [apply(path, {**config(), "metadata": {"name": "x", "namespace": "y"}})],
        "apply: managed fields": [
            apply(path, {**config(), "metadata": {"name": "x", "managedFields": [{"manager": "m"}]}})
        ],
        "apply: yaml": [apply(path, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: b}\n")],
        "apply: malformed": [apply(path, "{"), apply(path, "[]"), apply(path, "text"), apply(path, "")],
        "apply: unknown field": [
            apply(path, config(colour="red")),
            apply(path, config(colour="red"), query="&fieldValidation=Strict"),
        ],
        "apply: uid": [apply(path, {**config(), "metadata": {"name": "x", "uid": "nope"}})],
        "apply: version": [
            apply(path, {**config(), "metadata": {"name": "x", "resourceVersion": "5"}}),
            apply(path, config()),
        ],
        "apply: dry run": [apply(path, config(), query="&dryRun=All"), get(path)],
        "apply: in turn": [
            apply(path, config(data={"a": "1", "b": "1"})),
            apply(path, config(data={"a": "1", "b": "1"})),
            apply(path, config(data={"a": "2"}), "m2"),
            apply(path, config(data={"c": "1"}), "m2"),
            apply(path, config(data={"a": "2"}), "m2", "&force=true"),
            apply(path, config(data={"a": "1", "b": "1"})),
            apply(path, config(data={"b": "1"})),
            apply(path, config()),
            apply(path, config(), "m2"),
            get(path),
        ],
        "apply: shared": [
            apply(path, config(data={"a": "1"})),
            apply(path, config(data={"a": "1"}), "m2"),
            apply(path, config()),
            get(path),
            apply(path, config(), "m2"),
            get(path),
        ],
        "apply: null": [apply(path, config(data=None)), apply(path, config(data={"a": None}))],
        "apply: empty": [
            apply(path, config(data={})),
            get(path),
            apply(path, config(data={"a": "b"})),
            apply(path, config(data={})),
        ],
        "apply: force without apply": [post(_CM, named()), merge(path, {"data": {"a": "b"}}, "?force=true")],
        "apply: force odd": [apply(path, config(), query="&force=maybe")],
        "apply: deployment": [
            apply(where, deployment(env, replicas=2)),
            apply(where, deployment(env)),
            get(where),
            apply(where, deployment({**b.CONTAINER, "env": [{"name": "B", "value": "2"}]}), "m2"),
            apply(where, deployment({**b.CONTAINER, "env": [{"name": "A", "value": "2"}]}), "m2"),
            apply(where, deployment({**b.CONTAINER, "image": "any:2"}), "m2"),
            apply(where, deployment({**b.CONTAINER, "image": "any:2"}), "m2", "&force=true"),
            apply(where, deployment(env, {"name": "side", "image": "any:1"})),
            get(where),
            apply(where, deployment({"name": "side", "image": "any:1"}), query="&force=true"),
            get(where),
        ],
        "apply: duplicate keys": [apply(where, deployment(b.CONTAINER, b.CONTAINER))],
        "apply: missing key": [apply(where, deployment({"image": "any:1"}))],
        "apply: wrong type": [apply(where, deployment(replicas="two")), apply(where, {**deployment(), "spec": []})],
        "apply: invalid": [apply(where, deployment(replicas=-1))],
        "apply: quantity": [
            apply(where, deployment({**b.CONTAINER, "resources": {"limits": {"cpu": "1000m"}}})),
            apply(where, deployment({**b.CONTAINER, "resources": {"limits": {"cpu": "1"}}}), "m2"),
            apply(where, deployment({**b.CONTAINER, "resources": {"limits": {"cpu": "2"}}}), "m2"),
            get(where),
        ],
        "apply: status": [
            apply(where, deployment()),
            apply(
                f"{where}/status", {"apiVersion": "apps/v1", "kind": "Deployment", **named(), "status": {"replicas": 1}}
            ),
            get(where),
        ],
        "apply: labels": [
            apply(
                path,
                {
                    **config(),
                    "metadata": {
                        "name": "x",
                        "labels": {"a": "b"},
                        "annotations": {"c": "d"},
                        "finalizers": ["example.org/f"],
                    },
                },
            ),
            apply(path, {**config(), "metadata": {"name": "x", "labels": {"a": "c"}}}, "m2"),
            apply(path, {**config(), "metadata": {"name": "x", "finalizers": ["example.org/g"]}}, "m2"),
            apply(path, config()),
            get(path),
        ],
        "apply: subresource of missing": [
            apply(f"{b.PODS}/x/status", {"apiVersion": "v1", "kind": "Pod", **named(), "status": {}})
        ],
        "apply: service ports": [
            apply(
                f"{b.SERVICES}/x",
                {"apiVersion": "v1", "kind": "Service", **b.service(ports=[{"port": 80, "name": "a"}])},
            ),
            apply(
                f"{b.SERVICES}/x",
                {"apiVersion": "v1", "kind": "Service", **b.service(ports=[{"port": 81, "name": "b"}])},
                "m2",
            ),
            apply(
                f"{b.SERVICES}/x",
                {"apiVersion": "v1", "kind": "Service", **b.service(ports=[{"port": 80, "name": "c"}])},
                "m2",
            ),
            get(f"{b.SERVICES}/x"),
        ],
    }
    thing = f"{b.WIDGETS}/x"
    found["apply: custom"] = [
        apply(thing, b.widget(tags=["a", "b"], parts=[{"name": "p", "note": "n"}], labels={"k": "v"})),
        apply(thing, b.widget(tags=["b", "c"], parts=[{"name": "q"}], labels={"l": "v"}), "m2"),
        apply(thing, b.widget(parts=[{"name": "p", "note": "o"}]), "m2"),
        apply(thing, b.widget(size=2), "m2"),
        apply(thing, b.widget(size=2), "m2", "&force=true"),
        apply(thing, b.widget(tags=["a"])),
        get(thing),
        apply(thing, b.widget(plain=[1, 2]), query="&force=true"),
        apply(thing, b.widget(plain=[1]), "m2", "&force=true"),
        apply(thing, b.widget(colour="x"), query="&force=true"),
        get(thing),
        apply(thing, b.widget(tags=["a", "a"]), query="&force=true"),
        apply(thing, b.widget(parts=[{"note": "x"}]), query="&force=true"),
    ]
    return found
