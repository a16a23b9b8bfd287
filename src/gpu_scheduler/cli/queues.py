"""`queues`: shows the tree of queues, with the quota and use of each."""

from __future__ import annotations

import click

from gpu_scheduler.cli.cluster_options import ClusterTarget, cluster_options, load_view, output_option

EXAMPLES = """
\b
Examples:
  gpu-scheduler queues                   the tree of queues, in GPUs: quota, use, borrowed, lent
  gpu-scheduler queues -o wide           every resource, also those without a quota
  gpu-scheduler queues -o json           for scripts
"""


@click.command(epilog=EXAMPLES)
@output_option("table", "wide", "json", "yaml")
@cluster_options
def queues(target: ClusterTarget, output: str) -> None:
    """Show the tree of queues: quota, use, what is borrowed and lent, and gangs."""
    from gpu_scheduler.cli.render.queues import draw_queues, list_queues
    from gpu_scheduler.cli.screen import screen_width, show, show_value

    view, _ = load_view(target)
    lines = list_queues(view.engine, target.settings().namespace)
    if output in ("table", "wide"):
        show(draw_queues(lines, screen_width(), wide=output == "wide"))
    else:
        show_value([line.as_json() for line in lines], output)
