"""Plans the rotation of the webhook's own certificate, such that no admission fails because of it.

A rotation has four steps. The new pair is stored as the next one, and its authority joins the bundle. The
configurations get the bundle. After the grace period, when every API server trusts the new authority, the next pair
becomes the served one. When every replica serves it, the old authority leaves the bundle. Each step is derived from the
current objects alone, so a replica that crashes between two steps, or loses a race, reconciles again and continues.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_scheduler.base import certificates
from gpu_scheduler.base.certificates import Certificate
from gpu_scheduler.gangs.contract import WEBHOOK

_AUTHORITY_GRACE_FACTOR = 10
"""Grace periods for which an old authority stays trusted: a replica that cannot read the secret serves the old pair."""


class SecretContent(NamedTuple):
    """The content of the secret; a pair may be absent or unusable."""

    serving: Certificate | None = None
    upcoming: Certificate | None = None
    authorities: tuple[bytes, ...] = ()


class SignedPair(NamedTuple):
    """A certificate with its key, and the authority that signed it."""

    pair: Certificate
    authority: bytes


class TrustBundles(NamedTuple):
    """The CA bundles of one webhook configuration, one per webhook."""

    bundles: tuple[tuple[bytes, ...], ...]

    def trusts(self, authority: bytes) -> bool:
        """Whether every webhook trusts this authority."""
        return all(authority in bundle for bundle in self.bundles)

    def carries(self, authorities: Iterable[bytes]) -> bool:
        """Whether every webhook trusts exactly these authorities."""
        return all(set(bundle) == set(authorities) for bundle in self.bundles)


class RotationState(NamedTuple):
    """The input of a plan: the secret, each configuration (None if absent), and the pair that this replica serves."""

    stored: SecretContent
    configured: tuple[TrustBundles | None, ...]
    served: SignedPair | None
    unchanged_for: float
    """Seconds since our entries of the secret or a webhook of a configuration last changed."""

    def is_trusted(self, authority: bytes) -> bool:
        """Whether all configurations exist and trust this authority."""
        return all(one is not None and one.trusts(authority) for one in self.configured)


@dataclass(frozen=True, slots=True)
class RotationPolicy:
    """How certificates are issued and renewed; times in seconds."""

    names: tuple[str, ...]
    lifetime: float = 365 * 86_400.0
    grace: float = 30.0
    """How long an API server may use the old version of a configuration after a change."""

    @property
    def poll_interval(self) -> float:
        """Seconds between two reconciles."""
        return min(max(self.grace / 6, 0.1), 5.0)


class ServePair(NamedTuple):
    """Serve this pair from now on."""

    served: SignedPair


class TrustAuthorities(NamedTuple):
    """Make the configuration with this number trust exactly these authorities."""

    number: int
    authorities: tuple[bytes, ...]


class WriteSecret(NamedTuple):
    """Write this content, unless the secret has changed meanwhile."""

    stored: SecretContent


class AddPair(NamedTuple):
    """Write this content with a new pair and its authority, as the next pair or as the very first."""

    stored: SecretContent
    first: bool = False


RotationStep = ServePair | TrustAuthorities | WriteSecret | AddPair


def plan_rotation(state: RotationState, now: float, policy: RotationPolicy) -> list[RotationStep]:
    """The steps that are due, in order; afterwards read the objects and plan again. `now` is the API server's clock."""
    steps: list[RotationStep] = []
    serve = _choose_served_pair(state, now, policy)
    if serve is not None:
        steps.append(ServePair(serve))
    write = _choose_secret_write(state, now, policy)
    if write is not None:
        # The configurations follow the secret after it has changed.
        return [*steps, write]
    authorities = state.stored.authorities
    for number, one in enumerate(state.configured):
        if one is not None and authorities and not one.carries(authorities):
            steps.append(TrustAuthorities(number, authorities))
    return steps


def service_names(namespace: str, service: str = WEBHOOK) -> tuple[str, ...]:
    """The DNS names of a Service inside its cluster; API servers use the first one."""
    home = f"{service}.{namespace}"
    return (f"{home}.svc", f"{home}.svc.cluster.local", home, service)


def with_new_pair(step: AddPair, now: float, policy: RotationPolicy) -> SecretContent:
    """The content to write: a new pair of a new authority, whose key is discarded."""
    made = make_pair(policy.names, policy.lifetime, now)
    authorities = (*step.stored.authorities, made.authority)
    if step.first:
        return SecretContent(made.pair, None, authorities)
    return step.stored._replace(upcoming=made.pair, authorities=authorities)


def make_pair(names: Sequence[str], lifetime: float, now: float | None = None) -> SignedPair:
    """Issues a pair for these names from a new authority, whose key is discarded."""
    period = certificates.make_period(lifetime, now)
    # A unique name, so that a client never confuses two authorities of a bundle.
    authority = certificates.make_authority(f"gpu-scheduler webhook CA {os.urandom(4).hex()}", period)
    pair = certificates.issue(authority, names[0], names, period=period)
    return SignedPair(pair, authority.certificate)


