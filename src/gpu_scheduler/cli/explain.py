"""`explain`: why a gang waits, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_scheduler.cli.cluster_options import ClusterTarget, cluster_options, load_view, namespace_option, output_option

if TYPE_CHECKING:
    from gpu_scheduler.core.model import GangKey
    from gpu_scheduler.scheduler.snapshot import ClusterSnapshot

EXAMPLES = """
\b
Examples:
  gpu-scheduler explain train            the gang `train` of the current namespace
  gpu-scheduler explain train-worker-3   the gang that this pod is a member of
  gpu-scheduler explain -n team train    in another namespace; `team/train` is the same
  gpu-scheduler explain train -o json    for programs
"""


@click.command(epilog=EXAMPLES)
@click.argument("name")
@namespace_option
@output_option("text", "json", "yaml")
@cluster_options
def explain(target: ClusterTarget, name: str, namespace: str | None, output: str) -> None:
    """Say why a gang or pod waits, and what would help."""
    from gpu_scheduler.cli.render.explain import draw_page, make_page
    from gpu_scheduler.cli.render.leader import warn_of_leader
    from gpu_scheduler.cli.screen import screen_width, show, show_value

    view, connection = load_view(target)
    pages = [make_page(view.engine, key, view.now) for key in _find(view, namespace or connection.namespace, name)]
    found = [page for page in pages if page is not None]
    if output != "text":
        values = [page.as_json(view.now) for page in found]
        show_value(values[0] if len(values) == 1 else values, output)
        return
    for number, page in enumerate(found):
        if number:
            click.echo()
        show(draw_page(page, view.now, screen_width()))
    if any(page.report.status.waiting for page in found):
        show(warn_of_leader(view.lease, view.now, screen_width()))


def _find(view: ClusterSnapshot, namespace: str, name: str) -> list[GangKey]:
    """The gangs that are meant, or one line with the nearest names."""
    from gpu_scheduler.cli.render.names import find_keys, nearest_names

    found = find_keys(view.engine.state, namespace, name)
    before, slash, after = name.partition("/")
    if not found and slash:
        found = find_keys(view.engine.state, before, after)
    if found:
        return found
    for pod in view.pods.values():
        if pod.metadata.namespace == namespace and pod.metadata.name == name:
            raise click.ClickException(
                f"pod {namespace}/{name} names the scheduler {pod.spec.scheduler_name!r}, so it is not ours to place"
            )
    near = nearest_names(view.engine.state, namespace, name)
    program = click.get_current_context().find_root().info_name
    either = f"{', '.join(near[:-1])} or {near[-1]}" if len(near) > 1 else "".join(near)
    hint = f"; did you mean {either}?" if near else f"; {program} gangs -A lists all"
    raise click.ClickException(f"no gang or pod is called {namespace}/{name}{hint}")
