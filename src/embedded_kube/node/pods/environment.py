"""Resolves a container's environment variables and command line when it starts."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from embedded_kube.client import ClusterClient
from embedded_kube.errors import StatusError
from embedded_kube.node.processes.network import HostNames
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.quantity import parse_nano

_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_.*|CUDA_HOME"
    r"|SSL_CERT_.*|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NIX_.*"
)
"""Variables of this machine that containers inherit, so that they find its programs. All others are left out."""

_REFERENCE = re.compile(r"\$(\$|\(([^()]+)\))")
_MAP_FIELD = re.compile(r"metadata\.(annotations|labels)\['(.+)'\]$")
_KEY_REFERENCES = (("configMapKeyRef", "configmaps", "ConfigMap"), ("secretKeyRef", "secrets", "Secret"))


class ContainerConfigError(Exception):
    """An object that a container refers to does not exist yet. The start is retried."""


@dataclass(frozen=True, slots=True)
class DownwardFields:
    """Values for the downward API that are not in the pod object yet, and the node's allocatable resources."""

    address: str
    host: str
    allocatable: Mapping[str, str]


async def read_data(client: ClusterClient, resource: str, namespace: str, name: str) -> dict[str, bytes] | None:
    """Returns the entries of a ConfigMap or Secret, or None if it does not exist."""
    try:
        found = await client.get(resource, namespace, name)
    except StatusError as error:
        if error.code == 404:
            return None
        raise
    decoded = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    if resource == "secrets":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    return {key: value.encode() for key, value in (found.get("data") or {}).items()} | decoded


