"""QueueTree: the queues by parent, and what contradicts between a queue, its parent and its children."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpu_scheduler.base.text import closest
from gpu_scheduler.core.model import Queue
from gpu_scheduler.gangs.options import DEFAULT_QUEUE_NAME, quote
from gpu_scheduler.k8s.quantity import format_milli, format_whole


class TreeProblem(NamedTuple):
    """One contradiction. Of two versions of a queue, the one with the larger `excess` is worse in this `subject`."""

    subject: tuple[str, ...]
    excess: int
    text: str


class QueueTree:
    """All queues that exist. Names are those of the core, in which the default queue is ""."""

    def __init__(self, queues: Iterable[Queue] = ()) -> None:
        self._queues = {queue.name: queue for queue in queues}
        self._children: dict[str, list[Queue]] = {}
        for queue in self._queues.values():
            if queue.parent is not None:
                self._children.setdefault(queue.parent, []).append(queue)

    def find_problems(self, queue: Queue) -> Iterator[TreeProblem]:
        """Yields the contradictions of a queue, which may be new or a new version of one in the tree."""
        if queue.parent is not None:
            parent = self._queues.get(queue.parent)
            problem = self._find_parent_problem(queue, queue.parent)
            if problem:
                yield TreeProblem(("spec.parent", queue.parent), 1, f"spec.parent: {problem}")
            elif parent is not None:
                yield from self._compare_with_parent(queue, parent)
        yield from self._compare_with_children(queue)

    def find_new_problems(self, queue: Queue, old: Queue | None) -> Iterator[str]:
        """Yields a line for each contradiction that an older version did not have, or had to a smaller degree."""
        before = {one.subject: one.excess for one in self.find_problems(old)} if old is not None else {}
        for subject, excess, text in self.find_problems(queue):
            if excess > before.get(subject, 0):
                yield text

    def _find_parent_problem(self, queue: Queue, named: str) -> str:
        """Returns what is wrong with the parent that a queue names: it does not exist, or is below the queue."""
        if named not in self._queues:
            near = closest(named, self._queues)
            right = f"did you mean {near}?" if near else "create it first, or leave the field out"
            return f"there is no queue {quote(_show(named))}; {right}"
        passed: dict[str | None, None] = {}
        above: str | None = named
        while above in self._queues and above not in passed:
            passed[above] = None
            above = self._queues[above].parent if above != queue.name else queue.name
        if above != queue.name:
            return ""
        return f"{quote(_show(named))} is itself below queue {_show(queue.name)}; name a queue that is not"

    def _compare_with_parent(self, queue: Queue, parent: Queue) -> Iterator[TreeProblem]:
        for name, granted in parent.quota.items():
            own, others = queue.quota.get(name, 0), self._sum_quotas(parent, name, but=queue)
            if own and own + others > granted:
                what = f"with {_amount(name, own)} the children of queue {_show(parent.name)} have"
                compared = f"{_amount(name, own + others)} together, above its quota of {_amount(name, granted)}"
                text = f"{what} {compared}; write at most {_amount(name, max(0, granted - others))}"
                yield _excess(("quota", name, parent.name), own + others - granted, text)
        for name, most in parent.limit.items():
            own = queue.limit.get(name, 0)
            if own > most:
                compared = f"above the limit of its parent {_show(parent.name)}, {_amount(name, most)}"
                text = f"{_amount(name, own)} is {compared}; write at most {_amount(name, most)}"
                yield _excess(("limit", name, parent.name), own - most, text)

    def _compare_with_children(self, queue: Queue) -> Iterator[TreeProblem]:
        for name, granted in queue.quota.items():
            total = self._sum_quotas(queue, name, but=queue)
            if total > granted:
                text = f"{_amount(name, granted)} is below the quotas of its children together"
                yield _excess(("quota", name), total - granted, f"{text}; write at least {_amount(name, total)}")
        for name, most in queue.limit.items():
            limits = {child.name: child.limit.get(name, 0) for child in self._children_of(queue)}
            child = max(limits, key=limits.__getitem__, default=None)
            if child is not None and limits[child] > most:
                text = f"{_amount(name, most)} is below the limit of its child {_show(child)}"
                yield _excess(
                    ("limit", name), limits[child] - most, f"{text}; write at least {_amount(name, limits[child])}"
                )

    def _sum_quotas(self, parent: Queue, resource: str, but: Queue) -> int:
        """Returns the quotas of a queue's children together, without one of them."""
        return sum(child.quota.get(resource, 0) for child in self._children_of(parent) if child.name != but.name)

    def _children_of(self, queue: Queue) -> Iterable[Queue]:
        return self._children.get(queue.name, ())


def _excess(subject: tuple[str, ...], excess: int, text: str) -> TreeProblem:
    field, resource, *_ = subject
    return TreeProblem(subject, excess, f"spec.{field}[{quote(resource)}]: {text}")


def _amount(resource: str, amount: int) -> str:
    return format_milli(amount) if resource == "cpu" else format_whole(amount)


def _show(queue: str) -> str:
    return queue or DEFAULT_QUEUE_NAME
