"""Renewal of the webhook's certificate: no admission fails under crashes, races and overwrites."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.base.certificates import Certificate, read_names
from gpu_scheduler.k8s.errors import NotFound
from gpu_scheduler.k8s.resources import SECRETS
from gpu_scheduler.webhook.rotation import (
    AddPair,
    RotationPolicy,
    RotationState,
    RotationStep,
    SecretContent,
    ServePair,
    SignedPair,
    TrustAuthorities,
    TrustBundles,
    WriteSecret,
    make_pair,
    plan_rotation,
    service_names,
    with_new_pair,
)
from tests.unit.webhook.rotation_world import BEGIN, GRACE, LIFETIME, PLURALS, POLICY, TICK, World

NOW = BEGIN
OLD, NEW, OTHER = (make_pair(POLICY.names, LIFETIME, NOW) for _ in range(3))
SHORT = make_pair(POLICY.names, LIFETIME / 3, NOW)
RENAMED = make_pair(("elsewhere",), LIFETIME, NOW)
LATE = make_pair(POLICY.names, LIFETIME / 12, NOW)
EARLIER = make_pair(POLICY.names, LIFETIME / 12 + 1, NOW)
GONE = make_pair(POLICY.names, 10.0, NOW - 20)
LONG = 10 * GRACE


def carried(*served: SignedPair) -> tuple[TrustBundles, TrustBundles]:
    """Both configurations, with two webhooks each that trust these authorities."""
    bundle = tuple(one.authority for one in served)
    return (TrustBundles((bundle, bundle)), TrustBundles((bundle, bundle)))


def stored(serving: SignedPair | None, upcoming: SignedPair | None = None, *is_trusted: SignedPair) -> SecretContent:
    authorities = tuple(one.authority for one in is_trusted)
    return SecretContent(serving and serving.pair, upcoming and upcoming.pair, authorities)


EMPTY = SecretContent()
ROTATING = stored(OLD, NEW, OLD, NEW)
BROKEN = SecretContent(Certificate(OLD.pair.certificate, NEW.pair.key), None, (OLD.authority,))
PROMOTED = stored(NEW, None, OLD, NEW)
BOTH = (OLD.authority, NEW.authority)

CASES: dict[str, tuple[RotationState, list[RotationStep]]] = {
    "an empty secret and empty bundles: the first pair": (
        RotationState(EMPTY, carried(), None, 0),
        [AddPair(EMPTY, first=True)],
    ),
    "an empty secret, but another replica may serve": (
        RotationState(EMPTY, carried(OLD), None, 0),
        [AddPair(stored(None, None, OLD))],
    ),
    "the first pair is stored: configurations first": (
        RotationState(stored(NEW, None, NEW), carried(), None, 0),
        [TrustAuthorities(0, (NEW.authority,)), TrustAuthorities(1, (NEW.authority,))],
    ),
    "one configuration is missing: the other is told, nothing is shown": (
        RotationState(stored(NEW, None, NEW), (TrustBundles(((),)), None), None, LONG),
        [TrustAuthorities(0, (NEW.authority,))],
    ),
    "trusted, and nothing shown yet": (RotationState(stored(NEW, None, NEW), carried(NEW), None, 0), [ServePair(NEW)]),
    "all is well": (RotationState(stored(OLD, None, OLD), carried(OLD), OLD, LONG), []),
    "a third is left": (
        RotationState(stored(SHORT, None, SHORT), carried(SHORT), SHORT, 0),
        [AddPair(stored(SHORT, None, SHORT))],
    ),
    "other names are asked for": (
        RotationState(stored(RENAMED, None, RENAMED), carried(RENAMED), RENAMED, 0),
        [AddPair(stored(RENAMED, None, RENAMED))],
    ),
    "next is stored: configurations first": (
        RotationState(ROTATING, carried(OLD), OLD, LONG),
        [TrustAuthorities(0, BOTH), TrustAuthorities(1, BOTH)],
    ),
    "both trusted, but not for long enough": (RotationState(ROTATING, carried(OLD, NEW), OLD, GRACE - 1), []),
    "both trusted for a grace: promoted": (
        RotationState(ROTATING, carried(OLD, NEW), OLD, GRACE),
        [WriteSecret(PROMOTED)],
    ),
    "one webhook of a configuration does not carry it": (
        RotationState(ROTATING, (TrustBundles((BOTH, (OLD.authority,))), TrustBundles((BOTH,))), OLD, LONG),
        [TrustAuthorities(0, BOTH)],
    ),
    "both trusted just now, but the old one is soon over: promoted": (
        RotationState(stored(LATE, NEW, LATE, NEW), carried(LATE, NEW), LATE, 0),
        [WriteSecret(stored(NEW, None, LATE, NEW))],
    ),
    "both trusted just now, and the old one is not quite so soon over": (
        RotationState(stored(EARLIER, NEW, EARLIER, NEW), carried(EARLIER, NEW), EARLIER, 0),
        [],
    ),
    "promoted by another replica, and the old one is soon over: shown": (
        RotationState(stored(NEW, None, LATE, NEW), carried(LATE, NEW), LATE, 0),
        [ServePair(NEW)],
    ),
    "next, but a configuration is gone": (RotationState(ROTATING, (carried(OLD, NEW)[0], None), OLD, LONG), []),
    "promoted by another replica: no hurry": (RotationState(PROMOTED, carried(OLD, NEW), OLD, 0), []),
    "promoted a grace ago": (RotationState(PROMOTED, carried(OLD, NEW), OLD, GRACE), [ServePair(NEW)]),
    "promoted, and nothing shown yet": (RotationState(PROMOTED, carried(OLD, NEW), None, 0), [ServePair(NEW)]),
    "the old authority stays for the slow": (RotationState(PROMOTED, carried(OLD, NEW), NEW, LONG - 1), []),
    "the old authority leaves": (
        RotationState(PROMOTED, carried(OLD, NEW), NEW, LONG),
        [WriteSecret(stored(NEW, None, NEW))],
    ),
    "it leaves the configurations after the secret": (
        RotationState(stored(NEW, None, NEW), carried(OLD, NEW), NEW, 0),
        [TrustAuthorities(0, (NEW.authority,)), TrustAuthorities(1, (NEW.authority,))],
    ),
    "back after the old one has left": (RotationState(stored(NEW, None, NEW), carried(NEW), OLD, 0), [ServePair(NEW)]),
    "the bundles were overwritten": (
        RotationState(stored(OLD, None, OLD), carried(), OLD, LONG),
        [TrustAuthorities(0, (OLD.authority,)), TrustAuthorities(1, (OLD.authority,))],
    ),
    "the secret was emptied: a new pair as the next one": (
        RotationState(EMPTY, carried(OLD), OLD, 0),
        [AddPair(stored(OLD, None, OLD))],
    ),
    "the secret was damaged": (RotationState(BROKEN, carried(OLD), OLD, 0), [AddPair(stored(OLD, None, OLD))]),
    "broken, with a next one": (
        RotationState(SecretContent(None, NEW.pair, (NEW.authority,)), carried(OLD), OLD, 0),
        [WriteSecret(stored(OLD, NEW, NEW, OLD))],
    ),
    "broken, and this replica shows nothing": (
        RotationState(BROKEN, carried(OLD), None, 0),
        [AddPair(stored(None, None, OLD))],
    ),
    "another pair was stored: the served one stays trusted": (
        RotationState(stored(OTHER, None, OTHER), carried(OLD), OLD, 0),
        [WriteSecret(stored(OTHER, None, OTHER, OLD))],
    ),
    "expired": (RotationState(stored(GONE, None, GONE), carried(GONE), GONE, 0), [AddPair(stored(None, None, GONE))]),
    "next has expired": (
        RotationState(stored(OLD, GONE, OLD, GONE), carried(OLD, GONE), OLD, LONG),
        [WriteSecret(stored(OLD, None, OLD, GONE))],
    ),
    "next is for other names": (
        RotationState(stored(OLD, RENAMED, OLD, RENAMED), carried(OLD, RENAMED), OLD, LONG),
        [WriteSecret(stored(OLD, None, OLD, RENAMED))],
    ),
}


@pytest.mark.parametrize(("found", "steps"), CASES.values(), ids=CASES.keys())
def test_the_plan_follows_from_the_state(found: RotationState, steps: list[RotationStep]) -> None:
    assert plan_rotation(found, NOW, POLICY) == steps


def test_a_new_pair_is_stored_as_the_next_one_unless_it_is_the_first() -> None:
    first = with_new_pair(AddPair(SecretContent(), first=True), NOW, POLICY)
    assert (first.upcoming, len(first.authorities)) == (None, 1)
    after = with_new_pair(AddPair(first), NOW, POLICY)
    assert (after.serving, after.authorities[0]) == (first.serving, first.authorities[0])
    assert after.upcoming is not None
    assert read_names(after.upcoming.certificate) == set(POLICY.names)


def test_the_certificate_has_the_names_of_the_service() -> None:
    assert service_names("gpu-scheduler-system") == (
        "gpu-scheduler-webhook.gpu-scheduler-system.svc",
        "gpu-scheduler-webhook.gpu-scheduler-system.svc.cluster.local",
        "gpu-scheduler-webhook.gpu-scheduler-system",
        "gpu-scheduler-webhook",
    )


def test_the_poll_interval_follows_the_grace_period() -> None:
    assert [RotationPolicy((), 1, grace).poll_interval for grace in (0.1, 3, 30, 3000)] == [0.1, 0.5, 5.0, 5.0]


# -- with an API, one request at a time


def started(replicas: int = 2) -> World:
    """A world in which the first certificate is served."""
    world = World(replicas)
    world.run(3)
    assert world.is_settled()
    return world


def due(world: World) -> None:
    """Advances the time until the certificate must be renewed."""
    while world.api.now < BEGIN + LIFETIME * 2 / 3:
        world.tick(2 * GRACE)


SETTLING = round((GRACE * 13) / TICK) + 8
"""The number of ticks of a renewal."""


def test_the_first_start_creates_a_certificate_that_all_replicas_serve() -> None:
    world = World(3)
    for replica in world.replicas:
        while not replica.step():
            pass
    world.run(2)
    assert world.is_settled()
    assert len({replica.served for replica in world.replicas}) == 1


def test_certificates_are_renewed_before_they_expire() -> None:
    world = started()
    seen = set()
    for _ in range(round(3 * LIFETIME / TICK)):
        world.run(1)
        seen.add(world.api.data()["tls.crt"])
    assert len(seen) >= 4, "one every two thirds of a lifetime"


WRITES = 7
"""The writes of one renewal: next pair, two bundles, promotion, removal of the old authority, two bundles."""


@pytest.mark.parametrize("garbled", [False, True], ids=["crash", "answer lost, then crash"])
@pytest.mark.parametrize("last", range(WRITES))
def test_a_crash_after_any_write_of_a_renewal_is_harmless(last: int, garbled: bool) -> None:
    world = started(1)
    due(world)
    (replica,) = world.replicas
    begun = world.api.writes
    while world.api.writes <= begun + last:
        world.api.garbled = int(garbled and world.api.writes == begun + last)
        if replica.step():
            world.tick()
        world.check()
    replica.crash()
    world.api.garbled = 0
    world.run(SETTLING)
    assert world.is_settled()
    assert world.api.writes == begun + WRITES, "something was done twice, or not at all"


@pytest.mark.parametrize("poll_interval", range(1, 9))
@pytest.mark.parametrize("phase", range(6))
def test_a_replica_that_is_overtaken_between_two_requests_undoes_nothing(poll_interval: int, phase: int) -> None:
    """One replica pauses after some requests of a reconcile, the other reconciles fully, then the first continues."""
    world = started()
    due(world)
    slow, quick = world.replicas
    for _ in range(phase):
        quick.reconcile()
        world.tick(GRACE)
    for _ in range(poll_interval):
        if slow.step():
            break
    for _ in range(3):
        quick.reconcile()
        world.check()
    slow.reconcile()
    world.check()
    world.run(2 * SETTLING)
    assert world.is_settled()


@pytest.mark.parametrize("plural", [*PLURALS, SECRETS.plural])
def test_frequent_label_changes_do_not_stop_a_renewal(plural: str) -> None:
    world = started()
    first = world.api.data()["tls.crt"]
    due(world)
    for _ in range(SETTLING):
        world.api.put(plural, world.api.objects[plural])
        world.run(1)
    assert world.is_settled()
    assert world.api.data()["tls.crt"] != first


@pytest.mark.parametrize("plural", PLURALS)
def test_an_overwritten_bundle_is_restored(plural: str) -> None:
    world = started()
    world.api.install(plural)
    world.run(2)
    assert world.is_settled()


def test_a_missing_configuration_is_waited_for() -> None:
    world = World(1)
    found = world.api.objects.pop(PLURALS[1])
    world.run(3)
    assert world.replicas[0].served is None
    world.api.put(PLURALS[1], found)
    world.run(2)
    assert world.is_settled()


def test_a_missing_secret_is_named() -> None:
    world = World(1)
    del world.api.objects[SECRETS.plural]
    with pytest.raises(NotFound, match="the secret ns/tls does not exist; create it, even if empty"):
        world.replicas[0].reconcile()


def test_an_emptied_secret_gets_a_new_certificate() -> None:
    world = started()
    before = world.api.data()["tls.crt"]
    world.api.put(SECRETS.plural, {"data": None})
    world.run(SETTLING)
    assert world.is_settled()
    assert world.api.data()["tls.crt"] != before


@pytest.mark.parametrize("text", ["A", "\N{SNOWMAN}"], ids=["cut short", "no letters of base64"])
def test_invalid_base64_counts_as_absent_and_is_replaced(text: str) -> None:
    world = World(1)
    world.api.objects[SECRETS.plural]["data"] = {"tls.crt": text, "tls.key": text, "ca.crt": text}
    for plural in PLURALS:
        world.api.objects[plural]["webhooks"][0]["clientConfig"]["caBundle"] = text
    world.replicas[0].reconcile()
    world.replicas[0].reconcile()
    world.run(3)
    assert world.is_settled()


def test_other_entries_of_the_secret_are_kept() -> None:
    world = World(1)
    world.api.put(SECRETS.plural, {"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}})
    world.run(3)
    assert world.is_settled()
    assert world.api.objects[SECRETS.plural]["type"] == "kubernetes.io/tls"


ACTIONS = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 1)),
    st.tuples(st.just("look"), st.integers(0, 1)),
    st.tuples(st.just("crash"), st.integers(0, 1)),
    st.tuples(st.just("tick"), st.integers(1, 24)),
    st.tuples(st.just("garble"), st.integers(1, 2)),
    st.tuples(st.just("overwrite"), st.integers(0, 1)),
    st.tuples(st.just("empty"), st.just(0)),
)


@settings(max_examples=100, deadline=None)
@given(st.booleans(), st.lists(ACTIONS, max_size=40))
def test_under_random_faults_the_served_pair_is_trusted_and_the_state_converges(
    renew: bool, actions: list[tuple[str, int]]
) -> None:
    world = started()
    if renew:
        due(world)
    for action, number in actions:
        match action:
            case "step":
                world.replicas[number].step()
            case "look":
                world.replicas[number].reconcile()
            case "crash":
                world.replicas[number].crash()
            case "tick":
                world.tick(number * GRACE / 8)
            case "garble":
                world.api.garbled = number
            # If all were lost at once, no replica could know which authority another one serves.
            case "overwrite" if world.api.data().get("tls.crt"):
                world.api.install(PLURALS[number])
            case "empty" if all(bundle for plural in PLURALS for bundle in world.api.bundles(plural)):
                world.api.put(SECRETS.plural, {"data": {}})
            case _:
                pass
        world.check()
    world.run(1)
    ticks = 0
    while not world.is_settled():
        world.run(1)
        ticks += 1
        assert ticks < 2 * SETTLING
