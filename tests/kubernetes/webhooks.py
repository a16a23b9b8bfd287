"""Webhooks of a real API server: ours as a process, and one that changes pods after ours."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from gpu_scheduler.base import certificates
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.rotation import make_pair
from tests.kubernetes.api import Api
from tests.kubernetes.combinations import SYSTEM
from tests.tls_server import serving

PROGRAM = (sys.executable, "-m", "gpu_scheduler.cli.main")
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Webhook:
    """`gpu-scheduler webhook` outside the cluster. `log` is its output."""

    def __init__(self, kubeconfig: Path, port: int) -> None:
        self._command = [*PROGRAM, "webhook", "--kubeconfig", str(kubeconfig)]
        self._command += ["--namespace", SYSTEM, "--listen", f"127.0.0.1:{port}", "--dns-name", "127.0.0.1"]
        self._command += ["--linger", "0"]
        self.log = kubeconfig.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process without waiting for it."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        """Ends the process as a kubelet does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None


@asynccontextmanager
async def late_scheduler(api: Api, namespace: str, scheduler: str) -> AsyncIterator[None]:
    """Within the block, pods of a namespace with the label late=yes get a scheduler, after all other webhooks."""
    made = make_pair(("127.0.0.1",), 86_400.0)

    async def rename(request: web.Request) -> web.Response:
        asked = (await request.json())["request"]
        patch = [{"op": "replace", "path": "/spec/schedulerName", "value": scheduler}]
        response = {"uid": asked["uid"], "allowed": True, "patchType": "JSONPatch"}
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})

    app = web.Application()
    app.router.add_post("/", rename)
    async with serving(app, certificates.server_context(made.pair)) as port:
        await api.must("POST", _CONFIGURATIONS, _late_configuration(namespace, port, made.authority))
        try:
            yield
        finally:
            await api.must("DELETE", f"{_CONFIGURATIONS}/zz-late")


def _late_configuration(namespace: str, port: int, authority: bytes) -> Json:
    client = {"url": f"https://127.0.0.1:{port}/", "caBundle": base64.b64encode(authority).decode()}
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    hook = {
        "name": "late.example.com",
        "clientConfig": client,
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchLabels": {"late": "yes"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": "zz-late"}, "webhooks": [hook]}
