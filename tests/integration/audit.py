"""The audit log of a real API server for one account, and the chart's policy about reserved annotations."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_scheduler.cli.checks.permissions import Permission
from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import member
from tests.integration.live import SYSTEM, Live
from tests.integration.running import eventually
from tests.kubernetes.charts import render

POLICIES = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


def guard(system: Live) -> None:
    """Installs the chart's policy: only the scheduler's account may write its annotations."""
    for found in render("gpu-scheduler", SYSTEM):
        if found["kind"] in POLICIES:
            system.ask("POST", f"/apis/admissionregistration.k8s.io/v1/{POLICIES[found['kind']]}", found)
    forged = {**member("forged"), "metadata": {"name": "forged", "annotations": {"gpu-scheduler.io/devices": "0"}}}
    eventually(lambda: system.http.ask("POST", f"{system.path('Pod')}?dryRun=All", forged)[0] == 403, "the policy")


class Audit:
    """The requests of one of our accounts in the audit log."""

    def __init__(self, folder: Path, account: str) -> None:
        self._log = folder / "audit.log"
        self._user = f"system:serviceaccount:{SYSTEM}:{account}"

    def requests(self) -> list[Json]:
        """Every request."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["user"]["username"] == self._user]

    def refused(self) -> list[Json]:
        """The requests that the roles did not allow."""
        return [line for line in self.requests() if _is_refused(line)]

    def used(self, *own: str) -> set[Permission]:
        """The permissions that the requests needed; `own` are the resources of a Role in our own namespace."""
        found = set()
        for what in (line.get("objectRef", {}) | {"verb": line["verb"]} for line in self.requests()):
            inside = SYSTEM if what.get("resource") in own else ""
            name = (what.get("apiGroup", ""), what.get("resource", ""), what["verb"], what.get("subresource", ""))
            found.add(Permission(*name, inside))
        return found


def _is_refused(line: Json) -> bool:
    """An Event about a pod in a terminating namespace is forbidden for another reason than roles."""
    ending = "because it is being terminated" in line["responseStatus"].get("message", "")
    return line["responseStatus"]["code"] == 403 and not ending
