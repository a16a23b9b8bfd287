"""Decoding of AdmissionReviews: the request, its user, and the objects as raw JSON."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from gpu_scheduler.base.text import one_line

T = TypeVar("T")

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
_MAX_UID_LENGTH: Final = 253


class BadReview(Exception):
    """The request body is not an AdmissionReview that can be answered; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class _RequestStruct(msgspec.Struct, rename="camel", gc=False):
    """A struct whose fields are snake_case in Python and camelCase in JSON."""


class _RequestResource(_RequestStruct):
    group: str = ""
    version: str = ""
    resource: str = ""


class _RequestUser(_RequestStruct):
    username: str = ""


class AdmissionRequest(_RequestStruct):
    """The request of an AdmissionReview. Its objects stay raw until the code for their kind decodes them."""

    uid: str
    operation: str
    resource: _RequestResource
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: _RequestUser = msgspec.field(default_factory=_RequestUser)
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def subject(self) -> tuple[str, str]:
        """The group and plural of the requested resource."""
        return self.resource.group, self.resource.resource


class _Review(_RequestStruct):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


_read_review = msgspec.json.Decoder(_Review).decode


def read_request(body: bytes) -> AdmissionRequest:
    """Decodes the request of an AdmissionReview v1; raises BadReview."""
    try:
        review = _read_review(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadReview(f"not an AdmissionReview: {error}") from None
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise BadReview(
            f"apiVersion and kind: {review.api_version[:60]!r} and {review.kind[:60]!r}; send {API_VERSION} and {KIND}"
        )
    if review.request is None:
        raise BadReview("request: missing; send an AdmissionReview with a request")
    if not 0 < len(review.request.uid) <= _MAX_UID_LENGTH:
        raise BadReview(f"request.uid: send 1 to {_MAX_UID_LENGTH} characters")
    return review.request


def read_object(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw, field: str = "object") -> T:
    """Decodes an object of a request; raises BadReview."""
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadReview(f"request.{field}: {error}") from None
