"""Our charts and the Helm that installs them, built from its Go module once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import yaml

from tests.kubernetes.api import Json
from tests.kubernetes.binaries import BuildError, cache, go_build, only_one

CHARTS = Path(__file__).parents[2] / "charts"
SOURCE = Path(__file__).parent / "helm"


def helm() -> Path:
    """The program; it is built if it is not there yet."""
    modules = SOURCE / "go.mod"
    found = re.search(r"^\thelm\.sh/helm/v3 v(\S+)", modules.read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{modules}: it requires no helm.sh/helm/v3")
    sources = modules.read_bytes() + (SOURCE / "go.sum").read_bytes()
    program = cache().parent / "helm" / found[1] / hashlib.sha256(sources).hexdigest()[:12] / "helm"
    if not program.exists():
        with only_one(program.parent):
            if not program.exists():
                flags = f"-s -w -X helm.sh/helm/v3/internal/version.version=v{found[1]}"
                go_build(
                    f"Helm {found[1]}", modules, program, ["-ldflags", flags, "helm.sh/helm/v3/cmd/helm"], "2 to 5"
                )
    return program


class HelmError(Exception):
    """Helm said no; the message is what it printed."""


def run_helm(*arguments: str | Path, values: Json | None = None, kubeconfig: Path | None = None) -> str:
    """What Helm prints. `values` are on top of the chart's own; without a kubeconfig it must not need a cluster."""
    command = [str(helm()), *map(str, arguments)]
    if values is not None:
        command += ["--values", "-"]
    settings = {**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull), "HELM_PLUGINS": os.devnull}
    told = json.dumps(values or {})
    done = subprocess.run(command, input=told, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr + done.stdout)
    return done.stdout


def render(chart: str, namespace: str, values: Json | None = None) -> list[Json]:
    """Every object of a chart on the oldest Kubernetes that it is for, without its definitions and tests."""
    told = ["template", chart, str(CHARTS / chart), "--namespace", namespace, "--skip-tests", "--kube-version=1.30.0"]
    return [found for found in yaml.safe_load_all(run_helm(*told, values=values or {})) if found]
