"""Text that fits a terminal: tables, wrapped sentences, durations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.text import Text

from gpu_scheduler.k8s.times import format_time

GAP = 2


class TableColumn(NamedTuple):
    """A column. A narrow table omits the column with the highest `drop` first (0: never) and cuts others to `least`."""

    title: str
    drop: int = 0
    least: int = 0
    right: bool = False


Row = Sequence[Text | str]


def draw_table(columns: Sequence[TableColumn], rows: Sequence[Row], width: int | None) -> list[Text]:
    """A table with one line for each row, at most `width` wide. Empty columns are omitted."""
    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    natural = [
        max([len(column.title), *(row[i].cell_len for row in cells)]) if any(row[i].cell_len for row in cells) else 0
        for i, column in enumerate(columns)
    ]
    shown = [i for i in range(len(columns)) if natural[i]]
    widths = _fit(columns, natural, shown, width)
    head = [Text(column.title, "bold") for column in columns]
    return [_draw_row(columns, row, shown, widths, width) for row in (head, *cells)]


def _fit(columns: Sequence[TableColumn], natural: list[int], shown: list[int], width: int | None) -> list[int]:
    """The width of every column; removes columns that do not fit from `shown`."""
    widths = list(natural)
    if width is None:
        return widths
    smallest = [min(columns[i].least or natural[i], natural[i]) for i in range(len(columns))]
    while len(shown) > 1 and sum(smallest[i] + GAP for i in shown) - GAP > width:
        first = max(shown, key=lambda i: (columns[i].drop, i))
        if not columns[first].drop:
            break
        shown.remove(first)
    excess = sum(widths[i] + GAP for i in shown) - GAP - width
    while excess > 0:
        widest = max(shown, key=lambda i: widths[i] - smallest[i], default=None)
        if widest is None or widths[widest] <= smallest[widest]:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _draw_row(
    columns: Sequence[TableColumn], row: Sequence[Text], shown: list[int], widths: list[int], width: int | None
) -> Text:
    line = Text()
    for i in shown:
        cell = row[i].copy()
        cell.truncate(widths[i], overflow="ellipsis")
        blank = " " * (widths[i] - cell.cell_len)
        line.append_text(Text(blank) + cell if columns[i].right else cell + Text(blank))
        line.append(" " * GAP)
    line.rstrip()
    return cut(line, width)


def cut(line: Text, width: int | None) -> Text:
    """Cuts a line at `width`, with an ellipsis."""
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def fold(text: str, width: int | None, indent: str = "") -> list[Text]:
    """Wraps a text into indented lines of at most `width`."""
    lines = [""]
    available = None if width is None else max(20, width - len(indent))
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if available is None or len(longer) <= available or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return [cut(Text(indent + line), width) for line in lines]


def draw_age(seconds: float) -> str:
    """A duration in at most two units: 45s, 3m10s, 12m, 5h20m, 3d4h."""
    total = max(0, int(seconds))
    if total < 120:
        return f"{total}s"
    minutes, rest = divmod(total, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, rest = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, rest = divmod(hours, 24)
    return f"{days}d{rest}h" if days < 8 and rest else f"{days}d"


def draw_moment(when: float | None) -> str | None:
    """A time in the format of the API."""
    return None if when is None else format_time(when)


def draw_indices(numbers: Iterable[int]) -> str:
    """Numbers with consecutive ones as ranges: 0-3,6."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def letters(number: int) -> str:
    """The nth of A, B, ... Z, AA, AB, ..."""
    name = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(ord("A") + rest) + name
    return name
