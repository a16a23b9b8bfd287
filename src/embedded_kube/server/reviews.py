"""Authentication and authorization reviews. Every valid token may do everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedded_kube.server.request_info import UserInfo
from gpu_scheduler.k8s.objects import Json

TokenUsers = Mapping[str, UserInfo]
"""Users by their bearer token."""

_EVERYTHING = ["*"]


def _user_info(user: UserInfo) -> Json:
    return {"username": user.name, "groups": list(user.groups), **({"uid": user.uid} if user.uid else {})}


def _self(_obj: Json, user: UserInfo, _tokens: TokenUsers) -> Json:
    return {"userInfo": _user_info(user)}


def _token(obj: Json, _user: UserInfo, tokens: TokenUsers) -> Json:
    spec = obj.get("spec")
    owner = tokens.get(str(spec.get("token", ""))) if isinstance(spec, dict) else None
    return {"authenticated": True, "user": _user_info(owner)} if owner is not None else {"authenticated": False}


def _access(_obj: Json, _user: UserInfo, _tokens: TokenUsers) -> Json:
    return {"allowed": True, "reason": "the local cluster allows everything to those who have its token"}


def _rules(_obj: Json, _user: UserInfo, _tokens: TokenUsers) -> Json:
    resources = [{"verbs": _EVERYTHING, "apiGroups": _EVERYTHING, "resources": _EVERYTHING}]
    paths = [{"verbs": _EVERYTHING, "nonResourceURLs": _EVERYTHING}]
    return {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}


REVIEWS: dict[tuple[str, str], Callable[[Json, UserInfo, TokenUsers], Json]] = {
    ("authentication.k8s.io", "selfsubjectreviews"): _self,
    ("authentication.k8s.io", "tokenreviews"): _token,
    ("authorization.k8s.io", "localsubjectaccessreviews"): _access,
    ("authorization.k8s.io", "selfsubjectaccessreviews"): _access,
    ("authorization.k8s.io", "selfsubjectrulesreviews"): _rules,
    ("authorization.k8s.io", "subjectaccessreviews"): _access,
}
"""The function that makes the status of each review."""


def find_review(path: str) -> tuple[str, str] | None:
    """The group and resource of a review path, or None."""
    parts = path.strip("/").split("/")
    if len(parts) == 6 and parts[3] == "namespaces":
        parts = [*parts[:3], parts[5]]
    if len(parts) == 4 and parts[0] == "apis" and parts[2] == "v1" and (parts[1], parts[3]) in REVIEWS:
        return parts[1], parts[3]
    return None
