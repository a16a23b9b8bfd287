"""`explain`: explains why a gang waits, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_scheduler.cli.cluster_options import ClusterTarget, cluster_options, load_view, namespace_option, output_option

if TYPE_CHECKING:
    from gpu_scheduler.core.cycle.report import GangReport
    from gpu_scheduler.core.model import GangKey
    from gpu_scheduler.k8s.objects import Meta
    from gpu_scheduler.scheduler.snapshot import ClusterSnapshot

MAX_PAGES = 5
"""The most pages that are printed for one name: a job without a gang has one page for each pod."""

EXAMPLES = """
\b
Examples:
  gpu-scheduler explain train            the gang or job `train` of the current namespace
  gpu-scheduler explain train-worker-3   the gang of this pod
  gpu-scheduler explain -n team train    in another namespace; `team/train` is the same
  gpu-scheduler explain train -o json    for scripts
"""


@click.command(epilog=EXAMPLES)
@click.argument("name")
@namespace_option
@output_option("text", "json", "yaml")
@cluster_options
def explain(target: ClusterTarget, name: str, namespace: str | None, output: str) -> None:
    """Explain why a gang, job or pod waits, and what would help."""
    from gpu_scheduler.cli.render.explain import draw_page, make_page
    from gpu_scheduler.cli.render.leader import warn_of_leader
    from gpu_scheduler.cli.screen import screen_width, show, show_value

    view, connection = load_view(target)
    keys = _find(view, namespace or connection.namespace, name)
    shown = keys[:MAX_PAGES] if output == "text" else keys
    pages = [make_page(view.engine, key, view.now, _metadata_of(view, key)) for key in shown]
    found = [page for page in pages if page is not None]
    if output != "text":
        values = [page.as_json(view.now) for page in found]
        show_value(values[0] if len(values) == 1 else values, output)
        return
    for number, page in enumerate(found):
        if number:
            click.echo()
        show(draw_page(page, view.now, screen_width()))
    if len(keys) > len(shown):
        program = click.get_current_context().find_root().info_name
        click.echo(f"\nand {len(keys) - len(shown)} more of {name}: {program} gangs --all lists them")
    if any(_is_waiting(page.report) for page in found):
        show(warn_of_leader(view.lease, view.now, screen_width()))


def _metadata_of(view: ClusterSnapshot, key: GangKey) -> list[Meta]:
    """The metadata of the pods and of the object of a gang."""
    pods = [view.pods[member.pod.uid] for member in view.engine.members(key) if member.pod.uid in view.pods]
    found = {one.metadata.uid: one.metadata for one in (*pods, view.registry.object_of(key)) if one is not None}
    return list(found.values())


def _find(view: ClusterSnapshot, namespace: str, name: str) -> list[GangKey]:
    """The gangs that a name means; a name that means none is an error that says what to try instead."""
    from gpu_scheduler.cli.render.names import NameLookup

    registry = view.registry
    unserved = list(registry.unserved_groups())
    names = NameLookup(view.engine.gangs(), view.pods, registry.context.scheduler_names, unserved)
    before, slash, after = name.partition("/")
    found = names.find(namespace, name) or (names.find(before, after) if slash else [])
    if not found:
        program = click.get_current_context().find_root().info_name or ""
        raise click.ClickException(names.describe_missing(namespace, name, program))
    return sorted(found, key=lambda key: not _is_waiting(view.engine.report(key, view.now)))


def _is_waiting(report: GangReport | None) -> bool:
    """Whether a gang, or a member of it, waits for the scheduler; its pods may not exist yet."""
    from gpu_scheduler.cli.render.gangs import WAITING_PHASES

    return report is not None and (bool(report.status.waiting) or report.phase in WAITING_PHASES)
