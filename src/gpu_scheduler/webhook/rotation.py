"""What to do next about the webhook's own certificate, so that no admission ever fails for it.

The order of a renewal: the new pair is stored as the next one and its authority joins the bundle; the configurations
get the bundle; once every API server must have learnt of it, the next pair becomes the one that is shown; once every
replica must show it, the old authority leaves the bundle. All of it is derived from what is found, nothing is
remembered: whoever crashes between two steps, or loses a race, looks again and goes on.
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
"""An old authority is trusted so many graces longer: a replica that cannot read the secret shows the old pair."""


class SecretContent(NamedTuple):
    """What the secret holds; a pair may be absent or unusable."""

    serving: Certificate | None = None
    upcoming: Certificate | None = None
    authorities: tuple[bytes, ...] = ()


class SignedPair(NamedTuple):
    """The pair that a replica shows, and the authority that signed it."""

    pair: Certificate
    authority: bytes


class TrustBundles(NamedTuple):
    """The authorities that each webhook of one configuration trusts."""

    bundles: tuple[tuple[bytes, ...], ...]

    def trusts(self, authority: bytes) -> bool:
        """Whether every webhook of it accepts what this authority signed."""
        return all(authority in bundle for bundle in self.bundles)

    def carries(self, authorities: Iterable[bytes]) -> bool:
        """Whether every webhook of it trusts just these."""
        return all(set(bundle) == set(authorities) for bundle in self.bundles)


class RotationState(NamedTuple):
    """How things are: the secret, each configuration (None: there is none), and what this replica shows."""

    stored: SecretContent
    configured: tuple[TrustBundles | None, ...]
    served: SignedPair | None
    unchanged_for: float
    """For how many seconds neither what is ours in the secret nor a webhook of a configuration has changed."""

    def is_trusted(self, authority: bytes) -> bool:
        """Whether all configurations are there and trust this authority."""
        return all(one is not None and one.trusts(authority) for one in self.configured)


@dataclass(frozen=True, slots=True)
class RotationPolicy:
    """How certificates are made and renewed; times in seconds."""

    names: tuple[str, ...]
    lifetime: float = 365 * 86_400.0
    grace: float = 30.0
    """How long after a change of a configuration an API server may still go by the old one."""

    @property
    def poll_interval(self) -> float:
        """How long to wait between two looks."""
        return min(max(self.grace / 6, 0.1), 5.0)


class ServePair(NamedTuple):
    """Show this pair from now on."""

    served: SignedPair


class TrustAuthorities(NamedTuple):
    """Make the configuration of this number trust these authorities and no others."""

    number: int
    authorities: tuple[bytes, ...]


class WriteSecret(NamedTuple):
    """Store this, unless the secret has changed meanwhile."""

    stored: SecretContent


class AddPair(NamedTuple):
    """Store this with a new pair and its authority: as the next one, or as the first one of all."""

    stored: SecretContent
    first: bool = False


RotationStep = ServePair | TrustAuthorities | WriteSecret | AddPair


def plan_rotation(found: RotationState, now: float, policy: RotationPolicy) -> list[RotationStep]:
    """What to do now, in this order; afterwards look and ask again. `now` is the API server's clock."""
    steps: list[RotationStep] = []
    serve = _choose_served_pair(found, now, policy)
    if serve is not None:
        steps.append(ServePair(serve))
    write = _choose_secret_write(found, now, policy)
    if write is not None:
        # What the secret says is about to change: the configurations follow what it will say then.
        return [*steps, write]
    authorities = found.stored.authorities
    for number, one in enumerate(found.configured):
        if one is not None and authorities and not one.carries(authorities):
            steps.append(TrustAuthorities(number, authorities))
    return steps


def service_names(namespace: str, service: str = WEBHOOK) -> tuple[str, ...]:
    """What a Service is called inside its cluster; API servers use the first one."""
    home = f"{service}.{namespace}"
    return (f"{home}.svc", f"{home}.svc.cluster.local", home, service)


def with_new_pair(step: AddPair, now: float, policy: RotationPolicy) -> SecretContent:
    """What to store: a new pair of a new authority, whose key nobody keeps."""
    made = make_pair(policy.names, policy.lifetime, now)
    authorities = (*step.stored.authorities, made.authority)
    if step.first:
        return SecretContent(made.pair, None, authorities)
    return step.stored._replace(upcoming=made.pair, authorities=authorities)


def make_pair(names: Sequence[str], lifetime: float, now: float | None = None) -> SignedPair:
    """A new pair for these names, and the authority that signed it; the authority's key is thrown away."""
    period = certificates.make_period(lifetime, now)
    # A name of its own, so that a client never takes one authority of a bundle for another.
    authority = certificates.make_authority(f"gpu-scheduler webhook CA {os.urandom(4).hex()}", period)
    pair = certificates.issue(authority, names[0], names, period=period)
    return SignedPair(pair, authority.certificate)


