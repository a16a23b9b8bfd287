"""Equal pods as a count: placeholders for pods that do not exist, and copies of one pod for trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import overload

from gpu_scheduler.core.model import Pod, Shape

_NO_LABELS: Mapping[str, str] = {}
"""One mapping for all: there may be thousands of placeholders."""


class Placeholders(Sequence[Pod]):
    """Pods of one shape, role and name, numbered in their uids, which begin with `stem`. A pod is made each time it is
    asked for."""

    __slots__ = ("_name", "_namespace", "_numbers", "_role", "_shape", "_stem")

    def __init__(self, stem: str, namespace: str, name: str, shape: Shape, role: str, numbers: range) -> None:
        self._stem, self._namespace, self._name = stem, namespace, name
        self._shape, self._role, self._numbers = shape, role, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Pod: ...

    @overload
    def __getitem__(self, index: slice) -> Placeholders: ...

    def __getitem__(self, index: int | slice) -> Pod | Placeholders:
        if isinstance(index, slice):
            return self._like(self._shape, self._numbers[index])
        return self._make(self._numbers[index])

    def __iter__(self) -> Iterator[Pod]:
        return map(self._make, self._numbers)

    def with_shape(self, shape: Shape) -> Placeholders:
        """The same pods with another shape."""
        return self._like(shape, self._numbers)

    def _make(self, number: int) -> Pod:
        uid = f"{self._stem}/{number}"
        return Pod(uid, self._namespace, self._name, self._shape, _NO_LABELS, _NO_LABELS, role=self._role)

    def _like(self, shape: Shape, numbers: range) -> Placeholders:
        return Placeholders(self._stem, self._namespace, self._name, shape, self._role, numbers)


class Copies(Sequence[Pod]):
    """One pod several times: enough for a trial that asks whether and where equal pods fit, and no pod is made."""

    __slots__ = ("_count", "_pod")

    def __init__(self, pod: Pod, count: int) -> None:
        self._pod, self._count = pod, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Pod: ...

    @overload
    def __getitem__(self, index: slice) -> Copies: ...

    def __getitem__(self, index: int | slice) -> Pod | Copies:
        found = range(self._count)[index]
        return self._pod if isinstance(found, int) else Copies(self._pod, len(found))

    def __iter__(self) -> Iterator[Pod]:
        return repeat(self._pod, self._count)

    def with_shape(self, shape: Shape) -> Copies:
        """The same number of pods with another shape."""
        return Copies(replace(self._pod, shape=shape), self._count)


def with_shape(pods: Sequence[Pod], shape: Shape) -> Sequence[Pod]:
    """Pods of one shape, with another shape instead."""
    if isinstance(pods, Placeholders | Copies):
        return pods.with_shape(shape)
    return [replace(pod, shape=shape) for pod in pods]
