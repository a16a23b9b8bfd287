"""Incremental updates of data that is derived from all objects of a resource."""

from __future__ import annotations

from embedded_kube.storage.store import Store, StoreChange, Subscription


class ChangeTracker:
    """Collects the changes of a resource until they are taken."""

    def __init__(self, store: Store, resource: str) -> None:
        self._store = store
        self._resource = resource
        self._subscription: Subscription | None = None

    def take(self) -> list[StoreChange] | None:
        """The changes since the last call. None: the first call, or the tracker fell behind; read all objects."""
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
        """Whether anything has changed since the last call; drops the changes."""
        return self.take() != []
