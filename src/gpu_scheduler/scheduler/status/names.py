"""Names of gangs, queues and holders as users know them."""

from __future__ import annotations

from gpu_scheduler.core.cycle.holders import HIDDEN_GANG, GangName, Holder
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.state import LONE_POD
from gpu_scheduler.gangs.dialects import DIALECTS, display_name
from gpu_scheduler.gangs.options import DEFAULT_QUEUE_NAME


def name_of_gang(gang: GangName) -> str:
    """A gang, or a pod without one, with its namespace where the reader may see it."""
    if gang == HIDDEN_GANG:
        return "a gang of another namespace"
    return f"{gang.key.namespace}/{gang.pod}" if gang.pod else display_name(gang.key)


def short_name(gang: GangName) -> str:
    """A gang, or a pod without one, without its namespace."""
    return name_of_gang(gang).removeprefix(f"{gang.key.namespace}/")


def name_of_report(report: GangReport) -> str:
    """A gang without its namespace; a pod without a gang is called by its own name."""
    if report.key.dialect == LONE_POD:
        return next((pod.name for pod in report.members), report.key.name)
    return display_name(report.key).removeprefix(f"{report.key.namespace}/")


def name_of_holder(holder: Holder) -> str:
    """A gang that holds something, or the pod itself; those that the reader may not see by their number."""
    if holder.hidden:
        one = f"a {holder.name} of another namespace"
        return one if holder.hidden == 1 else f"{holder.hidden} {holder.name}s of other namespaces"
    return holder.name if holder.gang is None or holder.gang.dialect == LONE_POD else display_name(holder.gang)


def name_of_queue(queue: str) -> str:
    """A queue in a sentence."""
    return f"queue {queue or DEFAULT_QUEUE_NAME}"


def kind_of(key: GangKey) -> str:
    """The kind of the object that defines a gang; "" for a gang that only its pods define."""
    return next((d.resources[0].kind for d in DIALECTS if d.name == key.dialect and d.resources), "")
