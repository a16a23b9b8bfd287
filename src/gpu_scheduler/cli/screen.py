"""The screen: how wide it is, and lines and values on it. Colour only where a terminal shows it."""

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
    """How many characters fit on a line; None when nobody looks, then nothing needs to be cut."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def make_console() -> Console:
    """A console that adds nothing to what it is given."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def show(lines: Sequence[Text]) -> None:
    """Writes lines as they are: whoever made them has fitted them already."""
    console = make_console()
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def show_value(value: object, form: str) -> None:
    """Writes a value as JSON or YAML."""
    if form == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
