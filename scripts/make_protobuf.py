"""Write src/embedded_kube/server/protobuf.json: how Kubernetes objects are written in protobuf, field numbers and all.

Usage: make_protobuf.py API_DIR APIMACHINERY_DIR, the Go modules k8s.io/api and k8s.io/apimachinery of one version.
Types come from generated.proto; which fields are inlined in JSON, and which leave out an empty value, from types.go.

One line is one message: field number -> "name type", with []T for lists, {}T for maps from strings, "?" after a type
whose empty value JSON does not show, and "+" instead of a name for a field whose content belongs to its parent.
"""

import json
import re
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "src/embedded_kube/server/protobuf.json"

ROOTS = {
    "core/v1": "Binding ConfigMap Endpoints Event Namespace Node PersistentVolume PersistentVolumeClaim Pod PodTemplate"
    " Secret Service ServiceAccount",
    "admissionregistration/v1": "MutatingWebhookConfiguration ValidatingAdmissionPolicy"
    " ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
    "apps/v1": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "authentication/v1": "SelfSubjectReview TokenRequest TokenReview",
    "authorization/v1": "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    "autoscaling/v1": "Scale",
    "batch/v1": "Job",
    "coordination/v1": "Lease",
    "discovery/v1": "EndpointSlice",
    "events/v1": "Event",
    "policy/v1": "Eviction PodDisruptionBudget",
    "rbac/v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "scheduling/v1": "PriorityClass",
    "scheduling/v1beta1": "PodGroup Workload",
    "storage/v1": "CSINode StorageClass",
}
SPECIAL = {
    "k8s.io.apimachinery.pkg.api.resource.Quantity": "quantity",
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": "intstr",
    "k8s.io.apimachinery.pkg.apis.meta.v1.Time": "time",
    "k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime": "microtime",
    "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1": "json",
    "k8s.io.apimachinery.pkg.runtime.RawExtension": "json",
}
SCALARS = {"string", "bool", "int32", "int64", "double", "bytes"}
META = "k8s.io.apimachinery.pkg.apis.meta.v1"

MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.M | re.S)
FIELD = re.compile(r"^\s*(optional|repeated|required)?\s*(map<\s*string\s*,\s*([\w.]+)\s*>|[\w.]+) (\w+) = (\d+)", re.M)
STRUCT = re.compile(r"^type (\w+) struct \{(.*?)^\}", re.M | re.S)
GO_FIELD = re.compile(r'^\s*(?:\w+\s+)?(\S+)\s+`json:"([^"]*)" protobuf:"\w+,(\d+),', re.M)

Fields = dict[str, str]


def read_package(folder: Path) -> dict[str, Fields]:
    """The messages of one package, by their full names."""
    proto = (folder / "generated.proto").read_text()
    go = "".join(path.read_text() for path in sorted(folder.glob("*types.go")))
    found = re.search(r"^package (.*);", proto, re.M)
    assert found is not None, folder
    package = found[1]
    hints = {struct: {n: (kind, tag) for kind, tag, n in GO_FIELD.findall(body)} for struct, body in STRUCT.findall(go)}
    messages: dict[str, Fields] = {}
    for name, body in MESSAGE.findall(proto):
        fields: Fields = {}
        for label, kind, value, title, number in FIELD.findall(body):
            go_kind, tag = hints.get(name, {}).get(number, ("", title))
            text = resolve(value or kind, package)
            text = "{}" + text if value else "[]" + text if label == "repeated" else text
            hidden = "?" if "omitempty" in tag and not go_kind.startswith("*") else ""
            inlined = tag == "" or tag.startswith(",inline")
            fields[number] = f"{'+' if inlined else title} {text}{hidden}"
        messages[f"{package}.{name}"] = fields
    return messages


def resolve(kind: str, package: str) -> str:
    """A type by its full name."""
    full = kind[1:] if kind.startswith(".") else kind if kind in SCALARS else f"{package}.{kind}"
    return SPECIAL.get(full, full)


def reach(messages: dict[str, Fields], name: str, kept: dict[str, Fields]) -> None:
    """Keeps a message and everything that it contains."""
    if name in kept or name in SCALARS or name in SPECIAL.values():
        return
    kept[name] = messages[name]
    for field in messages[name].values():
        reach(messages, field.split(" ")[1].strip("[]{}?"), kept)


def shorten(text: str) -> str:
    """Full names without what they have in common."""
    return re.sub(r"k8s\.io\.(api|apimachinery\.pkg\.apis)\.", "", text)


def main() -> None:
    """Reads the modules that the command line names and writes the table."""
    api, machinery = Path(sys.argv[1]), Path(sys.argv[2])
    messages = read_package(machinery / "pkg/apis/meta/v1")
    for path in sorted(api.glob("*/*/generated.proto")):
        messages |= read_package(path.parent)
    kept: dict[str, Fields] = {}
    for folder, kinds in ROOTS.items():
        for kind in kinds.split():
            reach(messages, f"k8s.io.api.{folder.replace('/', '.')}.{kind}", kept)
    reach(messages, f"{META}.DeleteOptions", kept)
    lines = [f"{json.dumps(shorten(name))}: {shorten(json.dumps(kept[name]))}" for name in sorted(kept)]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
