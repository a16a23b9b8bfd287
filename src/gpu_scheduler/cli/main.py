"""The `gpu-scheduler` program: the commands by name. The module of a command is imported when it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from gpu_scheduler import __version__


class CommandEntry(NamedTuple):
    """The module of this package that defines a command, and the help in the list of commands."""

    module: str
    help: str


INSPECT = {
    "gangs": CommandEntry("gangs", "List gangs: running or waiting, since when, and why."),
    "nodes": CommandEntry("nodes", "Show every GPU and the gang that holds it."),
    "queues": CommandEntry("queues", "Show queues: quota, use, and running and waiting gangs."),
    "explain": CommandEntry("explain", "Explain why a gang, job or pod waits, and what would help."),
    "doctor": CommandEntry("doctor", "Check the cluster and the scheduler, and suggest remedies."),
}
SECTIONS: dict[str, Mapping[str, CommandEntry]] = {
    "Start here": {
        "demo": CommandEntry("demo", "Demonstrate in a minute how jobs deadlock, and how gangs prevent it."),
    },
    "Local cluster": {
        "up": CommandEntry("local_cluster", "Start a local Kubernetes cluster on this machine, without Docker."),
        "down": CommandEntry("local_cluster", "Stop the local cluster."),
        "status": CommandEntry("local_cluster", "Show whether the local cluster is running, and what is in it."),
        "reset": CommandEntry("local_cluster", "Delete all data of the local cluster."),
    },
    "Any cluster": {
        "scheduler": CommandEntry("scheduler", "Run the scheduler."),
        "webhook": CommandEntry("webhook", "Run the admission webhook, which sets CUDA_VISIBLE_DEVICES."),
        "operator": CommandEntry("operator", "Run the operator for PyTorchJobs, TFJobs and Volcano Jobs."),
        "certs": CommandEntry("certs", "Create certificates for the webhook as files and a secret."),
        "check-service": CommandEntry("check_service", "Report over HTTP where this pod runs and which GPUs it has."),
        "validate": CommandEntry("validate", "Start test pods with a GPU map and check the result."),
    },
    "Inspect": INSPECT,
}


class LazyCommands(click.Group):
    """A group that imports the module of a command on use, so that `--help` is fast."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, CommandEntry]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._sections = sections
        self._entries = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._entries:
            return None
        module = importlib.import_module(f"gpu_scheduler.cli.{self._entries[cmd_name].module}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._entries))
        for title, entries in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", entry.help) for name, entry in entries.items()])


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=LazyCommands, sections=SECTIONS, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="gpu-scheduler")
def cli() -> None:
    """Gang scheduling for GPUs: pods of a gang start together or not at all."""


@click.group("gang", cls=LazyCommands, sections={"Commands": INSPECT}, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="kubectl gang")
def plugin() -> None:
    """Inspect gangs of GPU pods: which run, which wait, and why."""


def main() -> None:
    """Entry point of `gpu-scheduler`."""
    run(cli, "gpu-scheduler")


def kubectl_gang() -> None:
    """Entry point of `kubectl gang`, which has the commands that inspect a cluster."""
    run(plugin, "kubectl gang")


def run(commands: click.Group, name: str) -> None:
    """Runs a command line. An expected error is one line on standard error."""
    try:
        # Without standalone mode click returns the code of an Exit instead of raising it.
        sys.exit(commands(prog_name=name, standalone_mode=False))
    except click.Abort:
        print("Aborted.", file=sys.stderr)
        sys.exit(130)
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        print(f"{name}: {error.format_message()}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
