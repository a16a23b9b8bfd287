"""Write src/embedded_kube/schema/schemas.json: what Kubernetes' OpenAPI documents say about types, without their prose.

Usage: make_schemas.py OPENAPI_DIR... where each folder is the api/openapi-spec/v3 of one Kubernetes version. The first
is the base, every further one is written as its differences. One line is one type.

A field is one word: a type and its marks, as schemas.py reads them.

    string  bool  int32  int64  double  bytes  time  microtime  quantity  intstr  any  or the name of a type
    []T  a list       {}T  a map from strings
    !    required     =JSON  the default (last mark)
    @set @map:a,b     list types other than atomic
    ~merge:key ~retainKeys    patch strategies, with the key that items are merged by
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
Types = dict[str, Schema]

TARGET = Path(__file__).resolve().parent.parent / "src/embedded_kube/schema/schemas.json"

# Group/version and the kinds of it that a local cluster serves or may store.
KINDS = {
    "v1": "Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod"
    " PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount",
    "admissionregistration.k8s.io/v1": "MutatingWebhookConfiguration ValidatingAdmissionPolicy"
    " ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
    "apiextensions.k8s.io/v1": "CustomResourceDefinition",
    "apps/v1": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "authentication.k8s.io/v1": "SelfSubjectReview TokenRequest TokenReview",
    "authorization.k8s.io/v1": "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview"
    " SubjectAccessReview",
    "autoscaling/v1": "Scale",
    "batch/v1": "CronJob Job",
    "coordination.k8s.io/v1": "Lease",
    "discovery.k8s.io/v1": "EndpointSlice",
    "events.k8s.io/v1": "Event",
    "policy/v1": "Eviction PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "scheduling.k8s.io/v1": "PriorityClass",
    "scheduling.k8s.io/v1alpha1": "Workload",
    "scheduling.k8s.io/v1alpha2": "PodGroup Workload",
    "scheduling.k8s.io/v1beta1": "CompositePodGroup PodGroup Workload",
    "storage.k8s.io/v1": "CSIDriver CSINode StorageClass",
}

SCALARS = {
    ("string", ""): "string",
    ("string", "byte"): "bytes",
    ("string", "date-time"): "time",
    ("boolean", ""): "bool",
    ("integer", ""): "int64",
    ("integer", "int32"): "int32",
    ("integer", "int64"): "int64",
    ("number", ""): "double",
    ("number", "double"): "double",
    ("object", ""): "any",
    ("", ""): "any",
}
# Types that JSON does not write as objects, or whose content has no schema.
SPECIAL = {
    "resource.Quantity": "quantity",
    "intstr.IntOrString": "intstr",
    "meta.v1.Time": "time",
    "meta.v1.MicroTime": "microtime",
    "meta.v1.Duration": "string",
    "meta.v1.FieldsV1": "any",
    "runtime.RawExtension": "any",
    "apiextensions.v1.JSON": "any",
    "apiextensions.v1.JSONSchemaPropsOrBool": "any",
    "apiextensions.v1.JSONSchemaPropsOrArray": "apiextensions.v1.JSONSchemaProps",
    "apiextensions.v1.JSONSchemaPropsOrStringArray": "any",
}
# The local cluster's own additions to Kubernetes 1.35, whose Workload has neither a time-out nor a status.
LOCAL_FIELDS = {
    "scheduling.v1alpha1.GangSchedulingPolicy": {"timeout": "int32"},
    "scheduling.v1alpha1.Workload": {"status": "scheduling.v1alpha1.WorkloadStatus"},
}
LOCAL_TYPES = {
    "scheduling.v1alpha1.WorkloadStatus": {"fields": {"conditions": "[]meta.v1.Condition@map:type~merge:type"}}
}


def short_name(name: str) -> str:
    """io.k8s.api.core.v1.Pod -> core.v1.Pod."""
    words = name.removeprefix("#/components/schemas/").split(".")
    keep = 3 if len(words) > 2 and re.fullmatch(r"v\d\w*", words[-2]) else 2
    return ".".join(words[-keep:])


def read_type(field: Schema) -> str:
    """The type of a field, without its marks."""
    for option in (field, *field.get("allOf", ())):
        if "$ref" in option:
            name = short_name(option["$ref"])
            return SPECIAL.get(name, name)
    if field.get("type") == "array":
        return "[]" + read_type(field["items"])
    if "additionalProperties" in field:
        return "{}" + read_type(field["additionalProperties"])
    return SCALARS[field.get("type", ""), field.get("format", "")]


def read_field(field: Schema, required: bool) -> str:
    """A field as one word."""
    word = read_type(field)
    list_type = field.get("x-kubernetes-list-type")
    if list_type == "map":
        word += "@map:" + ",".join(field["x-kubernetes-list-map-keys"])
    elif list_type == "set":
        word += "@set"
    strategies = field.get("x-kubernetes-patch-strategy", "").split(",")
    if "merge" in strategies:
        key = field.get("x-kubernetes-patch-merge-key", "")
        word += f"~merge:{key}" if key else "~merge"
    if "retainKeys" in strategies:
        word += "~retainKeys"
    if required:
        word += "!"
    # Zero values are how Go writes fields that must be there; optional ones stay out, as Go leaves them out.
    default = field.get("default")
    if default or (required and default in ("", 0, False)):
        word += "=" + json.dumps(default, separators=(",", ":"))
    return word


def read_struct(schema: Schema) -> Schema:
    """A type with fields."""
    required = schema.get("required", [])
    fields = {name: read_field(field, name in required) for name, field in schema.get("properties", {}).items()}
    made: Schema = {}
    for gvk in schema.get("x-kubernetes-group-version-kind", []):
        version = f"{gvk['group']}/{gvk['version']}".lstrip("/")
        if gvk["kind"] in KINDS.get(version, "").split():
            made["kind"] = f"{version}/{gvk['kind']}"
    if schema.get("x-kubernetes-map-type") == "atomic":
        made["atomic"] = True
    return {**made, "fields": fields}


def read_version(folder: Path) -> Types:
    """Every type that the wanted kinds of one Kubernetes version are made of."""
    found: dict[str, Schema] = {}
    wanted: list[str] = []
    for version, kinds in KINDS.items():
        path = folder / ("api__v1" if version == "v1" else "apis__" + version.replace("/", "__"))
        document = Path(f"{path}_openapi.json")
        if not document.exists():
            continue
        schemas = json.loads(document.read_text())["components"]["schemas"]
        found.update((short_name(name), schema) for name, schema in schemas.items())
        for name, schema in schemas.items():
            for gvk in schema.get("x-kubernetes-group-version-kind", []):
                served = f"{gvk['group']}/{gvk['version']}".lstrip("/") == version
                if served and gvk["kind"] in kinds.split():
                    wanted.append(short_name(name))
    types: Types = {}
    while wanted:
        name = wanted.pop()
        if name in types or name not in found:
            continue
        types[name] = read_struct(found[name])
        types[name]["fields"].update(LOCAL_FIELDS.get(name, {}))
        wanted.extend(re.sub(r"[\[\]{}]|[@~!=].*", "", word) for word in types[name]["fields"].values())
    if "scheduling.v1alpha1.Workload" in types:
        types.update(LOCAL_TYPES)
    return dict(sorted(types.items()))


def read_name(folder: Path) -> str:
    """The version that a folder describes, as "1.35"."""
    version = str(json.loads((folder.parent / "swagger.json").read_text())["info"]["version"])
    if version == "unversioned":
        match = re.search(r"@v(\d+\.\d+)", str(folder.resolve()))
        if match is None:
            raise SystemExit(f"{folder}: does not say which Kubernetes version it describes")
        return match[1]
    return ".".join(version.lstrip("v").split(".")[:2])


def write(sections: dict[str, Types]) -> None:
    """One line per type, so that a difference between two versions of this file can be read."""
    parts = []
    for name, types in sections.items():
        lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in types.items()]
        parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    TARGET.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main(folders: list[str]) -> None:
    """Reads the folders, writes the file."""
    if not folders:
        raise SystemExit("usage: make_schemas.py OPENAPI_DIR...")
    versions = {read_name(Path(folder)): read_version(Path(folder)) for folder in folders}
    base_name, *others = versions
    base = versions[base_name]
    sections: dict[str, Types] = {base_name: base}
    for name in others:
        types = versions[name]
        gone: Schema = {key: None for key in base if key not in types}
        sections[name] = {**gone, **{key: value for key, value in types.items() if base.get(key) != value}}
    write(sections)
    print(
        f"{TARGET.name}: {TARGET.stat().st_size} bytes, "
        + ", ".join(f"{k} {len(v)} types" for k, v in sections.items())
    )


if __name__ == "__main__":
    main(sys.argv[1:])
