"""Checks of the API server, the installation, the leader, the gangs and the nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files

from gpu_scheduler.base.text import count, join
from gpu_scheduler.cli.checks.permissions import Permission, gang_kinds
from gpu_scheduler.cli.render.leader import Leadership, leader_problem
from gpu_scheduler.cli.render.nodes import NodeLine, list_nodes
from gpu_scheduler.cli.render.text import draw_age, draw_indices, draw_moment
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.gangs.contract import ASSIGNS_DEVICES, PLACEMENTS, QUEUES
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.scheduler.status.names import name_of_gang

SLOW_SECONDS = 1.0
"""A slower answer to a version request is a warning."""

MAX_CLOCK_SKEW = 5.0
"""With more seconds between two clocks, ages and timeouts are wrong."""

LONG_WAIT = 3600.0
"""A gang that waits for more seconds is listed."""

DAY = 86_400.0
INSTALL = f"Install the CRDs: kubectl apply -f {files('gpu_scheduler.gangs') / 'crds'}"


class CheckLevel(Enum):
    """The verdict of a check."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """The result of one check; `remedy` says what to do about it."""

    name: str
    level: CheckLevel
    message: str
    remedy: str = ""


def check_api(server: str, version: str, seconds: float) -> Check:
    """Checks how fast the API server answers."""
    answer = f"{server} answers in {seconds * 1000:.0f} ms, Kubernetes {version or 'of unknown version'}"
    if seconds > SLOW_SECONDS:
        return Check("api", CheckLevel.WARN, answer, "Every bind takes as long; check the load of the API server.")
    return Check("api", CheckLevel.OK, answer)


def check_clock(asked: float, theirs: float, answered: float) -> Check:
    """Checks the clock skew: the server's time must lie between our request and its answer."""
    ours = min(max(asked, theirs), answered)
    apart = abs(ours - theirs)
    if apart > MAX_CLOCK_SKEW:
        side = "ahead of" if ours > theirs else "behind"
        skew = f"the clock of this machine is {draw_age(apart)} {side} that of the API server"
        return Check(
            "clock", CheckLevel.WARN, skew, "Synchronize the clocks (NTP): timeouts and ages are wrong until then."
        )
    return Check("clock", CheckLevel.OK, "agrees with that of the API server")


def check_permissions(refused: Collection[Permission], asked: int) -> Check:
    """Checks that the account has every permission that the scheduler needs."""
    if refused:
        denied = f"{len(refused)} of {asked} denied: {join([str(one) for one in refused], 8)}"
        remedy = "Bind the scheduler's ClusterRole to this account, or run doctor with the account of the scheduler."
        return Check("permissions", CheckLevel.FAIL, denied, remedy)
    return Check("permissions", CheckLevel.OK, f"all {asked} granted")


def check_kinds(served: Served) -> Iterator[Check]:
    """Checks that the CRDs are installed, and lists the kinds of gangs that the cluster serves."""
    if served.has(PLACEMENTS):
        yield Check("placements", CheckLevel.OK, f"{PLACEMENTS.plural}.{PLACEMENTS.api_version} installed")
    else:
        missing = f"the CRD {PLACEMENTS.plural}.{PLACEMENTS.group} is not installed: the scheduler cannot commit"
        yield Check("placements", CheckLevel.FAIL, missing, INSTALL)
    if served.has(QUEUES):
        yield Check("queues", CheckLevel.OK, f"{QUEUES.plural}.{QUEUES.api_version} installed")
    else:
        missing = f"the CRD {QUEUES.plural}.{QUEUES.group} is not installed: there are no quotas"
        yield Check("queues", CheckLevel.WARN, missing, INSTALL)
    kinds = [f"{kind.plural}.{kind.api_version}" for kind in gang_kinds(served)]
    found = join([*kinds, "annotations"], 8)
    yield Check("dialects", CheckLevel.OK, f"gangs can be written as {found}")


def check_leader(lease: Leadership | None, now: float, committed: int) -> Check:
    """Checks that a scheduler leads."""
    problem = leader_problem(lease, now)
    if problem or lease is None:
        remedy = "Start one: gpu-scheduler scheduler."
        if committed:
            remedy += f" It completes {count(committed, 'open commit')} first."
        return Check("leader", CheckLevel.WARN, problem.rstrip("."), remedy)
    age = draw_age(now - (lease.renewed or now))
    return Check("leader", CheckLevel.OK, f"{lease.holder}, renewed {age} ago, {count(committed, 'open commit')}")


