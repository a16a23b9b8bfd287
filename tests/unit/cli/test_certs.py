"""`gpu-scheduler certs`: the files, the secret, and no key of the authority."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpu_scheduler.base.certificates import Certificate, check_pair, find_issuer, read_names, read_period
from gpu_scheduler.cli.main import cli

NAMES = ["ca.crt", "tls.crt", "tls.key", "webhook-tls-secret.yaml"]


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["certs", *arguments])
    return done.exit_code, done.output


def test_the_files_match_and_only_their_owner_may_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    assert run("--dir", str(folder))[0] == 0
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in NAMES} == {0o600}
    found = {name: (folder / name).read_bytes() for name in NAMES}
    assert check_pair(Certificate(found["tls.crt"], found["tls.key"])) == ""
    assert find_issuer(found["tls.crt"], [found["ca.crt"]]) == found["ca.crt"]
    assert "gpu-scheduler-webhook.gpu-scheduler-system.svc" in read_names(found["tls.crt"])
    assert read_period(found["tls.crt"]).ends == pytest.approx(time.time() + 365 * 86_400, abs=120)
    assert sum(text.count(b"PRIVATE KEY") for text in found.values()) == 2, "one key, in one file: begin and end"


def test_the_secret_has_the_content_of_the_files(tmp_path: Path) -> None:
    assert run("--dir", str(tmp_path))[0] == 0
    secret = yaml.safe_load((tmp_path / "webhook-tls-secret.yaml").read_text())
    assert (secret["kind"], secret["type"]) == ("Secret", "kubernetes.io/tls")
    assert secret["metadata"] == {"name": "gpu-scheduler-webhook-tls", "namespace": "gpu-scheduler-system"}
    assert {name: base64.b64decode(text) for name, text in secret["data"].items()} == {
        name: (tmp_path / name).read_bytes() for name in NAMES[:3]
    }


def test_names_and_days_are_as_given(tmp_path: Path) -> None:
    flags = ["--namespace", "gpus", "--service", "hook", "--secret", "hook-tls", "--days", "30"]
    assert run("--dir", str(tmp_path), *flags)[0] == 0
    pem = (tmp_path / "tls.crt").read_bytes()
    assert read_names(pem) == {"hook.gpus.svc", "hook.gpus.svc.cluster.local", "hook.gpus", "hook"}
    assert read_period(pem).ends == pytest.approx(time.time() + 30 * 86_400, abs=120)
    secret = yaml.safe_load((tmp_path / "webhook-tls-secret.yaml").read_text())
    assert secret["metadata"] == {"name": "hook-tls", "namespace": "gpus"}


def test_existing_files_are_replaced_only_with_force(tmp_path: Path) -> None:
    run("--dir", str(tmp_path))
    before = (tmp_path / "tls.crt").read_bytes()
    code, said = run("--dir", str(tmp_path))
    assert code == 2
    assert f"--dir: {tmp_path} already has ca.crt; replace it with --force, or choose another --dir" in said
    assert (tmp_path / "tls.crt").read_bytes() == before
    assert run("--dir", str(tmp_path), "--force")[0] == 0
    assert (tmp_path / "tls.crt").read_bytes() != before


def test_the_next_steps_are_printed(tmp_path: Path) -> None:
    said = run("--dir", str(tmp_path))[1]
    assert f"kubectl apply -f {tmp_path}/webhook-tls-secret.yaml" in said
    assert f'--set webhook.caBundle="$(base64 -w0 < {tmp_path}/ca.crt)"' in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--days", "0"], "0 is not in the range"),
        (["--namespace", "Not A Name"], '--namespace: "Not A Name" must consist of'),
        (["--service", ""], '--service: "" must consist of'),
        (["--dir", "/proc/nowhere"], "--dir: /proc/nowhere cannot be written"),
    ],
    ids=["days", "namespace", "service", "folder"],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    code, said = run("--dir", str(tmp_path), *arguments)
    assert code == 2
    assert words in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_the_script_is_the_same_command(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "scripts" / "generate-webhook-certs.sh"
    shown = script.read_text()
    assert os.access(script, os.X_OK)
    assert "gpu-scheduler certs" in shown
    place = tmp_path / "bin"
    place.mkdir()
    (place / "gpu-scheduler").write_text('#!/bin/sh\necho "$@"\n')
    (place / "gpu-scheduler").chmod(0o755)
    environment = {"PATH": f"{place}:{os.environ['PATH']}"}
    command = [str(script), "--days", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "certs --days 3\n"


def test_additional_names_are_in_the_certificate(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["certs", "--dir", str(tmp_path / "new"), "--dns-name", "10.0.0.7"])
    assert done.exit_code == 0, done.output
    assert "10.0.0.7" in read_names((tmp_path / "new" / "tls.crt").read_bytes())


def test_an_invalid_name_is_refused_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["certs", "--dir", str(tmp_path / "new"), "--dns-name", "no name"])
    assert done.exit_code == 2
    assert '--dns-name: "no name" must be a name or an address' in done.output
