"""Schemas of one Kubernetes version and of the served CRDs: decoding and validation of objects of every kind."""

from __future__ import annotations

from embedded_kube import errors
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.schema import openapi
from embedded_kube.schema.decoding import DecodeFunction, Decoders, UnmarshalError
from embedded_kube.schema.defaulting import DEFAULTERS, VERSION_DEFAULTERS, generate_job_selector
from embedded_kube.schema.defaults import DEFAULTS
from embedded_kube.schema.jsontext import DuplicateFields, load
from embedded_kube.schema.structural import StructuralSchema
from embedded_kube.schema.type_schema import ANY, TypeSchema, TypeTable, crd_type_schema, load_types
from embedded_kube.validation.validator import ObjectValidator
from gpu_scheduler.k8s.objects import Json

_METADATA = "meta.v1.ObjectMeta"


class Schemas:
    """Decodes and validates objects of every kind; implements `Strategy` of registry.py."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.types: TypeTable = load_types(version)
        self._decoders = Decoders(DEFAULTS, {**DEFAULTERS, **VERSION_DEFAULTERS.get(version, {})})
        self._metadata = self._decoders.decoder(self.types.structs[_METADATA])
        self._validator = ObjectValidator(self.types, version)
        self._decode_functions: dict[tuple[str, str, str], DecodeFunction | None] = {}
        self._custom_schemas: dict[tuple[str, str, str], tuple[Json, StructuralSchema, TypeSchema]] = {}

    # -- Strategy

    def decode(self, kind: ServedKind, obj: Json, field_validation: str) -> list[str]:
        """Prunes unknown fields, checks types and sets defaults, in place; returns warnings."""
        unknown: list[str] = []
        try:
            if kind.crd_schema is not None:
                self._decode_custom(kind, obj, unknown)
            else:
                decode = self._decoder(kind)
                if decode is not None:
                    decode(obj, None, unknown)
        except UnmarshalError as error:
            raise errors.DecodingError(_cannot_handle(kind), error.message()) from None
        if not unknown:
            return []
        return refuse_or_warn(kind, [f'unknown field "{path}"' for path in unknown], field_validation)

    def prepare_for_create(self, kind: ServedKind, obj: Json) -> None:
        """Sets fields of a new object that depend on its name and uid, in place."""
        if kind.resource == "jobs.batch":
            generate_job_selector(obj)
        elif kind.resource == "namespaces":
            # On create only: removing the finalizer completes the deletion of a namespace.
            cached = obj["spec"].setdefault("finalizers", [])
            obj["spec"]["finalizers"] = cached if "kubernetes" in cached else [*cached, "kubernetes"]
        elif kind.resource == "pods":
            obj.setdefault("status", {}).setdefault("phase", "Pending")

    def validate(self, kind: ServedKind, obj: Json, old: Json | None) -> None:
        """Raises StatusError (422) that names every invalid field."""
        if kind.crd_schema is not None:
            causes = self._validator.metadata_causes(kind, obj, old)
            causes += self._custom(kind)[1].validate(obj)
        else:
            causes = self._validator.causes(kind, obj, old, self.type_schema(kind))
        if causes:
            raise errors.invalid(kind.kind, kind.group, obj.get("metadata", {}).get("name", ""), causes)

    # -- for patches and OpenAPI

    def type_schema(self, kind: ServedKind) -> TypeSchema:
        """The type of a kind's objects. Of a kind without a schema, only the metadata is known."""
        if kind.crd_schema is not None:
            return self._custom(kind)[2]
        found = self.types.kinds.get(f"{kind.api_version}/{kind.kind}")
        if found is not None:
            return found
        return TypeSchema("struct", fields={"metadata": self.types.structs[_METADATA], "spec": ANY, "status": ANY})

    def openapi_v3_index(self, kinds: KindTable) -> Json:
        """/openapi/v3: the index of documents."""
        return openapi.index(kinds)

    def openapi_v3(self, group_version: str, kinds: KindTable) -> Json | None:
        """/openapi/v3/apis/apps/v1: the document of a group version, or None."""
        return openapi.document(group_version, kinds, self.types)

    # -- caches

    def _decoder(self, kind: ServedKind) -> DecodeFunction | None:
        key = (kind.group, kind.version, kind.kind)
        if key not in self._decode_functions:
            schema = self.types.kinds.get(f"{kind.api_version}/{kind.kind}")
            self._decode_functions[key] = self._decoders.decoder(schema) if schema is not None else None
        return self._decode_functions[key]

    def _custom(self, kind: ServedKind) -> tuple[Json, StructuralSchema, TypeSchema]:
        assert kind.crd_schema is not None
        key = (kind.group, kind.version, kind.plural)
        cached = self._custom_schemas.get(key)
        # A changed CRD makes a new ServedKind with a new schema.
        if cached is None or cached[0] is not kind.crd_schema:
            schema = crd_type_schema(kind.crd_schema, self.types.structs[_METADATA])
            cached = self._custom_schemas[key] = (kind.crd_schema, StructuralSchema(kind.crd_schema), schema)
        return cached

    def _decode_custom(self, kind: ServedKind, obj: Json, unknown: list[str]) -> None:
        if obj.get("metadata") is not None:
            obj["metadata"] = self._metadata(obj["metadata"], (None, "metadata"), unknown)
        unknown += self._custom(kind)[1].prune_and_default(obj)


def _cannot_handle(kind: ServedKind) -> str:
    return f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'


def refuse_or_warn(kind: ServedKind, problems: list[str], field_validation: str) -> list[str]:
    """Handles unknown and duplicate fields: an error (Strict), warnings (Warn) or nothing (Ignore)."""
    if field_validation == "Strict":
        raise errors.DecodingError(_cannot_handle(kind), f"strict decoding error: {', '.join(problems)}")
    return [] if field_validation == "Ignore" else problems


def parse_object(body: bytes, kind: ServedKind, field_validation: str) -> tuple[Json, list[str]]:
    """Parses an object from JSON, and handles duplicate fields by field validation; returns it and warnings."""
    seen = DuplicateFields()
    found = load(body, seen)
    if not isinstance(found, dict) or not isinstance(found.get("metadata") or {}, dict):
        raise errors.bad_request(f"{_cannot_handle(kind)}: it must be a JSON object with an object as its metadata")
    problems = [f'duplicate field "{path}"' for path in seen.paths(found)]
    return found, refuse_or_warn(kind, problems, field_validation) if problems else []
