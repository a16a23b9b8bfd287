"""`webhook`: answers the API server's questions about pods until it is told to stop."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_scheduler.cli.certs import dns_name_option
from gpu_scheduler.cli.cluster_options import ClusterTarget, InvalidInputError, cluster_options
from gpu_scheduler.cli.scheduler import begin_service, run_loop
from gpu_scheduler.gangs.contract import WEBHOOK_SECRET
from gpu_scheduler.webhook.policy import Denial

if TYPE_CHECKING:
    from gpu_scheduler.k8s.connection import Connection
    from gpu_scheduler.scheduler.settings import Settings
    from gpu_scheduler.webhook.policy import AdmissionPolicy
    from gpu_scheduler.webhook.service import WebhookOptions


EXAMPLES = """
\b
Examples:
  gpu-scheduler webhook                             makes its own certificate and renews it, in a secret
  gpu-scheduler webhook --tls-dir /etc/webhook      tls.crt and tls.key of a folder, loaded again when they change
  gpu-scheduler webhook --deny privileged           refuse privileged pods, instead of a warning
  gpu-scheduler webhook --no-inject                 set CUDA_VISIBLE_DEVICES only where a map says so
\b
Signals:
  SIGTERM, SIGINT   say that it is not ready, answer for a moment longer, then stop
"""


@click.command(epilog=EXAMPLES)
@cluster_options
@click.option("--namespace", metavar="NAME", help="Where the webhook's Service and secret are.")
@click.option("--listen", metavar="HOST:PORT", default=":8443", show_default=True, help="Where reviews are answered.")
@click.option("--no-inject", is_flag=True, help="Leave pods alone that ask for GPUs without a map.")
@click.option("--deny", multiple=True, type=click.Choice([one.value for one in Denial]),
              help="Refuse such pods; may be repeated.")  # fmt: skip
@click.option("--scheduler-account", metavar="NAME", help="The one user who may write reserved annotations.")
@click.option(
    "--tls-dir", metavar="DIR", type=click.Path(path_type=Path), help="Where tls.crt and tls.key are, kept by others."
)
@click.option(
    "--tls-secret", metavar="NAME", help=f"The secret in which it keeps its own.  [default: {WEBHOOK_SECRET}]"
)
@click.option("--configuration", metavar="NAME", help="The webhook configurations that must trust its own certificate.")
@dns_name_option
@click.option("--linger", type=click.FloatRange(0, 600), default=2.0, show_default=True, metavar="SECONDS",
              help="How long to go on after a signal.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["console", "json"]), help="For people or for programs.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much to say.")
def webhook(target: ClusterTarget, **flags: Any) -> None:
    """Run the admission webhook: tells containers their GPUs, and refuses what makes no sense."""
    for flag in ("tls_secret", "configuration", "dns_names"):
        if flags["tls_dir"] is not None and flags[flag]:
            name = "--" + flag.removesuffix("s").replace("_", "-")
            raise InvalidInputError(f"{name}: is about a certificate of its own; leave it out, or leave out --tls-dir")
    settings = target.settings(namespace=flags["namespace"], logFormat=flags["log_format"], logLevel=flags["log_level"])
    connection = target.connect()
    from gpu_scheduler.k8s.errors import ConfigError

    try:
        run_loop(_run_until_signalled(connection, settings, make_options(settings, flags)))
    except ConfigError as error:
        raise InvalidInputError(str(error)) from error


def make_options(settings: Settings, flags: dict[str, Any]) -> WebhookOptions:
    """How the webhook is set up by its settings and flags."""
    from gpu_scheduler.webhook.renewal import CertificateLocation
    from gpu_scheduler.webhook.rotation import RotationPolicy, service_names
    from gpu_scheduler.webhook.service import WebhookOptions

    given = {"secret": flags["tls_secret"], "configuration": flags["configuration"]}
    names = (*service_names(settings.namespace), *flags["dns_names"])
    return WebhookOptions(
        _make_rules(settings, flags),
        RotationPolicy(names, settings.certificate_lifetime, settings.certificate_grace),
        CertificateLocation(settings.namespace, **{name: value for name, value in given.items() if value}),
        flags["tls_dir"],
        flags["listen"],
        flags["linger"],
    )


def _make_rules(settings: Settings, flags: dict[str, Any]) -> AdmissionPolicy:
    from gpu_scheduler.webhook.policy import AdmissionPolicy

    account = flags["scheduler_account"]
    return AdmissionPolicy(
        frozenset(settings.scheduler_names),
        settings.gpu_resources,
        inject=not flags["no_inject"],
        deny=frozenset(map(Denial, flags["deny"])),
        scheduler_account=account or f"system:serviceaccount:{settings.namespace}:gpu-scheduler",
    )


async def _run_until_signalled(connection: Connection, settings: Settings, options: WebhookOptions) -> None:
    from gpu_scheduler.webhook.service import run_webhook

    stop = begin_service(settings)
    gc.freeze()  # what is loaded stays: no review has to wait until all of it has been looked through
    await run_webhook(connection, options, stop)
