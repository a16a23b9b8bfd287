"""Drawing the grid of nodes: letters for gangs, one line for nodes that look the same, a legend below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from gpu_scheduler.base.text import count
from gpu_scheduler.cli.render.nodes import DeviceShare, HoldKind, NodeLine
from gpu_scheduler.cli.render.text import TableColumn, cut, draw_indices, draw_table, fold, letters
from gpu_scheduler.core.model import MILLI

ALIKE = 6
"""From so many nodes on that look the same only the first two are drawn."""

MOST_NAMES = 26
"""How many gangs the legend names."""

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")
IDLE, BROKEN, GONE, MIXED = "·", "x", "~", "+"


@dataclass(frozen=True)
class HolderLabel:
    """A holder's short name and colour."""

    letter: str
    colour: str


def name_holders(lines: Sequence[NodeLine]) -> dict[str, HolderLabel]:
    """Short names for all who hold something, in the order in which they are met."""
    met: dict[str, HolderLabel] = {}
    for line in lines:
        parts = [part.holder for parts in line.devices for part in parts]
        for holder in (*parts, *line.counted):
            if holder not in met:
                met[holder] = HolderLabel(letters(len(met)), _COLOURS[len(met) % len(_COLOURS)])
    return met


def draw_nodes(lines: Sequence[NodeLine], width: int | None, *, every: bool = False) -> list[Text]:
    """The grid with its legend; nodes without GPUs or that look the same are left out unless `every` one is wanted."""
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
    more = [cut(Text(f"… {_call(alike)}", "dim"), width) for alike in folded]
    used, total = sum(line.used for line in lines), sum(line.gpus for line in lines)
    foot = cut(Text(f"{used} of {total} GPUs used on {count(len(lines), 'node')}."), width)
    rest = [cut(Text(f"Not shown: {count(bare, 'node')} without GPUs (--all).", "dim"), width)] if bare else []
    return [*draw_table(columns, rows, width), *more, Text(), foot, *_draw_legend(lines, names, width), *rest]


def _fold(lines: Sequence[NodeLine]) -> tuple[list[NodeLine], list[list[NodeLine]]]:
    """The lines to draw, and the groups of lines of which only the first two are among them."""
    groups: dict[object, list[NodeLine]] = {}
    for line in lines:
        groups.setdefault(_looks(line), []).append(line)
    folded = [alike for alike in groups.values() if len(alike) >= ALIKE]
    hidden = {line.name for alike in folded for line in alike[2:]}
    return [line for line in lines if line.name not in hidden], folded


def _looks(line: NodeLine) -> object:
    """What a line looks like but for its name."""
    counted = tuple(line.counted.items())
    state = (line.ready, line.schedulable, line.drained_for, line.assigns_devices, line.unhealthy)
    return (line.gpus, line.devices, counted, state)


def _call(alike: Sequence[NodeLine]) -> str:
    """A word for the nodes that are not drawn."""
    more, first = len(alike) - 2, alike[0]
    if first.used or not first.ready or not first.schedulable or first.unhealthy or first.drained_for:
        return f"{more} more nodes like {first.name}"
    return f"{more} more idle nodes of {count(first.gpus, 'GPU')} each" if first.gpus else f"{more} more without GPUs"


# -- cells


def _is_narrow(lines: Sequence[NodeLine], names: Mapping[str, HolderLabel], width: int) -> bool:
    """Whether cells have to go without their percentages to fit."""
    devices = max(len(line.devices) for line in lines)
    label = min(max(len(line.name) for line in lines), 20)
    return label + 9 + devices * (_cell_width(lines, names, False) + 1) > width


def _cell_width(lines: Sequence[NodeLine], names: Mapping[str, HolderLabel], tight: bool) -> int:
    texts = [_cell(line, i, names, tight) for line in lines for i in range(len(line.devices))]
    return max((text.cell_len for text in texts), default=1)


def _draw_devices(line: NodeLine, names: Mapping[str, HolderLabel], width: int, tight: bool) -> Text:
    """A cell for each device, or a count where devices are not ours to assign."""
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
    """One device: its holder's letter, small when only kept for it, and the percentage of a share."""
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
    if part.hold is HoldKind.QUARANTINED:
        return GONE
    return name.letter.lower() if part.hold is HoldKind.KEPT else name.letter


def _draw_notes(line: NodeLine, names: Mapping[str, HolderLabel]) -> Text:
    """What is wrong or special about a node."""
    notes = []
    if not line.ready:
        notes.append(("not ready", "red"))
    if not line.schedulable:
        notes.append(("cordoned", "yellow"))
    if line.unhealthy:
        notes.append((f"GPU {draw_indices(line.unhealthy)} unhealthy", "red"))
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
        told = ", ".join(f"{letter} {milli // 10}%" for letter, milli in shares.items())
        notes.append((f"GPU {index}: {told}", ""))
    drawn = Text()
    for i, (note, style) in enumerate(notes):
        drawn.append("; " if i else "").append(note, style)
    return drawn


# -- legend


def _draw_legend(lines: Sequence[NodeLine], names: Mapping[str, HolderLabel], width: int | None) -> list[Text]:
    drawn = []
    for holder, name in list(names.items())[:MOST_NAMES]:
        mine = [(line, _gpus_of(line, holder)) for line in lines]
        number, nodes = sum(gpus for _, gpus in mine), sum(bool(gpus) for _, gpus in mine)
        text = Text(f"  {name.letter}", name.colour)
        text.append(f" {holder}: {_amount(number)} on {count(nodes, 'node')}", "")
        drawn.append(cut(text, width))
    if len(names) > MOST_NAMES:
        drawn.append(cut(Text(f"  … and {len(names) - MOST_NAMES} more: -o json names all", "dim"), width))
    signs = ", ".join(f"{sign} {meaning}" for sign, meaning in _signs(lines))
    if signs:
        drawn += fold(signs, width, "  ")
    return drawn


def _gpus_of(line: NodeLine, holder: str) -> int:
    """How much of a node somebody has, in thousandths of a GPU."""
    milli = sum(part.milli for parts in line.devices for part in parts if part.holder == holder)
    return milli + line.counted.get(holder, 0) * MILLI


def _amount(milli: int) -> str:
    return count(milli // MILLI, "GPU") if milli % MILLI == 0 else f"{milli / MILLI:g} GPUs"


def _signs(lines: Sequence[NodeLine]) -> list[tuple[str, str]]:
    """The signs that appear, with what they mean."""
    parts = [part for line in lines for device in line.devices for part in device]
    idle = any(not device for line in lines for device in line.devices)
    signs = [(IDLE, "idle")] if idle else []
    if any(part.hold is HoldKind.KEPT for part in parts):
        signs.append(("a", "kept for members that are not there yet"))
    if any(part.hold is HoldKind.QUARANTINED for part in parts):
        signs.append((GONE, "of a pod that vanished, free again soon"))
    if any(line.unhealthy for line in lines):
        signs.append((BROKEN, "unhealthy"))
    if any(len({part.holder for part in device}) > 1 for line in lines for device in line.devices):
        signs.append((MIXED, "shared by several"))
    return signs
