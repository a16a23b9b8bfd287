"""The recipes of CONTRIBUTING.md, followed to the letter on a copy of the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "gpu_scheduler"
CHART_FILES = "charts/gpu-scheduler/files"

ENGINE = """
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, GangSeen, NodeSeen, PodSeen, TookOver
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, Shape

def node(name, **labels):
    return NodeSeen(Node(name, {"cpu": 8000, "memory": 1 << 30, "pods": 10}, labels))

def pod(name, gang=None):
    return Pod(name, "ns", name, Shape((("cpu", 1000),)), gang=gang)

def binds(engine, events):
    for event in events:
        engine.handle(event, 0.0)
    engine.handle(TookOver(), 0.0)
    commits = [effect for effect in engine.run_cycle(0.0) if isinstance(effect, Commit)]
    return {bind.name: bind.node for commit in commits for bind in commit.binds}
"""

API = """
import msgspec
from gpu_scheduler.gangs.dialects import choose_resources
from gpu_scheduler.k8s.informer import ChangeKind, ObjectChange
from gpu_scheduler.k8s.objects import NodeObject, PodObject, RawObject
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.watcher import make_translator

translator = make_translator(Settings())
context = translator.registry.context
context.resources = choose_resources(lambda resource: True)

def added(form, *bodies):
    return [ObjectChange(ChangeKind.ADDED, msgspec.convert(body, form), None) for body in bodies]

