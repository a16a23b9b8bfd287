"""Options that select the cluster, shared by most commands, and the connection that they stand for."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gpu_scheduler.k8s.client import Client
    from gpu_scheduler.k8s.connection import Connection
    from gpu_scheduler.scheduler.settings import Settings
    from gpu_scheduler.scheduler.snapshot import ClusterSnapshot

T = TypeVar("T")
Command = Callable[..., None]


@dataclass(frozen=True)
class ClusterTarget:
    """The cluster that a command works on, and the settings of its scheduler."""

    kubeconfig: Path | None
    context: str | None
    config: Path | None
    scheduler_names: tuple[str, ...]

    def connect(self) -> Connection:
        """The connection to the cluster; an error in one line when the kubeconfig is unusable."""
        from gpu_scheduler.k8s.connection import load_connection
        from gpu_scheduler.k8s.errors import ConfigError

        try:
            return load_connection(self.kubeconfig, self.context)
        except ConfigError as error:
            raise InvalidInputError(str(error)) from error

    def settings(self, **overrides: object) -> Settings:
        """The scheduler's settings: the file, overridden by the command line, with additional scheduler names."""
        from gpu_scheduler.scheduler.settings import SettingsError, load_settings

        try:
            if self.scheduler_names:
                served = load_settings(self.config).scheduler_names
                overrides["schedulerNames"] = tuple(dict.fromkeys((*served, *self.scheduler_names)))
            return load_settings(self.config, overrides)
        except SettingsError as error:
            raise InvalidInputError(str(error)) from error


class InvalidInputError(click.ClickException):
    """An option or a file that cannot be used; exits with 2."""

    exit_code = 2


def connection_options(command: Command) -> Command:
    """Adds `--kubeconfig` and `--context`, as in kubectl."""
    file = click.Path(path_type=Path, dir_okay=False)
    command = click.option(
        "--context", metavar="NAME", help="Context of the kubeconfig; default: its current context."
    )(command)
    return click.option("--kubeconfig", type=file, help="Kubeconfig file; default: as kubectl finds it.")(command)


def setting_options(command: Command) -> Command:
    """Adds `--config` and `--scheduler-name`: the settings of the scheduler."""
    file = click.Path(path_type=Path, dir_okay=False)
    name = click.option(
        "--scheduler-name",
        "scheduler_names",
        multiple=True,
        metavar="NAME",
        help="Additional schedulerName that this scheduler serves; may be repeated.",
    )
    return click.option("--config", type=file, help="Settings of the scheduler, a YAML file.")(name(command))


def cluster_options(command: Command) -> Command:
    """Adds all options that select the cluster; the command receives them as one ClusterTarget."""

    @functools.wraps(command)
    def run(
        kubeconfig: Path | None, context: str | None, config: Path | None, scheduler_names: tuple[str, ...], **rest: Any
    ) -> None:
        command(ClusterTarget(kubeconfig, context, config, scheduler_names), **rest)

    return connection_options(setting_options(run))


def namespace_options(command: Command) -> Command:
    """Adds `--namespace` and `--all-namespaces`."""
    everywhere = click.option("--all-namespaces", "-A", is_flag=True, help="All namespaces.")
    return namespace_option(everywhere(command))


def namespace_option(command: Command) -> Command:
    """Adds `--namespace`."""
    return click.option("--namespace", "-n", metavar="NAME", help="Namespace; default: that of the context.")(command)


def output_option(*choices: str) -> Callable[[Command], Command]:
    """Adds `--output` with these choices; the first is the default."""
    kind = click.Choice(choices)
    return click.option("--output", "-o", type=kind, default=choices[0], show_default=True, help="Output format.")


def load_view(target: ClusterTarget) -> tuple[ClusterSnapshot, Connection]:
    """Takes a snapshot of the cluster; an error in one line when the API server does not answer."""
    connection, settings = target.connect(), target.settings()
    from gpu_scheduler.scheduler.snapshot import take_snapshot

    return run_with_client(connection, lambda client: take_snapshot(client, settings)), connection


def run_with_client(connection: Connection, work: Callable[[Client], Awaitable[T]]) -> T:
    """Runs requests with a client; an error in one line when the API server does not answer or refuses."""
    from gpu_scheduler.k8s.client import Client
    from gpu_scheduler.k8s.errors import ApiError

    async def run() -> T:
        async with Client(connection) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except ApiError as error:
        raise click.ClickException(describe_api_error(connection.server, error.status, error.message)) from error


def describe_api_error(server: str, status: int, message: str) -> str:
    """An error of a request in one line."""
    if status == 0:
        return f"{server} does not answer: {message}; check --kubeconfig and --context"
    if status in (401, 403):
        return f"{server} refuses the request: {message}; kubectl auth can-i --list shows what this account may do"
    return f"{server} answered {status}: {message}"
