"""`up`, `down`, `status`, `reset`: the commands of the local cluster."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from embedded_kube.data_dir import DataDir, DataDirError, RunningCluster, default_data_dir
from gpu_scheduler import __version__
from gpu_scheduler.gangs.contract import SYSTEM, WEBHOOK

if TYPE_CHECKING:
    from embedded_kube.addons import Addon
    from embedded_kube.cluster import ClusterSettings

NAME = "app.kubernetes.io/name"
PROGRAM = (sys.executable, "-m", "gpu_scheduler.cli.main")
IMAGE = f"gpu-scheduler:{__version__}"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
SCHEDULER_NAMES = ("gpu-scheduler", "volcano", "default-scheduler", "scheduler-plugins-scheduler")
"""The scheduler names that the local cluster serves: every common one."""


def data_dir_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--data-dir`."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
        default=default_data_dir,
        show_default="~/.local/state/gpu-scheduler/local",
        envvar="GPU_SCHEDULER_DATA_DIR",
        help="Folder for objects, logs and volumes.",
    )(command)


UP_EXAMPLES = """
\b
Examples:
  gpu-scheduler up                                   4 nodes with 8 GPUs each
  gpu-scheduler up --nodes 2 --gpus 4 --racks 2      a small cluster with racks
  gpu-scheduler up --runtime simulated --nodes 1000  simulated pods, without processes
  gpu-scheduler up --fleet fleet.yaml                several kinds of nodes
  gpu-scheduler up --ephemeral                       delete all data at the end
  gpu-scheduler up --no-scheduler                    run your own scheduler
  gpu-scheduler up --kubernetes 1.37                 the API of another Kubernetes version
