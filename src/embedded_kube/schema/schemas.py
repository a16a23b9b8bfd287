"""What makes objects well-formed: the schemas of one Kubernetes version and of the CRDs that are served with it."""

from __future__ import annotations

from embedded_kube import errors
from embedded_kube.schema import openapi
from embedded_kube.schema.completions import COMPLETIONS, NEWER, select_pods
from embedded_kube.schema.decoding import Decoders, MalformedError, Reader
from embedded_kube.schema.defaults import DEFAULTS
from embedded_kube.schema.jsontext import DuplicateFields, load
from embedded_kube.schema.shapes import ANY, Shape, Types, crd_shape, load_types
from embedded_kube.schema.structural import Structural
from embedded_kube.storage.kinds import Kind, Kinds
from embedded_kube.storage.store import Json
from embedded_kube.validation import rules

_METADATA = "meta.v1.ObjectMeta"


class Schemas:
    """Decodes and validates objects of every kind; the Conversion of api.py."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.types: Types = load_types(version)
        self._decoders = Decoders(DEFAULTS, {**COMPLETIONS, **NEWER.get(version, {})})
        self._metadata = self._decoders.reader(self.types.structs[_METADATA])
        self._rules = rules.Rules(self.types, version)
        self._readers: dict[tuple[str, str, str], Reader | None] = {}
        self._customs: dict[tuple[str, str, str], tuple[Json, Structural, Shape]] = {}

    # -- the Conversion of api.py

    def decode(self, kind: Kind, found: Json, field_validation: str) -> list[str]:
        """Prunes unknown fields, checks types and fills in defaults, in place; returns warnings."""
        unknown: list[str] = []
        try:
            if kind.crd_schema is not None:
                self._decode_custom(kind, found, unknown)
            else:
                reader = self._reader(kind)
                if reader is not None:
                    reader(found, None, unknown)
        except MalformedError as error:
            raise errors.UndecodableError(_cannot(kind), error.sentence()) from None
        if not unknown:
            return []
        return refuse_or_warn(kind, [f'unknown field "{path}"' for path in unknown], field_validation)

    def finish(self, kind: Kind, found: Json) -> None:
        """Gives a new object what depends on its name and uid, in place."""
        if kind.resource == "jobs.batch":
            select_pods(found)
        elif kind.resource == "namespaces":
            # Only a new one is given its finalizer: taking it away is how the end of one is finished.
            held = found["spec"].setdefault("finalizers", [])
            found["spec"]["finalizers"] = held if "kubernetes" in held else [*held, "kubernetes"]
        elif kind.resource == "pods":
            found.setdefault("status", {}).setdefault("phase", "Pending")

    def validate(self, kind: Kind, found: Json, old: Json | None) -> None:
        """Raises ApiError (422) that names every field that breaks a rule of the kind."""
        if kind.crd_schema is not None:
            causes = self._rules.metadata_causes(kind, found, old)
            causes += self._custom(kind)[1].causes(found)
        else:
            causes = self._rules.causes(kind, found, old, self.shape(kind))
        if causes:
            raise errors.invalid(kind.kind, kind.group, found.get("metadata", {}).get("name", ""), causes)

    # -- what patches and documents need

    def shape(self, kind: Kind) -> Shape:
        """The shape of a kind's objects; of one that nobody described, metadata is all that is known."""
        if kind.crd_schema is not None:
            return self._custom(kind)[2]
        found = self.types.kinds.get(f"{kind.api_version}/{kind.kind}")
        if found is not None:
            return found
        return Shape("struct", fields={"metadata": self.types.structs[_METADATA], "spec": ANY, "status": ANY})

    def merge_key(self, kind: Kind, *path: str) -> str | None:
        """How a strategic patch merges the list at a path: by a field, "" as a set of values, None: it is replaced."""
        shape: Shape | None = self.shape(kind)
        for name in path:
            while shape is not None and shape.type == "list":
                shape = shape.item
            if shape is None:
                return None
            shape = shape.fields.get(name) if shape.type == "struct" else shape.item
        return shape.merge_key if shape is not None and shape.merges else None

    def openapi_v3_index(self, kinds: Kinds) -> Json:
        """/openapi/v3: which documents there are."""
        return openapi.index(kinds)

    def openapi_v3(self, group_version: str, kinds: Kinds) -> Json | None:
        """/openapi/v3/<apis/apps/v1>: the document of a group version, None when nothing of it is served."""
        return openapi.document(group_version, kinds, self.types)

    # -- inside

    def _reader(self, kind: Kind) -> Reader | None:
        key = (kind.group, kind.version, kind.kind)
        if key not in self._readers:
            shape = self.types.kinds.get(f"{kind.api_version}/{kind.kind}")
            self._readers[key] = self._decoders.reader(shape) if shape is not None else None
        return self._readers[key]

    def _custom(self, kind: Kind) -> tuple[Json, Structural, Shape]:
        assert kind.crd_schema is not None
        key = (kind.group, kind.version, kind.plural)
        held = self._customs.get(key)
        # A changed CRD makes a new Kind with a new schema.
        if held is None or held[0] is not kind.crd_schema:
            shape = crd_shape(kind.crd_schema, self.types.structs[_METADATA])
            held = self._customs[key] = (kind.crd_schema, Structural(kind.crd_schema), shape)
        return held

    def _decode_custom(self, kind: Kind, found: Json, unknown: list[str]) -> None:
        if found.get("metadata") is not None:
            found["metadata"] = self._metadata(found["metadata"], (None, "metadata"), unknown)
        unknown += self._custom(kind)[1].complete(found)


def _cannot(kind: Kind) -> str:
    return f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'


def refuse_or_warn(kind: Kind, problems: list[str], field_validation: str) -> list[str]:
    """What becomes of unknown and duplicate fields: an error (Strict), warnings (Warn) or nothing (Ignore)."""
    if field_validation == "Strict":
        raise errors.UndecodableError(_cannot(kind), f"strict decoding error: {', '.join(problems)}")
    return [] if field_validation == "Ignore" else problems


def parse_object(body: bytes, kind: Kind, field_validation: str) -> tuple[Json, list[str]]:
    """The object in a JSON text, its duplicate fields handled as field validation asks for; 400 when there is none."""
    seen = DuplicateFields()
    found = load(body, seen)
    if not isinstance(found, dict) or not isinstance(found.get("metadata") or {}, dict):
        raise errors.bad_request(f"{_cannot(kind)}: it must be a JSON object with an object as its metadata")
    problems = [f'duplicate field "{path}"' for path in seen.paths(found)]
    return found, refuse_or_warn(kind, problems, field_validation) if problems else []
