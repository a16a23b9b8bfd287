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

_PATIENT = 10
"""An old authority is trusted so many graces longer: a replica that cannot read the secret shows the old pair."""


class Stored(NamedTuple):
    """What the secret holds; a pair may be absent or unusable."""

    serving: Certificate | None = None
    upcoming: Certificate | None = None
    authorities: tuple[bytes, ...] = ()


class Shown(NamedTuple):
    """The pair that a replica shows, and the authority that signed it."""

    pair: Certificate
    authority: bytes


class Configured(NamedTuple):
    """The authorities that each webhook of one configuration trusts."""

    bundles: tuple[tuple[bytes, ...], ...]

    def trusts(self, authority: bytes) -> bool:
        """Whether every webhook of it accepts what this authority signed."""
        return all(authority in bundle for bundle in self.bundles)

    def carries(self, authorities: Iterable[bytes]) -> bool:
        """Whether every webhook of it trusts just these."""
        return all(set(bundle) == set(authorities) for bundle in self.bundles)


class Found(NamedTuple):
    """How things are: the secret, each configuration (None: there is none), and what this replica shows."""

    stored: Stored
    configured: tuple[Configured | None, ...]
    shown: Shown | None
    settled: float
    """For how many seconds neither what is ours in the secret nor a webhook of a configuration has changed."""

    def trusted(self, authority: bytes) -> bool:
        """Whether all configurations are there and trust this authority."""
        return all(one is not None and one.trusts(authority) for one in self.configured)


@dataclass(frozen=True, slots=True)
class Policy:
    """How certificates are made and renewed; times in seconds."""

    names: tuple[str, ...]
    lifetime: float = 365 * 86_400.0
    grace: float = 30.0
    """How long after a change of a configuration an API server may still go by the old one."""

    @property
    def pause(self) -> float:
        """How long to wait between two looks."""
        return min(max(self.grace / 6, 0.1), 5.0)


class Show(NamedTuple):
    """Show this pair from now on."""

    shown: Shown


class Trust(NamedTuple):
    """Make the configuration of this number trust these authorities and no others."""

    number: int
    authorities: tuple[bytes, ...]


class Write(NamedTuple):
    """Store this, unless the secret has changed meanwhile."""

    stored: Stored


class Prepare(NamedTuple):
    """Store this with a new pair and its authority: as the next one, or as the first one of all."""

    stored: Stored
    first: bool = False


Step = Show | Trust | Write | Prepare


def plan_rotation(found: Found, now: float, policy: Policy) -> list[Step]:
    """What to do now, in this order; afterwards look and ask again. `now` is the API server's clock."""
    steps: list[Step] = []
    show = _choose_shown(found, now, policy)
    if show is not None:
        steps.append(Show(show))
    write = _choose_write(found, now, policy)
    if write is not None:
        # What the secret says is about to change: the configurations follow what it will say then.
        return [*steps, write]
    authorities = found.stored.authorities
    for number, one in enumerate(found.configured):
        if one is not None and authorities and not one.carries(authorities):
            steps.append(Trust(number, authorities))
    return steps


def service_names(namespace: str, service: str = WEBHOOK) -> tuple[str, ...]:
    """What a Service is called inside its cluster; API servers use the first one."""
    home = f"{service}.{namespace}"
    return (f"{home}.svc", f"{home}.svc.cluster.local", home, service)


def make_next(step: Prepare, now: float, policy: Policy) -> Stored:
    """What to store: a new pair of a new authority, whose key nobody keeps."""
    made = make_pair(policy.names, policy.lifetime, now)
    authorities = (*step.stored.authorities, made.authority)
    if step.first:
        return Stored(made.pair, None, authorities)
    return step.stored._replace(upcoming=made.pair, authorities=authorities)


def make_pair(names: Sequence[str], lifetime: float, now: float | None = None) -> Shown:
    """A new pair for these names, and the authority that signed it; the authority's key is thrown away."""
    period = certificates.make_period(lifetime, now)
    # A name of its own, so that a client never takes one authority of a bundle for another.
    authority = certificates.make_authority(f"gpu-scheduler webhook CA {os.urandom(4).hex()}", period)
    pair = certificates.issue(authority, names[0], names, period=period)
    return Shown(pair, authority.certificate)


def _choose_shown(found: Found, now: float, policy: Policy) -> Shown | None:
    """Another pair than the one that is shown, if it is time to show it."""
    serving = _read(found.stored.serving, found.stored, now)
    if serving is None or serving == found.shown or not found.trusted(serving.authority):
        return None
    shown = _good(found.shown, now)
    # While what is shown is trusted, there is no hurry: an API server may not know the other one yet.
    hurry = shown is None or not found.trusted(shown.authority) or _is_late(shown, now, policy)
    return serving if hurry or found.settled >= policy.grace else None


