"""`scheduler`: runs the scheduler until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from gpu_scheduler.cli.cluster_options import ClusterTarget, InvalidInputError, cluster_options

if TYPE_CHECKING:
    from gpu_scheduler.k8s.connection import Connection
    from gpu_scheduler.scheduler.settings import Settings

EXAMPLES = """
\b
Examples:
  gpu-scheduler scheduler                              with the kubeconfig of kubectl, or inside a pod
  gpu-scheduler scheduler --config scheduler.yaml      settings from a file; flags override it
  gpu-scheduler scheduler --scheduler-name volcano     also serve pods that name Volcano
  gpu-scheduler scheduler --log-format json --listen :8080
\b
Signals:
  SIGTERM, SIGINT   release the Lease and stop; the next leader completes open commits
  SIGUSR1           compare the cache with the API, and log the differences
"""


KEYS = {
    "namespace": "namespace",
    "listen": "listenAddress",
    "log_format": "logFormat",
    "log_level": "logLevel",
    "lease_duration": "leaseDurationSeconds",
    "identity": "identity",
}
"""The setting that each flag overrides."""


@click.command(epilog=EXAMPLES)
@cluster_options
@click.option("--namespace", metavar="NAME", help="Namespace of the Lease and the Placements.")
@click.option("--no-gangs", is_flag=True, help="Schedule pod by pod and ignore gangs.")
@click.option("--listen", metavar="HOST:PORT", help="Address for health and metrics.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="Log format.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Log level.")
@click.option(
    "--lease-duration",
    type=float,
    metavar="SECONDS",
    help="Lifetime of the Lease without renewal.",
)
@click.option("--identity", metavar="NAME", help="Identity of this candidate in the Lease.")
def scheduler(target: ClusterTarget, no_gangs: bool, **flags: Any) -> None:
    """Run the scheduler. With several replicas one leads and the others stand by."""
    settings = target.settings(gangs=False if no_gangs else None, **{KEYS[name]: flags[name] for name in KEYS})
    connection = target.connect()
    from gpu_scheduler.k8s.errors import ConfigError, innermost
    from gpu_scheduler.scheduler.commit.intents import MissingIntentError

    try:
        run_loop(_run_until_signalled(connection, settings))
    except ExceptionGroup as group:
        expected, others = group.split((ConfigError, MissingIntentError))
        if expected is None or others is not None:
            raise
        raise InvalidInputError(str(innermost(expected))) from group


async def _run_until_signalled(connection: Connection, settings: Settings) -> None:
    from gpu_scheduler.scheduler.scheduler import run_scheduler

    stop, compare = begin_service(settings), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, compare.set)
    await run_scheduler(connection, settings, stop, compare)


def begin_service(settings: Settings) -> asyncio.Event:
    """Configures the log; returns an event that SIGINT and SIGTERM set."""
    from gpu_scheduler.k8s.logs import configure_logging, log_broken_connection

    configure_logging(settings.log_format, settings.log_level)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.set_exception_handler(log_broken_connection)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on uvloop where it is installed, which is faster, else on the loop of asyncio."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)
