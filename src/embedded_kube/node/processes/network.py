"""Addresses and host names of pods.

Where the system allows it (root, or user namespaces), every pod has its own network namespace on a bridge that only
pods use (bridge.py). Any number of pods may listen on the same port, and all pods reach each other. /etc/hosts in a
container is a file per Kubernetes namespace that this module keeps up to date:

- `<service>`, `<service>.<namespace>`, `.svc` and `.svc.cluster.local` resolve to the pods behind a Service: the ready
  ones, or all that run while none is ready. There is no proxy in between, so connect to the targetPort;
- `<hostname>.<subdomain>` and its longer forms resolve to one pod, as does the pod's own name;
- `kubernetes.default.svc`, and 127.0.0.1 at the API server's port, lead to the API server.

Containers reach everything outside through an HTTPS proxy (HTTPS_PROXY). A pod that needs more uses
`hostNetwork: true`: it is on the machine's network, with the machine's names, and cannot reach the other pods.

Elsewhere all pods share the machine's network. Each still has its own address (127.77.x.y), but two of them cannot
listen on the same port of all addresses; an Event reports that. Host names do not resolve there. A variable whose name
ends in ADDR, ADDRESS, HOST or MASTER and whose value is such a host name gets the address instead.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpu_scheduler.k8s.objects import Json

PODS = ipaddress.IPv4Network("10.244.0.0/16")
SHARED = ipaddress.IPv4Network("127.77.0.0/16")
SIMULATED = ipaddress.IPv4Network("10.128.0.0/9")

_WRITE_DELAY = 0.02
_ADDRESS_VARIABLE = re.compile(r"(?:^|_)(?:ADDR|ADDRESS|HOST|MASTER)$")
_LOCAL_LINES = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


class AddressPool:
    """Allocates the addresses of a network; a released address is reused last."""

    def __init__(self, network: ipaddress.IPv4Network) -> None:
        self._network = network
        self._next = 1
        self._used: set[str] = set()

    def take(self) -> str:
        """Allocates a free address."""
        for _ in range(self._network.num_addresses):
            # The first two are the network and the gateway, the last is the broadcast address.
            self._next = self._next + 1 if self._next + 2 < self._network.num_addresses else 2
            address = str(self._network[self._next])
            if address not in self._used:
                self._used.add(address)
                return address
        raise OSError(f"all addresses of {self._network} are in use")

    def free(self, address: str) -> None:
        """Releases an address."""
        self._used.discard(address)


def shared_addresses() -> AddressPool | None:
    """Returns loopback addresses for pods on the machine's network; only Linux has more than one by default."""
    return AddressPool(SHARED) if platform.system() == "Linux" else None


@dataclass(slots=True)
class _PodEntry:
    """A pod that host names resolve to."""

    namespace: str
    local_names: tuple[str, ...]
    """Its names in its own namespace."""

    global_names: tuple[str, ...]
    """Its names in every namespace."""

    labels: dict[str, str]
    address: str
    ready: bool = False


@dataclass(slots=True)
class _Service:
    namespace: str
    name: str
    spec: Json = field(default_factory=dict)


