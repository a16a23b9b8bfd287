"""Pod network: one network namespace per pod, connected by veth pairs to a bridge in a namespace of the cluster.

Nothing of it is on the machine's network: no address, no interface, no firewall rule. It disappears with the last
process. Pods reach each other by address, on any port. Two sockets lead to the machine: 127.0.0.1:<port of the API
server> in every pod, and an HTTPS proxy on the bridge. They are created inside the pod network and served by the
gateway process outside of it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from embedded_kube.node.processes import linux
from embedded_kube.node.processes.namespaces import in_child

GATEWAY = "10.244.0.1"
PREFIX = 16
PROXY_PORT = 3128


class PodBridge:
    """The bridge and its network namespace."""

    def __init__(self) -> None:
        self._index, (self.network, links, proxy) = in_child(_make_bridge)
        self._links = linux.Netlink(socket.socket(fileno=links))
        self.proxy = socket.socket(fileno=proxy)
        self._ports = 0

    def add_pod(self, address: str, api_port: int) -> tuple[int, socket.socket | None]:
        """Creates a pod's network namespace; returns it, and the listener in it for the API server's port."""
        self._ports += 1
        port = f"p{self._ports}"

        def make() -> tuple[None, Sequence[int]]:
            linux.unshare(linux.CLONE_NEWNET)
            network = os.open("/proc/self/ns/net", os.O_RDONLY)
            # Derived from the address, so that ARP caches of other pods stay valid.
            mac = b"\x02\x00" + socket.inet_aton(address)
            self._links.add_pair(port, self._index, "eth0", network, mac)
            links = linux.Netlink()
            links.bring_up(socket.if_nametoindex("lo"))
            index = socket.if_nametoindex("eth0")
            links.add_address(index, address, PREFIX)
            links.bring_up(index)
            if not api_port:
                return None, (network,)
            return None, (network, _listen("127.0.0.1", api_port).detach())

        _, files = in_child(make)
        return files[0], socket.socket(fileno=files[1]) if api_port else None

    def make_socket(self) -> int:
        """Returns a TCP socket that connects from the bridge, as a node does."""

        def make() -> tuple[None, Sequence[int]]:
            linux.setns(self.network, linux.CLONE_NEWNET)
            return None, (socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach(),)

        return in_child(make)[1][0]


def _make_bridge() -> tuple[int, Sequence[int]]:
    linux.unshare(linux.CLONE_NEWNET)
    links = linux.Netlink()
    links.bring_up(socket.if_nametoindex("lo"))
    links.add_bridge("pods")
    index = socket.if_nametoindex("pods")
    links.add_address(index, GATEWAY, PREFIX)
    # An unused veth pair, to find out now whether the system allows them.
    links.add_pair("trial", index, "trial-end", os.open("/proc/self/ns/net", os.O_RDONLY), b"\x02\x00\x00\x00\x00\x01")
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    return index, (network, links.detach(), _listen(GATEWAY, PROXY_PORT).detach())


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(64)
    return listener
