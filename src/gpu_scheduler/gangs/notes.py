"""The scheduler's notes on a gang: one annotation in JSON that the next leader continues from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import groupby

import msgspec

from gpu_scheduler.core.lifecycle import Status
from gpu_scheduler.core.model import Gang, Notes, Slot
from gpu_scheduler.gangs.contract import NOTES
from gpu_scheduler.k8s.objects import Json

MAX_BYTES = 128 * 1024
"""All annotations of an object together may have 256 KiB, and the notes are not the only one."""


class _WireNotes(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """The notes as JSON. A nomination is a list of node, role and the devices of each member there."""

    below_since: float | None = None
    lost: int = 0
    admitted_at: float | None = None
    nominated_at: float | None = None
    nomination: tuple[tuple[str, str, tuple[tuple[int, ...], ...]], ...] = ()
    target: tuple[str, ...] = ()
    target_since: float | None = None


_NOTHING = _WireNotes()


def with_notes(gang: Gang, annotations: Mapping[str, str] | None, part: str = "") -> Gang:
    """Returns the gang with its notes; `part` is its name where several gangs share one object."""
    text = (annotations or {}).get(NOTES)
    if not text:
        return gang
    notes = _read_parts(text).get(part, _NOTHING) if part else _read(text)
    if notes == _NOTHING:
        return gang
    return replace(
        gang,
        notes=Notes(
            below_since=notes.below_since,
            lost=notes.lost,
            admitted_at=notes.admitted_at,
            nominated_at=notes.nominated_at,
            nomination=tuple(Slot(node, held, role) for node, role, runs in notes.nomination for held in runs),
            target=notes.target,
            target_since=notes.target_since,
        ),
    )


def change_notes(
    annotations: Mapping[str, str] | None, status: Status, part: str = "", alive: Collection[str] = ()
) -> Json:
    """Returns the annotation that brings the notes up to date; {} if they are.

    Where several gangs share an object, the notes of gangs that are no longer `alive` are removed.
    """
    had = (annotations or {}).get(NOTES)
    notes = _notes_of(status)
    if not part:
        wanted = _write(notes)
    else:
        parts = {name: kept for name, kept in _read_parts(had or "").items() if name in alive}
        parts[part] = notes
        parts = {name: kept for name, kept in sorted(parts.items()) if kept != _NOTHING}
        wanted = _write(parts) if parts else None
    return {} if wanted == had else {NOTES: wanted}


def _notes_of(status: Status) -> _WireNotes:
    runs = groupby(status.notes.nomination, key=lambda slot: (slot.node, slot.role))
    return _WireNotes(
        below_since=status.notes.below_since,
        lost=status.notes.lost,
        admitted_at=status.notes.admitted_at,
        nominated_at=status.notes.nominated_at,
        nomination=tuple((node, role, tuple(slot.devices for slot in slots)) for (node, role), slots in runs),
        target=status.notes.target,
        target_since=status.notes.target_since,
    )


def _write(notes: _WireNotes | dict[str, _WireNotes]) -> str | None:
    """Encodes notes. A nomination that is too long is left out: the next leader decides again."""
    if notes == _NOTHING:
        return None
    text = msgspec.json.encode(notes)
    if len(text) > MAX_BYTES:
        every = notes if isinstance(notes, dict) else {"": notes}
        short = {
            name: msgspec.structs.replace(found, nomination=(), nominated_at=None, target=(), target_since=None)
            for name, found in every.items()
        }
        text = msgspec.json.encode(short if isinstance(notes, dict) else short[""])
    return text.decode()


def _read(text: str) -> _WireNotes:
    try:
        return msgspec.json.decode(text, type=_WireNotes)
    except (msgspec.MsgspecError, RecursionError):
        return _NOTHING


def _read_parts(text: str) -> dict[str, _WireNotes]:
    try:
        return msgspec.json.decode(text, type=dict[str, _WireNotes])
    except (msgspec.MsgspecError, RecursionError):
        return {}
