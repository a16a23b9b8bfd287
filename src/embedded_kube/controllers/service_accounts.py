"""Service account controller: every namespace has a default ServiceAccount and the API server's CA certificate."""

from __future__ import annotations

from embedded_kube.controllers.machinery.controller import Controller, ControllerContext, object_key
from embedded_kube.controllers.machinery.objects import Key, ObjectView
from embedded_kube.errors import StatusError
from gpu_scheduler.k8s.objects import Json

ACCOUNTS = "serviceaccounts"
CONFIG_MAPS = "configmaps"
ROOT_CA = "kube-root-ca.crt"
_CA_ANNOTATIONS = {
    "kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using "
    "internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across "
    "distributions of Kubernetes clusters."
}


class ServiceAccountController(Controller[Key]):
    """Creates the default ServiceAccount and the ConfigMap kube-root-ca.crt in every namespace."""

    name = "serviceaccount-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._namespaces = self.informers.full("namespaces")
        self._accounts = self.informers.metadata(ACCOUNTS)
        self._maps = self.informers.metadata(CONFIG_MAPS)
        self.enqueue_on_change(self._namespaces, object_key)
        self.enqueue_on_change(self._accounts, lambda found: _namespace_key(found, "default"))
        self.enqueue_on_change(self._maps, lambda found: _namespace_key(found, ROOT_CA))

    async def reconcile(self, key: Key) -> float | None:
        found = self._namespaces.get(key)
        if found is None or found.meta.deleting:
            return None
        namespace = key[1]
        if self._accounts.get((namespace, "default")) is None:
            await self._create(ACCOUNTS, {"metadata": {"name": "default", "namespace": namespace}})
        if not self.settings.root_ca:
            return None
        held = self._maps.get((namespace, ROOT_CA))
        data = {"ca.crt": self.settings.root_ca}
        if held is None:
            meta = {"name": ROOT_CA, "namespace": namespace, "annotations": dict(_CA_ANNOTATIONS)}
            await self._create(CONFIG_MAPS, {"metadata": meta, "data": data})
        else:
            await self.context.edit(CONFIG_MAPS, held, lambda found: _with_data(found, data))
        return None

    async def _create(self, resource: str, found: Json) -> None:
        try:
            await self.context.create(resource, found)
        except StatusError as error:
            if error.reason != "AlreadyExists" and "being terminated" not in error.message:
                raise


def _namespace_key(found: ObjectView, name: str) -> Key | None:
    return ("", found.meta.namespace) if found.meta.name == name else None


def _with_data(found: Json, data: dict[str, str]) -> Json | None:
    return {**found, "data": dict(data)} if found.get("data") != data else None
