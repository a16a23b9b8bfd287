"""`operator`: runs the job operator until a signal stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpu_scheduler.cli.cluster_options import ClusterTarget, InvalidInputError, connection_options
from gpu_scheduler.cli.scheduler import begin_service, run_loop

if TYPE_CHECKING:
    from gpu_scheduler.k8s.connection import Connection
    from gpu_scheduler.operator.operator import OperatorOptions
    from gpu_scheduler.scheduler.settings import Settings

GANGS = ("gpu-scheduler", "volcano", "scheduler-plugins", "none")
NO_GANGS = "none"

EXAMPLES = """
\b
Examples:
  gpu-scheduler operator                                gangs for gpu-scheduler, in all namespaces
  gpu-scheduler operator --gang-scheduler-name=volcano  PodGroups and pods that name Volcano
  gpu-scheduler operator --gang-scheduler-name=none     no gangs: pods are created at once
  gpu-scheduler operator --watch-namespace team-a       jobs of one namespace
  gpu-scheduler operator --install-crds                 install the CRDs of jobs that are missing
\b
Signals:
  SIGTERM, SIGINT   release the Lease and stop; jobs keep running, and the next operator takes over
"""


@click.command(epilog=EXAMPLES)
@connection_options
@click.option(
    "--gang-scheduler-name", type=click.Choice(GANGS), help="Scheduler of the gangs.  [default: gpu-scheduler]"
)
@click.option("--enable-gang-scheduling", is_flag=False, flag_value="true", type=bool,
              help="Old form of --gang-scheduler-name=volcano; false means none.")  # fmt: skip
@click.option("--watch-namespace", "namespaces", multiple=True, metavar="NAME",
              help="Namespace to watch for jobs; default: all; may be repeated.")  # fmt: skip
@click.option("--namespace", metavar="NAME", help="Namespace of the Lease.")
@click.option(
    "--leader-elect/--no-leader-elect", default=True, show_default=True, help="Elect a leader among several replicas."
)
@click.option(
    "--lease-duration",
    type=float,
    metavar="SECONDS",
    help="Lifetime of the Lease without renewal.",
)
@click.option("--identity", metavar="NAME", help="Identity of this candidate in the Lease.")
@click.option("--install-crds", is_flag=True, help="Install the CRDs of jobs that are missing.")
@click.option("--listen", metavar="HOST:PORT", help="Address for health and metrics.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="Log format.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Log level.")
def operator(kubeconfig: Any, context: str | None, **flags: Any) -> None:
    """Run the operator: it creates the pods of PyTorchJobs, TFJobs and Volcano Jobs as gangs."""
    chosen = choose_gangs(flags["gang_scheduler_name"], flags["enable_gang_scheduling"])
    target = ClusterTarget(kubeconfig, context, None, ())
    keys = {"namespace": "namespace", "lease_duration": "leaseDurationSeconds", "identity": "identity"}
    keys |= {"listen": "listenAddress", "log_format": "logFormat", "log_level": "logLevel"}
    settings = target.settings(**{key: flags[name] for name, key in keys.items()})
    options = make_options(settings, chosen, flags)
    connection = target.connect()
    from gpu_scheduler.k8s.errors import ConfigError

    try:
        run_loop(_run_until_signalled(connection, settings, options))
    except ConfigError as error:
        raise InvalidInputError(str(error)) from error


def choose_gangs(name: str | None, enabled: bool | None) -> str:
    """The scheduler of the gangs, from the two flags that select it."""
    if name is not None and enabled is not None:
        raise InvalidInputError("--enable-gang-scheduling: conflicts with --gang-scheduler-name; leave it out")
    if enabled is not None:
        return "volcano" if enabled else NO_GANGS
    return name or GANGS[0]


def make_options(settings: Settings, gangs: str, flags: dict[str, Any]) -> OperatorOptions:
    """The options of the operator, from settings, flags and the scheduler of the gangs."""
    from gpu_scheduler.k8s.leader_election import Candidate
    from gpu_scheduler.operator.operator import LEASE, OperatorOptions
    from gpu_scheduler.operator.pod_groups import POD_GROUP_APIS

    candidate = Candidate(
        settings.namespace, LEASE, settings.identity, duration=settings.lease_duration, renew=settings.renew
    )
    return OperatorOptions(
        candidate,
        POD_GROUP_APIS.get(gangs),
        tuple(flags["namespaces"]),
        elect=flags["leader_elect"],
        install=flags["install_crds"],
        listen=settings.listen,
        scheduler_lease=settings.lease_name,
    )


async def _run_until_signalled(connection: Connection, settings: Settings, options: OperatorOptions) -> None:
    from gpu_scheduler.operator.operator import run_operator

    await run_operator(connection, options, begin_service(settings))
