"""Writes the module files of a release: `python -m tests.kubernetes.modules 1.37.0` writes v1.37.mod and v1.37.sum.

They contain Kubernetes' own requirements, with the modules of its repository at their published versions.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.kubernetes.binaries import SOURCE

_NEAREST = {
    (f"k8s.io/{name}", "v0.37.0-rc.1"): "v0.37.0" for name in ("cri-streaming", "kube-proxy", "sample-apiserver")
}
"""Versions that the Go proxy refused (403), with the nearest that it served. Nothing of them is compiled, except the
configuration types of kube-proxy, which the API's OpenAPI document mentions."""


def write_modules(release: str) -> None:
    """Writes both files; the Go checksum database verifies the sums."""
    found = subprocess.run(
        ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{release}"],
        cwd=SOURCE,
        check=True,
        capture_output=True,
        text=True,
    )
    minor = ".".join(release.split(".")[:2])
    path = SOURCE / f"v{minor}.mod"
    path.write_text(convert(Path(json.loads(found.stdout)["GoMod"]).read_text(), release))
    path.with_suffix(".sum").unlink(missing_ok=True)
    settings = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    command = ["go", "list", "-mod=mod", f"-modfile={path.name}", "-deps", "."]
    subprocess.run(command, cwd=SOURCE, env=settings, check=True, stdout=subprocess.DEVNULL)


def convert(theirs: str, release: str) -> str:
    """Our go.mod for a release, from Kubernetes' own."""
    published = f"v0{release.removeprefix('1')}"
    blocks = re.findall(r"^require \(\n(.*?)^\)", theirs, re.MULTILINE | re.DOTALL)
    wanted = {line.split()[0]: line.split()[1] for block in blocks for line in block.splitlines()}
    staged = [name for name in re.findall(r"^\t(\S+) => \./staging", theirs, re.MULTILINE) if name in wanted]
    wanted |= {name: _NEAREST.get((name, published), published) for name in staged}
    wanted["k8s.io/kubernetes"] = f"v{release}"
    head = re.findall(r"^(?:go|godebug) \S+$", theirs, re.MULTILINE)
    return "\n".join(
        [
            "module gpu-scheduler.io/controlplane\n",
            *(f"{line}\n" for line in head),
            "require (",
            *(f"\t{name} {version}" for name, version in sorted(wanted.items())),
            ")\n\nreplace (",
            *(f"\t{name} => {name} {version}" for name, version in wanted.items() if name in staged),
            ")\n",
        ]
    )


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"1\.\d+\.\d+\S*", sys.argv[1]):
        sys.exit("usage: python -m tests.kubernetes.modules RELEASE, for example 1.37.0")
    write_modules(sys.argv[1])