class EnvironmentResolver:
    """Resolves environment variables for the containers of one pod."""

    def __init__(self, client: ClusterClient, host_names: HostNames, pod: Json, downward: DownwardFields) -> None:
        self._client = client
        self._host_names = host_names
        self._pod = pod
        self._downward = downward
        self._namespace: str = pod["metadata"]["namespace"]

    async def resolve(self, container: Json) -> dict[str, str]:
        """Returns all variables: inherited ones, of Services, of envFrom, then of env. Raises ContainerConfigError."""
        found = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
        found.setdefault("PATH", os.defpath)
        if self._pod["spec"].get("enableServiceLinks", True):
            found |= self._service_variables()
        for source in container.get("envFrom") or ():
            found |= await self._read_all(source)
        for item in container.get("env") or ():
            if "valueFrom" in item:
                value = await self._value_from(item["valueFrom"], container)
                if value is None:
                    continue
            else:
                value = expand(item.get("value", ""), found)
            found[item["name"]] = value
        return found

    def _service_variables(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, spec in self._host_names.services(self._namespace):
            if not spec.get("clusterIP") or spec["clusterIP"] == "None":
                continue
            addresses = self._host_names.endpoints(self._namespace, name)
            host = addresses[0] if addresses else spec["clusterIP"]
            found |= _variables(name, host, spec.get("ports") or [], bool(addresses))
        return found

    async def _read_all(self, source: Json) -> dict[str, str]:
        prefix = source.get("prefix", "")
        for field, resource in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if field in source:
                entries = await self._entries(resource, source[field])
                return {prefix + key: value.decode("utf-8", "replace") for key, value in entries.items()}
        return {}

    async def _entries(self, resource: str, reference: Json) -> dict[str, bytes]:
        entries = await read_data(self._client, resource, self._namespace, reference.get("name", ""))
        if entries is None:
            if reference.get("optional"):
                return {}
            raise ContainerConfigError(f'{resource[:-1]} "{reference.get("name", "")}" not found')
        return entries

    async def _value_from(self, source: Json, container: Json) -> str | None:
        if "fieldRef" in source:
            return field_value(self._pod, source["fieldRef"]["fieldPath"], self._downward)
        if "resourceFieldRef" in source:
            reference = source["resourceFieldRef"]
            return resource_value(reference, self._referenced_container(reference, container), self._downward)
        for field, resource, kind in _KEY_REFERENCES:
            if field in source:
                reference = source[field]
                entries = await self._entries(resource, reference)
                if reference["key"] in entries:
                    return entries[reference["key"]].decode("utf-8", "replace")
                if reference.get("optional"):
                    return None
                place = f"{self._namespace}/{reference.get('name', '')}"
                raise ContainerConfigError(f"couldn't find key {reference['key']} in {kind} {place}")
        return None

    def _referenced_container(self, reference: Json, container: Json) -> Json:
        wanted = reference.get("containerName")
        spec = self._pod["spec"]
        both = [*spec["containers"], *(spec.get("initContainers") or ())]
        return next((item for item in both if item["name"] == wanted), container) if wanted else container


def field_value(pod: Json, path: str, downward: DownwardFields) -> str:
    """Returns a field of a pod as text; a missing annotation or label is empty."""
    meta, spec = pod["metadata"], pod["spec"]
    keyed = _MAP_FIELD.match(path)
    if keyed is not None:
        return str((meta.get(keyed[1]) or {}).get(keyed[2], ""))
    if path in ("metadata.annotations", "metadata.labels"):
        entries = sorted((meta.get(path.partition(".")[2]) or {}).items())
        return "\n".join(f'{key}="{_escape(value)}"' for key, value in entries)
    plain: dict[str, Callable[[], str]] = {
        "metadata.name": lambda: meta["name"],
        "metadata.namespace": lambda: meta["namespace"],
        "metadata.uid": lambda: meta["uid"],
        "spec.nodeName": lambda: spec.get("nodeName", ""),
        "spec.serviceAccountName": lambda: spec.get("serviceAccountName", "default"),
        "spec.restartPolicy": lambda: spec.get("restartPolicy", "Always"),
        "spec.schedulerName": lambda: spec.get("schedulerName", ""),
        "status.podIP": lambda: downward.address,
        "status.podIPs": lambda: downward.address,
        "status.hostIP": lambda: downward.host,
        "status.hostIPs": lambda: downward.host,
    }
    if path not in plain:
        raise ContainerConfigError(f"fieldPath {path}: unknown field; known are {', '.join(plain)}")
    return plain[path]()


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_value(reference: Json, container: Json, downward: DownwardFields) -> str:
    """Returns a container's limit or request in units of the divisor, rounded up. No limit: the node's allocatable."""
    which, _, resource = reference["resource"].partition(".")
    resources = container.get("resources") or {}
    amount = (resources.get(which) or {}).get(resource)
    if amount is None and which == "limits":
        amount = downward.allocatable.get(resource)
    if amount is None:
        amount = (resources.get("limits") or {}).get(resource, "0")
    divisor = str(reference.get("divisor") or "1")
    unit = parse_nano(divisor if divisor != "0" else "1")
    return str(-(-parse_nano(str(amount)) // unit))


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expands $(NAME) to the variable's value, if it is set, and $$ to a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replace, text)


def command_line(container: Json, variables: Mapping[str, str]) -> list[str]:
    """Returns what a container executes: command and args; without both, it sleeps."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [expand(word, variables) for word in words] or ["sleep", "2147483647"]


def _variables(name: str, address: str, ports: list[Json], direct: bool) -> dict[str, str]:
    """Returns the variables of one Service. With a pod's address (`direct`) the port is the targetPort."""
    prefix = name.upper().replace("-", "_").replace(".", "_")
    found = {f"{prefix}_SERVICE_HOST": address}
    for number, port in enumerate(ports):
        target = port.get("targetPort", port["port"])
        shown = target if direct and isinstance(target, int) else port["port"]
        protocol = port.get("protocol", "TCP")
        url = f"{protocol.lower()}://{address}:{shown}"
        if number == 0:
            found |= {f"{prefix}_SERVICE_PORT": str(shown), f"{prefix}_PORT": url}
        if port.get("name"):
            found[f"{prefix}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}"] = str(shown)
        one = f"{prefix}_PORT_{port['port']}_{protocol}"
        found |= {one: url, f"{one}_PROTO": protocol.lower(), f"{one}_PORT": str(shown), f"{one}_ADDR": address}
    return found