def _choose_write(found: Found, now: float, policy: Policy) -> Write | Prepare | None:
    """What to store, if anything."""
    stored = found.stored
    serving, upcoming = (_read(pair, stored, now) for pair in (stored.serving, stored.upcoming))
    if upcoming is not None and _lacks_names(upcoming, policy):
        upcoming = None
    usable = Stored(serving and serving.pair, upcoming and upcoming.pair, stored.authorities)
    if serving is None:
        return _repair(found, usable, now, policy)
    shown = _good(found.shown, now)
    if shown is not None and shown.authority not in stored.authorities and _trusted_somewhere(found, shown):
        return Write(usable._replace(authorities=(*stored.authorities, shown.authority)))
    if upcoming is None and _is_due(serving, now, policy):
        return Prepare(usable)
    if usable != stored:
        return Write(usable)
    if upcoming is not None:
        return _promote(found, upcoming, policy, hurry=_is_late(serving, now, policy))
    if stored.authorities != (serving.authority,) and found.settled >= _PATIENT * policy.grace:
        return Write(usable._replace(authorities=(serving.authority,)))
    return None


def _repair(found: Found, usable: Stored, now: float, policy: Policy) -> Write | Prepare | None:
    """What to store when the secret has no pair to show: it is new, or somebody emptied or broke it."""
    shown = _good(found.shown, now)
    if shown is not None:
        # Who empties the secret asks for a new certificate. Until there is one, the others need this one.
        usable = usable._replace(serving=shown.pair, authorities=_join(usable.authorities, [shown.authority]))
        return Write(usable) if usable.upcoming is not None else Prepare(usable)
    if usable.upcoming is not None:
        upcoming = _read(usable.upcoming, found.stored, now)
        return _promote(found, upcoming, policy) if upcoming is not None else None
    # Another replica may show a pair of an authority that the configurations trust.
    known = [bundle for one in found.configured if one is not None for bundle in one.bundles]
    authorities = _join(usable.authorities, [authority for bundle in known for authority in bundle])
    return Prepare(Stored(authorities=authorities), first=not authorities)


def _promote(found: Found, upcoming: Shown, policy: Policy, hurry: bool = False) -> Write | None:
    """The next pair in the place of the one that is shown, once all API servers must know its authority."""
    if found.trusted(upcoming.authority) and (hurry or found.settled >= policy.grace):
        return Write(Stored(upcoming.pair, None, found.stored.authorities))
    return None


# The same few are looked at every few seconds for months.
_check_pair = functools.lru_cache(16)(certificates.check_pair)
_find_issuer = functools.lru_cache(16)(certificates.find_issuer)
_read_period = functools.lru_cache(16)(certificates.read_period)
_read_names = functools.lru_cache(16)(certificates.read_names)


def _read(pair: Certificate | None, stored: Stored, now: float) -> Shown | None:
    """A pair with the authority of the bundle that signed it, if a client could trust it now."""
    if pair is None or _check_pair(pair):
        return None
    authority = _find_issuer(pair.certificate, stored.authorities)
    return _good(Shown(pair, authority), now) if authority is not None else None


def _good(shown: Shown | None, now: float) -> Shown | None:
    """What is shown, as long as it has not expired."""
    if shown is None:
        return None
    periods = [_read_period(pem) for pem in (shown.pair.certificate, shown.authority)]
    return shown if all(period.covers(now) for period in periods) else None


def _is_due(serving: Shown, now: float, policy: Policy) -> bool:
    """Whether a third of the lifetime or less is left, or the webhook has got other names."""
    left = _read_period(serving.pair.certificate).ends - now
    return left <= policy.lifetime / 3 or _lacks_names(serving, policy)


def _is_late(shown: Shown, now: float, policy: Policy) -> bool:
    """Whether it will soon be over: then an API server that has not learnt of the next one is the smaller trouble."""
    return _read_period(shown.pair.certificate).ends - now <= policy.lifetime / 12


def _lacks_names(shown: Shown, policy: Policy) -> bool:
    return not _read_names(shown.pair.certificate).issuperset(policy.names)


def _trusted_somewhere(found: Found, shown: Shown) -> bool:
    return any(one is not None and any(shown.authority in b for b in one.bundles) for one in found.configured)


def _join(some: Iterable[bytes], more: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((*some, *more)))
