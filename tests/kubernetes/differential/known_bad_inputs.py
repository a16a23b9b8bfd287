"""Entries of the catalogue that the local API answers otherwise, with the reason why.

An entry that differs and is not here is a failure, and so is one that is here and does not differ.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple


class Otherwise(NamedTuple):
    """Requests that are answered otherwise for one reason: names of entries, with the number of the request."""

    why: str
    manner: str
    requests: frozenset[str]
    minor: str = ""
    """The only version that differs; "" for all that have the entry."""
    sometimes: bool = False
    """Not each time."""


def marks(minor: str, entries: Container[str], always: bool = False) -> set[tuple[str, str]]:
    """(manner, request) of everything that is known of a version, as far as the catalogue has it."""
    return {
        (group.manner, request)
        for group in BAD_INPUTS
        if group.minor in ("", minor) and not (always and group.sometimes)
        for request in group.requests
        if request.rpartition(" #")[0] in entries
    }


BAD_INPUTS: Sequence[Otherwise] = (
    Otherwise(
        "apply does not check types first: mistakes are told as of other writes, unknown custom fields dropped",
        "accepted",
        frozenset(("apply: custom #10",)),
    ),
    Otherwise(
        "a JSON patch may replace the whole object; a real server loses its name on the way",
        "accepted",
        frozenset(("json patch: root #2",)),
    ),
    Otherwise(
        "the option to delete what cannot be read is ignored: there is nothing that cannot be read",
        "accepted",
        frozenset(
            (
                "delete pod: ignore errors #2",
                "delete: ignore errors #2",
            )
        ),
        "1.37",
    ),
    Otherwise(
        "1.37 checks how the node of a binding is spelt",
        "accepted",
        frozenset(("binding: bad node #2",)),
        "1.37",
    ),
    Otherwise(
        "runtime classes and service accounts need not exist",
        "accepted",
        frozenset(
            (
                "pod: bad runtime class #1",
                "pod: unknown service account #1",
            )
        ),
    ),
    Otherwise(
        "events of events.k8s.io obey the rules of the older API",
        "accepted",
        frozenset(("new event: bad type #1",)),
    ),
    Otherwise(
        "claims have no protection finalizer here, so they go at once",
        "refused",
        frozenset(("delete one: claim #3",)),
    ),
    Otherwise(
        "the option to delete what cannot be read is ignored: there is nothing that cannot be read",
        "refused",
        frozenset(("delete: ignore errors #3",)),
        "1.37",
    ),
    Otherwise(
        "more than one topology constraint is refused as the API's documentation says; 1.37 does not check it",
        "refused",
        frozenset(("pod group: two constraints #1",)),
    ),
    Otherwise(
        "1.0 is no integer here",
        "refused",
        frozenset(("widget: size is whole #1",)),
    ),
    Otherwise(
        "wrong methods on custom kinds answer 405, a real server does something odd; HEAD is not served",
        "refused",
        frozenset(("method: widget #7",)),
    ),
    Otherwise(
        "paths that do not exist: methods on discovery, no namespace, plain text for a 404",
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
    Otherwise(
        "apply does not check types first: mistakes are told as of other writes, unknown custom fields dropped",
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
    Otherwise(
        "runtime classes and service accounts need not exist",
        "code",
        frozenset(("pod: bad service account #1",)),
    ),
    Otherwise(
        "wrong methods on custom kinds answer 405, a real server does something odd; HEAD is not served",
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
    Otherwise(
        "paths that do not exist: methods on discovery, no namespace, plain text for a 404",
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
    Otherwise(
        "parameters that cannot be read are told in other words, and a watch from no version with 400",
        "code",
        frozenset(("query: watch=true&timeoutSeconds=1&resourceVersion=x #3",)),
    ),
    Otherwise(
        "claims have no protection finalizer here, so they go at once",
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
    Otherwise(
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
    Otherwise(
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
    Otherwise(
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
    Otherwise(
        "a write that would only change owners is no new version",
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
    Otherwise(
        "apply does not check types first: mistakes are told as of other writes, unknown custom fields dropped",
        "object",
        frozenset(
            (
                "apply: custom #11",
                "apply: version #2",
            )
        ),
    ),
    Otherwise(
        "a JSON patch may replace the whole object; a real server loses its name on the way",
        "object",
        frozenset(("json patch: root #3",)),
    ),
    Otherwise(
        "the option to delete what cannot be read is ignored: there is nothing that cannot be read",
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
    Otherwise(
        "1.37 checks how the node of a binding is spelt",
        "object",
        frozenset(("binding: bad node #3",)),
        "1.37",
    ),
    Otherwise(
        "a dry run does not show the first status of a definition",
        "object",
        frozenset(("definition: good #1",)),
    ),
    Otherwise(
        "1.37 shows a value that was not given as 0",
        "object",
        frozenset(("priority: value missing #1",)),
        "1.37",
    ),
    Otherwise(
        "an empty list is a list here, a real server writes null",
        "object",
        frozenset(("table: /apis/discovery.k8s.io/v1/namespaces/$NS/endpointslices #1",)),
    ),
    Otherwise(
        "whether a last bookmark comes before a watch ends depends on the moment",
        "object",
        frozenset(
            ("query: econds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true #3",)
        ),
        sometimes=True,
    ),
    Otherwise(
        "fields that are there twice are looked for only when fieldValidation asks for it, as kubectl does",
        "warnings",
        frozenset(
            (
                "body: duplicate field #1",
                "body: duplicate key #1",
            )
        ),
    ),
    Otherwise(
        "fewer warnings: names of pods as host names, fractions of bytes, empty secrets, plain finalizers",
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
    Otherwise(
        "events of events.k8s.io obey the rules of the older API",
        "causes",
        frozenset(
            (
                "new event: no controller #1",
                "new event: no time #1",
            )
        ),
    ),
    Otherwise(
        "wrong methods on custom kinds answer 405, a real server does something odd; HEAD is not served",
        "causes",
        frozenset(
            (
                "method: widget #5",
                "method: widget #6",
            )
        ),
    ),
    Otherwise(
        "paths that do not exist: methods on discovery, no namespace, plain text for a 404",
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
    Otherwise(
        "gangs: required parts are told one by one, or at the place that holds them",
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
    Otherwise(
        "gangs: required parts are told one by one, or at the place that holds them",
        "causes",
        frozenset(("workload: twice #1",)),
        "1.37",
    ),
    Otherwise(
        "definitions: rules are told of a version, upstream of the whole, and fewer follow from one mistake",
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
    Otherwise(
        "who misuses a subresource of a custom object is not told its kind",
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
    Otherwise(
        "custom objects: what follows from a value of the wrong type is not told as well",
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
    Otherwise(
        "custom objects: what follows from a value of the wrong type is not told as well",
        "causes",
        frozenset(("widget: size is a fraction #1",)),
        "1.37",
    ),
    Otherwise(
        "owners: 1.37 says which one is wrong, and what of it",
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
    Otherwise(
        "a bad generateName is told of the name that came of it",
        "causes",
        frozenset(
            (
                "custom metadata: bad generateName #1",
                "metadata: bad generateName #1",
            )
        ),
    ),
    Otherwise(
        "a selector that is wrong is told not to match, too; a real server says that it is no selector, or nothing",
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
    Otherwise(
        "the field is named as the object has it, and an unknown word is always one that is not supported",
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
    Otherwise(
        "the field is named as the object has it, and an unknown word is always one that is not supported",
        "causes",
        frozenset(("pod: share process and host pid #1",)),
        "1.37",
    ),
    Otherwise(
        "what is missing is told of what lacks it; a real server also tells what follows, or only that",
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
    Otherwise(
        "evictions that contradict themselves and namespaces that end are refused with fewer details",
        "causes",
        frozenset(
            (
                "delete: namespace #3",
                "eviction: two budgets #6",
                "eviction: wrong uid #2",
            )
        ),
    ),
    Otherwise(
        "parameters that cannot be read are told in other words, and a watch from no version with 400",
        "words",
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
    Otherwise(
        "protobuf is not among the forms that can be had",
        "words",
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
    Otherwise(
        "what is wrong with a configuration is told in other words",
        "words",
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
    Otherwise(
        "what is wrong with a body that cannot be read is told in other words",
        "words",
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
    Otherwise(
        "what is wrong with a patch is told in other words",
        "words",
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
    Otherwise(
        "what is wrong with the options of a delete is told in other words",
        "words",
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
    Otherwise(
        "a value of the wrong type, a time or a name is described in other words",
        "words",
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
    Otherwise(
        "what is wrong with a Scale is told in other words, or of the object behind it",
        "words",
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
    Otherwise(
        "gangs: required parts are told one by one, or at the place that holds them",
        "words",
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
    Otherwise(
        "the same fields, described in other words",
        "words",
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
    Otherwise(
        "the same fields, described in other words",
        "words",
        frozenset(
            (
                "role: no verbs #1",
                "slice: no addresses #1",
                "update job: selector #2",
            )
        ),
        "1.35",
    ),
    Otherwise(
        "the same fields, described in other words",
        "words",
        frozenset(("update role binding: role #2",)),
        "1.37",
    ),
)
