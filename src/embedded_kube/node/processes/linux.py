"""System calls for namespaces, and the part of rtnetlink that connects pods to a bridge; runs no programs."""

from __future__ import annotations

import ctypes
import os
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_NEWLINK, _NEWADDR = 16, 20
_REQUEST_ACK_CREATE = 0x1 | 0x4 | 0x400
_NLMSG_ERROR = 2
_IFF_UP = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 1, 3, 10, 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA = 1, 2
_VETH_INFO_PEER = 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Moves this process to new namespaces."""
    _call("unshare", ctypes.c_int(flags))


def setns(descriptor: int, flags: int) -> None:
    """Enters the namespace of a namespace file, or the namespaces of a process by its pidfd."""
    _call("setns", ctypes.c_int(descriptor), ctypes.c_int(flags))


def set_host_name(name: str) -> None:
    """Sets the host name in this UTS namespace."""
    encoded = name.encode()
    _call("sethostname", ctypes.c_char_p(encoded), ctypes.c_size_t(len(encoded)))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Calls mount(2)."""
    _call(
        "mount",
        ctypes.c_char_p(os.fsencode(source)),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_char_p(kind.encode() or None),
        ctypes.c_ulong(flags),
        ctypes.c_char_p(data.encode() or None),
    )


def die_with_parent(signal: int) -> None:
    """Requests a signal for when the thread that forked this process ends."""
    _call("prctl", ctypes.c_int(_PR_SET_PDEATHSIG), *(ctypes.c_ulong(n) for n in (signal, 0, 0, 0)))


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants whose own parent has died."""
    _call("prctl", ctypes.c_int(_PR_SET_CHILD_SUBREAPER), *(ctypes.c_ulong(n) for n in (1, 0, 0, 0)))


class Netlink:
    """An rtnetlink socket of the network namespace in which it was made."""

    def __init__(self, made: socket.socket | None = None) -> None:
        self._socket = made or socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._sequence = 0

    def detach(self) -> int:
        """Returns the socket's file descriptor and gives up ownership."""
        return self._socket.detach()

    def add_bridge(self, name: str) -> None:
        """Creates a bridge and brings it up."""
        self._link(_text(_IFLA_IFNAME, name) + _attribute(_IFLA_LINKINFO, _text(_IFLA_INFO_KIND, "bridge")))

    def add_pair(self, name: str, bridge: int, peer: str, peer_network: int, peer_mac: bytes) -> None:
        """Creates a veth pair from a port of the bridge (its index) to an interface in another namespace."""
        far = _link_message(0, 0) + _text(_IFLA_IFNAME, peer) + _attribute(_IFLA_ADDRESS, peer_mac)
        far += _number(_IFLA_NET_NS_FD, peer_network)
        kind = _text(_IFLA_INFO_KIND, "veth") + _attribute(_IFLA_INFO_DATA, _attribute(_VETH_INFO_PEER, far))
        self._link(_text(_IFLA_IFNAME, name) + _number(_IFLA_MASTER, bridge) + _attribute(_IFLA_LINKINFO, kind))

    def bring_up(self, index: int) -> None:
        """Brings an interface up."""
        self._request(_NEWLINK, 0x1 | 0x4, _link_message(index, _IFF_UP))

    def add_address(self, index: int, address: str, prefix: int) -> None:
        """Adds an IPv4 address to an interface."""
        packed = socket.inet_aton(address)
        head = struct.pack("=BBBBI", socket.AF_INET, prefix, 0, 0, index)
        body = _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        self._request(_NEWADDR, _REQUEST_ACK_CREATE, head + body)

    def _link(self, attributes: bytes) -> None:
        self._request(_NEWLINK, _REQUEST_ACK_CREATE, _link_message(0, _IFF_UP) + attributes)

    def _request(self, kind: int, flags: int, body: bytes) -> None:
        self._sequence += 1
        # Forked processes share the socket: skip answers to requests of a dead one.
        sequence = (os.getpid() << 8 | self._sequence & 0xFF) & 0xFFFFFFFF
        self._socket.send(struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body)
        answered = -1
        while answered != sequence:
            answer = self._socket.recv(65536)
            _, answer_kind, _, answered, _, error = struct.unpack_from("=IHHIIi", answer)
        if answer_kind == _NLMSG_ERROR and error:
            raise OSError(-error, f"rtnetlink: {os.strerror(-error)}")


def _link_message(index: int, flags: int) -> bytes:
    return struct.pack("=BBHiII", socket.AF_UNSPEC, 0, 0, index, flags, flags)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))
