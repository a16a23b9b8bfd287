"""`nodes`: shows every GPU of the cluster and the gang that holds it."""

from __future__ import annotations

import click

from gpu_scheduler.cli.cluster_options import ClusterTarget, cluster_options, load_view, output_option

EXAMPLES = """
\b
Examples:
  gpu-scheduler nodes                    a grid: one row for each node, one cell for each GPU
  gpu-scheduler nodes node1 node2        only these nodes
  gpu-scheduler nodes --all              every node, also identical ones and those without GPUs
  gpu-scheduler nodes -o json            for scripts
"""


@click.command(epilog=EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NODE]...")
@click.option("--all", "every", is_flag=True, help="List every node, also identical ones and those without GPUs.")
@output_option("grid", "json", "yaml")
@cluster_options
def nodes(target: ClusterTarget, names: tuple[str, ...], every: bool, output: str) -> None:
    """Show every GPU and the gang that holds it."""
    from gpu_scheduler.base.text import closest
    from gpu_scheduler.cli.render.grid import draw_nodes
    from gpu_scheduler.cli.render.nodes import list_nodes
    from gpu_scheduler.cli.screen import screen_width, show, show_value

    view, _ = load_view(target)
    lines = list_nodes(view.engine)
    unknown = sorted(set(names) - {line.name for line in lines})
    if unknown:
        near = closest(unknown[0], [line.name for line in lines])
        hint = f"did you mean {near}?" if near else "kubectl get nodes lists all"
        raise click.ClickException(f"no node is called {unknown[0]}; {hint}")
    chosen = [line for line in lines if not names or line.name in names]
    if output == "grid":
        show(draw_nodes(chosen, screen_width(), every=every or bool(names)))
    else:
        show_value([line.as_json() for line in chosen], output)
