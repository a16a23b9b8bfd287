"""`gangs`: lists gangs, running or waiting, and why they wait."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpu_scheduler.cli.cluster_options import (
    ClusterTarget,
    cluster_options,
    describe_api_error,
    load_view,
    namespace_options,
    output_option,
    run_with_client,
)

if TYPE_CHECKING:
    from rich.text import Text

    from gpu_scheduler.cli.render.gangs import GangList
    from gpu_scheduler.k8s.client import Client
    from gpu_scheduler.k8s.connection import Connection
    from gpu_scheduler.scheduler.settings import Settings
    from gpu_scheduler.scheduler.snapshot import ClusterSnapshot

WATCH_INTERVAL = 2.0
"""Seconds between two snapshots with --watch."""

EXAMPLES = """
\b
Examples:
  gpu-scheduler gangs                    gangs of the current namespace
  gpu-scheduler gangs -A --watch         gangs of all namespaces, updated as they change
  gpu-scheduler gangs --all              also single pods that run
  gpu-scheduler gangs -o wide            more columns, nothing cut
  gpu-scheduler gangs -o json            for scripts
  gpu-scheduler gangs -o name            only names, as `explain` takes them
\b
Columns:
  MEMBERS   members that run or have succeeded / members that must start together
  WAITING   how long the gang has been waiting
  STARTS    the estimated start, where the end of other gangs is known
"""


@click.command(epilog=EXAMPLES)
@namespace_options
@click.option("--all", "everything", is_flag=True, help="Also list single pods that are not waiting.")
@click.option("--watch", "-w", is_flag=True, help="Update the table as it changes, until Ctrl-C.")
@output_option("table", "wide", "json", "yaml", "name")
@cluster_options
def gangs(
    target: ClusterTarget, namespace: str | None, all_namespaces: bool, everything: bool, watch: bool, output: str
) -> None:
    """List gangs: running or waiting, since when, and why."""
    from gpu_scheduler.cli.screen import show, show_value

    if watch and output not in ("table", "wide"):
        raise click.UsageError(f"--watch prints a table; leave out -o {output}")
    if watch:
        connection, settings = target.connect(), target.settings()
        where = None if all_namespaces else namespace or connection.namespace
        _watch(connection, settings, _GangsView(where, everything, output))
        return
    view, connection = load_view(target)
    gangs_view = _GangsView(None if all_namespaces else namespace or connection.namespace, everything, output)
    found = gangs_view.find(view)
    if output in ("json", "yaml"):
        show_value([line.as_json() for line in found.gangs], output)
    else:
        show(gangs_view.draw(found, view))


class _GangsView:
    """Which gangs are listed, and in which format."""

    def __init__(self, namespace: str | None, everything: bool, output: str) -> None:
        self._namespace = namespace
        self._everything = everything
        self._output = output

    def find(self, view: ClusterSnapshot) -> GangList:
        """The gangs of a snapshot to list."""
        from gpu_scheduler.cli.render.gangs import list_gangs

        return list_gangs(view.engine, view.now, self._namespace, everything=self._everything)

    def draw(self, found: GangList, view: ClusterSnapshot) -> list[Text]:
        """The gangs as text, with a warning when no scheduler leads."""
        from gpu_scheduler.cli.render.gangs import draw_gangs, draw_names
        from gpu_scheduler.cli.render.leader import warn_of_leader
        from gpu_scheduler.cli.screen import screen_width

        everywhere = self._namespace is None
        if self._output == "name":
            return draw_names(found, namespaces=everywhere)
        lines = draw_gangs(found, view.now, screen_width(), namespaces=everywhere, wide=self._output == "wide")
        return [*lines, *warn_of_leader(view.lease, view.now, screen_width())]


def _watch(connection: Connection, settings: Settings, gangs_view: _GangsView) -> None:
    """Updates the table until Ctrl-C."""
    try:
        run_with_client(connection, lambda client: _redraw(client, connection, settings, gangs_view))
    except KeyboardInterrupt:
        click.echo()


async def _redraw(client: Client, connection: Connection, settings: Settings, gangs_view: _GangsView) -> None:
    """A terminal shows one screen that changes; otherwise the table is printed again when it has changed."""
    from rich.live import Live
    from rich.text import Text

    from gpu_scheduler.cli.screen import make_console, show
    from gpu_scheduler.k8s.errors import ApiError
    from gpu_scheduler.scheduler.snapshot import take_snapshot

    console = make_console()
    last: object = None
    lines: list[Text] = []
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            trouble: list[Text] = []
            try:
                view = await take_snapshot(client, settings)
                found = gangs_view.find(view)
                lines = gangs_view.draw(found, view)
                news = [replace(line, estimated_start=None) for line in found.gangs]  # changes with every snapshot
                changed, last = news != last, news
            except ApiError as error:
                changed = False
                trouble = [Text(describe_api_error(connection.server, error.status, error.message), "red")]
            if console.is_terminal:
                live.update(Text("\n").join([*trouble, *lines]), refresh=True)
            elif changed:
                show([*lines, Text()])
            await asyncio.sleep(WATCH_INTERVAL)
