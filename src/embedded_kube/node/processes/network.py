"""Names and addresses of pods.

Where the system allows it (root, or user namespaces), every pod has a network namespace of its own, on a bridge that
no one else is on (bridge.py): any number of pods may listen on the same port, whatever job they belong to, and all of
them reach each other. /etc/hosts in a container is a file of its Kubernetes namespace that is kept up to date here:

- `<service>`, `<service>.<namespace>`, `.svc` and `.svc.cluster.local` lead to the pods behind a Service: to the ready
  ones, to all that run while none is ready. There is no proxy between them, so connect to the targetPort;
- `<hostname>.<subdomain>` and its longer forms lead to one pod, as does the pod's own name;
- `kubernetes.default.svc` and 127.0.0.1 at the API server's port lead to the API server.

Everything outside is reached through an HTTPS proxy that containers find in HTTPS_PROXY. A pod that needs more has
`hostNetwork: true`: it is on the machine's network, with the machine's names, and apart from the other pods.

Elsewhere all pods share the machine's network. Each still has an address of its own (127.77.x.y), but two of them
cannot listen on one port of all addresses: an Event says so. Names cannot be made to resolve there, so a variable
whose name ends in ADDR, ADDRESS, HOST or MASTER and whose value is such a name is given the address instead.
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

from embedded_kube.storage.store import Json

PODS = ipaddress.IPv4Network("10.244.0.0/16")
SHARED = ipaddress.IPv4Network("127.77.0.0/16")
SIMULATED = ipaddress.IPv4Network("10.128.0.0/9")

_DELAY = 0.02
_ADDRESS_NAME = re.compile(r"(?:^|_)(?:ADDR|ADDRESS|HOST|MASTER)$")
_LOCAL = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


class Addresses:
    """Gives out the addresses of a network, each again only when all others have been used."""

    def __init__(self, network: ipaddress.IPv4Network) -> None:
        self._network = network
        self._next = 1
        self._used: set[str] = set()

    def take(self) -> str:
        """A free address."""
        for _ in range(self._network.num_addresses):
            # The first two are the network and the gateway, the last is for everyone.
            self._next = self._next + 1 if self._next + 2 < self._network.num_addresses else 2
            address = str(self._network[self._next])
            if address not in self._used:
                self._used.add(address)
                return address
        raise OSError(f"all addresses of {self._network} are in use")

    def free(self, address: str) -> None:
        """Takes an address back."""
        self._used.discard(address)


def shared_addresses() -> Addresses | None:
    """Addresses of the machine itself; only Linux has more than one without being asked."""
    return Addresses(SHARED) if platform.system() == "Linux" else None


@dataclass(slots=True)
class _Member:
    """A pod that can be reached."""

    namespace: str
    near: tuple[str, ...]
    """Its names in its own namespace."""

    far: tuple[str, ...]
    """Its names everywhere."""

    labels: dict[str, str]
    address: str
    ready: bool = False


@dataclass(slots=True)
class _Service:
    namespace: str
    name: str
    spec: Json = field(default_factory=dict)


class Names:
    """Who is called what. Files of host names follow every change, a little later or when `settle` is awaited."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._members: dict[str, _Member] = {}
        self._services: dict[tuple[str, str], _Service] = {}
        self._views: dict[tuple[str, tuple[str, ...]], Path] = {}
        self._urgent = False
        self._timer: asyncio.TimerHandle | None = None
        folder.mkdir(parents=True, exist_ok=True)

    # -- what is known

    def put_service(self, service: Json) -> None:
        """A Service is there, or has changed."""
        meta = service["metadata"]
        key = (meta["namespace"], meta["name"])
        self._services[key] = _Service(*key, service.get("spec") or {})
        self._touch()

    def remove_service(self, service: Json) -> None:
        """A Service is gone."""
        meta = service["metadata"]
        self._services.pop((meta["namespace"], meta["name"]), None)
        self._touch()

    def put_pod(self, pod: Json, address: str, ready: bool) -> None:
        """A pod has an address, or its readiness or labels changed."""
        meta, spec = pod["metadata"], pod["spec"]
        host = host_name(pod)
        near = [meta["name"], host] if host != meta["name"] else [host]
        far = []
        if spec.get("subdomain"):
            near.append(f"{host}.{spec['subdomain']}")
            far = _long_names(near[-1], meta["namespace"])
        member = _Member(meta["namespace"], tuple(near), tuple(far), meta.get("labels") or {}, address, ready)
        before = self._members.get(meta["uid"])
        if before != member:
            self._members[meta["uid"]] = member
            self._touch(urgent=before is None)

    def remove_pod(self, uid: str) -> None:
        """A pod can be reached no longer."""
        if self._members.pop(uid, None) is not None:
            self._touch()

    # -- what is asked

    def services(self, namespace: str) -> list[tuple[str, Json]]:
        """The Services of a namespace by name, with their specs."""
        return [(found.name, found.spec) for found in self._services.values() if found.namespace == namespace]

    def behind(self, namespace: str, service: str) -> list[str]:
        """The addresses behind a Service: of its ready pods, or of all while none is ready."""
        found = self._services.get((namespace, service))
        selector = (found.spec.get("selector") or {}) if found is not None else {}
        if not selector:
            return []
        members = [
            member
            for member in self._members.values()
            if member.namespace == namespace and selector.items() <= member.labels.items()
        ]
        return [member.address for member in members if member.ready] or [member.address for member in members]

    def find(self, namespace: str, name: str) -> str | None:
        """The address of a host name as seen from a namespace."""
        for line_address, names in self._entries(namespace):
            if name in names:
                return line_address
        return None

    def replace_names(self, namespace: str, environment: dict[str, str]) -> list[str]:
        """Puts addresses in place of names in variables that hold an address; returns which were changed."""
        changed = []
        for variable, value in environment.items():
            if value and _ADDRESS_NAME.search(variable):
                address = self.find(namespace, value)
                if address is None and (namespace, value.split(".")[0]) in self._services:
                    address = "127.0.0.1"  # everybody listens there; nobody has to be found first
                if address is not None:
                    environment[variable] = address
                    changed.append(f"{variable}={value} became {address}")
        return changed

    # -- files

    def hosts_file(self, pod: Json) -> Path:
        """The file that is /etc/hosts in this pod's containers."""
        aliases = tuple(
            f"{item['ip']} {' '.join(item.get('hostnames') or ())}" for item in pod["spec"].get("hostAliases") or ()
        )
        key = (pod["metadata"]["namespace"], aliases)
        if key not in self._views:
            suffix = f".{len(self._views)}" if aliases else ""
            self._views[key] = self._folder / f"{key[0]}{suffix}.hosts"
            self._touch(urgent=True)
        return self._views[key]

    async def settle(self) -> None:
        """Waits for what else is happening at this moment, then makes sure that every file has every pod in it."""
        await asyncio.sleep(0)
        if self._urgent:
            self._write()

    def _touch(self, *, urgent: bool = False) -> None:
        self._urgent = self._urgent or urgent
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY, self._write)

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._urgent = False
        for (namespace, aliases), path in self._views.items():
            lines = [f"{address} {' '.join(names)}" for address, names in self._entries(namespace)]
            _overwrite(path, _LOCAL + "\n".join((*lines, *aliases, *_own_lines())) + "\n")

    def close(self) -> None:
        """Stops following."""
        if self._timer is not None:
            self._timer.cancel()

    def _entries(self, namespace: str) -> Iterator[tuple[str, list[str]]]:
        yield "127.0.0.1", _long_names("kubernetes", "default")
        for member in self._members.values():
            names = [*(member.near if member.namespace == namespace else ()), *member.far]
            if names:
                yield member.address, names
        for service in list(self._services.values()):
            names = _long_names(service.name, service.namespace)
            if service.namespace == namespace:
                names = [service.name, *names]
            for address in self.behind(service.namespace, service.name):
                yield address, names


def host_name(pod: Json) -> str:
    """What `hostname` says in a pod."""
    name: str = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return name[:63].rstrip("-.")


def _long_names(name: str, namespace: str) -> list[str]:
    return [f"{name}.{namespace}{ending}" for ending in ("", ".svc", ".svc.cluster.local")]


def _own_lines() -> Iterable[str]:
    """The machine's own host names, except those that only mean the machine itself."""
    try:
        lines = Path("/etc/hosts").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [line for line in lines if line[:1].isdigit() and not line.startswith(("127.", "0."))]


def _overwrite(path: Path, text: str) -> None:
    """Changes a file in place: it is mounted in containers, which would keep an old one that was replaced."""
    data = text.encode()
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(file, data, 0)
        os.ftruncate(file, len(data))
    finally:
        os.close(file)
