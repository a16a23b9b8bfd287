"""Checks for misspelt names: annotations, resources and queues that mean nothing in this cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_scheduler.base.text import closest, count, join
from gpu_scheduler.cli.checks.cluster import Check, CheckLevel
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.gangs.options import closest_key, unknown_keys
from gpu_scheduler.k8s.objects import Meta
from gpu_scheduler.scheduler.status.names import name_of_gang


def check_annotations(metas: Iterable[Meta]) -> Check:
    """Whether every gpu-scheduler.io annotation of these pods and gang objects has a meaning."""
    found: dict[str, list[str]] = {}
    for meta in metas:
        for key in unknown_keys(meta.annotations or ()):
            found.setdefault(key, []).append(f"{meta.namespace}/{meta.name}")
    if not found:
        return Check("annotations", CheckLevel.OK, "every gpu-scheduler.io annotation is known")
    message = f"unknown and without effect: {_list_users(found, {key: closest_key(key) for key in found})}"
    return Check("annotations", CheckLevel.WARN, message, "Correct the key and create the object again.")


def check_resources(engine: Engine) -> Check:
    """Whether every resource that waiting pods ask for is offered by a node."""
    offered = {name for name, total in engine.totals().items() if total}
    found: dict[str, list[str]] = {}
    for gang in engine.gangs():
        waiting = [pod for pod in gang.pods if pod.node is None and not pod.terminal]
        for resource in {resource for pod in waiting for resource, amount in pod.shape.request if amount} - offered:
            found.setdefault(resource, []).append(name_of_gang(gang.name))
    if not found:
        return Check("resources", CheckLevel.OK, "every resource that pods wait for is offered by a node")
    message = f"no node has {_list_users(found, {name: closest(name, offered) for name in found})}"
    remedy = "Correct the name in the pods, or install the device plugin that offers the resource."
    return Check("resources", CheckLevel.WARN, message, remedy)


def check_queue_names(engine: Engine) -> Check:
    """Whether every queue that a gang names exists."""
    found: dict[str, list[str]] = {}
    queues = {report.name for report in engine.queues() if report.queue is not None}
    for gang in engine.gangs():
        if gang.queue and gang.queue not in queues:
            found.setdefault(gang.queue, []).append(name_of_gang(gang.name))
    if not found:
        return Check("queue-names", CheckLevel.OK, "every queue that gangs name exists")
    known = [name for name in queues if name]
    message = f"no such queue: {_list_users(found, {name: closest(name, known) for name in found})}"
    return Check("queue-names", CheckLevel.WARN, message, "Create the queue, or correct its name in the gang.")


def _list_users(found: Mapping[str, list[str]], near: Mapping[str, str]) -> str:
    """Each unknown name with the objects that use it and the known name closest to it."""
    shown = []
    for name in sorted(found):
        suggestion = f", did you mean {near[name]}?" if near[name] else ""
        users = sorted(found[name])
        others = f" and {count(len(users) - 1, 'other')}" if len(users) > 1 else ""
        shown.append(f"{name} ({users[0]}{others}{suggestion})")
    return join(shown)
