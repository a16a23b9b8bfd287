"""`gpu-scheduler`: every command by name; the code of a command is loaded only when it runs."""

from __future__ import annotations

import importlib
import sys

import click

from gpu_scheduler import __version__

COMMANDS = {
    "up": "Start a local Kubernetes cluster on this machine, without Docker.",
    "down": "Stop the local cluster.",
    "status": "Say whether the local cluster runs, and what is in it.",
    "reset": "Delete everything the local cluster has stored.",
}


class LazyCommands(click.Group):
    """Commands whose module is imported when they are used: `--help` must not wait for what it does not need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module("gpu_scheduler.cli.local")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpu-scheduler")
def cli() -> None:
    """Gangs of GPU pods that start together or not at all."""


def main() -> None:
    """The program. Whatever goes wrong in an expected way is one line on standard error."""
    try:
        # Without standalone mode click returns the code of an Exit instead of raising it.
        sys.exit(cli(standalone_mode=False))
    except click.Abort:
        print("Aborted.", file=sys.stderr)
        sys.exit(130)
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        print(f"gpu-scheduler: {error.format_message()}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
