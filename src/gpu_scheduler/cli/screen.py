"""Output to the terminal: its width, lines of text, and JSON or YAML. Colours only on a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def screen_width() -> int | None:
    """The width of the terminal; None when the output is not a terminal, so that nothing is cut."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def make_console() -> Console:
    """A console that prints text unchanged."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def show(lines: Sequence[Text]) -> None:
    """Prints lines that already fit the terminal."""
    console = make_console()
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def show_value(value: object, output_format: str) -> None:
    """Prints a value as JSON or YAML."""
    if output_format == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
