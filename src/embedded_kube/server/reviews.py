"""Questions about who somebody is and what they may do. Whoever has a token of this cluster may do everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedded_kube.server.routes import User
from embedded_kube.storage.store import Json

Tokens = Mapping[str, User]

_EVERYTHING = ["*"]


def _who(user: User) -> Json:
    return {"username": user.name, "groups": list(user.groups), **({"uid": user.uid} if user.uid else {})}


def _self(_found: Json, user: User, _tokens: Tokens) -> Json:
    return {"userInfo": _who(user)}


def _token(found: Json, _user: User, tokens: Tokens) -> Json:
    spec = found.get("spec")
    owner = tokens.get(str(spec.get("token", ""))) if isinstance(spec, dict) else None
    return {"authenticated": True, "user": _who(owner)} if owner is not None else {"authenticated": False}


def _access(_found: Json, _user: User, _tokens: Tokens) -> Json:
    return {"allowed": True, "reason": "the local cluster allows everything to those who have its token"}


def _rules(_found: Json, _user: User, _tokens: Tokens) -> Json:
    resources = [{"verbs": _EVERYTHING, "apiGroups": _EVERYTHING, "resources": _EVERYTHING}]
    paths = [{"verbs": _EVERYTHING, "nonResourceURLs": _EVERYTHING}]
    return {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}


REVIEWS: dict[tuple[str, str], Callable[[Json, User, Tokens], Json]] = {
    ("authentication.k8s.io", "selfsubjectreviews"): _self,
    ("authentication.k8s.io", "tokenreviews"): _token,
    ("authorization.k8s.io", "localsubjectaccessreviews"): _access,
    ("authorization.k8s.io", "selfsubjectaccessreviews"): _access,
    ("authorization.k8s.io", "selfsubjectrulesreviews"): _rules,
    ("authorization.k8s.io", "subjectaccessreviews"): _access,
}
"""What each review answers as its status."""


def find_review(path: str) -> tuple[str, str] | None:
    """The group and resource of a review that a path names."""
    parts = path.strip("/").split("/")
    if len(parts) == 6 and parts[3] == "namespaces":
        parts = [*parts[:3], parts[5]]
    if len(parts) == 4 and parts[0] == "apis" and parts[2] == "v1" and (parts[1], parts[3]) in REVIEWS:
        return parts[1], parts[3]
    return None
