"""What the doctor looks at: each check turns what was found into a verdict and, where needed, what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files

from gpu_scheduler.base.text import count, join
from gpu_scheduler.cli.checks.permissions import Permission, gang_kinds
from gpu_scheduler.cli.dry_run import look_at, name_of, waiting_since
from gpu_scheduler.cli.render.leader import Leadership, leader_problem
from gpu_scheduler.cli.render.text import draw_age
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.state import State
from gpu_scheduler.gangs.contract import ASSIGNS_DEVICES, PLACEMENTS, QUEUES
from gpu_scheduler.k8s.discovery import Served

SLOW = 1.0
"""An API server that takes longer than this to say its version is slow, in seconds."""

SKEWED = 5.0
"""Clocks further apart than this make ages and deadlines wrong, in seconds."""

LONG = 3600.0
"""Who waits longer than this is worth a word, in seconds."""

DAY = 86_400.0
INSTALL = f"Install the CRDs: kubectl apply -f {files('gpu_scheduler.gangs') / 'crds'}"


class CheckLevel(Enum):
    """How a check went."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One verdict; `remedy` says what to do about it."""

    name: str
    level: CheckLevel
    message: str
    remedy: str = ""


def check_api(server: str, version: str, seconds: float) -> Check:
    """Whether the API server answers, and how fast."""
    said = f"{server} answers in {seconds * 1000:.0f} ms, Kubernetes {version or 'of unknown version'}"
    if seconds > SLOW:
        return Check("api", CheckLevel.WARN, said, "Every bind will take as long: look at the API server's load.")
    return Check("api", CheckLevel.OK, said)


def check_clock(asked: float, theirs: float, answered: float) -> Check:
    """Whether our clock and the server's agree: theirs is to be a moment between our question and its answer."""
    ours = min(max(asked, theirs), answered)
    apart = abs(ours - theirs)
    if apart > SKEWED:
        side = "ahead of" if ours > theirs else "behind"
        told = f"this machine's clock is {draw_age(apart)} {side} the API server's"
        return Check("clock", CheckLevel.WARN, told, "Set the clock (NTP): time-outs and ages are wrong until then.")
    return Check("clock", CheckLevel.OK, "agrees with the API server's")


def check_permissions(refused: Collection[Permission], asked: int) -> Check:
    """Whether everything is allowed that the scheduler does."""
    if refused:
        told = f"{len(refused)} of {asked} not allowed: {join([str(one) for one in refused], 8)}"
        remedy = "Bind the scheduler's ClusterRole to this account, or run doctor with the scheduler's own account."
        return Check("permissions", CheckLevel.FAIL, told, remedy)
    return Check("permissions", CheckLevel.OK, f"all {asked} allowed")


def check_kinds(served: Served) -> Iterator[Check]:
    """Whether our own kinds are installed, and which kinds of gangs can be read."""
    if served.has(PLACEMENTS):
        yield Check("placements", CheckLevel.OK, f"{PLACEMENTS.plural}.{PLACEMENTS.api_version} installed")
    else:
        told = f"the kind {PLACEMENTS.plural}.{PLACEMENTS.group} is not installed: nothing can be committed"
        yield Check("placements", CheckLevel.FAIL, told, INSTALL)
    if served.has(QUEUES):
        yield Check("queues", CheckLevel.OK, f"{QUEUES.plural}.{QUEUES.api_version} installed")
    else:
        told = f"the kind {QUEUES.plural}.{QUEUES.group} is not installed: there are no quotas"
        yield Check("queues", CheckLevel.WARN, told, INSTALL)
    kinds = [f"{kind.plural}.{kind.api_version}" for kind in gang_kinds(served)]
    found = join([*kinds, "annotations"], 8)
    yield Check("dialects", CheckLevel.OK, f"gangs can be written as {found}")


def check_leader(lease: Leadership | None, now: float, committed: int) -> Check:
    """Whether somebody decides."""
    problem = leader_problem(lease, now)
    if problem or lease is None:
        remedy = "Start one: gpu-scheduler scheduler."
        if committed:
            remedy += f" {count(committed, 'commit')} will be carried out first."
        return Check("leader", CheckLevel.WARN, problem.rstrip("."), remedy)
    age = draw_age(now - (lease.renewed or now))
    return Check("leader", CheckLevel.OK, f"{lease.holder}, heard of {age} ago, {count(committed, 'open commit')}")


