"""The grid of `nodes`: a letter for each gang, identical nodes folded, and a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from gpu_scheduler.base.text import count
from gpu_scheduler.cli.render.nodes import DeviceShare, NodeLine
from gpu_scheduler.cli.render.text import TableColumn, cut, draw_indices, draw_moment, draw_table, fold, letters
from gpu_scheduler.core.cycle.inventory import Hold
from gpu_scheduler.core.model import MILLI

FOLD_FROM = 6
"""Of so many identical nodes only the first two are shown."""

MAX_LEGEND = 26
"""The most gangs in the legend."""

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")
IDLE, BROKEN, GONE, MIXED = "·", "x", "~", "+"


@dataclass(frozen=True)
class HolderLabel:
    """The letter and colour of a holder."""

    letter: str
    colour: str


def name_holders(lines: Sequence[NodeLine]) -> dict[str, HolderLabel]:
    """A label for every holder, in the order of first appearance."""
    met: dict[str, HolderLabel] = {}
    for line in lines:
        parts = [part.holder for parts in line.devices for part in parts]
        for holder in (*parts, *line.counted):
            if holder not in met:
                met[holder] = HolderLabel(letters(len(met)), _COLOURS[len(met) % len(_COLOURS)])
    return met


def draw_nodes(lines: Sequence[NodeLine], width: int | None, *, every: bool = False) -> list[Text]:
    """The grid with its legend. Unless `every` is set, identical nodes and those without GPUs are omitted."""
    if not lines:
        return [Text("No nodes.")]
    interesting = [line for line in lines if every or line.gpus or line.counted] or lines
    bare, lines = len(lines) - len(interesting), interesting
    names = name_holders(lines)
    tight = width is not None and _is_narrow(lines, names, width)
    cell = _cell_width(lines, names, tight)
    drawn, folded = (list(lines), []) if every else _fold(lines)
    rows = [
        (
            line.name,
            f"{line.used}/{line.gpus}" if line.gpus else "-",
            _draw_devices(line, names, cell, tight),
            _draw_notes(line, names),
        )
        for line in drawn
    ]
    columns = (
        TableColumn("NODE", least=8),
        TableColumn("USED", right=True),
        TableColumn("GPUS"),
        TableColumn("", drop=1, least=6),
    )
    more = [cut(Text(f"… {_describe_folded(alike)}", "dim"), width) for alike in folded]
    used, total = sum(line.used for line in lines), sum(line.gpus for line in lines)
    foot = cut(Text(f"{used} of {total} GPUs used on {count(len(lines), 'node')}."), width)
    rest = [cut(Text(f"Not shown: {count(bare, 'node')} without GPUs (--all).", "dim"), width)] if bare else []
    return [*draw_table(columns, rows, width), *more, Text(), foot, *_draw_legend(lines, names, width), *rest]


def _fold(lines: Sequence[NodeLine]) -> tuple[list[NodeLine], list[list[NodeLine]]]:
    """The lines to show, and the groups of identical lines of which only the first two are shown."""
    groups: dict[object, list[NodeLine]] = {}
    for line in lines:
        groups.setdefault(_appearance(line), []).append(line)
    folded = [alike for alike in groups.values() if len(alike) >= FOLD_FROM]
    hidden = {line.name for alike in folded for line in alike[2:]}
    return [line for line in lines if line.name not in hidden], folded


def _appearance(line: NodeLine) -> object:
    """Everything that a line shows except for its name."""
    counted = tuple(line.counted.items())
    state = (line.ready, line.schedulable, line.drained_for, line.assigns_devices, line.unhealthy)
    return (line.gpus, line.devices, counted, state)


def _describe_folded(alike: Sequence[NodeLine]) -> str:
    """Describes the nodes that are not shown."""
    more, first = len(alike) - 2, alike[0]
    if first.used or not first.ready or not first.schedulable or first.unhealthy or first.drained_for:
        return f"{more} more nodes like {first.name}"
    return f"{more} more idle nodes of {count(first.gpus, 'GPU')} each" if first.gpus else f"{more} more without GPUs"


# -- cells


def _is_narrow(lines: Sequence[NodeLine], names: Mapping[str, HolderLabel], width: int) -> bool:
    """Whether percentages must be omitted to fit the width."""
    devices = max(len(line.devices) for line in lines)
    label = min(max(len(line.name) for line in lines), 20)
    return label + 9 + devices * (_cell_width(lines, names, False) + 1) > width


def _cell_width(lines: Sequence[NodeLine], names: Mapping[str, HolderLabel], tight: bool) -> int:
    texts = [_cell(line, i, names, tight) for line in lines for i in range(len(line.devices))]
    return max((text.cell_len for text in texts), default=1)


def _draw_devices(line: NodeLine, names: Mapping[str, HolderLabel], width: int, tight: bool) -> Text:
    """A cell for each device, or a count where devices are not assigned by index."""
    drawn = Text()
    if not line.assigns_devices:
        parts = [f"{number} {names[holder].letter}" for holder, number in line.counted.items()]
        drawn.append(f"counted: {', '.join(parts)}" if parts else "counted" if line.gpus else "", "dim")
        return drawn
    for index in range(len(line.devices)):
        cell = _cell(line, index, names, tight)
        drawn.append_text(cell)
        drawn.append(" " * (width + 1 - cell.cell_len))
    drawn.rstrip()
    return drawn


def _cell(line: NodeLine, index: int, names: Mapping[str, HolderLabel], tight: bool) -> Text:
    """One device: the letter of its holder, in lower case if only kept for it, and the percentage of a share."""
    parts = line.devices[index]
    broken = index in line.unhealthy
    if not parts:
        return Text(BROKEN, "bold red") if broken else Text(IDLE, "dim")
    holders = {part.holder for part in parts}
    name = names[parts[0].holder]
    letter = MIXED if len(holders) > 1 else _letter(parts[0], name)
    milli = sum(part.milli for part in parts)
    share = "" if tight or milli >= MILLI else f"{milli // 10}%"
    return Text(letter + share, "bold red" if broken else "" if len(holders) > 1 else name.colour)


def _letter(part: DeviceShare, name: HolderLabel) -> str:
    if part.hold is Hold.QUARANTINED:
        return GONE
    return name.letter.lower() if part.hold is Hold.KEPT else name.letter


def _draw_notes(line: NodeLine, names: Mapping[str, HolderLabel]) -> Text:
    """Notes about a node: not ready, cordoned, unhealthy, quarantined, drained, shared."""
    notes = []
    if not line.ready:
        notes.append(("not ready", "red"))
    if not line.schedulable:
        notes.append(("cordoned", "yellow"))
    if line.unhealthy:
        notes.append((f"GPU {draw_indices(line.unhealthy)} unhealthy", "red"))
    if line.quarantined:
        end = draw_moment(max(line.quarantined.values()))
        notes.append((f"GPU {draw_indices(line.quarantined)} in quarantine until {end}", "yellow"))
    if line.drained_for:
        notes.append((f"drained for {line.drained_for}", "magenta"))
    if line.assigns_devices and line.counted:
        users = ", ".join(names[holder].letter for holder in line.counted)
        notes.append((f"GPUs of {users} not recorded", "yellow"))
    mixed = [i for i, parts in enumerate(line.devices) if len({part.holder for part in parts}) > 1]
    for index in mixed:
        shares: dict[str, int] = {}
        for part in line.devices[index]:
            shares[names[part.holder].letter] = shares.get(names[part.holder].letter, 0) + part.milli
        text = ", ".join(f"{letter} {milli // 10}%" for letter, milli in shares.items())
        notes.append((f"GPU {index}: {text}", ""))
    drawn = Text()
    for i, (note, style) in enumerate(notes):
        drawn.append("; " if i else "").append(note, style)
    return drawn


# -- legend


def _draw_legend(lines: Sequence[NodeLine], names: Mapping[str, HolderLabel], width: int | None) -> list[Text]:
    drawn = []
    for holder, name in list(names.items())[:MAX_LEGEND]:
        mine = [(line, _gpus_of(line, holder)) for line in lines]
        number, nodes = sum(gpus for _, gpus in mine), sum(bool(gpus) for _, gpus in mine)
        text = Text(f"  {name.letter}", name.colour)
        text.append(f" {holder}: {_amount(number)} on {count(nodes, 'node')}", "")
        drawn.append(cut(text, width))
    if len(names) > MAX_LEGEND:
        drawn.append(cut(Text(f"  … and {len(names) - MAX_LEGEND} more: -o json names all", "dim"), width))
    symbols = ", ".join(f"{symbol} {meaning}" for symbol, meaning in _symbols(lines))
    if symbols:
        drawn += fold(symbols, width, "  ")
    return drawn


def _gpus_of(line: NodeLine, holder: str) -> int:
    """The GPUs of a node that a holder has, in thousandths."""
    milli = sum(part.milli for parts in line.devices for part in parts if part.holder == holder)
    return milli + line.counted.get(holder, 0) * MILLI


def _amount(milli: int) -> str:
    return count(milli // MILLI, "GPU") if milli % MILLI == 0 else f"{milli / MILLI:g} GPUs"


def _symbols(lines: Sequence[NodeLine]) -> list[tuple[str, str]]:
    """The symbols that the grid uses, with their meaning."""
    parts = [part for line in lines for device in line.devices for part in device]
    idle = any(not device for line in lines for device in line.devices)
    symbols = [(IDLE, "idle")] if idle else []
    if any(part.hold is Hold.KEPT for part in parts):
        symbols.append(("a", "kept for members that do not exist yet"))
    if any(part.hold is Hold.QUARANTINED for part in parts):
        symbols.append((GONE, "of a pod that disappeared; in quarantine"))
    if any(line.unhealthy for line in lines):
        symbols.append((BROKEN, "unhealthy"))
    if any(len({part.holder for part in device}) > 1 for line in lines for device in line.devices):
        symbols.append((MIXED, "shared by several"))
    return symbols
