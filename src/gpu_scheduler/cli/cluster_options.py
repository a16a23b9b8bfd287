"""Which cluster a command looks at: the options all of them share, and the way from there to a view."""

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
    """A cluster, and how the scheduler in it is set up."""

    kubeconfig: Path | None
    context: str | None
    config: Path | None
    scheduler_names: tuple[str, ...]

    def connect(self) -> Connection:
        """How to reach the cluster; one line to the user when that is not known."""
        from gpu_scheduler.k8s.connection import load_connection
        from gpu_scheduler.k8s.errors import ConfigError

        try:
            return load_connection(self.kubeconfig, self.context)
        except ConfigError as error:
            raise InvalidInputError(str(error)) from error

    def settings(self, **overrides: object) -> Settings:
        """The scheduler's settings: those of the file, those that the command line overrides, and more names."""
        from gpu_scheduler.scheduler.settings import SettingsError, load_settings

        try:
            if self.scheduler_names:
                served = load_settings(self.config).scheduler_names
                overrides["schedulerNames"] = tuple(dict.fromkeys((*served, *self.scheduler_names)))
            return load_settings(self.config, overrides)
        except SettingsError as error:
            raise InvalidInputError(str(error)) from error


class InvalidInputError(click.ClickException):
    """What was given cannot be worked with."""

    exit_code = 2


def connection_options(command: Command) -> Command:
    """`--kubeconfig` and `--context`, as kubectl has them."""
    file = click.Path(path_type=Path, dir_okay=False)
    command = click.option("--context", metavar="NAME", help="Which of the kubeconfig's contexts.")(command)
    return click.option("--kubeconfig", type=file, help="How to reach the cluster; else as kubectl finds it.")(command)


def setting_options(command: Command) -> Command:
    """`--config` and `--scheduler-name`: how the scheduler is set up."""
    file = click.Path(path_type=Path, dir_okay=False)
    name = click.option(
        "--scheduler-name",
        "scheduler_names",
        multiple=True,
        metavar="NAME",
        help="Another name that pods may call this scheduler by; may be repeated.",
    )
    return click.option("--config", type=file, help="The scheduler's settings, a YAML file.")(name(command))


def cluster_options(command: Command) -> Command:
    """The options that say which cluster; the command gets them as one Target."""

    @functools.wraps(command)
    def run(
        kubeconfig: Path | None, context: str | None, config: Path | None, scheduler_names: tuple[str, ...], **rest: Any
    ) -> None:
        command(ClusterTarget(kubeconfig, context, config, scheduler_names), **rest)

    return connection_options(setting_options(run))


def namespace_options(command: Command) -> Command:
    """`--namespace` and `--all-namespaces`."""
    everywhere = click.option("--all-namespaces", "-A", is_flag=True, help="Look into every namespace.")
    return namespace_option(everywhere(command))


def namespace_option(command: Command) -> Command:
    """`--namespace` alone."""
    return click.option("--namespace", "-n", metavar="NAME", help="Which namespace; else the context's own.")(command)


def output_option(*choices: str) -> Callable[[Command], Command]:
    """`--output` with these choices, the first being the default."""
    kind = click.Choice(choices)
    return click.option("--output", "-o", type=kind, default=choices[0], show_default=True, help="In which form.")


def load_view(target: ClusterTarget) -> tuple[ClusterSnapshot, Connection]:
    """What the cluster is like now; one line to the user when it cannot be seen."""
    connection, settings = target.connect(), target.settings()
    from gpu_scheduler.scheduler.snapshot import take_snapshot

    return ask(connection, lambda client: take_snapshot(client, settings)), connection


def ask(connection: Connection, question: Callable[[Client], Awaitable[T]]) -> T:
    """Asks the API server something; one line to the user when it does not answer, or says no."""
    from gpu_scheduler.k8s.client import Client
    from gpu_scheduler.k8s.errors import ApiError

    async def run() -> T:
        async with Client(connection) as client:
            return await question(client)

    try:
        return asyncio.run(run())
    except ApiError as error:
        raise click.ClickException(describe_api_error(connection.server, error.status, error.message)) from error


def describe_api_error(server: str, status: int, message: str) -> str:
    """What went wrong between us and an API server, in one line."""
    if status == 0:
        return f"{server} does not answer: {message}"
    if status in (401, 403):
        return f"{server} does not allow this: {message}"
    return f"{server} answered {status}: {message}"
