"""Addresses for Services."""

from __future__ import annotations

import ipaddress

from embedded_kube import errors
from embedded_kube.errors import Cause
from embedded_kube.storage.followed import Followed
from embedded_kube.storage.store import Entry, Json, Store

RANGE = ipaddress.IPv4Network("10.96.0.0/16")

# The first addresses are those that people know by heart: the API itself and the name server.
_FIRST_FREE = 256


class ClusterAddresses:
    """Gives every Service an address of its own. Node ports are not given out: there is nothing behind them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed = Followed(store, "services")
        self._used: dict[str, int] = {}
        self._next = _FIRST_FREE

    def assign(self, service: Json, old: Json | None) -> None:
        """Fills in spec.clusterIP and what goes with it."""
        spec = service.setdefault("spec", {})
        if spec.get("type") == "ExternalName":
            was = (old or {}).get("spec", {})
            for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
                if name in was and spec.get(name) == was[name]:
                    del spec[name]  # what it had as another type it does not keep
            return
        before = (old or {}).get("spec", {}).get("clusterIP")
        address = spec.get("clusterIP") or before or self._pick()
        if before and address != before:
            raise _refusal(service, f'Invalid value: ["{address}"]: may not change once set')
        if address not in ("None", before):
            self._check(service, address)
        spec["clusterIP"] = address
        spec["clusterIPs"] = [address]
        was = (old or {}).get("spec", {})
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if name in was:
                spec.setdefault(name, was[name])
        if address == "None" and not spec.get("selector"):
            # Nobody knows what addresses those will be that somebody else lists.
            spec.setdefault("ipFamilies", ["IPv4", "IPv6"])
            spec.setdefault("ipFamilyPolicy", "RequireDualStack")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")

    def _pick(self) -> str:
        self._catch_up()
        for _ in range(_FIRST_FREE, RANGE.num_addresses - 1):
            # Going round, not from the start: requests in flight have been given theirs and not written them yet.
            address = str(RANGE[self._next])
            self._next = self._next + 1 if self._next + 2 < RANGE.num_addresses else _FIRST_FREE
            if address not in self._used:
                return address
        raise errors.internal(f"failed to allocate a serviceIP: range {RANGE} is full")

    def _check(self, service: Json, address: str) -> None:
        self._catch_up()
        why = ""
        try:
            if ipaddress.ip_address(address) not in RANGE:
                why = f"the provided IP ({address}) is not in the valid range. The range of valid IPs is {RANGE}"
        except ValueError:
            why = "must be a valid IP address or None"
        if not why and address in self._used:
            why = "provided IP is already allocated"
        if why:
            raise _refusal(service, f'Invalid value: ["{address}"]: failed to allocate IP {address}: {why}')

    def _catch_up(self) -> None:
        changes = self._followed.take()
        if changes is None:
            self._used = {}
            for entry in self._store.entries("services"):
                self._count(entry, 1)
            return
        for change in changes:
            if change.before is not None:
                self._count(change.before, -1)
            if change.kind != "DELETED":
                self._count(change.entry, 1)

    def _count(self, entry: Entry, by: int) -> None:
        address = entry.object().get("spec", {}).get("clusterIP", "None")
        if address == "None":
            return
        self._used[address] = self._used.get(address, 0) + by
        if self._used[address] <= 0:
            del self._used[address]


def _refusal(service: Json, message: str) -> errors.ApiError:
    name = service["metadata"].get("name", "")
    return errors.invalid("Service", "", name, [Cause("spec.clusterIPs[0]", message)])
