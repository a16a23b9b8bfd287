"""Our charts, and the Helm that installs them, built once from its Go module."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import yaml

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.binaries import BuildError, cache, go_build, only_one

CHARTS = Path(__file__).parents[2] / "charts"
SOURCE = Path(__file__).parent / "helm"


def helm() -> Path:
    """The path of Helm; builds it if it is missing."""
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
    """Helm failed; the message is its output."""


def run_helm(*arguments: str | Path, values: Json | None = None, kubeconfig: Path | None = None) -> str:
    """Runs Helm and returns its output. `values` override those of the chart; without a kubeconfig no cluster is
    needed."""
    command = [str(helm()), *map(str, arguments)]
    if values is not None:
        command += ["--values", "-"]
    settings = {**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull), "HELM_PLUGINS": os.devnull}
    text = json.dumps(values or {})
    done = subprocess.run(command, input=text, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr + done.stdout)
    return done.stdout


def render(chart: str, namespace: str, values: Json | None = None) -> list[Json]:
    """Every object of a chart on the oldest supported Kubernetes, without definitions and tests."""
    arguments = ("template", chart, str(CHARTS / chart), "--namespace", namespace, "--skip-tests")
    output = run_helm(*arguments, "--kube-version=1.30.0", values=values or {})
    return [found for found in yaml.safe_load_all(output) if found]
