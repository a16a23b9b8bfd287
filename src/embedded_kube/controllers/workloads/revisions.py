"""ControllerRevisions: the template history of a StatefulSet or DaemonSet."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import ControllerContext, copy_json
from embedded_kube.controllers.machinery.hashes import short_hash
from embedded_kube.controllers.machinery.objects import FullObject
from embedded_kube.controllers.workloads.controller_ref import owner_reference
from embedded_kube.errors import StatusError
from gpu_scheduler.k8s.objects import Json

REVISIONS = "controllerrevisions.apps"


class TemplateRevision(NamedTuple):
    """A template and the name of its revision."""

    name: str
    template: Json


class RevisionHistory:
    """The revisions of all objects of one kind."""

    def __init__(self, context: ControllerContext, kind: str) -> None:
        self._context = context
        self._kind = kind
        self.informer = context.informers.full(REVISIONS)
        self._owned = self.informer.index(lambda found: (c.uid,) if (c := found.meta.controller) else ())

    def find(self, owner: FullObject, name: str) -> TemplateRevision | None:
        """Returns a revision by name."""
        return next((_read(one) for one in self._owned.get(owner.meta.uid) if one.meta.name == name), None)

    async def latest(self, owner: FullObject) -> TemplateRevision:
        """Returns the revision of the current template, with the highest number; creates it if it is new."""
        template = copy_json(owner.spec.get("template") or {})
        known = sorted(self._owned.get(owner.meta.uid), key=_number)
        same = next((one for one in known if _read(one).template == template), None)
        highest = _number(known[-1]) if known else 0
        if same is None:
            made = await self._create(owner, template, highest + 1)
            return TemplateRevision(made["metadata"]["name"], template)
        if _number(same) < highest:
            await self._context.edit(REVISIONS, same, lambda found: {**found, "revision": highest + 1})
        return TemplateRevision(same.meta.name, template)

    async def truncate(self, owner: FullObject, in_use: Collection[str]) -> None:
        """Deletes the oldest revisions beyond the history limit, except those in use."""
        limit = owner.spec.get("revisionHistoryLimit", 10)
        unused = [one for one in sorted(self._owned.get(owner.meta.uid), key=_number) if one.meta.name not in in_use]
        for one in unused[: max(0, len(unused) - limit)]:
            await self._context.delete(REVISIONS, one)

    async def _create(self, owner: FullObject, template: Json, number: int) -> Json:
        # A hash collision with another object is resolved by the next attempt number.
        attempt = 0
        while True:
            hash_ = short_hash(template, attempt)
            try:
                return await self._context.create(REVISIONS, self._revision(owner, template, hash_, number))
            except StatusError as error:
                if error.reason != "AlreadyExists" or attempt > 20:
                    raise
                attempt += 1

    def _revision(self, owner: FullObject, template: Json, hash_: str, number: int) -> Json:
        labels = (template.get("metadata") or {}).get("labels") or {}
        return {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": f"{owner.meta.name}-{hash_}",
                "namespace": owner.meta.namespace,
                "labels": {**labels, "controller.kubernetes.io/hash": hash_},
                "ownerReferences": [owner_reference("apps/v1", self._kind, owner)],
            },
            "data": {"spec": {"template": {**copy_json(template), "$patch": "replace"}}},
            "revision": number,
        }


def _number(found: FullObject) -> int:
    return int(found.body.get("revision", 0))


def _read(found: FullObject) -> TemplateRevision:
    template = dict(((found.body.get("data") or {}).get("spec") or {}).get("template") or {})
    template.pop("$patch", None)
    return TemplateRevision(found.meta.name, template)
