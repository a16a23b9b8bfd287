"""Bearer tokens: fixed ones, and signed JWTs of service accounts, which need no storage."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from embedded_kube.server.request_info import UserInfo

_HEADER = {"alg": "HS256", "typ": "JWT"}
_ACCOUNT = "system:serviceaccount"


class Tokens(Mapping[str, UserInfo]):
    """Maps a bearer token to its user, and issues tokens of service accounts.

    With the same secret, issued tokens stay valid after a restart.
    """

    def __init__(self, known: Mapping[str, UserInfo], secret: str) -> None:
        self._known = known
        self._key = hashlib.sha256(b"service account tokens\0" + secret.encode()).digest()

    def __getitem__(self, token: str) -> UserInfo:
        found = self._known.get(token)
        return found if found is not None else self._read(token)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def issue(self, namespace: str, name: str, uid: str, seconds: int) -> str:
        """Issues a token of a service account that is valid for `seconds`."""
        now = int(time.time())
        about = {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}}
        subject = f"{_ACCOUNT}:{namespace}:{name}"
        claims = {"sub": subject, "iat": now, "nbf": now, "exp": now + seconds, "kubernetes.io": about}
        body = f"{_pack(msgspec.json.encode(_HEADER))}.{_pack(msgspec.json.encode(claims))}"
        return f"{body}.{self._sign(body)}"

    def _read(self, token: str) -> UserInfo:
        body, _, signature = token.rpartition(".")
        if not token.isascii() or body.count(".") != 1 or not hmac.compare_digest(signature, self._sign(body)):
            raise KeyError(token)
        claims: Any = msgspec.json.decode(_unpack(body.partition(".")[2]))
        if claims["exp"] <= time.time():
            raise KeyError(token)
        about = claims["kubernetes.io"]
        groups = (f"{_ACCOUNT}s", f"{_ACCOUNT}s:{about['namespace']}", "system:authenticated")
        return UserInfo(claims["sub"], groups, about["serviceaccount"]["uid"])

    def _sign(self, body: str) -> str:
        return _pack(hmac.digest(self._key, body.encode(), "sha256"))


def _pack(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unpack(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
