"""Spark applications: a driver pod creates its executors, so no object has a template of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpu_scheduler.core.model import Expected, Shape
from gpu_scheduler.gangs.contract import EXECUTORS
from gpu_scheduler.gangs.dialects.dialect import GangContext
from gpu_scheduler.gangs.options import BadOptionError, annotation, quote
from gpu_scheduler.gangs.pods.device_map import read_number
from gpu_scheduler.gangs.roles import role_of
from gpu_scheduler.k8s.objects import Container, Meta, PodObject, PodSpec, RawObject, Resources

_DRIVER, _EXECUTOR = "driver", "executor"
_MAX_EXECUTORS = 1000


def read_executors(raw: RawObject, context: GangContext) -> int:
    """Returns the number of executors that a group declares; 0 where it declares none."""
    text = annotation(raw.metadata, EXECUTORS)
    if not text:
        return 0
    number, most = read_number(text), min(_MAX_EXECUTORS, context.ceilings.max_members)
    if number is None or not 1 <= number <= most:
        raise BadOptionError(f"{EXECUTORS}: {quote(text)} is not a number of executors from 1 to {most}")
    return number


def expect_executors(
    amounts: Mapping[str, int], declared: int, pods: Collection[PodObject], context: GangContext
) -> tuple[Expected, ...]:
    """Returns the executors that a driver will create from the group's resources, less what the driver itself takes."""
    members = {role_of(pod): pod for pod in pods}
    driver = members.get(_DRIVER)
    shape = context.shape_of(driver.spec, driver.metadata) if driver is not None else None
    if driver is None or shape is None:
        return ()
    taken = dict(shape.request)
    rest = {name: amount - taken.get(name, 0) for name, amount in amounts.items() if amount > taken.get(name, 0)}
    if not rest:
        return ()
    first = members.get(_EXECUTOR)
    if first is not None and (known := context.shape_of(first.spec, first.metadata)) is not None:
        return (Expected(known, declared or _count_like(known, rest), _EXECUTOR),)
    namespace = driver.metadata.namespace
    whole = shape_share(rest, 1, PodSpec(), namespace, context)
    if whole is None:
        return ()
    count = declared or min(_MAX_EXECUTORS, whole.gpus or -(-rest.get("cpu", 0) // 1000) or 1)
    # The executors' node selector is unknown until the first of them exists. The driver's is assumed, except for a
    # driver without GPUs whose executors have some: such a driver is often kept away from GPU nodes.
    apart = whole.gpus > 0 and shape.gpus == 0
    place = PodSpec(node_selector=None if apart else driver.spec.node_selector, tolerations=driver.spec.tolerations)
    share = shape_share(rest, count, place, namespace, context)
    return (Expected(share, count, _EXECUTOR),) if share is not None else ()


def shape_share(
    amounts: Mapping[str, int], parts: int, place: PodSpec, namespace: str, context: GangContext
) -> Shape | None:
    """Returns the shape of a pod that requests an equal part of the amounts and may go where `place` may."""
    requests: dict[str, str | int | float] = {
        name: f"{-(-amount // parts)}{'m' if name == 'cpu' else ''}" for name, amount in amounts.items()
    }
    place.containers = [Container(resources=Resources(requests=requests))]
    return context.shape_of(place, Meta(namespace=namespace))


def _count_like(shape: Shape, amounts: Mapping[str, int]) -> int:
    """Returns how many pods of a shape the amounts were written for, by GPUs, else by cpu, else by memory."""
    request = dict(shape.request)
    name = next((name for name in (shape.gpu_resource, "cpu", "memory") if name in amounts and name in request), "")
    return min(_MAX_EXECUTORS, max(1, amounts[name] // request[name])) if name else 1
