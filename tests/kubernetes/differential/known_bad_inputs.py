"""Entries of the catalogue to which the local API replies differently, with the reasons.

An entry that differs and is not here is a failure, and so is one that is here and does not differ.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple


class KnownDifference(NamedTuple):
    """Requests with a known difference, for one reason: names of entries, with the number of the request."""

    why: str
    manner: str
    requests: frozenset[str]
    minor: str = ""
    """The only version that differs; "" for all that have the entry."""
    sometimes: bool = False
    """Does not differ every time."""


def marks(minor: str, entries: Container[str], always: bool = False) -> set[tuple[str, str]]:
    """(manner, request) of everything known about a version, as far as the catalogue has it."""
    return {
        (group.manner, request)
        for group in BAD_INPUTS
        if group.minor in ("", minor) and not (always and group.sometimes)
        for request in group.requests
        if request.rpartition(" #")[0] in entries
    }


BAD_INPUTS: Sequence[KnownDifference] = (
    KnownDifference(
        "apply does not check types first: errors are those of other writes, unknown custom fields are dropped",
        "accepted",
        frozenset(("apply: custom #10",)),
    ),
    KnownDifference(
        "a JSON patch may replace the whole object; a real server loses its name",
        "accepted",
        frozenset(("json patch: root #2",)),
    ),
    KnownDifference(
        "the option to delete undecodable objects is ignored: there are none",
        "accepted",
        frozenset(
            (
                "delete pod: ignore errors #2",
                "delete: ignore errors #2",
            )
        ),
        "1.37",
    ),
    KnownDifference(
        "1.37 validates the node name of a binding",
        "accepted",
        frozenset(("binding: bad node #2",)),
        "1.37",
    ),
    KnownDifference(
        "runtime classes and service accounts need not exist",
        "accepted",
        frozenset(
            (
                "pod: bad runtime class #1",
                "pod: unknown service account #1",
            )
        ),
    ),
    KnownDifference(
        "events of events.k8s.io follow the rules of the core API",
        "accepted",
        frozenset(("new event: bad type #1",)),
    ),
    KnownDifference(
        "claims have no protection finalizer here, so they are removed at once",
        "refused",
        frozenset(("delete one: claim #3",)),
    ),
    KnownDifference(
        "the option to delete undecodable objects is ignored: there are none",
        "refused",
        frozenset(("delete: ignore errors #3",)),
        "1.37",
    ),
    KnownDifference(
        "more than one topology constraint is refused as documented; 1.37 does not check it",
        "refused",
        frozenset(("pod group: two constraints #1",)),
    ),
    KnownDifference(
        "1.0 is not accepted as an integer",
        "refused",
        frozenset(("widget: size is whole #1",)),
    ),
    KnownDifference(
        "wrong methods on custom kinds get 405, a real server behaves inconsistently; HEAD is not served",
        "refused",
        frozenset(("method: widget #7",)),
    ),
    KnownDifference(
        "unknown paths: methods on discovery, no namespace, plain text for a 404",
        "refused",
        frozenset(
            (
                "path: DELETE / #1",
                "path: DELETE /apis #1",
                "path: DELETE /apis/apps #1",
                "path: GET /api/v1/namespaces//pods #1",
                "path: POST / #1",
                "path: POST /apis #1",
                "path: POST /apis/apps #1",
            )
        ),
    ),
    KnownDifference(
        "apply does not check types first: errors are those of other writes, unknown custom fields are dropped",
        "code",
        frozenset(
            (
                "apply: custom #12",
                "apply: custom #13",
                "apply: duplicate keys #1",
                "apply: wrong type #1",
                "apply: wrong type #2",
            )
        ),
    ),
    KnownDifference(
        "runtime classes and service accounts need not exist",
        "code",
        frozenset(("pod: bad service account #1",)),
    ),
    KnownDifference(
        "wrong methods on custom kinds get 405, a real server behaves inconsistently; HEAD is not served",
        "code",
        frozenset(
            (
                "method: all namespaces, widget #1",
                "method: all namespaces, widget #2",
                "method: all namespaces, widget #3",
                "method: all namespaces, widget #4",
                "method: widget #1",
                "method: widget #2",
                "method: widget #4",
                "method: widget #8",
            )
        ),
    ),
    KnownDifference(
        "unknown paths: methods on discovery, no namespace, plain text for a 404",
        "code",
        frozenset(
            (
                "path: DELETE /api/v1/namespaces//pods #1",
                "path: DELETE /nope #1",
                "path: POST /api/v1/namespaces//pods #1",
                "path: POST /nope #1",
            )
        ),
    ),
    KnownDifference(
        "invalid parameters have other messages, and a watch without a version gets 400",
        "code",
        frozenset(("query: watch=true&timeoutSeconds=1&resourceVersion=x #3",)),
    ),
    KnownDifference(
        "claims have no protection finalizer here, so they are removed at once",
        "object",
        frozenset(
            (
                "delete one: claim #1",
                "delete one: claim #2",
                "table: /api/v1/namespaces/$NS/persistentvolumeclaims #1",
                "table: /api/v1/namespaces/$NS/persistentvolumeclaims #2",
                "table: /api/v1/namespaces/$NS/persistentvolumeclaims #3",
                "update claim: modes #1",
                "update claim: modes #3",
                "update claim: size #1",
                "update claim: size #3",
                "update claim: volume #1",
                "update claim: volume #2",
                "update claim: volume #3",
            )
        ),
    ),
    KnownDifference(
        "gangs have no protection finalizer here",
        "object",
        frozenset(
            (
                "pod group: basic #1",
                "pod group: good #1",
                "update pod group: labels #1",
                "update pod group: labels #2",
                "update pod group: labels #3",
                "update pod group: minimum #1",
                "update pod group: minimum #2",
                "update pod group: minimum #3",
                "update pod group: policy #1",
                "update pod group: policy #3",
                "update pod group: zero #1",
                "update pod group: zero #3",
            )
        ),
    ),
    KnownDifference(
        "no deprecated.daemonset.template.generation annotation",
        "object",
        frozenset(
            (
                "daemon set: good #1",
                "daemon set: template with unknown field #1",
                "delete one: daemon set #1",
                "table: /apis/apps/v1/namespaces/$NS/daemonsets #1",
            )
        ),
    ),
    KnownDifference(
        "there are no node ports",
        "object",
        frozenset(
            (
                "service: load balancer #1",
                "service: node port #1",
                "update service: type #2",
                "update service: type #3",
            )
        ),
    ),
    KnownDifference(
        "a write that only changes managers makes no new version",
        "object",
        frozenset(
            (
                "status: widget #10",
                "status: widget #13",
                "status: widget #6",
                "status: widget #7",
            )
        ),
        "1.35",
    ),
    KnownDifference(
        "apply does not check types first: errors are those of other writes, unknown custom fields are dropped",
        "object",
        frozenset(
            (
                "apply: custom #11",
                "apply: version #2",
            )
        ),
    ),
    KnownDifference(
        "a JSON patch may replace the whole object; a real server loses its name",
        "object",
        frozenset(("json patch: root #3",)),
    ),
    KnownDifference(
        "the option to delete undecodable objects is ignored: there are none",
        "object",
        frozenset(
            (
                "delete pod: ignore errors #3",
                "delete pod: ignore errors #4",
                "delete pod: ignore errors #5",
            )
        ),
        "1.37",
    ),
    KnownDifference(
        "1.37 validates the node name of a binding",
        "object",
        frozenset(("binding: bad node #3",)),
        "1.37",
    ),
    KnownDifference(
        "a dry run does not show the first status of a definition",
        "object",
        frozenset(("definition: good #1",)),
    ),
    KnownDifference(
        "1.37 shows a missing value as 0",
        "object",
        frozenset(("priority: value missing #1",)),
        "1.37",
    ),
    KnownDifference(
        "an empty list stays a list, a real server writes null",
        "object",
        frozenset(("table: /apis/discovery.k8s.io/v1/namespaces/$NS/endpointslices #1",)),
    ),
    KnownDifference(
        "a last bookmark before the end of a watch depends on timing",
        "object",
        frozenset(
            ("query: econds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true #3",)
        ),
        sometimes=True,
    ),
    KnownDifference(
        "duplicate fields are only found with fieldValidation, which kubectl sets",
        "warnings",
        frozenset(
            (
                "body: duplicate field #1",
                "body: duplicate key #1",
            )
        ),
    ),
    KnownDifference(
        "fewer warnings: pod names as host names, fractional bytes, empty secrets, unqualified finalizers",
        "warnings",
        frozenset(
            (
                "container: fractional memory #1",
                "container: long name #1",
                "container: quantity is a number #1",
                "custom metadata: plain finalizer #1",
                "metadata: pod called a.b #1",
                "metadata: pod called aaaaa #1",
                "pod: bad image pull secret #1",
            )
        ),
    ),
    KnownDifference(
        "events of events.k8s.io follow the rules of the core API",
        "causes",
        frozenset(
            (
                "new event: no controller #1",
                "new event: no time #1",
            )
        ),
    ),
    KnownDifference(
        "wrong methods on custom kinds get 405, a real server behaves inconsistently; HEAD is not served",
        "causes",
        frozenset(
            (
                "method: widget #5",
                "method: widget #6",
            )
        ),
    ),
    KnownDifference(
        "unknown paths: methods on discovery, no namespace, plain text for a 404",
        "causes",
        frozenset(
            (
                "path: DELETE /apis/example.org/v1/namespaces/$NS/gadgets #1",
                "path: DELETE /apis/example.org/v1/widgets/x #1",
                "path: DELETE /apis/example.org/v2/namespaces/$NS/widgets #1",
                "path: DELETE /apis/nope #1",
                "path: GET /apis/example.org/v1/namespaces/$NS/gadgets #1",
                "path: GET /apis/example.org/v1/widgets/x #1",
                "path: GET /apis/example.org/v2/namespaces/$NS/widgets #1",
                "path: GET /apis/nope #1",
                "path: GET /nope #1",
                "path: POST /apis/example.org/v1/namespaces/$NS/gadgets #1",
                "path: POST /apis/example.org/v1/widgets/x #1",
                "path: POST /apis/example.org/v2/namespaces/$NS/widgets #1",
                "path: POST /apis/nope #1",
            )
        ),
    ),
    KnownDifference(
        "gangs: missing fields are reported one by one, or at their parent",
        "causes",
        frozenset(
            (
                "gang pod: reference without group #1",
                "gang pod: reference without name #1",
                "pod group: no policy #1",
                "pod group: no spec #1",
                "pod group: zero #1",
                "update pod group: policy #2",
                "update pod group: zero #2",
                "workload: no name #1",
                "workload: no spec #1",
                "workload: no templates #1",
            )
        ),
    ),
    KnownDifference(
        "gangs: missing fields are reported one by one, or at their parent",
        "causes",
        frozenset(("workload: twice #1",)),
        "1.37",
    ),
    KnownDifference(
        "definitions: errors name the version, upstream the whole, and have fewer consequential errors",
        "causes",
        frozenset(
            (
                "definition: bad column path #1",
                "definition: bad column type #1",
                "definition: bad default #1",
                "definition: bad pattern #1",
                "definition: bad version #1",
                "definition: both kinds of fields #1",
                "definition: changes #2",
                "definition: changes #4",
                "definition: field without type #1",
                "definition: list without items #1",
                "definition: map list without keys #1",
                "definition: metadata with rules #1",
                "definition: no kind #1",
                "definition: no spec #1",
                "definition: no storage #1",
                "definition: no versions #1",
                "definition: one version twice #1",
                "definition: reference #1",
                "definition: root is text #1",
                "definition: root without type #1",
                "definition: scale with bad path #1",
                "definition: scale without path #1",
                "definition: set of objects #1",
                "definition: two storages #1",
                "definition: unique items #1",
                "definition: unknown type #1",
            )
        ),
    ),
    KnownDifference(
        "errors about a subresource of a custom object do not name its kind",
        "causes",
        frozenset(
            (
                "scale: widget #22",
                "scale: widget #23",
                "status: widget #11",
                "status: widget #12",
            )
        ),
    ),
    KnownDifference(
        "custom objects: consequential errors of a wrong type are not reported",
        "causes",
        frozenset(
            (
                "widget: bad time #1",
                "widget: limit fraction #1",
                "widget: limit object #1",
                "widget: replicas too large #1",
                "widget: spec list #1",
                "widget: spec text #1",
            )
        ),
    ),
    KnownDifference(
        "custom objects: consequential errors of a wrong type are not reported",
        "causes",
        frozenset(("widget: size is a fraction #1",)),
        "1.37",
    ),
    KnownDifference(
        "owners: 1.37 names the invalid one and its field",
        "causes",
        frozenset(
            (
                "custom metadata: owner with bad version #1",
                "custom metadata: owner without anything #1",
                "custom metadata: owner without uid #1",
                "metadata: owner with bad version #1",
                "metadata: owner without anything #1",
                "metadata: owner without uid #1",
            )
        ),
        "1.37",
    ),
    KnownDifference(
        "an invalid generateName is reported for the generated name",
        "causes",
        frozenset(
            (
                "custom metadata: bad generateName #1",
                "metadata: bad generateName #1",
            )
        ),
    ),
    KnownDifference(
        "an invalid selector is also reported not to match; a real server reports it as invalid, or not at all",
        "causes",
        frozenset(
            (
                "daemon set: bad operator #1",
                "daemon set: bad selector #1",
                "deployment: bad operator #1",
                "deployment: bad selector #1",
                "replica set: bad operator #1",
                "replica set: bad selector #1",
                "stateful set: bad operator #1",
                "stateful set: bad selector #1",
            )
        ),
    ),
    KnownDifference(
        "the field is named by its JSON path, and an unknown value is always 'not supported'",
        "causes",
        frozenset(
            (
                "claim: bad mode #1",
                "claim: negative #1",
                "claim: no request #1",
                "claim: no spec #1",
                "claim: zero #1",
                "daemon set: template with bad label #1",
                "deployment: template with bad label #1",
                "job: long name #1",
                "pod: downward volume with bad field #1",
                "replica set: template with bad label #1",
                "service: address elsewhere #1",
                "service: external with address #1",
                "spread: twice #1",
                "stateful set more: bad pod management #1",
                "stateful set more: bad update strategy #1",
                "stateful set: template with bad label #1",
                "strategy: bad type #1",
            )
        ),
    ),
    KnownDifference(
        "the field is named by its JSON path, and an unknown value is always 'not supported'",
        "causes",
        frozenset(("pod: share process and host pid #1",)),
        "1.37",
    ),
    KnownDifference(
        "a missing field is reported at its parent; a real server also reports the consequences, or only those",
        "causes",
        frozenset(
            (
                "affinity: pod without topology #1",
                "daemon set: no selector #1",
                "daemon set: no spec #1",
                "placement: fraction #1",
                "placement: incomplete #1",
                "replica set: no spec #1",
                "replica set: no template #1",
                "role binding: no role #1",
                "slice: no address type #1",
                "update pod: empty image #2",
            )
        ),
    ),
    KnownDifference(
        "contradictory evictions and terminating namespaces are refused with fewer details",
        "causes",
        frozenset(
            (
                "delete: namespace #3",
                "eviction: two budgets #6",
                "eviction: wrong uid #2",
            )
        ),
    ),
    KnownDifference(
        "invalid parameters have other messages, and a watch without a version gets 400",
        "message",
        frozenset(
            (
                "query: fieldSelector=metadata.name #3",
                "query: fieldSelector=metadata.uid%3Dx #3",
                "query: fieldSelector=nope%3Dx #3",
                "query: fields of jobs #3",
                "query: fields of replica sets #2",
                "query: fields of replica sets #3",
                "query: labelSelector=%2C #3",
                "query: labelSelector=-a #3",
                "query: labelSelector=a b #3",
                "query: labelSelector=a in #3",
                "query: labelSelector=a%3D%3D%3Db #3",
                "query: labelSelector=a%3Db c #3",
                "query: labelSelector=a>b #3",
                "query: resourceVersion=-1 #3",
                "query: resourceVersion=x #3",
                "query: watch=true&timeoutSeconds=1&fieldSelector=nope%3Dx #3",
                "query: watch=true&timeoutSeconds=1&labelSelector=a b #3",
            )
        ),
    ),
    KnownDifference(
        "protobuf is not listed as a supported format",
        "message",
        frozenset(
            (
                "accept: application/* #2",
                "accept: application/* #3",
                "accept: application/json;as=Nope;v=v1;g=meta.k8s.io #2",
                "accept: application/json;as=Nope;v=v1;g=meta.k8s.io #3",
                "accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io #3",
                "accept: application/json;as=Table;v=v2;g=meta.k8s.io #2",
                "accept: application/json;as=Table;v=v2;g=meta.k8s.io #3",
                "accept: application/xml #2",
                "accept: application/xml #3",
                "accept: text/plain #2",
                "accept: text/plain #3",
            )
        ),
    ),
    KnownDifference(
        "errors in a configuration have other messages",
        "message",
        frozenset(
            (
                "apply: malformed #1",
                "apply: malformed #2",
                "apply: malformed #3",
                "apply: malformed #4",
                "apply: no kind #1",
                "apply: wrong kind #1",
                "apply: wrong version #1",
            )
        ),
    ),
    KnownDifference(
        "errors in an undecodable body have other messages",
        "message",
        frozenset(
            (
                "binding: bad json #2",
                "binding: no body #2",
                "binding: wrong kind #2",
                "body: a list of kind #1",
                "body: bad yaml #1",
                "body: kind is a number #1",
                "body: wrong kind #1",
                "custom body: kind is a number #1",
                "custom body: kind without version #1",
                "custom body: null #1",
            )
        ),
    ),
    KnownDifference(
        "errors in a patch have other messages",
        "message",
        frozenset(
            (
                "custom merge patch: list #2",
                "custom merge patch: null #2",
                "custom merge patch: text #2",
                "json patch: malformed #2",
                "json patch: not a list #2",
                "json patch: of numbers #2",
                "json patch: too many #2",
                "merge patch: list #2",
                "merge patch: malformed #2",
                "merge patch: null #2",
                "merge patch: text #2",
                "strategic patch: list #2",
                "strategic patch: malformed #2",
                "strategic patch: number #2",
                "strategic patch: text #2",
                "strategic patch: wrong type #2",
                "strategic template: bad directive #2",
                "strategic template: no key #2",
                "strategic template: not objects #2",
                "strategic template: wrong type #2",
            )
        ),
    ),
    KnownDifference(
        "errors in delete options have other messages",
        "message",
        frozenset(
            (
                "delete pod: grace is text #2",
                "delete pod: list #2",
                "delete pod: malformed #2",
                "delete: grace is text #2",
                "delete: list #2",
                "delete: malformed #2",
                "delete: many #3",
            )
        ),
    ),
    KnownDifference(
        "a wrong type, an invalid time or name has another message",
        "message",
        frozenset(
            (
                "affinity: node without terms #1",
                "custom metadata: bad creation #1",
                "custom metadata: label is a number #1",
                "custom metadata: labels is a list #1",
                "custom metadata: name is a list #1",
                "custom metadata: name is a number #1",
                "lease: bad time #1",
                "lease: time of seconds #1",
                "metadata: bad creation #1",
                "metadata: is text #1",
                "spread: no topology #1",
                "strategy: fraction #1",
            )
        ),
    ),
    KnownDifference(
        "errors in a Scale have other messages, or name the object behind it",
        "message",
        frozenset(
            (
                "scale: deployment #18",
                "scale: replica set #18",
                "scale: stateful set #18",
                "scale: widget #18",
                "scale: widget #8",
            )
        ),
    ),
    KnownDifference(
        "gangs: missing fields are reported one by one, or at their parent",
        "message",
        frozenset(
            (
                "pod group: both #1",
                "workload: negative #1",
                "workload: no groups #1",
                "workload: no minimum #1",
                "workload: no policy #1",
                "workload: zero #1",
            )
        ),
    ),
    KnownDifference(
        "the same fields with other messages",
        "message",
        frozenset(
            (
                "container: bad resource name #1",
                "definition: no schema #1",
                "deployment more: negative deadline #1",
                "node: taint twice #1",
                "priority: bad policy #1",
                "priority: system name #1",
                "role binding: bad role kind #1",
                "role binding: bad subject #1",
                "service: bad address #1",
                "service: same twice #1",
                "storage class: bad policy #1",
                "update claim: modes #2",
                "update claim: size #2",
                "update pod: kind #2",
            )
        ),
    ),
    KnownDifference(
        "the same fields with other messages",
        "message",
        frozenset(
            (
                "role: no verbs #1",
                "slice: no addresses #1",
                "update job: selector #2",
            )
        ),
        "1.35",
    ),
    KnownDifference(
        "the same fields with other messages",
        "message",
        frozenset(("update role binding: role #2",)),
        "1.37",
    ),
)
