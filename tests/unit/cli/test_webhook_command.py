"""`gpu-scheduler webhook`: its flags, and one line for invalid ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_scheduler.cli.main import cli
from gpu_scheduler.cli.webhook import make_options
from gpu_scheduler.gangs.contract import SYSTEM, WEBHOOK, WEBHOOK_SECRET
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.webhook.denials import Denial
from gpu_scheduler.webhook.renewal import CertificateLocation

NONE: dict[str, Any] = {
    "tls_dir": None,
    "tls_secret": None,
    "configuration": None,
    "dns_names": (),
    "listen": ":8443",
    "linger": 2.0,
    "no_inject": False,
    "deny": (),
    "scheduler_account": None,
}


def test_the_defaults_follow_the_contract() -> None:
    found = make_options(Settings(), NONE)
    assert (found.listen, found.folder, found.location) == (
        ":8443",
        None,
        CertificateLocation(SYSTEM, WEBHOOK_SECRET, WEBHOOK),
    )
    assert found.rotation.names[0] == "gpu-scheduler-webhook.gpu-scheduler-system.svc"
    assert (found.rotation.lifetime, found.rotation.grace) == (365 * 86_400, 30)
    assert found.admission.scheduler_account == "system:serviceaccount:gpu-scheduler-system:gpu-scheduler"
    assert (found.admission.inject, found.admission.deny) == (True, frozenset())


def test_flags_and_settings_are_passed_on() -> None:
    settings = Settings(namespace="gpus", scheduler_names=("a", "b"), certificate_lifetime=60.0, certificate_grace=1.0)
    flags = NONE | {"tls_secret": "s", "configuration": "c", "dns_names": ("127.0.0.1",), "no_inject": True}
    found = make_options(settings, flags | {"deny": ("privileged",), "scheduler_account": "bob"})
    assert found.location == CertificateLocation("gpus", "s", "c")
    assert (found.rotation.names[0], found.rotation.names[-1]) == ("gpu-scheduler-webhook.gpus.svc", "127.0.0.1")
    assert (found.rotation.lifetime, found.rotation.grace) == (60, 1)
    rules = found.admission
    assert (rules.scheduler_names, rules.inject, rules.scheduler_account) == (frozenset("ab"), False, "bob")
    assert rules.deny == {Denial.PRIVILEGED}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-dir", "x", "--tls-secret", "y"], "--tls-secret: does not apply with --tls-dir"),
        (["--tls-dir", "x", "--configuration", "y"], "--configuration: does not apply with --tls-dir"),
        (["--tls-dir", "x", "--dns-name", "y"], "--dns-name: does not apply with --tls-dir"),
        (["--deny", "everything"], "'everything' is not one of"),
        (["--namespace", "Not A Name"], "namespace"),
        (["--linger", "-1"], "--linger"),
    ],
    ids=["secret", "configuration", "names", "denial", "namespace", "linger"],
)
def test_invalid_flags_are_one_line(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, ["webhook", *arguments])
    assert done.exit_code == 2
    assert words in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-dir", "{folder}"], "{folder}/tls.crt: cannot be read: No such file or directory"),
        (["--listen", "nowhere"], 'address "nowhere" must be a port with or without a host'),
    ],
    ids=["no certificate", "address"],
)
def test_a_webhook_that_cannot_start_is_one_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: x, user: {}}], "
        "contexts: [{name: x, context: {cluster: x, user: x}}], current-context: x}"
    )
    filled = [argument.format(folder=tmp_path) for argument in arguments]
    command = [sys.executable, "-m", "gpu_scheduler.cli.main", "webhook", "--kubeconfig", str(kubeconfig), *filled]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("gpu-scheduler: " + words.format(folder=tmp_path))
    assert "Traceback" not in done.stderr
