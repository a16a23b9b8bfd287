"""Checks of our Queue objects: their own fields, and their place in the tree."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core.model import Queue
from gpu_scheduler.gangs.queue_tree import QueueTree
from gpu_scheduler.gangs.queues import QueueError, decode_queue
from gpu_scheduler.k8s.objects import RawObject
from gpu_scheduler.webhook.findings import Findings

_UNNAMED = "?"
"""Stands for the name of a queue whose name is yet to be generated; "" is the default queue."""


def check_queue(raw: RawObject, old: RawObject | None, tree: QueueTree | None) -> Findings:
    """Checks a queue. Mistakes of its old version do not count, unless they become worse.

    `tree` is None if the other queues are unknown: then only the fields of the queue itself are checked.
    """
    found = Findings()
    if raw.metadata.deletion_timestamp is not None:
        return found
    queue, problem = _decode(raw)
    before, old_problem = _decode(old) if old is not None else (None, "")
    if problem and problem != old_problem:
        found.refuse(problem)
    if queue is not None and tree is not None:
        found.refuse(*tree.find_new_problems(queue, before))
    return found


def _decode(raw: RawObject) -> tuple[Queue | None, str]:
    """Returns the queue, or None and what is wrong with it."""
    try:
        queue = decode_queue(raw)
    except QueueError as error:
        return None, str(error)
    return (queue if raw.metadata.name else replace(queue, name=_UNNAMED)), ""
