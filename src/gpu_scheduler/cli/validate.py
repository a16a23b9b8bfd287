"""`validate`: starts test pods with a map, and compares where they run and what they see with it."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from gpu_scheduler.cli.cluster_options import ClusterTarget, InvalidInputError, ask, cluster_options, output_option

if TYPE_CHECKING:
    from gpu_scheduler.cli.validation.comparison import Validation
    from gpu_scheduler.k8s.client import Client
    from gpu_scheduler.k8s.objects import Json
    from gpu_scheduler.scheduler.settings import Settings

TEXT, JSON = "validation-results.txt", "validation-results.json"

EXAMPLES = """
\b
Examples:
  gpu-scheduler validate                               start three pods, compare, remove them
  gpu-scheduler validate --output-dir results          write the reports into another folder
  gpu-scheduler validate -o json                       for programs
  gpu-scheduler validate --replace                     delete what an earlier run or the example left
  gpu-scheduler validate --image mirror.example/busybox:1.37.0
\b
The pods are those of examples/08-gpu-map: webhook-test-0..2 in namespace gpu-scheduler-tests, which need nodes that
are called node1, node2 and node3 (label gpu-node-name). No GPU is needed.
It exits with 1 when anything is not as the map says. Ctrl-C removes the pods, too.
"""


class Choice(NamedTuple):
    """How the pods are started."""

    timeout: float
    replace: bool
    image: str | None


@click.command(epilog=EXAMPLES)
@click.option("--timeout", type=click.IntRange(1), default=120, show_default=True, help="Seconds to wait for the pods.")
@click.option("--replace", is_flag=True, help="Delete pods of these names that exist already.")
@click.option("--image", metavar="IMAGE", help="Another image than busybox; it needs sh and sleep.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help=f"Where {TEXT} and {JSON} are written; else here.",
)
@output_option("text", "json")
@cluster_options
def validate(
    target: ClusterTarget, timeout: int, replace: bool, image: str | None, output_dir: Path, output: str
) -> None:
    """Start test pods with a map and compare what they got with it."""
    from gpu_scheduler.cli.render.validation import draw_report, report_as_json
    from gpu_scheduler.cli.validation.run import ValidationSetupError

    connection, settings = target.connect(), target.settings()
    _make_folder(output_dir)
    choice = Choice(timeout, replace, image)
    try:
        found = ask(connection, lambda client: _validate(client, settings, choice))
    except asyncio.CancelledError:
        raise click.Abort from None
    except ValidationSetupError as error:
        raise click.ClickException(str(error)) from error
    text, value = draw_report(found), report_as_json(found)
    (output_dir / TEXT).write_text(text, "utf-8")
    (output_dir / JSON).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
    click.echo(text if output == "text" else json.dumps(value, indent=2, ensure_ascii=False), nl=output != "text")
    if not found.passed:
        raise click.exceptions.Exit(1)


def _make_folder(folder: Path) -> None:
    """Finds out before the pods are started whether reports can be written, and takes away those of an earlier run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (TEXT, JSON):
            (folder / name).unlink(missing_ok=True)
            (folder / name).touch()
            (folder / name).unlink()
    except OSError as error:
        raise InvalidInputError(f"--output-dir: {folder} cannot be written to: {error.strerror}") from error


async def _validate(client: Client, settings: Settings, choice: Choice) -> Validation:
    """Looks at the cluster, runs the pods and removes them, whatever happens meanwhile."""
    from gpu_scheduler.cli.validation.comparison import Validation
    from gpu_scheduler.cli.validation.run import ValidationRun, ValidationSetupError, look_at_cluster, look_at_scheduler

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    cluster = await look_at_cluster(client, settings.gpu_resources)
    run = ValidationRun(client, _make_manifest(choice.image), _tell)
    left: list[str] = []
    try:
        try:
            await run.prepare(choice.replace, choice.timeout)
        except TimeoutError:
            raise ValidationSetupError(f"what was there before was not gone within {choice.timeout:g} s") from None
        await run.start()
        pods = await run.wait(cluster, choice.timeout)
        found = Validation(cluster, await look_at_scheduler(client, settings), pods)
    finally:
        left = await run.clean_up()
        for what in left:
            _tell(f"Not removed: {what}")
    return changed(found, left_behind=tuple(left))


def _make_manifest(image: str | None) -> list[Json]:
    from gpu_scheduler.cli.validation.comparison import load_manifest

    manifest = load_manifest()
    for pod in manifest[1:] if image else ():
        pod["spec"]["containers"][0]["image"] = image
    return manifest


def _tell(line: str) -> None:
    """Progress goes where it does not mix with the report."""
    click.echo(line, err=True)
