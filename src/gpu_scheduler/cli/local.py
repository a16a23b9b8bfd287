"""`up`, `down`, `status`, `reset`: the local cluster from the command line."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpu_scheduler.local.home import Home, HomeError, Running, default_folder

if TYPE_CHECKING:
    from gpu_scheduler.local.cluster import Settings


def data_dir_option(command: Callable[..., None]) -> Callable[..., None]:
    """`--data-dir`, the same for every command."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
        default=default_folder,
        show_default="~/.local/state/gpu-scheduler/local",
        envvar="GPU_SCHEDULER_DATA_DIR",
        help="Where objects, logs and volumes are kept.",
    )(command)


UP_EXAMPLES = """
\b
Examples:
  gpu-scheduler up                                  4 nodes of 8 GPUs each
  gpu-scheduler up --nodes 2 --gpus 4 --racks 2     small, with racks
  gpu-scheduler up --runtime simulated --nodes 1000 no processes: pods only pretend to run
  gpu-scheduler up --fleet fleet.yaml               different kinds of nodes
  gpu-scheduler up --ephemeral                      keep nothing afterwards
  gpu-scheduler up --kubernetes 1.37                the gang API of another version
"""


@click.command(epilog=UP_EXAMPLES)
@click.option("--nodes", type=click.IntRange(1, 20000), default=4, show_default=True, help="How many nodes.")
@click.option("--gpus", type=click.IntRange(0, 128), default=8, show_default=True, help="GPUs of each node.")
@click.option("--cpu", default="4", show_default=True, metavar="QUANTITY", help="CPU of each node.")
@click.option("--memory", default="8Gi", show_default=True, metavar="QUANTITY", help="Memory of each node.")
@click.option("--racks", type=click.IntRange(1), default=1, show_default=True, help="Spread the nodes over racks.")
@click.option("--zones", type=click.IntRange(1), default=1, show_default=True, help="Spread the racks over zones.")
@click.option("--fleet", type=click.Path(path_type=Path, dir_okay=False), help="Describe the nodes in a YAML file.")
@click.option(
    "--runtime",
    type=click.Choice(["process", "simulated"]),
    default="process",
    show_default=True,
    help="Run containers as processes, or only pretend.",
)
@click.option(
    "--kubernetes",
    type=click.Choice(["1.35", "1.36", "1.37"]),
    default="1.35",
    show_default=True,
    help="Which version's API to serve.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=16443, show_default=True, help="0 picks a free one.")
@click.option("--ephemeral", is_flag=True, help="Keep nothing: use a temporary folder and delete it at the end.")
@data_dir_option
def up(ephemeral: bool, data_dir: Path, kubernetes: str, port: int, **nodes: Any) -> None:
    """Start a local Kubernetes cluster on this machine, without Docker. Ctrl-C stops it."""
    from gpu_scheduler.local.cluster import ClusterError, Settings
    from gpu_scheduler.local.node_agent import FleetSettings

    chosen = click.get_current_context().get_parameter_source("data_dir")
    if ephemeral and chosen is ParameterSource.COMMANDLINE:
        raise click.UsageError("--ephemeral keeps nothing, so it goes without --data-dir")
    folder = Path(tempfile.mkdtemp(prefix="gpu-scheduler-")) if ephemeral else data_dir
    home = Home(folder)
    try:
        home.lock()
        fleet = FleetSettings(folder=home.pods, kubernetes=kubernetes, file=nodes.pop("fleet"), **nodes)
        settings = Settings(home, fleet, kubernetes, port)
        asyncio.run(run_until_signalled(settings, lambda running: print_welcome(running, ephemeral)))
    except (HomeError, ClusterError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        pass
    finally:
        home.unlock()
        if ephemeral:
            shutil.rmtree(folder, ignore_errors=True)


async def run_until_signalled(settings: Settings, ready: Callable[[Running], None]) -> None:
    """Runs the cluster until Ctrl-C or SIGTERM."""
    from gpu_scheduler.local.cluster import run_cluster

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run_cluster(settings, ready, stop)


def print_welcome(running: Running, ephemeral: bool) -> None:
    """Where the API is, how to reach it, and what to try first."""
    click.echo(f"Kubernetes {running.kubernetes} at {running.server}" + (" (nothing is kept)" if ephemeral else ""))
    click.echo(f"\n  export KUBECONFIG={shlex.quote(running.kubeconfig)}\n")
    click.echo("Try:  kubectl get nodes -o wide")
    where = f'{{"spec":{{"nodeName":"{running.node}"}}}}'
    click.echo(f"      kubectl run hello --image=any --restart=Never --overrides='{where}' -- date")
    click.echo("      kubectl logs hello")
    click.echo("\nNo scheduler runs in it yet: a pod says its node itself. Ctrl-C stops the cluster.")


@click.command()
@data_dir_option
def down(data_dir: Path) -> None:
    """Stop the local cluster; what it stored stays."""
    home = Home(data_dir)
    running = home.running()
    if not home.is_locked() or running is None:
        click.echo(f"No local cluster runs in {data_dir}.")
        return
    os.kill(running.pid, signal.SIGTERM)
    for _ in range(300):
        if not home.is_locked():
            click.echo("Stopped.")
            return
        time.sleep(0.1)
    raise click.ClickException(
        f"process {running.pid} has not stopped after 30 s; look at it, or: kill -9 {running.pid}"
    )


@click.command()
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True)
@data_dir_option
def status(data_dir: Path, output: str) -> None:
    """Say whether the local cluster runs, and what is in it. Exits with 1 when it does not."""
    home = Home(data_dir)
    running = home.running() if home.is_locked() else None
    found: dict[str, Any] = {"running": running is not None, "data_dir": str(data_dir)}
    if running is not None:
        found |= {"pid": running.pid, "server": running.server, "kubernetes": running.kubernetes}
        found |= {"kubeconfig": running.kubeconfig, **asyncio.run(count_objects(home, running))}
    if output == "json":
        click.echo(json.dumps(found))
    elif running is None:
        click.echo(f"No local cluster runs in {data_dir}. Start one with: {home.command('up')}")
    else:
        ready, nodes, pods = found["nodes_ready"], found["nodes"], found["pods"]
        click.echo(f"Kubernetes {running.kubernetes} at {running.server} (process {running.pid})")
        click.echo(f"{ready} of {nodes} nodes ready, {pods} pods")
        click.echo(f"export KUBECONFIG={shlex.quote(running.kubeconfig)}")
    if running is None:
        raise click.exceptions.Exit(1)


async def count_objects(home: Home, running: Running) -> dict[str, int]:
    """Asks the cluster itself how many nodes and pods it has."""
    import ssl

    import aiohttp

    trust = ssl.create_default_context(cadata=home.read("ca.crt") or None)
    headers = {"Authorization": f"Bearer {home.token()}"}
    connector, limit = aiohttp.TCPConnector(ssl=trust), aiohttp.ClientTimeout(total=10)
    try:
        async with aiohttp.ClientSession(running.server, headers=headers, connector=connector, timeout=limit) as api:
            async with api.get("/api/v1/nodes") as reply:
                nodes = (await reply.json())["items"]
            async with api.get("/api/v1/pods") as reply:
                pods = (await reply.json())["items"]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise click.ClickException(f"process {running.pid} runs, but {running.server} does not answer") from error
    conditions = [{c["type"]: c["status"] for c in node.get("status", {}).get("conditions", [])} for node in nodes]
    return {"nodes": len(nodes), "nodes_ready": sum(c.get("Ready") == "True" for c in conditions), "pods": len(pods)}


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_dir_option
def reset(data_dir: Path, yes: bool) -> None:
    """Delete everything the local cluster has stored."""
    home = Home(data_dir)
    if home.is_locked():
        raise click.ClickException(f"the local cluster is running; stop it first with: {home.command('down')}")
    if not home.database.exists():
        click.echo("Nothing is stored.")
        return
    if not yes:
        click.confirm(f"Delete every object, log and volume in {data_dir}?", abort=True)
    home.erase()
    click.echo("Deleted.")
