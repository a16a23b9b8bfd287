"""Pod requests as kube-scheduler computes them (checked against k8s.io/component-helpers v0.37.2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.k8s.quantity import MAX_VALUE, QuantityError
from gpu_scheduler.k8s.requests import ContainerRequest, pod_request, read_amounts, read_container, read_exactly

RESOURCES = ["cpu", "memory", "hugepages-2Mi", "nvidia.com/gpu"]


def asks(restarts: bool = False, **requests: int) -> ContainerRequest:
    return ContainerRequest(requests, {}, restarts)


def sidecar(**requests: int) -> ContainerRequest:
    return asks(restarts=True, **requests)


@dataclass(frozen=True)
class Case:
    id: str
    expected: dict[str, int]
    containers: list[ContainerRequest] = field(default_factory=list)
    init_containers: list[ContainerRequest] = field(default_factory=list)
    overhead: Mapping[str, int] = field(default_factory=dict)
    pod_level: ContainerRequest | None = None


CASES = [
    Case("nothing asked", {}),
    Case("containers add up", {"cpu": 3, "memory": 5}, [asks(cpu=1), asks(cpu=2, memory=5)]),
    Case("a large init container counts alone", {"cpu": 9}, [asks(cpu=1), asks(cpu=2)], [asks(cpu=9), asks(cpu=8)]),
    Case("a small init container does not count", {"cpu": 3}, [asks(cpu=3)], [asks(cpu=2)]),
    Case(
        "init containers count per resource", {"cpu": 9, "memory": 5}, [asks(cpu=1, memory=5)], [asks(cpu=9, memory=1)]
    ),
    Case("a resource only an init container asks for", {"cpu": 1, "memory": 4}, [asks(cpu=1)], [asks(memory=4)]),
    Case("a sidecar runs beside the containers", {"cpu": 5}, [asks(cpu=3)], [sidecar(cpu=2)]),
    Case("an init container after a sidecar runs beside it", {"cpu": 9}, [asks(cpu=1)], [sidecar(cpu=2), asks(cpu=7)]),
    Case("an init container before a sidecar runs alone", {"cpu": 7}, [asks(cpu=1)], [asks(cpu=7), sidecar(cpu=2)]),
    Case(
        "only the sidecars started before an init container count",
        {"cpu": 13},
        [asks(cpu=1)],
        [sidecar(cpu=1), sidecar(cpu=2), asks(cpu=10), sidecar(cpu=4)],
    ),
    Case("sidecars alone add up", {"cpu": 3}, [], [sidecar(cpu=1), sidecar(cpu=2)]),
    Case("a restarting ordinary container is an ordinary container", {"cpu": 3}, [sidecar(cpu=1), asks(cpu=2)]),
    Case("overhead adds to the larger of both", {"cpu": 12}, [asks(cpu=1)], [asks(cpu=9)], {"cpu": 3}),
    Case("overhead may name a new resource", {"cpu": 1, "memory": 3}, [asks(cpu=1)], [], {"memory": 3}),
    Case(
        "a limit stands in for a missing request", {"nvidia.com/gpu": 4}, [ContainerRequest({}, {"nvidia.com/gpu": 4})]
    ),
    Case(
        "a limit stands in per resource",
        {"cpu": 1, "memory": 8},
        [ContainerRequest({"cpu": 1}, {"cpu": 2, "memory": 8})],
    ),
    Case("a request of zero is not missing", {}, [ContainerRequest({"cpu": 0}, {"cpu": 2})]),
    Case(
        "a sidecar's limit stands in too", {"cpu": 5}, [asks(cpu=3)], [ContainerRequest({}, {"cpu": 2}, restarts=True)]
    ),
    Case("zeros are left out", {"cpu": 1}, [asks(cpu=1, memory=0)], [asks(memory=0)], {"memory": 0}),
    Case(
        "pod-level requests replace the aggregate of what they name",
        {"cpu": 10, "memory": 5},
        [asks(cpu=1, memory=5)],
        [asks(cpu=2)],
        {},
        asks(cpu=10),
    ),
    Case("overhead comes on top of pod-level requests", {"cpu": 13}, [asks(cpu=1)], [], {"cpu": 3}, asks(cpu=10)),
    Case(
        "pod-level resources other than cpu, memory and hugepages are ignored",
        {"nvidia.com/gpu": 1, "hugepages-2Mi": 6},
        [ContainerRequest({"nvidia.com/gpu": 1}, {})],
        [],
        {},
        ContainerRequest({"nvidia.com/gpu": 8, "hugepages-2Mi": 6}, {"ephemeral-storage": 5}),
    ),
    Case(
        "a pod-level limit stands in when no container asks",
        {"cpu": 8},
        [asks()],
        [],
        {},
        ContainerRequest({}, {"cpu": 8}),
    ),
    Case(
        "a pod-level limit leaves containers' requests",
        {"cpu": 1},
        [asks(cpu=1)],
        [],
        {},
        ContainerRequest({}, {"cpu": 8}),
    ),
    Case(
        "a container's zero request holds off a pod-level limit",
        {},
        [asks(cpu=0)],
        [],
        {},
        ContainerRequest({}, {"cpu": 8}),
    ),
    Case(
        "a pod-level hugepages limit is the request",
        {"hugepages-2Mi": 8},
        [ContainerRequest({"hugepages-2Mi": 2}, {"hugepages-2Mi": 2})],
        [],
        {},
        ContainerRequest({}, {"hugepages-2Mi": 8}),
    ),
    Case(
        "a pod-level request goes before its limit",
        {"hugepages-2Mi": 4},
        [],
        [],
        {},
        ContainerRequest({"hugepages-2Mi": 4}, {"hugepages-2Mi": 8}),
    ),
    Case(
        "the sum stops at int64",
        {"memory": MAX_VALUE},
        [asks(memory=MAX_VALUE), asks(memory=MAX_VALUE)],
        [],
        {"memory": 1},
    ),
]

amounts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 20))
ordinary_containers = st.builds(ContainerRequest, amounts, amounts)
any_containers = st.builds(ContainerRequest, amounts, amounts, st.booleans())


def asked_of(container: ContainerRequest, resource: str) -> int:
    return int(container.requests.get(resource, container.limits.get(resource, 0)))


def play_timeline(containers: list[ContainerRequest], init_containers: list[ContainerRequest]) -> dict[str, int]:
    """The peak of each resource while containers start and stop one after another, as a kubelet does it."""
    running: list[ContainerRequest] = []
    moments: list[list[ContainerRequest]] = []
    for init in init_containers:
        running.append(init)
        moments.append(list(running))
        if not init.restarts:
            running.remove(init)
    for container in containers:
        running.append(container)
        moments.append(list(running))
    peaks = {name: max((sum(asked_of(c, name) for c in moment) for moment in moments), default=0) for name in RESOURCES}
    return {name: peak for name, peak in peaks.items() if peak}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_request_of_a_pod_is_that_of_kube_scheduler(case: Case) -> None:
    assert pod_request(case.containers, case.init_containers, case.overhead, case.pod_level) == case.expected


@given(st.lists(ordinary_containers, max_size=4), st.lists(any_containers, max_size=5))
def test_request_is_the_peak_of_the_timeline_of_container_starts(
    containers: list[ContainerRequest], init_containers: list[ContainerRequest]
) -> None:
    assert pod_request(containers, init_containers, {}) == play_timeline(containers, init_containers)


@given(st.lists(ordinary_containers, max_size=4), st.lists(any_containers, max_size=3), st.randoms(), amounts)
def test_order_of_ordinary_containers_does_not_matter(
    containers: list[ContainerRequest],
    init_containers: list[ContainerRequest],
    random: Random,
    overhead: dict[str, int],
) -> None:
    shuffled = list(containers)
    random.shuffle(shuffled)
    assert pod_request(shuffled, init_containers, overhead) == pod_request(containers, init_containers, overhead)


@given(st.lists(ordinary_containers, max_size=3), st.lists(any_containers, max_size=3), amounts, any_containers)
def test_request_never_shrinks_when_an_init_container_is_added(
    containers: list[ContainerRequest],
    init_containers: list[ContainerRequest],
    overhead: dict[str, int],
    added: ContainerRequest,
) -> None:
    before = pod_request(containers, init_containers, overhead)
    after = pod_request(containers, [*init_containers, added], overhead)
    assert all(after[name] >= amount for name, amount in before.items())


@given(st.lists(any_containers, max_size=3), st.lists(any_containers, max_size=3), amounts, amounts)
def test_overhead_adds_to_every_kind_of_request(
    containers: list[ContainerRequest],
    init_containers: list[ContainerRequest],
    overhead: dict[str, int],
    pod_requests: dict[str, int],
) -> None:
    pod_level = ContainerRequest(pod_requests, {})
    bare = pod_request(containers, init_containers, {}, pod_level)
    full = pod_request(containers, init_containers, overhead, pod_level)
    assert all(full.get(name, 0) == bare.get(name, 0) + overhead.get(name, 0) for name in RESOURCES)


@given(st.lists(any_containers, max_size=3), st.lists(any_containers, max_size=3), amounts)
def test_computing_a_request_leaves_its_inputs_alone(
    containers: list[ContainerRequest], init_containers: list[ContainerRequest], overhead: dict[str, int]
) -> None:
    before = repr((containers, init_containers, overhead))
    pod_request(containers, init_containers, overhead, ContainerRequest({"cpu": 1}, {"memory": 2}))
    assert repr((containers, init_containers, overhead)) == before


def test_container_is_read_with_cpu_in_milli_and_the_rest_in_units() -> None:
    container = read_container(
        {"cpu": "1.5", "memory": "1.5Gi"},
        {"cpu": "2", "nvidia.com/gpu": "8", "ephemeral-storage": "1500m"},
        restarts=True,
    )
    assert container == ContainerRequest(
        requests={"cpu": 1500, "memory": 1610612736},
        limits={"cpu": 2000, "nvidia.com/gpu": 8, "ephemeral-storage": Fraction(3, 2)},
        restarts=True,
    )


def test_fractions_of_a_unit_are_rounded_up_once_and_together() -> None:
    halves = [read_container({"memory": "1500m", "cpu": "500u"}, {}) for _ in range(2)]
    assert pod_request(halves, [], read_exactly({"memory": "600m"}, "overhead")) == {"memory": 4, "cpu": 1}
    assert read_amounts({"memory": "1500m", "cpu": "500u"}, "status") == {"memory": 2, "cpu": 1}


def test_a_container_without_resources_requests_nothing() -> None:
    assert read_container({}, {}) == ContainerRequest({}, {}, restarts=False)


@pytest.mark.parametrize(
    ("requests", "limits", "message"),
    [
        ({"cpu": "two"}, {}, r"^requests\['cpu'\]: quantity 'two' is not a number .*; write for example"),
        ({}, {"nvidia.com/gpu": ""}, r"^limits\['nvidia.com/gpu'\]: quantity '' is not a number"),
        ({"memory": "-1Gi"}, {}, r"^requests\['memory'\]: quantity '-1Gi' is negative; write 0 or more$"),
        ({}, {"cpu": "-1n"}, r"^limits\['cpu'\]: quantity '-1n' is negative"),
        ({"cpu": "1", "a\nb": "x"}, {}, r"^requests\['a\\nb'\]: quantity 'x'"),
        ({"memory": "9" * 999}, {}, r"^requests\['memory'\]: quantity '9{20}'\.\.\. has 999 characters"),
    ],
    ids=["malformed", "empty limit", "negative", "barely negative", "odd resource name", "overlong"],
)
def test_bad_quantity_is_refused_naming_the_resource(
    requests: dict[str, str], limits: dict[str, str], message: str
) -> None:
    with pytest.raises(QuantityError, match=message) as refusal:
        read_container(requests, limits)
    assert len(str(refusal.value).splitlines()) == 1


def test_bad_overhead_is_refused_naming_the_field() -> None:
    with pytest.raises(QuantityError, match=r"^overhead\['cpu'\]: quantity 'x'"):
        read_amounts({"memory": "1Gi", "cpu": "x"}, "overhead")


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(RESOURCES), st.text(max_size=8)))
def test_any_resources_are_read_or_refused_with_quantity_error(quantities: dict[str, str]) -> None:
    try:
        container = read_container(quantities, {})
    except QuantityError as error:
        refusal = str(error)
    else:
        assert all(0 <= amount <= MAX_VALUE for amount in container.requests.values())
        return
    assert any(repr(name) in refusal for name in quantities)
