"""Placeholders: equal pods that do not exist, as a count. Only those that get a slot are ever made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

from gpu_scheduler.core.model import Pod, Shape


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
        return Pod(f"{self._stem}/{number}", self._namespace, self._name, self._shape, role=self._role)

    def _like(self, shape: Shape, numbers: range) -> Placeholders:
        return Placeholders(self._stem, self._namespace, self._name, shape, self._role, numbers)


def with_shape(pods: Sequence[Pod], shape: Shape) -> Sequence[Pod]:
    """Pods of one shape, with another shape instead."""
    if isinstance(pods, Placeholders):
        return pods.with_shape(shape)
    return [replace(pod, shape=shape) for pod in pods]