def api_node(name):
    return {"metadata": {"name": name, "uid": name}, "status": {
        "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}]}}

def api_pod(name, **meta):
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    return {"metadata": {"name": name, "namespace": "ns", "uid": name, **meta},
            "spec": {"schedulerName": "gpu-scheduler", "containers": [container]}, "status": {"phase": "Pending"}}
"""
"""The scheduler's view of API objects: a translator, which decodes them with the registry of gangs."""


class Copy:
    """A copy of the source in which a recipe is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        self.source = folder / "src" / "gpu_scheduler"

    def write(self, path: str, text: str) -> None:
        (self.source / path).write_text(text, "utf-8")

    def insert(self, path: str, before: str, text: str) -> None:
        """Puts text before the first occurrence of a line."""
        file = self.source / path
        content = file.read_text("utf-8")
        assert before in content, f"{path} has no {before!r}: CONTRIBUTING.md describes something else"
        file.write_text(content.replace(before, text + before, 1), "utf-8")

    def run(self, script: str) -> str:
        """Runs a script against the copy; returns what it prints."""
        return self._run("-c", ENGINE + script)

    def write_chart_files(self) -> None:
        """Generates the files of the chart from the copy."""
        script = self.folder / "scripts" / "write_chart_files.py"
        script.parent.mkdir()
        shutil.copy(ROOT / "scripts" / script.name, script)
        (self.folder / CHART_FILES).mkdir(parents=True)
        self._run(str(script))

    def read_chart_file(self, name: str) -> str:
        return (self.folder / CHART_FILES / name).read_text("utf-8")

    def _run(self, *arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        found = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        return found.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_a_waiting_reason_is_one_row(copy: Copy) -> None:
    row = 'MAINTENANCE = ReasonRow("Maintenance", Wake.TIME, "maintenance", sentence="{subject} is under maintenance.")'
    copy.insert("core/reasons.py", "    PAUSED = ReasonRow(", f"    {row}\n")
    said = copy.run("""
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable
from gpu_scheduler.scheduler.status.messages import describe

engine, key = Engine(), GangKey("test", "ns", "train")
binds(engine, [GangSeen(Gang(key, 2)), PodSeen(pod("a", key)), PodSeen(pod("b", key))])
engine.state.queue.park(key, Unplaceable((Refusal(Reason.MAINTENANCE, "rack 7"),)))
engine.state.dirty[key] = None
engine.run_cycle(1.0)
print(*describe(engine.report(key, 1.0)))
""")
    assert said == "Maintenance rack 7 is under maintenance."


def test_a_node_score_is_a_function_and_a_row(copy: Copy) -> None:
    score = '''def labelled_best(cluster: Cluster, pod: Pod) -> Ints | None:
    """Prefers nodes with the label best=yes."""
    column = cluster.table.column("best")
    return np.asarray(column.codes == column.values.get("yes", -2), np.int64)


'''
    copy.insert("core/placement/scoring.py", "class NodeScore(", score)
    copy.insert(
        "core/placement/scoring.py", "    NodeScore(preferred_node_affinity),", "    NodeScore(labelled_best),\n"
    )
    where = copy.run("""
print(binds(Engine(), [node("n1"), node("n2", best="yes"), node("n3"), PodSeen(pod("a"))])["a"])
""")
    assert where == "n2"


def test_a_dialect_is_one_file_and_an_entry(copy: Copy) -> None:
    dialect = '''"""Gangs by labels: team.example/gang names the gang, team.example/size its minimum."""

from __future__ import annotations

from collections.abc import Collection

from gpu_scheduler.core.model import Gang, GangKey
from gpu_scheduler.gangs.dialects.dialect import Dialect, GangContext
from gpu_scheduler.k8s.objects import PodObject, RawObject


class TeamLabels(Dialect):
    """Gangs without an object, by labels."""

    name = "team-labels"

    def group_of(self, pod: PodObject) -> str:
        return (pod.metadata.labels or {}).get("team.example/gang", "")

    def object_name(self, key: GangKey) -> str:
        return ""

    def decode(
        self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext
    ) -> Gang | None:
        sizes = [(pod.metadata.labels or {}).get("team.example/size", "1") for pod in pods]
        return Gang(key, minimum=max(int(size) for size in sizes))
'''
    copy.write("gangs/dialects/team_labels.py", dialect)
    copy.insert(
        "gangs/dialects/__init__.py",
        "from gpu_scheduler.gangs.dialects.volcano import",
        "from gpu_scheduler.gangs.dialects.team_labels import TeamLabels\n",
    )
    entry = (SOURCE / "gangs/dialects/__init__.py").read_text("utf-8").split("DIALECTS: tuple[Dialect, ...] = (", 1)[1]
    copy.insert("gangs/dialects/__init__.py", entry[:20], "TeamLabels(), ")
    started = copy.run(f"""{API}
engine, found = Engine(), []
translator.on_nodes_changed(added(NodeObject, api_node("n1")))
for name in ("a", "b"):
    labels = {{"team.example/gang": "train", "team.example/size": "2"}}
    translator.on_pods_changed(added(PodObject, api_pod(name, labels=labels)))
    found.append(sorted(binds(engine, translator.take_events())))
print({{key.dialect for key in engine.state.records}}, *found)
""")
    assert started == "{'team-labels'} [] ['a', 'b']"


EXPERIMENT = """
key = GangKey("volcano", "ns", "e")
group = {"metadata": {"name": "e", "namespace": "ns", "uid": "g", "ownerReferences": [
    {"apiVersion": "example.com/v1", "kind": "Experiment", "name": "e", "uid": "e", "controller": True}]},
    "spec": {"minMember": 3, "minResources": {"cpu": "3"}}}

def experiment(replicas, **meta):
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": meta, "spec": {"schedulerName": "gpu-scheduler", "containers": [container]}}
    return {"apiVersion": "example.com/v1", "kind": "Experiment", "metadata": {"name": "e", "namespace": "ns"},
            "spec": {"replicas": replicas, "template": template}}
"""


def test_a_job_kind_is_one_file_and_an_entry(copy: Copy) -> None:
    kind = '''"""Experiments of example.com: `spec.replicas` pods of one template."""

from __future__ import annotations

from gpu_scheduler.gangs.jobs.job_kind import SingleTemplateKind


class Experiments(SingleTemplateKind):
    """Experiments of example.com/v1."""

    group, plural, kind = "example.com", "experiments", "Experiment"
    owns_pod_groups = True
'''
    copy.write("gangs/jobs/experiment.py", kind)
    copy.insert(
        "gangs/jobs/__init__.py",
        "from gpu_scheduler.gangs.jobs.job_kind import",
        "from gpu_scheduler.gangs.jobs.experiment import Experiments\n",
    )
    copy.insert("gangs/jobs/__init__.py", "    BatchJobs(),\n", "    Experiments(),\n")
    assert copy.run(f"""{API}{EXPERIMENT}
job = experiment(replicas=3)
context.owner_of = lambda namespace, owner: job if owner.uid == "e" else None
translator.on_nodes_changed(added(NodeObject, api_node("n1")))
translator.on_groups_changed("volcano", added(RawObject, group))
engine = Engine()
binds(engine, translator.take_events())
print(engine.state.records[key].phase.value, len(engine.state.records[key].reserved))
annotations = {{"scheduling.k8s.io/group-name": "e"}}
translator.on_pods_changed(added(PodObject, *(api_pod(f"e-{{i}}", annotations=annotations) for i in range(3))))
print(sorted(binds(engine, translator.take_events())))
""").splitlines() == ["reserved 3", "['e-0', 'e-1', 'e-2']"]
    assert copy.run(f"""{EXPERIMENT}
import msgspec
from gpu_scheduler.webhook.policy import AdmissionPolicy
from gpu_scheduler.webhook.reviews import respond

for minimum in ("3", "4"):
    resource = {{"group": "example.com", "version": "v1", "resource": "experiments"}}
    body = experiment(replicas=3, annotations={{"gpu-scheduler.io/gang-min": minimum}})
    request = {{"uid": "u", "resource": resource, "operation": "CREATE", "object": body, "namespace": "ns"}}
    review = msgspec.json.encode({{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}})
    policy = AdmissionPolicy(frozenset({{"gpu-scheduler"}}), ("nvidia.com/gpu",))
    print(respond("validate", review, policy, None).allowed)
""").split() == ["True", "False"]
    copy.write_chart_files()
    assert "experiments" in copy.read_chart_file("scheduler-cluster-rules.yaml")
    assert "experiments" in copy.read_chart_file("validating-webhooks.yaml")
