"""`gangs`: who runs, who waits and why."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpu_scheduler.cli.cluster_options import (
    ClusterTarget,
    ask,
    cluster_options,
    describe_api_error,
    load_view,
    namespace_options,
    output_option,
)

if TYPE_CHECKING:
    from rich.text import Text

    from gpu_scheduler.cli.render.gangs import GangList
    from gpu_scheduler.k8s.client import Client
    from gpu_scheduler.k8s.connection import Connection
    from gpu_scheduler.scheduler.settings import Settings
    from gpu_scheduler.scheduler.snapshot import ClusterSnapshot

EVERY = 2.0
"""How often a watched table is looked at again, in seconds."""

EXAMPLES = """
\b
Examples:
  gpu-scheduler gangs                    those of the current namespace
  gpu-scheduler gangs -A --watch         all, drawn anew whenever something changes
  gpu-scheduler gangs --all              single pods that run, too
  gpu-scheduler gangs -o json            for programs
  gpu-scheduler gangs -o name            only names, as `explain` takes them
"""


@click.command(epilog=EXAMPLES)
@namespace_options
@click.option("--all", "everything", is_flag=True, help="Also single pods that do not wait.")
@click.option("--watch", "-w", is_flag=True, help="Draw it again whenever something changes. Ctrl-C ends.")
@output_option("table", "wide", "json", "yaml", "name")
@cluster_options
def gangs(
    target: ClusterTarget, namespace: str | None, all_namespaces: bool, everything: bool, watch: bool, output: str
) -> None:
    """List gangs: who runs, who waits, since when and why."""
    from gpu_scheduler.cli.screen import show, show_value

    if watch and output not in ("table", "wide"):
        raise click.UsageError(f"--watch draws a table, so it goes without -o {output}")
    if watch:
        connection, settings = target.connect(), target.settings()
        where = None if all_namespaces else namespace or connection.namespace
        _watch(connection, settings, _Choice(where, everything, output))
        return
    view, connection = load_view(target)
    choice = _Choice(None if all_namespaces else namespace or connection.namespace, everything, output)
    found = choice.find(view)
    if output in ("json", "yaml"):
        show_value([line.as_json() for line in found.gangs], output)
    else:
        show(choice.draw(found, view))


class _Choice:
    """Which gangs are to be seen, and in which form."""

    def __init__(self, namespace: str | None, everything: bool, output: str) -> None:
        self._namespace = namespace
        self._everything = everything
        self._output = output

    def find(self, view: ClusterSnapshot) -> GangList:
        """The gangs of a view that are to be seen."""
        from gpu_scheduler.cli.render.gangs import list_gangs

        return list_gangs(view.engine, view.now, self._namespace, everything=self._everything)

    def draw(self, found: GangList, view: ClusterSnapshot) -> list[Text]:
        """The gangs as text, and a warning below them when nobody decides."""
        from gpu_scheduler.cli.render.gangs import draw_gangs, draw_names
        from gpu_scheduler.cli.render.leader import warn_of_leader
        from gpu_scheduler.cli.screen import screen_width

        everywhere = self._namespace is None
        if self._output == "name":
            return draw_names(found, namespaces=everywhere)
        lines = draw_gangs(found, view.now, screen_width(), namespaces=everywhere, wide=self._output == "wide")
        return [*lines, *warn_of_leader(view.lease, view.now, screen_width())]


def _watch(connection: Connection, settings: Settings, choice: _Choice) -> None:
    """Draws the table again and again until Ctrl-C."""
    try:
        ask(connection, lambda client: _redraw(client, connection, settings, choice))
    except KeyboardInterrupt:
        click.echo()


async def _redraw(client: Client, connection: Connection, settings: Settings, choice: _Choice) -> None:
    """A terminal shows one screen that changes; a file gets the table again each time it is another."""
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
                found = choice.find(view)
                lines = choice.draw(found, view)
                news = [replace(line, estimated_start=None) for line in found.gangs]  # "now" is always another
                changed, last = news != last, news
            except ApiError as error:
                changed = False
                trouble = [Text(describe_api_error(connection.server, error.status, error.message), "red")]
            if console.is_terminal:
                live.update(Text("\n").join([*trouble, *lines]), refresh=True)
            elif changed:
                show([*lines, Text()])
            await asyncio.sleep(EVERY)
