"""The catalogue: requests that are invalid for every kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.kubernetes.api import MERGE
from tests.kubernetes.differential import bodies as b
from tests.kubernetes.differential.bodies import delete, get, merge, named, pod, post, put
from tests.kubernetes.differential.steps import Step

Entries = Mapping[str, Sequence[Step]]

_CM = b.CONFIG_MAPS
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


def bodies() -> Entries:
    """Bodies that cannot be decoded."""
    table = {
        "empty": "",
        "not json": "{",
        "trailing comma": '{"metadata":{"name":"x"},}',
        "trailing text": '{"metadata":{"name":"x"}} more',
        "a list": "[]",
        "a number": "5",
        "text": '"x"',
        "null": "null",
        "true": "true",
        "two objects": '{"metadata":{"name":"x"}}{"metadata":{"name":"y"}}',
        "not a number": '{"metadata":{"name":"x"},"data":{"a":NaN}}',
        "wrong kind": '{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}',
        "unknown kind": '{"kind":"Thing","apiVersion":"v1","metadata":{"name":"x"}}',
        "wrong version": '{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"x"}}',
        "wrong group": '{"kind":"ConfigMap","apiVersion":"apps/v1","metadata":{"name":"x"}}',
        "kind without version": '{"kind":"ConfigMap","metadata":{"name":"x"}}',
        "version without kind": '{"apiVersion":"v1","metadata":{"name":"x"}}',
        "kind is a number": '{"kind":1,"apiVersion":"v1","metadata":{"name":"x"}}',
        "a list of kind": '{"kind":"List","apiVersion":"v1","items":[]}',
        "duplicate field": '{"metadata":{"name":"x"},"data":{"a":"1"},"data":{"a":"2"}}',
        "duplicate key": '{"metadata":{"name":"x"},"data":{"a":"1","a":"2"}}',
        "control character": '{"metadata":{"name":"x"},"data":{"a":"\t"}}',
        "field in other case": '{"metadata":{"name":"x"},"Data":{"a":"b"}}',
    }
    found: dict[str, Sequence[Step]] = {f"body: {name}": [post(_CM, body)] for name, body in table.items()}
    found |= {f"custom body: {name}": [post(b.WIDGETS, body)] for name, body in table.items()}
    for mode in ("Strict", "Warn", "Ignore"):
        query = f"?fieldValidation={mode}"
        found[f"body: unknown field, {mode}"] = [post(_CM, named(colour="red", metadata={"name": "x", "b": 1}), query)]
        found[f"body: duplicate field, {mode}"] = [post(_CM, table["duplicate field"], query)]
        found[f"body: unknown in pod, {mode}"] = [post(b.PODS, pod(colour="red"), query)]
        found[f"body: unknown in custom, {mode}"] = [post(b.WIDGETS, b.widget(colour="red"), query)]
        found[f"body: duplicate in custom, {mode}"] = [
            post(
                b.WIDGETS,
                '{"kind":"Widget","apiVersion":"example.org/v1","metadata":{"name":"x"},"spec":{"size":1,"size":2}}',
                query,
            )
        ]
        found[f"body: unknown in patch, {mode}"] = [post(_CM, named()), merge(f"{_CM}/x", {"colour": "red"}, query)]
    found["body: unknown mode"] = [post(_CM, named(), "?fieldValidation=Maybe")]
    found["body: yaml"] = [post(_CM, "metadata:\n  name: x\ndata: {a: b}\n", type="application/yaml")]
    found["body: bad yaml"] = [post(_CM, "metadata: [\n", type="application/yaml")]
    found["body: yaml number"] = [post(_CM, "metadata: {name: x}\ndata: {a: 1}\n", type="application/yaml")]
    found["body: too large"] = [post(_CM, named(data={"a": "v" * 3_200_000}))]
    for kind in ("text/plain", "application/xml", "application/x-www-form-urlencoded", "nonsense"):
        found[f"body: {kind}"] = [post(_CM, named(), type=kind)]
        found[f"patch body: {kind}"] = [post(_CM, named()), Step("PATCH", f"{_CM}/x", {"data": {"a": "b"}}, kind)]
    found["body: json with charset"] = [post(_CM, named(), type="application/json; charset=utf-8")]
    found["body: patch as json"] = [post(_CM, named()), Step("PATCH", f"{_CM}/x", {"data": {"a": "b"}})]
    return found


def paths() -> Entries:
    """Unknown paths and methods."""
    places = (
        "/",
        "/nope",
        "/api",
        "/api/",
        "/api/v1",
        "/api/v2",
        "/api/v1/nope",
        "/api/v1/namespaces/$NS/nope",
        "/apis",
        "/apis/nope",
        "/apis/apps",
        "/apis/apps/v1",
        "/apis/apps/v2",
        "/apis/apps/v1/nope",
        "/apis/apps/v1/namespaces/$NS/nope",
        "/apis/apps/v1/namespaces/$NS/deployments/x/nope",
        "/api/v1/namespaces/$NS/pods/x/nope",
        "/api/v1/namespaces/$NS/configmaps/x/status",
        "/api/v1/namespaces/$NS/configmaps/x/scale",
        "/api/v1/pods/x",
        "/api/v1/namespaces/$NS/nodes",
        "/api/v1/namespaces/$NS/nodes/x",
        "/api/v1/nodes/x/status/more",
        "/apis/example.org/v2/namespaces/$NS/widgets",
        "/apis/example.org/v1/widgets/x",
        "/apis/example.org/v1/namespaces/$NS/gadgets",
        "/api/v1/namespaces/$NS/pods//x",
        "/api/v1/namespaces//pods",
    )
    versions = ("/", "/api", "/api/", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1")
    found: dict[str, Sequence[Step]] = {
        f"path: {method} {place}": [Step(method, place, {} if method in ("POST", "PUT") else None)]
        for method in ("GET", "POST", "DELETE")
        for place in places
        if method != "GET" or place not in versions
    }
    for kind, path, body in (("config map", _CM, named()), ("pod", b.PODS, pod()), ("widget", b.WIDGETS, b.widget())):
        found[f"method: {kind}"] = [
            Step("PUT", path, body),
            Step("PATCH", path, {}, MERGE),
            post(path, body),
            post(f"{path}/x", body),
            Step("TRACE", f"{path}/x"),
            Step("OPTIONS", f"{path}/x"),
            Step("HEAD", f"{path}/x"),
            Step("HEAD", f"{path}/missing"),
            put(f"{path}/missing", {**body, **named("missing")}),
            put(f"{path}/other", body),
            put(f"{path}/x", {**body, "metadata": {}}),
            put(f"{path}/x", {**body, "metadata": {"name": "x", "namespace": "elsewhere"}}),
            merge(f"{path}/missing", {}),
            delete(f"{path}/missing"),
            get(f"{path}/missing"),
            get(f"{path}/UPPER"),
            post(path.replace("$NS", "$NS-missing"), body),
            get(path.replace("$NS", "$NS-missing")),
            post(path, body),
        ]
    everywhere = {"config map": "/api/v1/configmaps", "widget": "/apis/example.org/v1/widgets"}
    for kind, path in everywhere.items():
        found[f"method: all namespaces, {kind}"] = [
            post(path, named("x", metadata={"name": "x", "namespace": "$NS"})),
            delete(f"{path}?labelSelector=never%3Dthere"),
            Step("PUT", path, {}),
            Step("PATCH", path, {}, MERGE),
        ]
    return found


def queries() -> Entries:
    """Parameters of lists, watches and writes."""
    lists = (
        "labelSelector=a%3D%3D%3Db",
        "labelSelector=a in",
        "labelSelector=a in ()",
        "labelSelector=a in (b,c)",
        "labelSelector=!a",
        "labelSelector=a!%3Db",
        "labelSelector=a notin (b)",
        "labelSelector=%2C",
        "labelSelector=a b",
        "labelSelector=a%3Db c",
        "labelSelector=a>1",
        "labelSelector=a>b",
        "labelSelector=-a",
        "labelSelector=a%2Cb",
        "fieldSelector=metadata.name%3Dx",
        "fieldSelector=metadata.name!%3Dx",
        "fieldSelector=nope%3Dx",
        "fieldSelector=metadata.namespace%3D$NS",
        "fieldSelector=metadata.name",
        "fieldSelector=metadata.uid%3Dx",
        "limit=1",
        "limit=-1",
        "limit=x",
        "limit=0",
        "continue=nonsense",
        "resourceVersion=x",
        "resourceVersion=-1",
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersionMatch=Odd",
        "resourceVersion=1&resourceVersionMatch=Odd",
        "limit=1&continue=nonsense&resourceVersion=1",
        "resourceVersion=0",
        "pretty=true",
        "nope=1",
        "timeoutSeconds=x",
        "sendInitialEvents=true",
        "watch=true&timeoutSeconds=1&resourceVersion=x",
        "watch=true&timeoutSeconds=1&resourceVersionMatch=Exact",
        "watch=true&timeoutSeconds=1&sendInitialEvents=true",
        "watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        "watch=true&timeoutSeconds=1&labelSelector=a b",
        "watch=true&timeoutSeconds=1&fieldSelector=nope%3Dx",
        "watch=true&timeoutSeconds=1",
        "watch=true&timeoutSeconds=1&resourceVersion=0",
        "watch=maybe&timeoutSeconds=1",
        "watch=1&timeoutSeconds=1&limit=1",
    )
    labels = {"metadata": {"name": "y", "labels": {"a": "b"}}}
    found: dict[str, Sequence[Step]] = {
        f"query: {query[-90:]}": [post(_CM, named()), post(_CM, labels), get(f"{_CM}?{query}")] for query in lists
    }
    found["query: too new"] = [get(f"{_CM}?resourceVersion=999999999&timeoutSeconds=1")]
    found["query: dry run"] = [
        post(_CM, named(), "?dryRun=All"),
        get(f"{_CM}/x"),
        post(_CM, named(), "?dryRun=Some"),
        post(_CM, named()),
        put(f"{_CM}/x", named(data={"a": "b"}), "?dryRun=All"),
        merge(f"{_CM}/x", {"data": {"a": "b"}}, "?dryRun=All"),
        delete(f"{_CM}/x?dryRun=All"),
        delete(f"{_CM}/x", {"dryRun": ["All"]}),
        delete(f"{_CM}/x", {"dryRun": ["Some"]}),
        get(f"{_CM}/x"),
    ]
    found["query: field manager"] = [
        post(_CM, named("a"), "?fieldManager=" + "m" * 129),
        post(_CM, named("b"), "?fieldManager=a%0Ab"),
        post(_CM, named("c"), "?fieldManager=fine"),
    ]
    fields = (
        (
            "pods",
            b.PODS,
            pod(),
            (
                "spec.nodeName%3D",
                "status.phase%3DPending",
                "spec.restartPolicy%3DAlways",
                "spec.schedulerName%3Dx",
                "spec.serviceAccountName%3Ddefault",
                "status.podIP%3D",
                "spec.hostNetwork%3Dfalse",
                "status.nominatedNodeName%3D",
                "spec.priority%3D0",
                "status.podIPs%3D",
            ),
        ),
        ("widgets", b.WIDGETS, b.widget(), ("spec.color%3Dred", "spec.size%3D1", "spec.name%3Dx", "metadata.name%3Dx")),
        (
            "events",
            b.EVENTS,
            b.event(),
            (
                "reason%3DR",
                "involvedObject.name%3Dp",
                "type%3DNormal",
                "source%3D",
                "reportingComponent%3D",
                "involvedObject.kind!%3DPod",
            ),
        ),
        ("jobs", b.JOBS, b.job(), ("status.successful%3D0", "status.succeeded%3D0")),
        ("secrets", b.SECRETS, named(), ("type%3DOpaque",)),
        ("services", b.SERVICES, b.service(), ("spec.type%3DClusterIP", "spec.clusterIP%3DNone")),
        ("replica sets", b.REPLICA_SETS, b.workload(), ("status.replicas%3D0", "spec.replicas%3D1")),
    )
    for kind, path, body, selectors in fields:
        found[f"query: fields of {kind}"] = [
            post(path, body),
            *(get(f"{path}?fieldSelector={selector}") for selector in selectors),
        ]
    accepts = (
        _TABLE,
        _PARTIAL,
        "text/plain",
        "application/xml",
        "*/*",
        "application/json;as=Nope;v=v1;g=meta.k8s.io",
        "application/json;as=Table;v=v2;g=meta.k8s.io",
        "application/*",
    )
    for accept in accepts:
        found[f"accept: {accept}"] = [post(_CM, named()), get(f"{_CM}/x", accept), get(_CM, accept)]
    found["accept: table without objects"] = [
        post(_CM, named()),
        get(f"{_CM}?includeObject=None", _TABLE),
        get(f"{_CM}?includeObject=Object", _TABLE),
        get(f"{_CM}?includeObject=Some", _TABLE),
    ]
    tables = (
        (b.PODS, pod()),
        (b.SERVICES, b.service()),
        (b.CONFIG_MAPS, named(data={"a": "b"})),
        (b.SECRETS, named()),
        (b.DEPLOYMENTS, b.workload()),
        (b.REPLICA_SETS, b.workload()),
        (b.STATEFUL_SETS, b.workload()),
        (b.DAEMON_SETS, b.workload()),
        (b.JOBS, b.job()),
        (b.LEASES, named(spec={"holderIdentity": "h"})),
        (b.BUDGETS, b.budget(minAvailable=1)),
        (b.WIDGETS, b.widget(parts=[{"name": "p"}, {"name": "q"}])),
        (b.EVENTS, b.event(message="m")),
        (b.CLAIMS, b.claim(storageClassName="s")),
        (b.ROLES, named()),
        (b.ENDPOINTS, named()),
        (b.SLICES, named(addressType="IPv4", endpoints=[])),
        (b.ACCOUNTS, named()),
    )
    for path, body in tables:
        found[f"table: {path}"] = [post(path, body), get(path, _TABLE), get(f"{path}/x", _TABLE)]
    for path, body in (
        (b.NODES, named("$NS-n")),
        (b.PRIORITIES, named("$NS-p", value=5)),
        (b.QUEUES, {"apiVersion": "gpu-scheduler.io/v1alpha1", "kind": "Queue", **named("$NS-q")}),
    ):
        name = body["metadata"]["name"]
        found[f"table: {path}"] = [post(path, body), get(f"{path}/{name}", _TABLE)]
    found["table: namespaces"] = [get("/api/v1/namespaces/$NS", _TABLE)]
    return found


def subresources() -> Entries:
    """Binding, eviction, scale, status."""
    bind = f"{b.PODS}/x/binding"
    evict = f"{b.PODS}/x/eviction"
    review = {"apiVersion": "policy/v1", "kind": "Eviction"}
    found: dict[str, Sequence[Step]] = {}
    table = {
        "good": b.binding("x", annotations={"a": "b"}, labels={"c": "d"}),
        "no target": named(),
        "target without name": {**named(), "target": {"kind": "Node"}},
        "other kind": {**named(), "target": {"kind": "Pod", "name": "a"}},
        "other version": {**named(), "target": {"kind": "Node", "name": "a", "apiVersion": "v2"}},
        "other name": b.binding("y"),
        "other namespace": b.binding("x", namespace="elsewhere"),
        "wrong uid": b.binding("x", uid="00000000-0000-0000-0000-000000000000"),
        "right uid": b.binding("x", uid=f"$UID({b.PODS}/x)", resourceVersion=f"$RV({b.PODS}/x)"),
        "wrong version": b.binding("x", resourceVersion="1"),
        "bad node": b.binding("x", "A_b"),
        "bad annotation": b.binding("x", annotations={"a": 1}),
        "bad annotation key": b.binding("x", annotations={"a b": "c"}),
        "wrong kind": {**b.binding("x"), "kind": "Pod", "apiVersion": "v1"},
        "no body": "",
        "bad json": "{",
    }
    for name, body in table.items():
        found[f"binding: {name}"] = [post(b.PODS, pod()), post(bind, body), get(f"{b.PODS}/x")]
    found["binding: twice"] = [post(b.PODS, pod()), post(bind, b.binding("x")), post(bind, b.binding("x", "n2"))]
    found["binding: missing pod"] = [post(bind, b.binding("x"))]
    found["binding: dry run"] = [post(b.PODS, pod()), post(bind, b.binding("x"), "?dryRun=All"), get(f"{b.PODS}/x")]
    found["binding: gated"] = [post(b.PODS, pod(schedulingGates=[{"name": "g"}])), post(bind, b.binding("x"))]
    found["binding: methods"] = [post(b.PODS, pod()), get(bind), put(bind, b.binding("x")), delete(bind)]
    found["binding: old path"] = [
        post(b.PODS, pod()),
        post(f"{b.CORE}/bindings", b.binding("x")),
        get(f"{b.PODS}/x"),
        get(f"{b.CORE}/bindings"),
        post(f"{b.CORE}/bindings", {"target": {"name": "n"}}),
    ]
    found["binding: deleting"] = [
        post(b.PODS, {**pod(), "metadata": {"name": "x", "finalizers": ["example.org/f"]}}),
        delete(f"{b.PODS}/x"),
        post(bind, b.binding("x")),
    ]
    evictions = {
        "good": {**review, **named()},
        "without kind": named(),
        "other version": {"apiVersion": "policy/v1beta1", "kind": "Eviction", **named()},
        "other name": {**review, **named("y")},
        "empty": {},
        "wrong uid": {**review, **named(), "deleteOptions": {"preconditions": {"uid": "nope"}}},
        "grace": {**review, **named(), "deleteOptions": {"gracePeriodSeconds": 5}},
        "dry run": {**review, **named(), "deleteOptions": {"dryRun": ["All"]}},
    }
    for name, body in evictions.items():
        found[f"eviction: {name}"] = [post(b.PODS, pod()), post(evict, body), get(f"{b.PODS}/x")]
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    bound = [
        post(b.PODS, {**pod(), "metadata": {"name": "x", "labels": {"app": "a"}}}),
        post(bind, b.binding("x")),
        merge(f"{b.PODS}/x/status", running),
    ]
    found["eviction: of a running pod"] = [*bound, post(evict, {**review, **named()}), get(f"{b.PODS}/x")]
    for name, spec, status in (
        ("not looked at", {"minAvailable": 1}, {}),
        ("nothing left", {"minAvailable": 1}, {"observedGeneration": 1, "desiredHealthy": 1, "currentHealthy": 1}),
        ("one left", {"minAvailable": 1}, {"observedGeneration": 1, "disruptionsAllowed": 1}),
    ):
        full = {"expectedPods": 1, "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, **status}
        found[f"eviction: budget with {name}"] = [
            *bound,
            post(b.BUDGETS, b.budget("b", **spec)),
            merge(f"{b.BUDGETS}/b/status", {"status": full}),
            post(evict, {**review, **named()}),
            get(f"{b.BUDGETS}/b"),
            get(f"{b.PODS}/x"),
        ]
    found["eviction: two budgets"] = [
        *bound,
        *(post(b.BUDGETS, b.budget(name, minAvailable=1)) for name in "bc"),
        post(evict, {**review, **named()}),
    ]
    found["eviction: missing pod"] = [post(evict, {**review, **named()}), get(evict)]
    for kind, path, body in (
        ("deployment", b.DEPLOYMENTS, b.workload()),
        ("stateful set", b.STATEFUL_SETS, b.workload()),
        ("replica set", b.REPLICA_SETS, b.workload()),
        ("widget", b.WIDGETS, b.widget(replicas=1)),
    ):
        scale = f"{path}/x/scale"
        found[f"scale: {kind}"] = [
            get(scale),
            post(path, body),
            get(scale),
            put(scale, named(spec={"replicas": 3})),
            get(f"{path}/x"),
            put(scale, named(spec={"replicas": -1})),
            put(scale, named("y", spec={"replicas": 3})),
            put(scale, named(spec={"replicas": "3"})),
            put(scale, {"spec": {"replicas": 3}}),
            put(scale, {"metadata": {"name": "x", "resourceVersion": "1"}, "spec": {"replicas": 4}}),
            put(scale, {"metadata": {"name": "x", "uid": "nope"}, "spec": {"replicas": 4}}),
            merge(scale, {"spec": {"replicas": 5}}),
            merge(scale, {"spec": {"replicas": -5}}),
            merge(scale, {"spec": {}}),
            b.json_patch(scale, {"op": "replace", "path": "/spec/replicas", "value": 0}),
            b.strategic(scale, {"spec": {"replicas": 6}}),
            merge(scale, {"metadata": {"labels": {"a": "b"}}}),
            put(scale, {"kind": "Deployment", "apiVersion": "apps/v1", **named(spec={"replicas": 3})}),
            put(scale, named(spec={"replicas": 3}), "?dryRun=All"),
            put(scale, named()),
            get(scale),
            delete(scale),
            post(scale, named()),
            get(f"{path}/x"),
        ]
    for kind, path, body in (
        ("pod", b.PODS, pod()),
        ("deployment", b.DEPLOYMENTS, b.workload()),
        ("widget", b.WIDGETS, b.widget()),
        ("job", b.JOBS, b.job()),
    ):
        place = f"{path}/x/status"
        found[f"status: {kind}"] = [
            get(place),
            post(path, body),
            get(place),
            merge(place, {"status": {"nope": 1}}),
            merge(place, {"spec": {"nope": 1}}),
            merge(place, {"metadata": {"labels": {"a": "b"}}}),
            merge(place, {"metadata": {"annotations": {"a": "b"}, "finalizers": ["example.org/f"]}}),
            put(place, {**body, "status": {"replicas": "x"}}),
            put(place, body),
            merge(place, {"status": None}),
            delete(place),
            post(place, body),
            get(f"{path}/x"),
        ]
    found["status: pod"] = [
        *found["status: pod"],
        merge(f"{b.PODS}/x/status", {"status": {"phase": "Nope"}}),
        merge(f"{b.PODS}/x/status", {"status": {"podIP": "nope"}}),
        get(f"{b.PODS}/x"),
    ]
    found["finalize: namespace"] = [
        put(
            "/api/v1/namespaces/$NS/finalize", {"metadata": {"name": "$NS"}, "spec": {"finalizers": ["example.org/f"]}}
        ),
        put("/api/v1/namespaces/$NS/finalize", {"metadata": {"name": "$NS"}, "spec": {"finalizers": []}}),
        get("/api/v1/namespaces/$NS"),
    ]
    return found


def deletes() -> Entries:
    """Options of deletes."""
    path = f"{_CM}/x"
    options = {
        "empty": {},
        "kind": {"kind": "DeleteOptions", "apiVersion": "v1"},
        "wrong kind": {"kind": "Pod", "apiVersion": "v1"},
        "unknown kind": {"kind": "Thing", "apiVersion": "v1"},
        "unknown field": {"colour": "red"},
        "bad policy": {"propagationPolicy": "Sideways"},
        "empty policy": {"propagationPolicy": ""},
        "both": {"propagationPolicy": "Orphan", "orphanDependents": True},
        "orphan": {"propagationPolicy": "Orphan"},
        "old orphan": {"orphanDependents": True},
        "old background": {"orphanDependents": False},
        "foreground": {"propagationPolicy": "Foreground"},
        "negative grace": {"gracePeriodSeconds": -1},
        "grace is text": {"gracePeriodSeconds": "1"},
        "grace": {"gracePeriodSeconds": 10},
        "wrong uid": {"preconditions": {"uid": "nope"}},
        "right uid": {"preconditions": {"uid": f"$UID({path})", "resourceVersion": f"$RV({path})"}},
        "wrong version": {"preconditions": {"resourceVersion": "1"}},
        "list": [],
        "malformed": "{",
        "ignore errors": {"ignoreStoreReadErrorWithClusterBreakingPotential": True},
    }
    found: dict[str, Sequence[Step]] = {}
    for name, body in options.items():
        found[f"delete: {name}"] = [post(_CM, named()), delete(path, body), get(path)]
        found[f"delete pod: {name}"] = [
            post(b.PODS, pod(nodeName="n")),
            delete(f"{b.PODS}/x", body),
            get(f"{b.PODS}/x"),
            delete(f"{b.PODS}/x", {"gracePeriodSeconds": 1}),
            delete(f"{b.PODS}/x", {"gracePeriodSeconds": 0}),
        ]
    for query in (
        "gracePeriodSeconds=5",
        "gracePeriodSeconds=x",
        "propagationPolicy=Nope",
        "propagationPolicy=Orphan",
        "orphanDependents=true",
        "dryRun=Nope",
        "gracePeriodSeconds=-5",
    ):
        found[f"delete query: {query}"] = [
            post(b.PODS, pod(nodeName="n")),
            delete(f"{b.PODS}/x?{query}"),
            get(f"{b.PODS}/x"),
        ]
    for kind, where, made in (
        ("pod", b.PODS, pod()),
        ("service", b.SERVICES, b.service()),
        ("deployment", b.DEPLOYMENTS, b.workload()),
        ("replica set", b.REPLICA_SETS, b.workload()),
        ("stateful set", b.STATEFUL_SETS, b.workload()),
        ("job", b.JOBS, b.job()),
        ("widget", b.WIDGETS, b.widget()),
        ("account", b.ACCOUNTS, named()),
        ("secret", b.SECRETS, named()),
        ("lease", b.LEASES, named()),
        ("budget", b.BUDGETS, b.budget(minAvailable=1)),
        ("event", b.EVENTS, b.event()),
        ("endpoints", b.ENDPOINTS, named()),
        ("claim", b.CLAIMS, b.claim()),
        ("daemon set", b.DAEMON_SETS, b.workload()),
    ):
        found[f"delete one: {kind}"] = [post(where, made), delete(f"{where}/x"), get(f"{where}/x")]
    found["delete: node"] = [post(b.NODES, named("$NS-n")), delete(f"{b.NODES}/$NS-n"), get(f"{b.NODES}/$NS-n")]
    found["delete: class"] = [post(b.PRIORITIES, named("$NS-p", value=1)), delete(f"{b.PRIORITIES}/$NS-p")]
    found["delete: namespace"] = [
        delete("/api/v1/namespaces/$NS"),
        get("/api/v1/namespaces/$NS"),
        post(_CM, named()),
        delete("/api/v1/namespaces/$NS"),
        delete("/api/v1/namespaces/default"),
        delete("/api/v1/namespaces/kube-system"),
    ]
    held = {"metadata": {"name": "x", "finalizers": ["example.org/f"]}}
    found["delete: held"] = [
        post(_CM, held),
        delete(path),
        delete(path),
        get(path),
        merge(path, {"metadata": {"finalizers": ["example.org/g", "example.org/f"]}}),
        put(path, named(data={"a": "b"})),
        get(path),
    ]
    found["delete: held by patch"] = [
        post(_CM, held),
        delete(path),
        merge(path, {"metadata": {"finalizers": None}}),
        get(path),
    ]
    found["delete: many"] = [
        post(_CM, named("a")),
        post(_CM, held),
        delete(f"{_CM}?labelSelector=a b"),
        delete(f"{_CM}?dryRun=All"),
        delete(f"{_CM}?fieldSelector=metadata.name%3Da"),
        delete(_CM, {"preconditions": {"uid": "u"}}),
        delete(_CM),
        get(_CM),
    ]
    return found
