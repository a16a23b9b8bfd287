"""A webhook that renews its own certificate while an API server keeps calling it."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from gpu_scheduler.base.certificates import split_bundle
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.configuration import make_configurations
from gpu_scheduler.webhook.policy import AdmissionPolicy
from tests.integration.live import SYSTEM, free_port
from tests.integration.running import PROGRAM, TIMEOUT, Cluster, Http, eventually
from tests.permissions import webhook_permissions

SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/gpu-scheduler-webhook-tls"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
MAP = "0=node1:0,1\n1=node2:2"
RATE = 200
THREADS = 8


class Webhook:
    """A `gpu-scheduler webhook` process that renews its certificate in a secret of the cluster."""

    def __init__(self, kubeconfig: Path, config: Path, port: int) -> None:
        flags = ["--kubeconfig", str(kubeconfig), "--config", str(config), "--listen", f"127.0.0.1:{port}"]
        self._command = [*PROGRAM, "webhook", *flags, "--dns-name", "127.0.0.1", "--linger", "0"]
        self.log = config.with_name(f"webhook-{port}.log")
        self.port = port

    def start(self) -> None:
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, text=True)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, f"the webhook ended: {self.log.read_text()}"
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        try:
            with urlopen(f"https://127.0.0.1:{self.port}/readyz", timeout=5, context=unverified) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def shown(self) -> str:
        """The certificate that it presents."""
        return ssl.get_server_certificate(("127.0.0.1", self.port))

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(TIMEOUT)


@contextmanager
def admitting(cluster: Cluster, faults: list[str], done: list[float]) -> Iterator[None]:
    """Within the block, creates pods by dry run, some hundreds a second."""
    over = threading.Event()

    def ask(number: int) -> None:
        server = Http(cluster.folder)
        body = pod("webhook-test-0")
        due = time.monotonic() + number / RATE
        while not over.wait(max(0.0, due - time.monotonic())):
            due += THREADS / RATE
            try:
                status, answer = server.ask("POST", "/api/v1/namespaces/default/pods?dryRun=All", body)
            except (OSError, http.client.HTTPException) as error:
                status, answer = 0, {"text": str(error)}
            seen = answer.get("spec", {}).get("containers", [{}])[0].get("env")
            if status != 201 or seen != [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}]:
                faults.append(f"{status}: {answer}")
            done.append(time.monotonic())
        server.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(TIMEOUT)


def pod(name: str) -> Json:
    spec = {"schedulerName": "gpu-scheduler", "containers": [{"name": "main", "image": "any"}]}
    meta = {"name": name, "annotations": {"gpu-scheduling-map": MAP}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def install(server: Http, port: int) -> None:
    """What a chart installs: a namespace, an empty secret, and configurations without a CA bundle."""
    server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    place, _, name = SECRET.rpartition("/")
    assert server.ask("POST", place, {"metadata": {"name": name}})[0] == 201
    rules = AdmissionPolicy(frozenset({"gpu-scheduler"}), ("nvidia.com/gpu",))
    client = {"url": f"https://127.0.0.1:{port}"}
    for found in make_configurations(client, rules, system_namespace=SYSTEM, guard=True):
        for hook in found["webhooks"]:
            hook["timeoutSeconds"] = 30  # on a busy machine the webhook may need longer than users would wait
        plural = found["kind"].lower() + "s"
        status, answer = server.ask("POST", f"{HOOKS}/{plural}", found)
        assert status == 201, answer


def make_account(server: Http, cluster: Cluster, folder: Path) -> Path:
    """A kubeconfig for the webhook: where there are accounts, one with exactly the permissions that it needs."""
    name, place = "webhook-only", "/apis/rbac.authorization.k8s.io/v1"
    for kind, where in (("Role", f"{place}/namespaces/{SYSTEM}"), ("ClusterRole", place)):
        rules = [
            {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
            | ({"resourceNames": [one.name]} if one.name else {})
            for one in webhook_permissions(SYSTEM)
            if bool(one.namespace) == (kind == "Role")
        ]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}
        for plural, body in (("s", {"rules": rules}), ("bindings", {"roleRef": role, "subjects": [subject]})):
            status, answer = server.ask("POST", f"{where}/{kind.lower()}{plural}", {"metadata": {"name": name}, **body})
            assert status == 201, answer
    accounts = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts"
    assert server.ask("POST", accounts, {"metadata": {"name": name}})[0] == 201
    status, answer = server.ask("POST", f"{accounts}/{name}/token", {"spec": {}})
    assert status == 201, answer
    config = yaml.safe_load((cluster.folder / "kubeconfig").read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    path = folder / "webhook.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def data(server: Http) -> dict[str, bytes]:
    found = server.ask("GET", SECRET)[1].get("data") or {}
    return {name: base64.b64decode(text) for name, text in found.items()}


def is_renewed(server: Http, old: bytes) -> bool:
    """Whether another pair is served, and its authority is the only trusted one."""
    found = data(server)
    if "next.crt" in found or found.get("tls.crt", old) == old or len(split_bundle(found["ca.crt"])) != 1:
        return False
    paths = [f"{HOOKS}/{kind}/gpu-scheduler-webhook" for kind in KINDS]
    clients = [hook["clientConfig"] for path in paths for hook in server.ask("GET", path)[1]["webhooks"]]
    return all(base64.b64decode(client["caBundle"]) == found["ca.crt"] for client in clients)


@pytest.fixture
def served(own: Callable[..., Cluster], tmp_path: Path) -> Iterator[tuple[Cluster, list[Webhook]]]:
    """A cluster whose pods pass a webhook with two replicas: one is called, both maintain the secret."""
    cluster = own("--runtime", "simulated", "--nodes", "1")
    cluster.start()
    config = tmp_path / "config.yaml"
    # The API server must see a new authority within the grace period, also on a busy machine.
    config.write_text("certificateGraceSeconds: 5\ncertificateLifetimeSeconds: 86400\n")
    server = Http(cluster.folder)
    port = free_port()
    install(server, port)
    kubeconfig = make_account(server, cluster, tmp_path)
    replicas = [Webhook(kubeconfig, config, number) for number in (port, free_port())]
    for replica in replicas:
        replica.start()
    for replica in replicas:
        eventually(replica.is_ready, "the webhook to be ready")
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    eventually(lambda: server.ask("GET", account)[0] == 200, "the account without which there are no pods")
    server.close()
    yield cluster, replicas
    for replica in replicas:
        assert replica.stop() == 0, replica.log.read_text()


def test_the_authority_is_replaced_while_every_admission_succeeds(
    served: tuple[Cluster, list[Webhook]],
) -> None:
    cluster, replicas = served
    server = Http(cluster.folder)
    before = data(server)["tls.crt"]
    faults: list[str] = []
    done: list[float] = []
    with admitting(cluster, faults, done):
        eventually(lambda: len(done) > RATE, "admissions to be under way")
        # Emptying the secret requests a new certificate.
        empty = {"data": dict.fromkeys(data(server))}
        status, answer = server.ask("PATCH", SECRET, empty, content_type="application/merge-patch+json")
        assert status == 200, answer
        eventually(lambda: is_renewed(server, before), "the renewal to end")
        renewed = len(done)
        eventually(lambda: len(done) > renewed + RATE, "admissions with the new one alone")
    assert faults == [], f"{len(faults)} of {len(done)} failed, the first one with {faults[0]}"
    now = data(server)["tls.crt"]
    server.close()
    assert now != before
    for replica in replicas:
        assert replica.shown().split() == now.decode().split()
        assert not re.search("Traceback|forbidden", replica.log.read_text()), replica.log.read_text()
    line = " - root - INFO - Injecting CUDA_VISIBLE_DEVICES=0,1 for pod webhook-test-0 (index 0)\n"
    assert replicas[0].log.read_text().count(line) > RATE