def check_placements(names: Mapping[str, str], committed: Mapping[str, str]) -> Check:
    """Checks that every Placement is committed in the Lease and the other way round; both map names to uids."""
    missing = [name for name, uid in committed.items() if names.get(name) != uid]
    if missing:
        lost = (
            f"the Lease names {count(len(missing), 'Placement')} that {'do' if len(missing) > 1 else 'does'} not exist"
        )
        remedy = "They were deleted. Check that no two pods use one GPU, then remove the names from the Lease."
        return Check("leftovers", CheckLevel.FAIL, f"{lost}: {join(missing)}", remedy)
    void = [name for name in names if name not in committed]
    if void:
        remedy = "They have no effect. The next leader deletes them; kubectl delete is safe too."
        uncommitted = f"{count(len(void), 'Placement')} not committed: {join(void)}"
        return Check("leftovers", CheckLevel.INFO, uncommitted, remedy)
    return Check("leftovers", CheckLevel.OK, "none: every Placement is committed")


def check_gangs(engine: Engine, now: float) -> Iterator[Check]:
    """Lists pods whose gang does not exist, and gangs that have waited for long, also those without pods."""
    lost, slow = [], []
    for summary in engine.gangs():
        report = engine.report(summary.key, now)
        if report is None:
            continue
        name = name_of_gang(summary.name)
        if report.phase is Phase.ORPHANED:
            lost.append(f"{name} ({count(len(summary.pods), 'pod')})")
        # A gang without pods waits for capacity too; one that only lacks pods may have ended long ago.
        since = report.waiting_since if report.status.waiting or report.phase is Phase.WAITING else None
        if since is not None and now - since > LONG_WAIT:
            slow.append((since, name))
    if lost:
        remedy = "Create the gang objects again, or delete the pods: they cannot start."
        yield Check("gangs", CheckLevel.WARN, f"pods name gangs that do not exist: {join(lost)}", remedy)
    else:
        yield Check("gangs", CheckLevel.OK, "every gang that pods name exists")
    if slow:
        waits = [f"{name} ({draw_age(now - since)})" for since, name in sorted(slow)]
        remedy = f"gpu-scheduler explain {min(slow)[1]}"
        yield Check("waiting", CheckLevel.WARN, f"{count(len(slow), 'gang')} for over an hour: {join(waits)}", remedy)
    else:
        yield Check("waiting", CheckLevel.OK, "no gang for over an hour")


def check_nodes(engine: Engine) -> Check:
    """Checks that nodes have healthy GPUs, and lists nodes on which GPUs are only counted."""
    nodes = [report.node for report in engine.nodes() if report.node.gpus]
    counted = sorted(node.name for node in nodes if not node.assigns_devices)
    sick = sorted(node.name for node in nodes if not node.ready or node.unhealthy)
    if not nodes:
        none = f"no node offers {' or '.join(engine.gpu_resources)}"
        remedy = "Install the GPU vendor's device plugin, or set gpuResources in --config."
        return Check("nodes", CheckLevel.WARN, none, remedy)
    gpus = count(sum(node.gpus for node in nodes), "GPU")
    total = f"{gpus} on {count(len(nodes), 'node')}"
    if sick:
        remedy = f"gpu-scheduler nodes {sick[0]}"
        return Check("nodes", CheckLevel.WARN, f"{total}; not ready or with unhealthy GPUs: {join(sick)}", remedy)
    if counted:
        remedy = f"Label nodes {ASSIGNS_DEVICES}=true where no device plugin chooses the GPUs; otherwise this is fine."
        return Check("nodes", CheckLevel.INFO, f"{total}; only counted, not assigned by index: {join(counted)}", remedy)
    return Check("nodes", CheckLevel.OK, total)


def check_quarantine(engine: Engine, now: float) -> Check:
    """Lists the GPUs that the leader keeps unused because their pods vanished."""
    lines = [line for line in list_nodes(engine) if line.quarantined]
    if not lines:
        return Check("quarantine", CheckLevel.OK, "no GPU is in quarantine")
    gpus = count(sum(len(line.quarantined) for line in lines), "GPU")
    found = [f"{line.name} GPU {draw_indices(line.quarantined)} until {_end_of(line, now)}" for line in lines]
    remedy = "They become free by themselves: their pods vanished without an observed end, and may still use them."
    return Check("quarantine", CheckLevel.WARN, f"{gpus} of pods that vanished stay unused: {join(found, 8)}", remedy)


def _end_of(line: NodeLine, now: float) -> str:
    end = max(line.quarantined.values())
    return f"{draw_moment(end)} (another {draw_age(end - now)})"


def worst(checks: Iterable[Check]) -> CheckLevel:
    """The worst verdict."""
    order = list(CheckLevel)
    return max((check.level for check in checks), key=order.index, default=CheckLevel.OK)


def sum_up(checks: Sequence[Check]) -> str:
    """The number of checks of each level, in one line."""
    numbers = [(sum(check.level is level for check in checks), level) for level in CheckLevel]
    return ", ".join(f"{number} {level.value}" for number, level in numbers if number)