"""


@click.command(epilog=UP_EXAMPLES)
@click.option("--nodes", type=click.IntRange(1, 20000), default=4, show_default=True, help="Number of nodes.")
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
    help="Run containers as processes, or simulate them.",
)
@click.option(
    "--kubernetes",
    type=click.Choice(["1.35", "1.36", "1.37"]),
    default="1.35",
    show_default=True,
    help="Kubernetes version of the API.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=16443,
    show_default=True,
    help="API port; 0: a free one.",
)
@click.option("--no-scheduler", is_flag=True, help="Start no scheduler, so that you can run your own.")
@click.option("--no-webhook", is_flag=True, help="Start no webhook: CUDA_VISIBLE_DEVICES is not set.")
@click.option("--no-operator", is_flag=True, help="Start no operator: PyTorchJobs and other jobs get no pods.")
@click.option("--no-gangs", is_flag=True, help="Schedule pod by pod and ignore gangs.")
@click.option("--ephemeral", is_flag=True, help="Use a temporary folder, and delete it at the end.")
@data_dir_option
def up(ephemeral: bool, data_dir: Path, no_scheduler: bool, no_gangs: bool, **chosen: Any) -> None:
    """Start a local Kubernetes cluster on this machine, without Docker. Ctrl-C stops it."""
    from embedded_kube.cluster import ClusterError, ClusterSettings
    from embedded_kube.node import FleetSettings
    from gpu_scheduler.gangs.definitions import as_objects, first_gang_objects, load_definitions
    from gpu_scheduler.gangs.pods.device_claim import read_device_claim
    from gpu_scheduler.operator.definitions import load_definitions as load_job_definitions

    named = click.get_current_context().get_parameter_source("data_dir") is ParameterSource.COMMANDLINE
    if ephemeral and named:
        raise click.UsageError("--ephemeral uses a temporary folder; leave out --data-dir")
    if no_gangs and no_scheduler:
        raise click.UsageError("--no-gangs configures the scheduler; leave out --no-scheduler")
    folder = Path(tempfile.mkdtemp(prefix="gpu-scheduler-")) if ephemeral else data_dir
    port, file = chosen.pop("port"), chosen.pop("fleet")
    webhook, operator = (not chosen.pop(f"no_{part}") and not no_scheduler for part in ("webhook", "operator"))
    home = DataDir(folder)
    try:
        home.lock()
        parts = [] if no_scheduler else [scheduler_part(gangs=not no_gangs)]
        parts += [webhook_part(home)] if webhook else []
        parts += [operator_part(gangs=not no_gangs)] if operator else []
        fleet = FleetSettings(folder=home.pods, file=file, read_device_claim=read_device_claim, **chosen)
        objects = first_gang_objects() + (as_objects(load_job_definitions()) if operator else [])
        settings = ClusterSettings(home, fleet, fleet.kubernetes, port, load_definitions(), objects, tuple(parts))
        hints = bare_hints if no_scheduler else pod_hints if no_gangs else gang_hints
        asyncio.run(run_until_signalled(settings, lambda running: print_welcome(running, ephemeral, hints)))
    except (DataDirError, ClusterError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        pass
    finally:
        home.unlock()
        if ephemeral:
            shutil.rmtree(folder, ignore_errors=True)


def scheduler_part(*, gangs: bool) -> Addon:
    """The scheduler as an add-on of the local cluster, which serves every common scheduler name."""
    from embedded_kube.addons import Addon

    command = [*PROGRAM, "scheduler", "--listen", "127.0.0.1:0"]
    # A short Lease: on one machine a killed scheduler can be replaced sooner.
    # The pod name as identity: a restarted container is the same candidate and need not wait for its own Lease.
    command += ["--lease-duration", "6", "--identity", "$(POD_NAME)"]
    command += names_served()
    if not gangs:
        command.append("--no-gangs")
    return Addon("gpu-scheduler", "scheduler", tuple(command), IMAGE)


def webhook_part(home: DataDir) -> Addon:
    """The webhook as an add-on of the local cluster, for the same pods."""
    from embedded_kube.addons import Addon, AddonWebhook
    from gpu_scheduler.scheduler.settings import Settings
    from gpu_scheduler.webhook.configuration import make_configurations
    from gpu_scheduler.webhook.policy import AdmissionPolicy

    policy, port = AdmissionPolicy(frozenset(SCHEDULER_NAMES), Settings().gpu_resources), home.webhook_port()
    command = [*PROGRAM, "webhook", "--listen", f"127.0.0.1:{port}", "--tls-dir", str(home.webhook), *names_served()]
    # The local cluster has no ValidatingAdmissionPolicies: the webhook protects reserved annotations.
    configure = partial(make_configurations, policy=policy, system_namespace=SYSTEM, guard=True)
    return Addon(WEBHOOK, "webhook", tuple(command), IMAGE, AddonWebhook(port, configure))


def operator_part(*, gangs: bool) -> Addon:
    """The operator as an add-on of the local cluster; without gangs in the scheduler it creates none."""
    from embedded_kube.addons import Addon

    command = [*PROGRAM, "operator", "--listen", "127.0.0.1:0", "--lease-duration", "6", "--identity", "$(POD_NAME)"]
    command += ["--gang-scheduler-name", "gpu-scheduler" if gangs else "none"]
    return Addon("gpu-scheduler-operator", "operator", tuple(command), IMAGE)


def names_served() -> list[str]:
    """The flags for every served scheduler name."""
    return [word for name in SCHEDULER_NAMES for word in ("--scheduler-name", name)]


async def run_until_signalled(settings: ClusterSettings, ready: Callable[[RunningCluster], None]) -> None:
    """Runs the cluster until Ctrl-C or SIGTERM."""
    from embedded_kube.cluster import run_cluster

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run_cluster(settings, ready, stop)


def print_welcome(running: RunningCluster, ephemeral: bool, hints: Callable[[RunningCluster], Iterable[str]]) -> None:
    """Prints the address of the API, how to use it, and commands to try."""
    print_address(running, ephemeral)
    click.echo("Try:  kubectl get nodes -o wide")
    for hint in hints(running):
        click.echo(f"      {hint}" if hint.startswith("kubectl") else f"\n{hint}")


def gang_hints(_running: RunningCluster) -> Iterable[str]:
    """Commands that show a gang."""
    gang = "--annotations=gpu-scheduler.io/gang=hello --annotations=gpu-scheduler.io/gang-min=2"
    yield f"kubectl run a --image=any --restart=Never {gang} -- date"
    yield "kubectl get pods -o wide          # a waits: its gang needs 2 pods"
    yield f"kubectl run b --image=any --restart=Never {gang} -- date"
    yield "kubectl get pods -o wide          # both have run"
    yield "kubectl -n gpu-scheduler-system logs deploy/gpu-scheduler"
    yield "Ctrl-C stops the cluster."


def pod_hints(_running: RunningCluster) -> Iterable[str]:
    """Commands for a scheduler without gangs."""
    yield "kubectl run hello --image=any --restart=Never -- date"
    yield "kubectl logs hello"
    yield "The scheduler places pod by pod and ignores gangs. Ctrl-C stops the cluster."


def bare_hints(running: RunningCluster) -> Iterable[str]:
    """Commands for a cluster without a scheduler: the pod names its node."""
    where = f'{{"spec":{{"nodeName":"{running.node}"}}}}'
    yield f"kubectl run hello --image=any --restart=Never --overrides='{where}' -- date"
    yield "kubectl logs hello"
    yield "There is no scheduler: set nodeName in pods, or run your own. Ctrl-C stops the cluster."


def print_address(running: RunningCluster, ephemeral: bool) -> None:
    """Prints the address of the API and the kubeconfig."""
    click.echo(f"Kubernetes {running.kubernetes} at {running.server}" + (" (ephemeral)" if ephemeral else ""))
    click.echo(f"\n  export KUBECONFIG={shlex.quote(running.kubeconfig)}\n")


DOWN_EXAMPLES = """
\b
Examples:
  gpu-scheduler down                     stop the cluster that `up` started
  gpu-scheduler down --data-dir /tmp/x   stop a cluster in another folder