def _choose_served_pair(found: RotationState, now: float, policy: RotationPolicy) -> SignedPair | None:
    """Another pair than the one that is shown, if it is time to show it."""
    serving = _verify(found.stored.serving, found.stored, now)
    if serving is None or serving == found.served or not found.is_trusted(serving.authority):
        return None
    served = _unexpired(found.served, now)
    # While what is shown is trusted, there is no hurry: an API server may not know the other one yet.
    urgent = served is None or not found.is_trusted(served.authority) or _expires_soon(served, now, policy)
    return serving if urgent or found.unchanged_for >= policy.grace else None


def _choose_secret_write(found: RotationState, now: float, policy: RotationPolicy) -> WriteSecret | AddPair | None:
    """What to store, if anything."""
    stored = found.stored
    serving, upcoming = (_verify(pair, stored, now) for pair in (stored.serving, stored.upcoming))
    if upcoming is not None and _lacks_names(upcoming, policy):
        upcoming = None
    usable = SecretContent(serving and serving.pair, upcoming and upcoming.pair, stored.authorities)
    if serving is None:
        return _repair_secret(found, usable, now, policy)
    served = _unexpired(found.served, now)
    if served is not None and served.authority not in stored.authorities and _is_trusted_anywhere(found, served):
        return WriteSecret(usable._replace(authorities=(*stored.authorities, served.authority)))
    if upcoming is None and _needs_renewal(serving, now, policy):
        return AddPair(usable)
    if usable != stored:
        return WriteSecret(usable)
    if upcoming is not None:
        return _promote_next(found, upcoming, policy, urgent=_expires_soon(serving, now, policy))
    if stored.authorities != (serving.authority,) and found.unchanged_for >= _AUTHORITY_GRACE_FACTOR * policy.grace:
        return WriteSecret(usable._replace(authorities=(serving.authority,)))
    return None


def _repair_secret(
    found: RotationState, usable: SecretContent, now: float, policy: RotationPolicy
) -> WriteSecret | AddPair | None:
    """What to store when the secret has no pair to show: it is new, or somebody emptied or broke it."""
    served = _unexpired(found.served, now)
    if served is not None:
        # Who empties the secret asks for a new certificate. Until there is one, the others need this one.
        usable = usable._replace(serving=served.pair, authorities=_merge(usable.authorities, [served.authority]))
        return WriteSecret(usable) if usable.upcoming is not None else AddPair(usable)
    if usable.upcoming is not None:
        upcoming = _verify(usable.upcoming, found.stored, now)
        return _promote_next(found, upcoming, policy) if upcoming is not None else None
    # Another replica may show a pair of an authority that the configurations trust.
    known = [bundle for one in found.configured if one is not None for bundle in one.bundles]
    authorities = _merge(usable.authorities, [authority for bundle in known for authority in bundle])
    return AddPair(SecretContent(authorities=authorities), first=not authorities)


def _promote_next(
    found: RotationState, upcoming: SignedPair, policy: RotationPolicy, urgent: bool = False
) -> WriteSecret | None:
    """The next pair in the place of the one that is shown, once all API servers must know its authority."""
    if found.is_trusted(upcoming.authority) and (urgent or found.unchanged_for >= policy.grace):
        return WriteSecret(SecretContent(upcoming.pair, None, found.stored.authorities))
    return None


# The same few are looked at every few seconds for months.
_check_pair = functools.lru_cache(16)(certificates.check_pair)
_find_issuer = functools.lru_cache(16)(certificates.find_issuer)
_read_period = functools.lru_cache(16)(certificates.read_period)
_read_names = functools.lru_cache(16)(certificates.read_names)


def _verify(pair: Certificate | None, stored: SecretContent, now: float) -> SignedPair | None:
    """A pair with the authority of the bundle that signed it, if a client could trust it now."""
    if pair is None or _check_pair(pair):
        return None
    authority = _find_issuer(pair.certificate, stored.authorities)
    return _unexpired(SignedPair(pair, authority), now) if authority is not None else None


def _unexpired(served: SignedPair | None, now: float) -> SignedPair | None:
    """What is shown, as long as it has not expired."""
    if served is None:
        return None
    periods = [_read_period(pem) for pem in (served.pair.certificate, served.authority)]
    return served if all(period.covers(now) for period in periods) else None


def _needs_renewal(serving: SignedPair, now: float, policy: RotationPolicy) -> bool:
    """Whether a third of the lifetime or less is left, or the webhook has got other names."""
    left = _read_period(serving.pair.certificate).ends - now
    return left <= policy.lifetime / 3 or _lacks_names(serving, policy)


def _expires_soon(served: SignedPair, now: float, policy: RotationPolicy) -> bool:
    """Whether it will soon be over: then an API server that has not learnt of the next one is the smaller trouble."""
    return _read_period(served.pair.certificate).ends - now <= policy.lifetime / 12


def _lacks_names(served: SignedPair, policy: RotationPolicy) -> bool:
    return not _read_names(served.pair.certificate).issuperset(policy.names)


def _is_trusted_anywhere(found: RotationState, served: SignedPair) -> bool:
    return any(one is not None and any(served.authority in b for b in one.bundles) for one in found.configured)


def _merge(some: Iterable[bytes], more: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((*some, *more)))
