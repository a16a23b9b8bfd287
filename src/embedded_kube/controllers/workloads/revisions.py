"""ControllerRevisions: the templates a StatefulSet or DaemonSet has had, so that pods can be made from an older one."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import Shared, copy_json
from embedded_kube.controllers.machinery.objects import Whole
from embedded_kube.controllers.workloads.claims import owner_reference
from embedded_kube.errors import ApiError
from embedded_kube.storage.labels import short_hash
from embedded_kube.storage.store import Json

REVISIONS = "controllerrevisions.apps"


class Revision(NamedTuple):
    """A template and the name it goes by."""

    name: str
    template: Json


class History:
    """The revisions of all objects of one kind."""

    def __init__(self, shared: Shared, kind: str) -> None:
        self._shared = shared
        self._kind = kind
        self.informer = shared.informers.whole(REVISIONS)
        self._owned = self.informer.index(lambda found: (c.uid,) if (c := found.meta.controller) else ())

    def find(self, owner: Whole, name: str) -> Revision | None:
        """A revision by its name."""
        return next((_read(one) for one in self._owned.get(owner.meta.uid) if one.meta.name == name), None)

    async def latest(self, owner: Whole) -> Revision:
        """The revision of the template as it is now: made if new, numbered highest if it was there before."""
        template = copy_json(owner.spec.get("template") or {})
        known = sorted(self._owned.get(owner.meta.uid), key=_number)
        same = next((one for one in known if _read(one).template == template), None)
        highest = _number(known[-1]) if known else 0
        if same is None:
            made = await self._create(owner, template, highest + 1)
            return Revision(made["metadata"]["name"], template)
        if _number(same) < highest:
            await self._shared.edit(REVISIONS, same, lambda found: {**found, "revision": highest + 1})
        return Revision(same.meta.name, template)

    async def forget(self, owner: Whole, in_use: Collection[str]) -> None:
        """Deletes the oldest ones beyond the limit, never one that is in use."""
        limit = owner.spec.get("revisionHistoryLimit", 10)
        unused = [one for one in sorted(self._owned.get(owner.meta.uid), key=_number) if one.meta.name not in in_use]
        for one in unused[: max(0, len(unused) - limit)]:
            await self._shared.delete(REVISIONS, one)

    async def _create(self, owner: Whole, template: Json, number: int) -> Json:
        # Names that are taken by something else are stepped over; the numbers of attempts need no memory.
        attempt = 0
        while True:
            letters = short_hash(template, attempt)
            try:
                return await self._shared.create(REVISIONS, self._revision(owner, template, letters, number))
            except ApiError as error:
                if error.reason != "AlreadyExists" or attempt > 20:
                    raise
                attempt += 1

    def _revision(self, owner: Whole, template: Json, letters: str, number: int) -> Json:
        labels = (template.get("metadata") or {}).get("labels") or {}
        return {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": f"{owner.meta.name}-{letters}",
                "namespace": owner.meta.namespace,
                "labels": {**labels, "controller.kubernetes.io/hash": letters},
                "ownerReferences": [owner_reference("apps/v1", self._kind, owner)],
            },
            "data": {"spec": {"template": {**copy_json(template), "$patch": "replace"}}},
            "revision": number,
        }


def _number(found: Whole) -> int:
    return int(found.body.get("revision", 0))


def _read(found: Whole) -> Revision:
    template = dict(((found.body.get("data") or {}).get("spec") or {}).get("template") or {})
    template.pop("$patch", None)
    return Revision(found.meta.name, template)
