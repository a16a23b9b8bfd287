"""`demo`: demonstrates gang scheduling in a minute, and verifies every claim."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_scheduler.cli.cluster_options import InvalidInputError

if TYPE_CHECKING:
    from gpu_scheduler.cli.demonstration.cluster_process import ClusterProcess
    from gpu_scheduler.cli.demonstration.observer import DemoRun
    from gpu_scheduler.cli.demonstration.screen import DemoScreen

HTML = "gpu-scheduler-demo.html"
SVG = "gpu-scheduler-demo.svg"
"""The same picture without the page, for documents."""

EXAMPLES = """
\b
Examples:
  gpu-scheduler demo                     4 nodes with 8 GPUs each, about a minute
  gpu-scheduler demo --output pictures   write the pictures to another folder
  gpu-scheduler demo --nodes 1           too few GPUs for the jobs: shows how a claim fails

Every claim is verified with the API of a local cluster, which the command starts and removes. It exits with 1 when a
claim does not hold. Ctrl-C stops it and removes everything except the pictures.
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help=f"Folder for {HTML} and {SVG}; default: the current one.",
)
@click.option(
    "--nodes", type=click.IntRange(1, 4), default=4, show_default=True, help="Number of nodes with 8 GPUs each."
)
def demo(output: Path, nodes: int) -> None:
    """Demonstrate how jobs deadlock, and how gangs prevent it."""
    from gpu_scheduler.cli.demonstration.cluster_process import ClusterProcess, ClusterStartError
    from gpu_scheduler.cli.demonstration.screen import DemoScreen
    from gpu_scheduler.cli.demonstration.session import ClaimError
    from gpu_scheduler.k8s.errors import ApiError

    _make_folder(output)
    folder, screen = Path(tempfile.mkdtemp(prefix="gpu-scheduler-demo-")), DemoScreen()
    clusters = [ClusterProcess(folder / name, nodes, gangs=name == "gangs") for name in ("pods", "gangs")]
    try:
        runs = asyncio.run(_run_scenarios(clusters, screen, folder))
        _print_summary(runs, screen, output)
    except ClaimError as error:
        raise click.ClickException(f"claim failed: {error}") from error
    except (ApiError, ClusterStartError) as error:
        raise click.ClickException(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.Abort from None
    finally:
        screen.close()
        for cluster in clusters:
            cluster.ask_to_stop()
        for cluster in clusters:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _make_folder(folder: Path) -> None:
    """Checks that the pictures can be written before anything is started."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A failed run must leave no picture of an earlier run.
        for name in (HTML, SVG):
            (folder / name).touch()
            (folder / name).unlink()
    except OSError as error:
        raise InvalidInputError(f"--output: cannot write to {folder}: {error.strerror}") from error


async def _run_scenarios(clusters: list[ClusterProcess], screen: DemoScreen, folder: Path) -> list[DemoRun]:
    """Runs all scenarios, in two clusters that differ only in gang scheduling."""
    from gpu_scheduler.base.text import count
    from gpu_scheduler.cli.demonstration import scenarios
    from gpu_scheduler.cli.demonstration.jobs import JOBS
    from gpu_scheduler.cli.demonstration.screen import JOB_COLUMNS, list_jobs
    from gpu_scheduler.cli.demonstration.session import watched

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    without, with_gangs = clusters
    without.start()
    screen.heading("Four jobs need the same GPUs")
    screen.table(JOB_COLUMNS, list_jobs(JOBS))
    screen.text(
        f"Together they need {sum(job.total for job in JOBS)} GPUs. As in training, a pod computes only when all "
        "pods of its job run. All jobs are submitted at once, to a local Kubernetes cluster that starts now."
    )
    async with watched(await without.wait_ready(), screen, folder / "rendezvous-1") as session:
        screen.text(f"It has {count(len(session.capacity), 'node')} with {session.gpus} GPUs.")
        # The second cluster starts while the first one is deadlocked.
        first = await scenarios.run_deadlock(session, with_gangs.start)
    without.ask_to_stop()
    async with watched(await with_gangs.wait_ready(), screen, folder / "rendezvous-2") as session:
        second = await scenarios.run_gangs(session)
        await scenarios.run_member_failure(session)
        await scenarios.run_device_map(session)
        await scenarios.run_impossible_gang(session)
    return [first, second]


def _print_summary(runs: list[DemoRun], screen: DemoScreen, folder: Path) -> None:
    """Writes the pictures and prints the summary."""
    from rich.text import Text

    from gpu_scheduler.cli.demonstration.screen import compare
    from gpu_scheduler.cli.demonstration.timeline import draw_page, draw_picture

    (folder / HTML).write_text(draw_page(runs), "utf-8")
    (folder / SVG).write_text(draw_picture(runs), "utf-8")
    screen.heading("Summary")
    screen.table(*compare(runs))
    screen.heading("Next")
    screen.text(
        "make up (gpu-scheduler up) starts such a cluster for your jobs; docs/gangs.md explains how to define a gang."
    )
    screen.text(f"Open the picture of both runs in a browser; {SVG} beside it is for documents:")
    screen.lines([Text(f"  {folder / HTML}", "bold")])
