"""`gpu-scheduler`: every command by name; the code of a command is loaded only when it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from gpu_scheduler import __version__


class CommandEntry(NamedTuple):
    """Where a command is defined, in a module of this package, and what it does."""

    module: str
    help: str


INSPECT = {
    "gangs": CommandEntry("gangs", "List gangs: who runs, who waits, since when and why."),
    "nodes": CommandEntry("nodes", "Show every GPU and who holds it."),
    "queues": CommandEntry("queues", "Show queues: quota, use, and who waits in them."),
    "explain": CommandEntry("explain", "Say why a gang or pod waits, and what would help."),
    "doctor": CommandEntry("doctor", "Check the cluster and the scheduler in it, and say what to do."),
}
SECTIONS: dict[str, Mapping[str, CommandEntry]] = {
    "Start here": {
        "demo": CommandEntry("demo", "Show jobs that lock each other out, and the same jobs as gangs, in a minute."),
    },
    "Local cluster": {
        "up": CommandEntry("local_cluster", "Start a local Kubernetes cluster on this machine, without Docker."),
        "down": CommandEntry("local_cluster", "Stop the local cluster."),
        "status": CommandEntry("local_cluster", "Say whether the local cluster runs, and what is in it."),
        "reset": CommandEntry("local_cluster", "Delete everything the local cluster has stored."),
    },
    "Any cluster": {
        "scheduler": CommandEntry("scheduler", "Run the scheduler."),
        "webhook": CommandEntry("webhook", "Run the admission webhook, which tells containers their GPUs."),
        "operator": CommandEntry(
            "operator", "Run the operator: PyTorchJobs, TFJobs and Volcano's Jobs become gangs of pods."
        ),
        "certs": CommandEntry("certs", "Make certificates for the webhook, and a secret of them to apply."),
        "check-service": CommandEntry(
            "check_service", "Report over HTTP where this pod runs and which GPUs it may use."
        ),
        "validate": CommandEntry("validate", "Start test pods with a map and compare what they got with it."),
    },
    "Looking": INSPECT,
}


class LazyCommands(click.Group):
    """Commands whose module is imported when they are used: `--help` must not wait for what it does not need."""

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
    """Gangs of GPU pods that start together or not at all."""


@click.group("gang", cls=LazyCommands, sections={"Commands": INSPECT}, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="kubectl gang")
def plugin() -> None:
    """Look at gangs of GPU pods: who runs, who waits and why."""


def main() -> None:
    """The program."""
    run(cli, "gpu-scheduler")


def kubectl_gang() -> None:
    """The same commands for looking, as `kubectl gang`."""
    run(plugin, "kubectl gang")


def run(commands: click.Group, name: str) -> None:
    """Runs a command line. Whatever goes wrong in an expected way is one line on standard error."""
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
