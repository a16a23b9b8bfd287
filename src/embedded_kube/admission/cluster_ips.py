"""Allocation of cluster IPs for Services."""

from __future__ import annotations

import ipaddress

from embedded_kube import errors
from embedded_kube.errors import Cause
from embedded_kube.storage.change_tracker import ChangeTracker
from embedded_kube.storage.store import Store, StoreEntry
from gpu_scheduler.k8s.objects import Json

RANGE = ipaddress.IPv4Network("10.96.0.0/16")

# The first addresses are left to well-known services: the API server and DNS.
_FIRST_FREE = 256


class ClusterIpAllocator:
    """Allocates a cluster IP for every Service. Node ports are not allocated: nothing would serve them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tracker = ChangeTracker(store, "services")
        self._used: dict[str, int] = {}
        self._next = _FIRST_FREE

    def assign(self, service: Json, old: Json | None) -> None:
        """Sets spec.clusterIP and the fields that depend on it."""
        spec = service.setdefault("spec", {})
        if spec.get("type") == "ExternalName":
            was = (old or {}).get("spec", {})
            for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
                if name in was and spec.get(name) == was[name]:
                    del spec[name]  # left from its previous type
            return
        before = (old or {}).get("spec", {}).get("clusterIP")
        address = spec.get("clusterIP") or before or self._allocate()
        if before and address != before:
            raise _invalid_ip(service, f'Invalid value: ["{address}"]: may not change once set')
        if address not in ("None", before):
            self._check(service, address)
        spec["clusterIP"] = address
        spec["clusterIPs"] = [address]
        was = (old or {}).get("spec", {})
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if name in was:
                spec.setdefault(name, was[name])
        if address == "None" and not spec.get("selector"):
            # The endpoints of a headless Service without selector may be of either family.
            spec.setdefault("ipFamilies", ["IPv4", "IPv6"])
            spec.setdefault("ipFamilyPolicy", "RequireDualStack")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")

    def _allocate(self) -> str:
        self._refresh()
        for _ in range(_FIRST_FREE, RANGE.num_addresses - 1):
            # Round-robin: addresses that were just allocated may not be stored yet.
            address = str(RANGE[self._next])
            self._next = self._next + 1 if self._next + 2 < RANGE.num_addresses else _FIRST_FREE
            if address not in self._used:
                return address
        raise errors.internal_error(f"failed to allocate a serviceIP: range {RANGE} is full")

    def _check(self, service: Json, address: str) -> None:
        self._refresh()
        why = ""
        try:
            if ipaddress.ip_address(address) not in RANGE:
                why = f"the provided IP ({address}) is not in the valid range. The range of valid IPs is {RANGE}"
        except ValueError:
            why = "must be a valid IP address or None"
        if not why and address in self._used:
            why = "provided IP is already allocated"
        if why:
            raise _invalid_ip(service, f'Invalid value: ["{address}"]: failed to allocate IP {address}: {why}')

    def _refresh(self) -> None:
        changes = self._tracker.take()
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

    def _count(self, entry: StoreEntry, by: int) -> None:
        address = entry.object().get("spec", {}).get("clusterIP", "None")
        if address == "None":
            return
        self._used[address] = self._used.get(address, 0) + by
        if self._used[address] <= 0:
            del self._used[address]


def _invalid_ip(service: Json, message: str) -> errors.StatusError:
    name = service["metadata"].get("name", "")
    return errors.invalid("Service", "", name, [Cause("spec.clusterIPs[0]", message)])
