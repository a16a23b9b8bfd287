"""`validate`: starts test pods with a GPU map, and compares their nodes and variables with it."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from gpu_scheduler.cli.cluster_options import (
    ClusterTarget,
    InvalidInputError,
    cluster_options,
    output_option,
    run_with_client,
)

if TYPE_CHECKING:
    from gpu_scheduler.cli.validation.comparison import Validation
    from gpu_scheduler.k8s.client import Client
    from gpu_scheduler.k8s.objects import Json
    from gpu_scheduler.scheduler.settings import Settings

TEXT, JSON = "validation-results.txt", "validation-results.json"

EXAMPLES = """
\b
Examples:
  gpu-scheduler validate                        start three pods, compare, remove them
  gpu-scheduler validate --output-dir results   write the reports to another folder
  gpu-scheduler validate -o json                for scripts
  gpu-scheduler validate --replace              first delete pods of an earlier run or the example
  gpu-scheduler validate --image mirror.example/busybox:1.37.0

The pods are those of examples/08-gpu-map: webhook-test-0..2 in namespace gpu-scheduler-tests. They need nodes named
node1, node2 and node3, by name or by the label gpu-node-name, and no GPUs.

The command exits with 1 when a pod differs from the map. Ctrl-C also removes the pods.
"""


class ValidateOptions(NamedTuple):
    """How the test pods are started."""

    timeout: float
    replace: bool
    image: str | None


@click.command(epilog=EXAMPLES)
@click.option("--timeout", type=click.IntRange(1), default=120, show_default=True, help="Seconds to wait for the pods.")
@click.option("--replace", is_flag=True, help="First delete existing pods with these names.")
@click.option("--image", metavar="IMAGE", help="Image instead of busybox; it needs sh and sleep.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help=f"Folder for {TEXT} and {JSON}; default: the current one.",
)
@output_option("text", "json")
@cluster_options
def validate(
    target: ClusterTarget, timeout: int, replace: bool, image: str | None, output_dir: Path, output: str
) -> None:
    """Start test pods with a GPU map and compare their nodes and variables with it."""
    from gpu_scheduler.cli.render.validation import draw_report, report_as_json
    from gpu_scheduler.cli.validation.run import ValidationSetupError

    connection, settings = target.connect(), target.settings()
    _prepare_folder(output_dir)
    options = ValidateOptions(timeout, replace, image)
    try:
        found = run_with_client(connection, lambda client: _validate(client, settings, options))
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


def _prepare_folder(folder: Path) -> None:
    """Checks that the reports can be written before any pod is started, and removes those of an earlier run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (TEXT, JSON):
            (folder / name).unlink(missing_ok=True)
            (folder / name).touch()
            (folder / name).unlink()
    except OSError as error:
        raise InvalidInputError(f"--output-dir: cannot write to {folder}: {error.strerror}") from error


async def _validate(client: Client, settings: Settings, options: ValidateOptions) -> Validation:
    """Reads the cluster, runs the test pods and always removes them."""
    from gpu_scheduler.cli.validation.comparison import Validation
    from gpu_scheduler.cli.validation.run import ValidationRun, ValidationSetupError, read_cluster, read_scheduler

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    cluster = await read_cluster(client, settings.gpu_resources)
    run = ValidationRun(client, _make_manifest(options.image), _print_progress)
    left: list[str] = []
    try:
        try:
            await run.prepare(options.replace, options.timeout)
        except TimeoutError:
            waited = f"objects of an earlier run were not deleted within {options.timeout:g} s"
            raise ValidationSetupError(f"{waited}; delete them, or raise --timeout") from None
        await run.start()
        pods = await run.wait(cluster, options.timeout)
        found = Validation(cluster, await read_scheduler(client, settings), pods)
    finally:
        left = await run.clean_up()
        for what in left:
            _print_progress(f"Not removed: {what}")
    return changed(found, left_behind=tuple(left))


def _make_manifest(image: str | None) -> list[Json]:
    from gpu_scheduler.cli.validation.comparison import load_manifest

    manifest = load_manifest()
    for pod in manifest[1:] if image else ():
        pod["spec"]["containers"][0]["image"] = image
    return manifest


def _print_progress(line: str) -> None:
    """Prints progress to standard error, apart from the report."""
    click.echo(line, err=True)
