"""`operator`: makes the pods of jobs until it is told to stop."""

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
  gpu-scheduler operator                                    gangs for gpu-scheduler, in every namespace
  gpu-scheduler operator --gang-scheduler-name=volcano      PodGroups and pods that name Volcano
  gpu-scheduler operator --gang-scheduler-name=none         no gangs: pods are made at once
  gpu-scheduler operator --watch-namespace team-a           jobs of one namespace
  gpu-scheduler operator --install-crds                     define the kinds of jobs where they are not
\b
Signals:
  SIGTERM, SIGINT   give up the Lease and stop; jobs go on, and the next operator carries on with them
"""


@click.command(epilog=EXAMPLES)
@connection_options
@click.option("--gang-scheduler-name", type=click.Choice(GANGS), help="Who places gangs.  [default: gpu-scheduler]")
@click.option("--enable-gang-scheduling", is_flag=False, flag_value="true", type=bool,
              help="The old way to say --gang-scheduler-name=volcano; false means none.")  # fmt: skip
@click.option("--watch-namespace", "namespaces", multiple=True, metavar="NAME",
              help="Where jobs are looked for, else everywhere; may be repeated.")  # fmt: skip
@click.option("--namespace", metavar="NAME", help="Where the Lease is kept.")
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True, help="Whether one of several works.")
@click.option("--lease-duration", type=float, metavar="SECONDS", help="How long a silent leader is waited for.")
@click.option("--identity", metavar="NAME", help="What this candidate is called in the Lease.")
@click.option("--install-crds", is_flag=True, help="Define the kinds of jobs that the cluster does not have.")
@click.option("--listen", metavar="HOST:PORT", help="Where health and metrics are served.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="For people or for programs.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much to say.")
def operator(kubeconfig: Any, context: str | None, **flags: Any) -> None:
    """Run the operator: PyTorchJobs, TFJobs and Volcano's Jobs become gangs of pods."""
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
    """Who places gangs, by the two flags that say so."""
    if name is not None and enabled is not None:
        raise InvalidInputError("--enable-gang-scheduling: --gang-scheduler-name says more; leave one of them out")
    if enabled is not None:
        return "volcano" if enabled else NO_GANGS
    return name or GANGS[0]


def make_options(settings: Settings, gangs: str, flags: dict[str, Any]) -> OperatorOptions:
    """How the operator is set up by its settings, its flags, and who places gangs."""
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