def check_placements(names: Mapping[str, str], committed: Mapping[str, str]) -> Check:
    """Whether every decision that is written down is one that counts, and the other way round; names with uids."""
    missing = [name for name, uid in committed.items() if names.get(name) != uid]
    if missing:
        told = f"the Lease names {count(len(missing), 'Placement')} that {'do' if len(missing) > 1 else 'does'} not "
        remedy = "Somebody deleted them. Check that no two pods use one GPU, then take the names out of the Lease."
        return Check("leftovers", CheckLevel.FAIL, f"{told}exist: {join(missing)}", remedy)
    void = [name for name in names if name not in committed]
    if void:
        remedy = "None are bound to happen; the next leader deletes them. kubectl delete is safe too."
        told = f"{count(len(void), 'Placement')} outside the committed set: {join(void)}"
        return Check("leftovers", CheckLevel.INFO, told, remedy)
    return Check("leftovers", CheckLevel.OK, "none: every Placement is committed")


def check_gangs(state: State, now: float) -> Iterator[Check]:
    """Whether pods name gangs that do not exist, and who waits too long."""
    lost, slow = [], []
    for record in state.records.values():
        seen = look_at(state, record)
        name = f"{record.key.namespace}/{name_of(record)}"
        if seen.phase is Phase.ORPHANED:
            lost.append(f"{name} ({count(len(record.members), 'pod')})")
        since = waiting_since(record, seen.facts) if seen.status.waiting else None
        if since is not None and now - since > LONG:
            slow.append((since, name))
    if lost:
        remedy = "Create the gang objects again, or delete the pods: those that wait cannot start."
        yield Check("gangs", CheckLevel.WARN, f"pods name gangs that do not exist: {join(lost)}", remedy)
    else:
        yield Check("gangs", CheckLevel.OK, "every gang that pods name exists")
    if slow:
        told = [f"{name} ({draw_age(now - since)})" for since, name in sorted(slow)]
        remedy = f"gpu-scheduler explain {min(slow)[1]}"
        yield Check("waiting", CheckLevel.WARN, f"{count(len(slow), 'gang')} for over an hour: {join(told)}", remedy)
    else:
        yield Check("waiting", CheckLevel.OK, "nobody for over an hour")


def check_nodes(state: State) -> Check:
    """Whether there are GPUs, and where their indices are ours to choose."""
    nodes = [node for node in state.cluster.table.nodes if node is not None and node.gpus]
    counted = sorted(node.name for node in nodes if not node.assigns_devices)
    sick = sorted(node.name for node in nodes if not node.ready or node.unhealthy)
    if not nodes:
        told = f"no node offers {' or '.join(state.config.gpu_resources)}"
        remedy = "Install the GPU vendor's device plugin, or name the resource in --config."
        return Check("nodes", CheckLevel.WARN, told, remedy)
    gpus = count(sum(node.gpus for node in nodes), "GPU")
    told = f"{gpus} on {count(len(nodes), 'node')}"
    if sick:
        remedy = f"gpu-scheduler nodes {sick[0]}"
        return Check("nodes", CheckLevel.WARN, f"{told}; not ready or with unhealthy GPUs: {join(sick)}", remedy)
    if counted:
        remedy = f"Label nodes {ASSIGNS_DEVICES}=true where no device plugin chooses the GPUs; else all is well."
        return Check("nodes", CheckLevel.INFO, f"{told}; only counted, not assigned by index: {join(counted)}", remedy)
    return Check("nodes", CheckLevel.OK, told)


def worst(checks: Iterable[Check]) -> CheckLevel:
    """The worst verdict of all."""
    order = list(CheckLevel)
    return max((check.level for check in checks), key=order.index, default=CheckLevel.OK)


def sum_up(checks: Sequence[Check]) -> str:
    """All verdicts in one line."""
    numbers = [(sum(check.level is level for check in checks), level) for level in CheckLevel]
    return ", ".join(f"{number} {level.value}" for number, level in numbers if number)
