"""`webhook`: runs the admission webhook until a signal stops it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_scheduler.cli.certs import dns_name_option
from gpu_scheduler.cli.cluster_options import ClusterTarget, InvalidInputError, cluster_options
from gpu_scheduler.cli.scheduler import begin_service, run_loop
from gpu_scheduler.gangs.contract import WEBHOOK_SECRET
from gpu_scheduler.webhook.denials import Denial

if TYPE_CHECKING:
    from gpu_scheduler.k8s.connection import Connection
    from gpu_scheduler.scheduler.settings import Settings
    from gpu_scheduler.webhook.policy import AdmissionPolicy
    from gpu_scheduler.webhook.service import WebhookOptions


EXAMPLES = """
\b
Examples:
  gpu-scheduler webhook                         issue and renew its own certificate, in a secret
  gpu-scheduler webhook --tls-dir /etc/webhook  tls.crt and tls.key of a folder, reloaded on change
  gpu-scheduler webhook --deny privileged       refuse privileged pods instead of warning
  gpu-scheduler webhook --no-inject             set CUDA_VISIBLE_DEVICES only in pods with a map
\b
Signals:
  SIGTERM, SIGINT   report not ready, keep answering for --linger seconds, then stop
"""


@click.command(epilog=EXAMPLES)
@cluster_options
@click.option("--namespace", metavar="NAME", help="Namespace of the webhook's Service and secret.")
@click.option("--listen", metavar="HOST:PORT", default=":8443", show_default=True, help="Address for reviews.")
@click.option("--no-inject", is_flag=True, help="Do not change pods that request GPUs without a map.")
@click.option("--deny", multiple=True, type=click.Choice([one.value for one in Denial]),
              help="Refuse such pods instead of warning; may be repeated.")  # fmt: skip
@click.option("--scheduler-account", metavar="NAME", help="Only user that may write reserved annotations.")
@click.option(
    "--tls-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder with tls.crt and tls.key.",
)
@click.option("--tls-secret", metavar="NAME", help=f"Secret for its own certificate.  [default: {WEBHOOK_SECRET}]")
@click.option("--configuration", metavar="NAME", help="Webhook configurations that must trust its own certificate.")
@dns_name_option
@click.option("--linger", type=click.FloatRange(0, 600), default=2.0, show_default=True, metavar="SECONDS",
              help="Time to keep answering after a signal.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["console", "json"]), help="Log format.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Log level.")
def webhook(target: ClusterTarget, **flags: Any) -> None:
    """Run the admission webhook: it sets CUDA_VISIBLE_DEVICES and refuses invalid pods, jobs and gangs."""
    for flag in ("tls_secret", "configuration", "dns_names"):
        if flags["tls_dir"] is not None and flags[flag]:
            name = "--" + flag.removesuffix("s").replace("_", "-")
            raise InvalidInputError(f"{name}: does not apply with --tls-dir; leave out one of them")
    settings = target.settings(namespace=flags["namespace"], logFormat=flags["log_format"], logLevel=flags["log_level"])
    connection = target.connect()
    from gpu_scheduler.k8s.errors import ConfigError

    try:
        run_loop(_run_until_signalled(connection, settings, make_options(settings, flags)))
    except ConfigError as error:
        raise InvalidInputError(str(error)) from error


def make_options(settings: Settings, flags: dict[str, Any]) -> WebhookOptions:
    """The options of the webhook, from settings and flags."""
    from gpu_scheduler.webhook.renewal import CertificateLocation
    from gpu_scheduler.webhook.rotation import RotationPolicy, service_names
    from gpu_scheduler.webhook.service import WebhookOptions

    given = {"secret": flags["tls_secret"], "configuration": flags["configuration"]}
    names = (*service_names(settings.namespace), *flags["dns_names"])
    return WebhookOptions(
        _make_policy(settings, flags),
        RotationPolicy(names, settings.certificate_lifetime, settings.certificate_grace),
        CertificateLocation(settings.namespace, **{name: value for name, value in given.items() if value}),
        flags["tls_dir"],
        flags["listen"],
        flags["linger"],
    )


def _make_policy(settings: Settings, flags: dict[str, Any]) -> AdmissionPolicy:
    from gpu_scheduler.webhook.policy import AdmissionPolicy

    account = flags["scheduler_account"]
    return AdmissionPolicy(
        frozenset(settings.scheduler_names),
        settings.gpu_resources,
        inject=not flags["no_inject"],
        deny=frozenset(map(Denial, flags["deny"])),
        scheduler_account=account or f"system:serviceaccount:{settings.namespace}:gpu-scheduler",
        ceilings=settings.ceilings,
    )


async def _run_until_signalled(connection: Connection, settings: Settings, options: WebhookOptions) -> None:
    from gpu_scheduler.webhook.service import run_webhook

    stop = begin_service(settings)
    gc.freeze()  # so that no collection during a review scans the loaded modules
    await run_webhook(connection, options, stop)
