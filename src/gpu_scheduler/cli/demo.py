"""`demo`: shows in a minute what gangs are for, and proves it."""

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

PICTURE = "gpu-scheduler-demo.html"
ALONE = "gpu-scheduler-demo.svg"
"""The same picture without a page around it, for documents."""

EXAMPLES = """
\b
Examples:
  gpu-scheduler demo                     4 nodes of 8 GPUs, about a minute
  gpu-scheduler demo --output pictures   write the picture into another folder
  gpu-scheduler demo --nodes 1           too few GPUs for the jobs: shows how a claim fails
\b
Everything that it says was seen in the API of a local cluster that it starts for this. It exits with 1 when something
that it claims is not so, and says what. Ctrl-C ends it and removes everything but the pictures.
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help=f"The folder for the pictures {PICTURE} and {ALONE}; else here.",
)
@click.option("--nodes", type=click.IntRange(1, 4), default=4, show_default=True, help="How many nodes of 8 GPUs.")
def demo(output: Path, nodes: int) -> None:
    """Show jobs that lock each other out, and the same jobs as gangs."""
    from gpu_scheduler.cli.demonstration.cluster_process import ClusterProcess, ClusterStartError
    from gpu_scheduler.cli.demonstration.screen import DemoScreen
    from gpu_scheduler.cli.demonstration.session import ClaimError
    from gpu_scheduler.k8s.errors import ApiError

    _make_folder(output)
    folder, screen = Path(tempfile.mkdtemp(prefix="gpu-scheduler-demo-")), DemoScreen()
    clusters = [ClusterProcess(folder / name, nodes, gangs=name == "gangs") for name in ("pods", "gangs")]
    try:
        runs = asyncio.run(_play(clusters, screen, folder))
        _conclude(runs, screen, output)
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
    """Finds out first whether the picture can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Neither is an older picture to be taken for that of a run which failed.
        for name in (PICTURE, ALONE):
            (folder / name).touch()
            (folder / name).unlink()
    except OSError as error:
        raise InvalidInputError(f"--output: {folder} cannot be written to: {error.strerror}") from error


async def _play(clusters: list[ClusterProcess], screen: DemoScreen, folder: Path) -> list[DemoRun]:
    """All acts, in two clusters that differ in nothing but gangs."""
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
    screen.head("Four jobs want the same GPUs")
    screen.table(JOB_COLUMNS, list_jobs(JOBS))
    screen.say(
        f"Together they want {sum(job.total for job in JOBS)} GPUs. As in training, a pod computes only when all pods "
        "of its job run. All are submitted at the same time, to a Kubernetes cluster that starts on this machine now."
    )
    async with watched(await without.wait_ready(), screen, folder / "rendezvous-1") as session:
        screen.say(f"It has {count(len(session.capacity), 'node')} with {session.gpus} GPUs.")
        # Starting takes a while: the second cluster does so while nothing moves in the first one.
        first = await scenarios.run_deadlock(session, with_gangs.start)
    without.ask_to_stop()
    async with watched(await with_gangs.wait_ready(), screen, folder / "rendezvous-2") as session:
        second = await scenarios.run_gangs(session)
        await scenarios.run_member_failure(session)
        await scenarios.run_device_map(session)
        await scenarios.run_impossible_gang(session)
    return [first, second]


def _conclude(runs: list[DemoRun], screen: DemoScreen, folder: Path) -> None:
    """What was seen in the end, as a table and as a picture."""
    from rich.text import Text

    from gpu_scheduler.cli.demonstration.screen import compare
    from gpu_scheduler.cli.demonstration.timeline import draw_page, draw_picture

    (folder / PICTURE).write_text(draw_page(runs), "utf-8")
    (folder / ALONE).write_text(draw_picture(runs), "utf-8")
    screen.head("Summary")
    screen.table(*compare(runs))
    screen.head("Next")
    screen.say(
        "make up (gpu-scheduler up) starts such a cluster for your jobs; docs/gangs.md says how to write a gang."
    )
    screen.say(f"Both runs as a picture, to be opened in a browser ({ALONE} beside it is for documents):")
    screen.lines([Text(f"  {folder / PICTURE}", "bold")])
