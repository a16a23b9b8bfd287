"""What the webhook and the operator do, as permissions, for tests that grant exactly those."""

from __future__ import annotations

from gpu_scheduler.cli.checks.permissions import (
    OPERATOR_DEFINITIONS,
    OPERATOR_EVERYWHERE,
    OPERATOR_JOBS,
    OPERATOR_OWN,
    WEBHOOK_CONFIGURATIONS,
    WEBHOOK_EVERYWHERE,
    WEBHOOK_SECRETS,
    Permission,
    expand,
    operator_group_rights,
)
from gpu_scheduler.gangs.contract import WEBHOOK, WEBHOOK_SECRET
from gpu_scheduler.k8s.resources import Resource


def webhook_permissions(
    system: str, secret: str = WEBHOOK_SECRET, configuration: str = WEBHOOK, *, own_certificate: bool = True
) -> list[Permission]:
    """Returns everything the webhook does; without a certificate of its own it only reads nodes and queues."""
    found = list(expand(WEBHOOK_EVERYWHERE))
    if own_certificate:
        found += (one._replace(name=secret) for one in expand(WEBHOOK_SECRETS, system))
        found += (one._replace(name=configuration) for one in expand(WEBHOOK_CONFIGURATIONS))
    return found


def operator_permissions(groups: Resource | None, system: str, *, install: bool = False) -> list[Permission]:
    """Returns everything the operator does; with PodGroups of a kind where it creates gangs."""
    rights = [*OPERATOR_EVERYWHERE, *OPERATOR_JOBS, *(operator_group_rights(groups) if groups is not None else ())]
    rights += OPERATOR_DEFINITIONS if install else ()
    return list(dict.fromkeys([*expand(OPERATOR_OWN, system), *expand(rights)]))
