"""Keeping something that is worked out from a whole resource up to date, at the cost of its changes only."""

from __future__ import annotations

from embedded_kube.storage.store import Change, Store, Subscription


class Followed:
    """A resource whose changes are collected until somebody asks for them."""

    def __init__(self, store: Store, resource: str) -> None:
        self._store = store
        self._resource = resource
        self._subscription: Subscription | None = None

    def take(self) -> list[Change] | None:
        """What changed since the last time; None says that everything has to be read (again)."""
        subscription = self._subscription
        if subscription is None or subscription.overrun:
            if subscription is not None:
                subscription.close()
            self._subscription = self._store.subscribe(self._resource)
            return None
        if not subscription.pending:
            return []
        changes = list(subscription.pending)
        subscription.pending.clear()
        return changes

    def is_stale(self) -> bool:
        """Whether anything changed since the last time."""
        return self.take() != []