"""


@click.command(epilog=DOWN_EXAMPLES)
@data_dir_option
def down(data_dir: Path) -> None:
    """Stop the local cluster. Its data is kept."""
    home = DataDir(data_dir)
    running = home.running()
    if not home.is_locked() or running is None:
        click.echo(f"No local cluster is running in {data_dir}.")
        return
    os.kill(running.pid, signal.SIGTERM)
    for _ in range(300):
        if not home.is_locked():
            click.echo("Stopped.")
            return
        time.sleep(0.1)
    raise click.ClickException(f"process {running.pid} has not stopped after 30 s; end it with: kill -9 {running.pid}")


STATUS_EXAMPLES = """
\b
Examples:
  gpu-scheduler status                   address, nodes, pods and scheduler
  gpu-scheduler status -o json           for scripts
"""


@click.command(epilog=STATUS_EXAMPLES)
@click.option(
    "--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
@data_dir_option
def status(data_dir: Path, output: str) -> None:
    """Show whether the local cluster is running, and what is in it. Exits with 1 when it is not."""
    home = DataDir(data_dir)
    running = home.running() if home.is_locked() else None
    found: dict[str, Any] = {"running": running is not None, "data_dir": str(data_dir)}
    if running is not None:
        found |= {"pid": running.pid, "server": running.server, "kubernetes": running.kubernetes}
        found |= {"kubeconfig": running.kubeconfig, **asyncio.run(count_objects(home, running))}
    if output == "json":
        click.echo(json.dumps(found))
    elif running is None:
        click.echo(f"No local cluster is running in {data_dir}. Start one with: {home.command('up')}")
    else:
        ready, nodes, pods = found["nodes_ready"], found["nodes"], found["pods"]
        click.echo(f"Kubernetes {running.kubernetes} at {running.server} (process {running.pid})")
        click.echo(f"{ready} of {nodes} nodes ready, {pods} pods, scheduler {found['scheduler']}")
        click.echo(f"export KUBECONFIG={shlex.quote(running.kubeconfig)}")
    if running is None:
        raise click.exceptions.Exit(1)


async def count_objects(home: DataDir, running: RunningCluster) -> dict[str, Any]:
    """Counts the nodes and pods of the cluster, without those of the control plane."""
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
        raise click.ClickException(
            f"process {running.pid} runs, but {running.server} does not answer; restart the cluster"
        ) from error
    own = [pod for pod in pods if pod["metadata"]["namespace"] == SYSTEM]
    schedulers = [pod for pod in own if pod["metadata"].get("labels", {}).get(NAME) == "gpu-scheduler"]
    workers = [node for node in nodes if CONTROL_PLANE not in node["metadata"].get("labels", {})]
    return {
        "nodes": len(workers),
        "nodes_ready": sum(is_ready(node) for node in workers),
        "pods": len(pods) - len(own),
        "scheduler": "absent" if not schedulers else "running" if any(map(is_ready, schedulers)) else "not running",
    }


def is_ready(found: dict[str, Any]) -> bool:
    """Whether a node or pod has the condition Ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found.get("status", {}).get("conditions", []))


RESET_EXAMPLES = """
\b
Examples:
  gpu-scheduler reset                    ask, then delete all data
  gpu-scheduler reset --yes              delete all data without asking
"""


@click.command(epilog=RESET_EXAMPLES)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@data_dir_option
def reset(data_dir: Path, yes: bool) -> None:
    """Delete all data of the local cluster."""
    home = DataDir(data_dir)
    if home.is_locked():
        raise click.ClickException(f"the local cluster is running; stop it first with: {home.command('down')}")
    if not home.database.exists():
        click.echo("There is no data.")
        return
    if not yes:
        click.confirm(f"Delete every object, log and volume in {data_dir}?", abort=True)
    home.erase()
    click.echo("Deleted.")
