"""Admission policy: what an administrator decides about pods of this scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.gangs.ceilings import NO_CEILINGS, Ceilings
from gpu_scheduler.gangs.contract import SYSTEM
from gpu_scheduler.webhook.denials import Denial


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Which pods are reviewed, and how.

    `scheduler_names` are the schedulerNames that this scheduler serves, `gpu_resources` the resources that are GPUs.
    `inject` sets the variable also in pods without a device map. `scheduler_account` is the only user that may write
    reserved annotations. `ceilings` are what tenants may write.
    """

    scheduler_names: frozenset[str]
    gpu_resources: tuple[str, ...]
    inject: bool = True
    deny: frozenset[Denial] = frozenset()
    scheduler_account: str = f"system:serviceaccount:{SYSTEM}:gpu-scheduler"
    ceilings: Ceilings = NO_CEILINGS
