"""Which gang a name on the command line means."""

from __future__ import annotations

import pytest

from gpu_scheduler.cli.render.names import NameLookup
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.k8s.objects import Meta, OwnerReference, PodObject, PodSpec
from tests.unit.cli.scenes import Scene, a_node, shape_of

SERVED = ("gpu-scheduler", "volcano")


def lookup(scene: Scene, *pods: PodObject) -> NameLookup:
    return NameLookup(scene.look().gangs(), {pod.metadata.uid: pod for pod in pods}, SERVED)


def pod_object(name: str, kind: str = "", owner: str = "", scheduler: str = SERVED[0], **labels: str) -> PodObject:
    """A pod object of namespace team, perhaps with an owner."""
    owners = [OwnerReference(kind=kind, name=owner, controller=True)] if kind else None
    named = {label.replace("__", "/").replace("_", "-"): text for label, text in labels.items()}
    meta = Meta(name, "team", f"uid-{name}", labels=named, owner_references=owners)
    return PodObject(meta, PodSpec(scheduler_name=scheduler))


def missing(scene: Scene, name: str, *pods: PodObject) -> str:
    return lookup(scene, *pods).describe_missing("team", name, "gpu-scheduler")


def test_a_name_means_a_gang_a_member_or_the_object_of_a_gang() -> None:
    scene = Scene()
    key = scene.waits("train", 2, shape_of(1))
    part = scene.waits("jobs/workers/0", 1, shape_of(1))
    scene.pod("alone", shape_of(1))
    names = lookup(scene)
    assert names.find("team", "train") == names.find("team", "train-1") == [key]
    assert names.find("team", "jobs") == names.find("team", "jobs/workers/0") == [part]
    assert [found.dialect for found in names.find("team", "alone")] == ["pod"]
    assert names.find("other", "train") == []


@pytest.mark.parametrize("name", ["train", "Job/train", "job/train", "train-0-x"])
def test_a_gang_that_is_a_controller_is_found_by_kind_and_name(name: str) -> None:
    scene = Scene(a_node("node1", 4))
    key = GangKey("annotation", "team", "Job/train/ef0b9c53")
    scene.pod("train-0-x", shape_of(1), key)
    assert lookup(scene).find("team", name) == [key]


@pytest.mark.parametrize(
    ("name", "pod"),
    [
        pytest.param("llama", pod_object("group-0", "PyTorchJob", "llama"), id="PyTorchJob"),
        pytest.param("pytorchjob/llama", pod_object("group-0", "PyTorchJob", "llama"), id="kind and name"),
        pytest.param("llama", pod_object("group-0", "StatefulSet", "llama"), id="StatefulSet"),
        pytest.param("web", pod_object("group-0", "ReplicaSet", "web-5d4f", pod_template_hash="5d4f"), id="Deployment"),
        pytest.param("web-5d4f", pod_object("group-0", "ReplicaSet", "web-5d4f"), id="ReplicaSet"),
        pytest.param(
            "set", pod_object("group-0", "Job", "set-w-0", **{"jobset.sigs.k8s.io__jobset_name": "set"}), id="JobSet"
        ),
    ],
)
def test_a_job_is_found_by_the_gang_that_its_pods_are_in(name: str, pod: PodObject) -> None:
    scene = Scene()
    key = scene.waits("group", 1, shape_of(1))
    scene.waits("other", 1, shape_of(1))
    assert lookup(scene, pod, pod_object("other-0", "Job", "other-job")).find("team", name) == [key]


def test_a_gang_of_another_namespace_is_named_with_the_command_that_shows_it() -> None:
    scene = Scene()
    scene.waits("serve", 1, shape_of(1), namespace="prod")
    assert missing(scene, "serve") == (
        "no gang, pod or job is called team/serve, but namespace prod has one: gpu-scheduler explain -n prod serve"
    )
    scene.waits("serve", 1, shape_of(1), namespace="test")
    assert missing(scene, "serve") == (
        "no gang, pod or job is called team/serve, but namespaces prod, test have one each: "
        "gpu-scheduler explain -n prod serve"
    )


@pytest.mark.parametrize(
    ("name", "what"), [("web-0", "pod team/web-0"), ("web", "pod web-0 of team/web")], ids=["pod", "job"]
)
def test_a_pod_that_names_an_unserved_scheduler_is_told_which_are_served(name: str, what: str) -> None:
    pod = pod_object("web-0", "StatefulSet", "web", scheduler="kai-scheduler")
    assert missing(Scene(), name, pod) == (
        f"{what} names the scheduler 'kai-scheduler'; "
        "spec.schedulerName must be one that this scheduler serves: gpu-scheduler, volcano"
    )


def test_a_job_without_pods_that_is_for_an_unserved_scheduler_is_told_which_are_served() -> None:
    names = NameLookup([], {}, SERVED, [(Meta("train", "team"), "kai-scheduler")])
    assert names.describe_missing("team", "train", "gpu-scheduler") == (
        "the pods of team/train are for the scheduler 'kai-scheduler'; "
        "spec.schedulerName must be one that this scheduler serves: gpu-scheduler, volcano"
    )
    assert names.describe_missing("other", "train", "gpu-scheduler").startswith("no gang, pod or job is called")


def test_a_name_that_none_has_brings_up_the_nearest_ones() -> None:
    scene = Scene()
    scene.waits("train-llama", 1, shape_of(1))
    scene.waits("serve", 1, shape_of(1), namespace="prod")
    assert missing(scene, "train-lama") == (
        "no gang, pod or job is called team/train-lama; did you mean train-llama or train-llama-0?"
    )
    assert missing(scene, "prod/serv").endswith("; did you mean prod/serve or prod/serve-0?")
    assert missing(scene, "zzz") == "no gang, pod or job is called team/zzz; gpu-scheduler gangs -A lists all"
    job = pod_object("train-llama-0", "Job", "pretraining")
    assert missing(scene, "pretrain", job).endswith("; did you mean pretraining?")