def _choose_served_pair(state: RotationState, now: float, policy: RotationPolicy) -> SignedPair | None:
    """The stored pair, if it is not the served one and it is time to serve it."""
    serving = _verify(state.stored.serving, state.stored, now)
    if serving is None or serving == state.served or not state.is_trusted(serving.authority):
        return None
    served = _unexpired(state.served, now)
    # While the served pair is trusted there is time: an API server may not trust the other one yet.
    urgent = served is None or not state.is_trusted(served.authority) or _expires_soon(served, now, policy)
    return serving if urgent or state.unchanged_for >= policy.grace else None


def _choose_secret_write(state: RotationState, now: float, policy: RotationPolicy) -> WriteSecret | AddPair | None:
    """The content to write to the secret, if any."""
    stored = state.stored
    serving, upcoming = (_verify(pair, stored, now) for pair in (stored.serving, stored.upcoming))
    if upcoming is not None and _lacks_names(upcoming, policy):
        upcoming = None
    usable = SecretContent(serving and serving.pair, upcoming and upcoming.pair, stored.authorities)
    if serving is None:
        return _repair_secret(state, usable, now, policy)
    served = _unexpired(state.served, now)
    if served is not None and served.authority not in stored.authorities and _is_trusted_anywhere(state, served):
        return WriteSecret(usable._replace(authorities=(*stored.authorities, served.authority)))
    if upcoming is None and _needs_renewal(serving, now, policy):
        return AddPair(usable)
    if usable != stored:
        return WriteSecret(usable)
    if upcoming is not None:
        return _promote_next(state, upcoming, policy, urgent=_expires_soon(serving, now, policy))
    if stored.authorities != (serving.authority,) and state.unchanged_for >= _AUTHORITY_GRACE_FACTOR * policy.grace:
        return WriteSecret(usable._replace(authorities=(serving.authority,)))
    return None


def _repair_secret(
    state: RotationState, usable: SecretContent, now: float, policy: RotationPolicy
) -> WriteSecret | AddPair | None:
    """The content for a secret without a usable pair: it is new, or it was emptied or damaged."""
    served = _unexpired(state.served, now)
    if served is not None:
        # An emptied secret is a request for a new certificate. Until it exists, other replicas need this one.
        usable = usable._replace(serving=served.pair, authorities=_merge(usable.authorities, [served.authority]))
        return WriteSecret(usable) if usable.upcoming is not None else AddPair(usable)
    if usable.upcoming is not None:
        upcoming = _verify(usable.upcoming, state.stored, now)
        return _promote_next(state, upcoming, policy) if upcoming is not None else None
    # Another replica may serve a pair of an authority that the configurations trust.
    known = [bundle for one in state.configured if one is not None for bundle in one.bundles]
    authorities = _merge(usable.authorities, [authority for bundle in known for authority in bundle])
    return AddPair(SecretContent(authorities=authorities), first=not authorities)


def _promote_next(
    state: RotationState, upcoming: SignedPair, policy: RotationPolicy, urgent: bool = False
) -> WriteSecret | None:
    """Makes the next pair the served one, once all API servers trust its authority."""
    if state.is_trusted(upcoming.authority) and (urgent or state.unchanged_for >= policy.grace):
        return WriteSecret(SecretContent(upcoming.pair, None, state.stored.authorities))
    return None


# The same few certificates are read every few seconds for months.
_check_pair = functools.lru_cache(16)(certificates.check_pair)
_find_issuer = functools.lru_cache(16)(certificates.find_issuer)
_read_period = functools.lru_cache(16)(certificates.read_period)
_read_names = functools.lru_cache(16)(certificates.read_names)


def _verify(pair: Certificate | None, stored: SecretContent, now: float) -> SignedPair | None:
    """The pair with the authority that signed it, if a client can trust it now."""
    if pair is None or _check_pair(pair):
        return None
    authority = _find_issuer(pair.certificate, stored.authorities)
    return _unexpired(SignedPair(pair, authority), now) if authority is not None else None


def _unexpired(served: SignedPair | None, now: float) -> SignedPair | None:
    """The pair, or None once it or its authority has expired."""
    if served is None:
        return None
    periods = [_read_period(pem) for pem in (served.pair.certificate, served.authority)]
    return served if all(period.covers(now) for period in periods) else None


def _needs_renewal(serving: SignedPair, now: float, policy: RotationPolicy) -> bool:
    """Whether at most a third of the lifetime is left, or a name is missing from the certificate."""
    left = _read_period(serving.pair.certificate).ends - now
    return left <= policy.lifetime / 3 or _lacks_names(serving, policy)


def _expires_soon(served: SignedPair, now: float, policy: RotationPolicy) -> bool:
    """Whether the pair expires so soon that waiting for API servers to trust the next one is the larger risk."""
    return _read_period(served.pair.certificate).ends - now <= policy.lifetime / 12


def _lacks_names(served: SignedPair, policy: RotationPolicy) -> bool:
    return not _read_names(served.pair.certificate).issuperset(policy.names)


def _is_trusted_anywhere(state: RotationState, served: SignedPair) -> bool:
    return any(one is not None and any(served.authority in b for b in one.bundles) for one in state.configured)


def _merge(some: Iterable[bytes], more: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((*some, *more)))