class HostNames:
    """Host names of pods and Services, and the hosts files of the namespaces.

    The files follow every change after a short delay; `flush` writes new pods at once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pods: dict[str, _PodEntry] = {}
        self._services: dict[tuple[str, str], _Service] = {}
        self._views: dict[tuple[str, tuple[str, ...]], Path] = {}
        self._urgent = False
        self._timer: asyncio.TimerHandle | None = None
        folder.mkdir(parents=True, exist_ok=True)

    # -- updates

    def put_service(self, service: Json) -> None:
        """Adds or updates a Service."""
        meta = service["metadata"]
        key = (meta["namespace"], meta["name"])
        self._services[key] = _Service(*key, service.get("spec") or {})
        self._schedule_write()

    def remove_service(self, service: Json) -> None:
        """Removes a Service."""
        meta = service["metadata"]
        self._services.pop((meta["namespace"], meta["name"]), None)
        self._schedule_write()

    def put_pod(self, pod: Json, address: str, ready: bool) -> None:
        """Adds a pod, or updates its address, readiness and labels."""
        meta, spec = pod["metadata"], pod["spec"]
        host = host_name(pod)
        local_names = [meta["name"], host] if host != meta["name"] else [host]
        global_names = []
        if spec.get("subdomain"):
            local_names.append(f"{host}.{spec['subdomain']}")
            global_names = _qualified_names(local_names[-1], meta["namespace"])
        entry = _PodEntry(
            meta["namespace"], tuple(local_names), tuple(global_names), meta.get("labels") or {}, address, ready
        )
        before = self._pods.get(meta["uid"])
        if before != entry:
            self._pods[meta["uid"]] = entry
            self._schedule_write(urgent=before is None)

    def remove_pod(self, uid: str) -> None:
        """Removes a pod."""
        if self._pods.pop(uid, None) is not None:
            self._schedule_write()

    # -- lookups

    def services(self, namespace: str) -> list[tuple[str, Json]]:
        """Returns the Services of a namespace as (name, spec)."""
        return [(found.name, found.spec) for found in self._services.values() if found.namespace == namespace]

    def endpoints(self, namespace: str, service: str) -> list[str]:
        """Returns the addresses behind a Service: of its ready pods, or of all while none is ready."""
        found = self._services.get((namespace, service))
        selector = (found.spec.get("selector") or {}) if found is not None else {}
        if not selector:
            return []
        members = [
            entry
            for entry in self._pods.values()
            if entry.namespace == namespace and selector.items() <= entry.labels.items()
        ]
        return [entry.address for entry in members if entry.ready] or [entry.address for entry in members]

    def resolve(self, namespace: str, name: str) -> str | None:
        """Resolves a host name in a namespace."""
        for address, names in self._entries(namespace):
            if name in names:
                return address
        return None

    def replace_names(self, namespace: str, environment: dict[str, str]) -> list[str]:
        """Replaces host names by addresses in variables that hold an address; returns the changes."""
        changed = []
        for variable, value in environment.items():
            if value and _ADDRESS_VARIABLE.search(variable):
                address = self.resolve(namespace, value)
                if address is None and (namespace, value.split(".")[0]) in self._services:
                    address = "127.0.0.1"  # servers on all addresses answer there, even before their pod is known
                if address is not None:
                    environment[variable] = address
                    changed.append(f"{variable}={value} became {address}")
        return changed

    # -- hosts files

    def hosts_file(self, pod: Json) -> Path:
        """Returns the file that is /etc/hosts in this pod's containers."""
        aliases = tuple(
            f"{item['ip']} {' '.join(item.get('hostnames') or ())}" for item in pod["spec"].get("hostAliases") or ()
        )
        key = (pod["metadata"]["namespace"], aliases)
        if key not in self._views:
            suffix = f".{len(self._views)}" if aliases else ""
            self._views[key] = self._folder / f"{key[0]}{suffix}.hosts"
            self._schedule_write(urgent=True)
        return self._views[key]

    async def flush(self) -> None:
        """Lets other tasks add their pods, then writes the files if a pod or a file is new."""
        await asyncio.sleep(0)
        if self._urgent:
            self._write()

    def _schedule_write(self, *, urgent: bool = False) -> None:
        self._urgent = self._urgent or urgent
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_DELAY, self._write)

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._urgent = False
        for (namespace, aliases), path in self._views.items():
            lines = [f"{address} {' '.join(names)}" for address, names in self._entries(namespace)]
            _overwrite(path, _LOCAL_LINES + "\n".join((*lines, *aliases, *_machine_lines())) + "\n")

    def close(self) -> None:
        """Cancels a scheduled write."""
        if self._timer is not None:
            self._timer.cancel()

    def _entries(self, namespace: str) -> Iterator[tuple[str, list[str]]]:
        yield "127.0.0.1", _qualified_names("kubernetes", "default")
        for entry in self._pods.values():
            names = [*(entry.local_names if entry.namespace == namespace else ()), *entry.global_names]
            if names:
                yield entry.address, names
        for service in list(self._services.values()):
            names = _qualified_names(service.name, service.namespace)
            if service.namespace == namespace:
                names = [service.name, *names]
            for address in self.endpoints(service.namespace, service.name):
                yield address, names


def host_name(pod: Json) -> str:
    """Returns the host name of a pod."""
    name: str = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return name[:63].rstrip("-.")


def _qualified_names(name: str, namespace: str) -> list[str]:
    return [f"{name}.{namespace}{ending}" for ending in ("", ".svc", ".svc.cluster.local")]


def _machine_lines() -> Iterable[str]:
    """Returns the machine's /etc/hosts lines, without those of loopback addresses."""
    try:
        lines = Path("/etc/hosts").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [line for line in lines if line[:1].isdigit() and not line.startswith(("127.", "0."))]


def _overwrite(path: Path, text: str) -> None:
    """Changes a file in place: it is mounted in containers, which would keep showing a replaced file."""
    data = text.encode()
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(file, data, 0)
        os.ftruncate(file, len(data))
    finally:
        os.close(file)
