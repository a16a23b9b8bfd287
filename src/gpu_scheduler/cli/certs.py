"""`certs`: creates certificates for the webhook as files, for users who manage its secret themselves."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_scheduler.cli.cluster_options import InvalidInputError
from gpu_scheduler.gangs.contract import SYSTEM, WEBHOOK, WEBHOOK_SECRET

if TYPE_CHECKING:
    from gpu_scheduler.webhook.rotation import SignedPair

MANIFEST = "webhook-tls-secret.yaml"
FILES = ("ca.crt", "tls.crt", "tls.key", MANIFEST)

EXAMPLES = """
\b
Examples:
  gpu-scheduler certs                      certificates for a year, in the folder certs
  gpu-scheduler certs --days 30 --force    replace them
  gpu-scheduler certs --dns-name 10.0.0.7  also for a webhook outside the cluster

You do not need this command when the webhook renews its own certificate, or with cert-manager.
"""


def dns_name_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--dns-name`, for commands that issue certificates."""

    def check(_context: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9.:-]{1,253}", name):
                raise InvalidInputError(
                    f'--dns-name: "{name}" must be a name or an address, such as webhook.example.com'
                )
        return names

    text = "Additional name or address of the webhook; may be repeated."
    return click.option("--dns-name", "dns_names", multiple=True, metavar="NAME", callback=check, help=text)(command)


@click.command(epilog=EXAMPLES)
@click.option("--dir", "folder", metavar="DIR", default="certs", show_default=True, type=click.Path(path_type=Path),
              help="Folder for the files.")  # fmt: skip
@click.option("--namespace", metavar="NAME", default=SYSTEM, show_default=True, help="Namespace of the Service.")
@click.option("--service", metavar="NAME", default=WEBHOOK, show_default=True, help="Name of the Service.")
@click.option("--secret", metavar="NAME", default=WEBHOOK_SECRET, show_default=True, help="Name of the secret.")
@dns_name_option
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Validity in days.")
@click.option("--force", is_flag=True, help="Replace existing files.")
def certs(folder: Path, namespace: str, service: str, secret: str, days: int, force: bool, **more: Any) -> None:
    """Create certificates for the webhook as files and as a secret to apply."""
    from gpu_scheduler.webhook.rotation import make_pair, service_names

    for flag, name in (("--namespace", namespace), ("--service", service), ("--secret", secret)):
        _check_name(flag, name)
    existing = [name for name in FILES if (folder / name).exists()]
    if existing and not force:
        raise InvalidInputError(
            f"--dir: {folder} already has {existing[0]}; replace it with --force, or choose another --dir"
        )
    pair = make_pair((*service_names(namespace, service), *more["dns_names"]), days * 86_400.0)
    try:
        _write(folder, pair, namespace, secret)
    except OSError as error:
        raise InvalidInputError(f"--dir: {folder} cannot be written: {error.strerror}") from error
    authority = shlex.quote(str(folder / "ca.crt"))
    print(f"Wrote {', '.join(FILES)} to {folder}; valid for {days} days. The authority's key is not kept.")
    print("\nNext:")
    print(f"  kubectl create namespace {namespace}")
    print(f"  kubectl apply -f {shlex.quote(str(folder / MANIFEST))}")
    print(f"  helm install gpu-scheduler charts/gpu-scheduler --namespace {namespace} \\")
    print(f'    --set webhook.caBundle="$(base64 -w0 < {authority})"')


def _check_name(flag: str, name: str) -> None:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise InvalidInputError(
            f'{flag}: "{name}" must consist of lower-case letters, digits and dashes, such as {SYSTEM}'
        )


def _write(folder: Path, pair: SignedPair, namespace: str, secret: str) -> None:
    import base64

    import yaml

    from gpu_scheduler.base.certificates import write_private

    data = {"ca.crt": pair.authority, "tls.crt": pair.pair.certificate, "tls.key": pair.pair.key}
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": secret, "namespace": namespace},
        "data": {name: base64.b64encode(content).decode() for name, content in data.items()},
    }
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in data.items():
        write_private(folder / name, content)
    write_private(folder / MANIFEST, yaml.safe_dump(manifest, sort_keys=False).encode())
