"""The checks of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gpu_scheduler.cli.checks import cluster
from gpu_scheduler.cli.checks.cluster import Check, CheckLevel
from gpu_scheduler.cli.checks.names import check_annotations, check_queue_names, check_resources
from gpu_scheduler.cli.checks.permissions import Permission, gang_kinds, needed_permissions
from gpu_scheduler.cli.render.checks import checks_as_json, draw_checks
from gpu_scheduler.cli.render.leader import leader_problem, warn_of_leader
from gpu_scheduler.core.events import PodGone
from gpu_scheduler.core.model import Expected, GangKey, Node, Notes, PodPhase, Queue, Shape
from gpu_scheduler.gangs.contract import PLACEMENTS, QUEUES, SYSTEM
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.objects import Meta
from gpu_scheduler.k8s.resources import Resource
from tests.permissions import webhook_permissions
from tests.unit.cli.scenes import NOW, Scene, a_node, plain, shape_of

VOLCANO = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
NEW = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
OLD = Resource("scheduling.k8s.io", "v1alpha3", "podgroups", "PodGroup")
EVERYTHING = Served((PLACEMENTS, QUEUES, VOLCANO, VOLCANO._replace(plural="podgroups/status"), NEW, OLD))


@dataclass(frozen=True)
class Leader:
    holder: str = "host-1"
    renewed: float | None = NOW - 2


def test_gpus_in_quarantine_are_listed_with_their_nodes_and_ends() -> None:
    scene = Scene(a_node("node1", 4), a_node("node2", 2))
    assert cluster.check_quarantine(scene.look(), NOW) == Check("quarantine", CheckLevel.OK, "no GPU is in quarantine")
    for name, node, devices in (("a", "node1", (0, 1)), ("b", "node2", (1,))):
        scene.pod(name, shape_of(len(devices)), node=node, devices=devices, phase=PodPhase.RUNNING)
        scene.engine.handle(PodGone(f"uid-{name}"), NOW)
    found = cluster.check_quarantine(scene.look(), NOW)
    assert (found.level, found.message) == (
        CheckLevel.WARN,
        "3 GPUs of pods that vanished stay unused: node1 GPU 0,1 until 1970-01-01T00:17:40Z (another 60s), "
        "node2 GPU 1 until 1970-01-01T00:17:40Z (another 60s)",
    )
    assert found.remedy


def test_checks_fit_the_screen_and_end_with_a_summary() -> None:
    found = [
        Check("api", CheckLevel.OK, "https://1.2.3.4:6443 answers in 12 ms, Kubernetes v1.35.0"),
        Check("placements", CheckLevel.FAIL, "the kind is not installed", "Install it."),
    ]
    assert plain(draw_checks(found, 80), 80) == (
        "ok    api         https://1.2.3.4:6443 answers in 12 ms, Kubernetes v1.35.0.\n"
        "fail  placements  the kind is not installed.\n"
        "                  -> Install it.\n"
        "\n"
        "1 ok, 1 fail."
    )
    assert plain(draw_checks(found, 40), 40) == (
        "ok    api         https://1.2.3.4:6443\n"
        "                  answers in 12 ms,\n"
        "                  Kubernetes v1.35.0.\n"
        "fail  placements  the kind is not\n"
        "                  installed.\n"
        "                  -> Install it.\n"
        "\n"
        "1 ok, 1 fail."
    )
    assert checks_as_json(found)[1] == {
        "check": "placements",
        "level": "fail",
        "message": "the kind is not installed",
        "remedy": "Install it.",
    }
    assert cluster.worst(found) is CheckLevel.FAIL
    assert cluster.worst([]) is CheckLevel.OK


def test_a_slow_server_and_a_wrong_clock_are_warned_of() -> None:
    assert cluster.check_api("https://x", "v1.35.0", 0.012).message == "https://x answers in 12 ms, Kubernetes v1.35.0"
    assert cluster.check_api("https://x", "", 2.0).level is CheckLevel.WARN
    assert cluster.check_clock(NOW, NOW + 1.5, NOW).level is CheckLevel.OK
    assert cluster.check_clock(NOW, NOW + 20, NOW + 60).level is CheckLevel.OK, "a slow answer is no wrong clock"
    late = cluster.check_clock(NOW, NOW + 190, NOW)
    assert (late.level, late.message) == (
        CheckLevel.WARN,
        "the clock of this machine is 3m10s behind that of the API server",
    )


def test_missing_crds_fail_or_warn_and_dialects_are_named_in_their_preferred_version() -> None:
    placements, queues, dialects = cluster.check_kinds(EVERYTHING)
    assert [placements.level, queues.level] == [CheckLevel.OK, CheckLevel.OK]
    assert dialects.message == (
        "gangs can be written as podgroups.scheduling.volcano.sh/v1beta1, podgroups.scheduling.k8s.io/v1beta1, "
        "annotations"
    )
    assert [check.level for check in cluster.check_kinds(Served(()))] == [
        CheckLevel.FAIL,
        CheckLevel.WARN,
        CheckLevel.OK,
    ]


def test_only_permissions_for_kinds_that_are_served_are_needed() -> None:
    needed = {str(permission) for permission in needed_permissions(EVERYTHING, SYSTEM)}
    assert "create pods/binding" in needed
    assert "update leases.coordination.k8s.io in gpu-scheduler-system" in needed
    assert "patch podgroups/status.scheduling.volcano.sh" in needed
    assert "patch podgroups/status.scheduling.k8s.io" not in needed
    assert not [one for one in needed_permissions(Served(()), SYSTEM) if "podgroups" in one.resource]
    assert gang_kinds(EVERYTHING) == [VOLCANO, NEW]


def test_no_permission_is_needed_for_a_version_that_the_scheduler_does_not_read() -> None:
    later = Served((VOLCANO._replace(version="v9"),))
    assert not [one for one in needed_permissions(later, SYSTEM) if "podgroups" in one.resource]


LISTED_QUEUES = ("list queues.gpu-scheduler.io", "list queues.scheduling.volcano.sh")


def test_the_webhook_needs_only_its_own_secret_and_configurations() -> None:
    assert [str(one) for one in webhook_permissions(SYSTEM)] == [
        "list nodes",
        "watch nodes",
        *LISTED_QUEUES,
        "get secrets gpu-scheduler-webhook-tls in gpu-scheduler-system",
        "update secrets gpu-scheduler-webhook-tls in gpu-scheduler-system",
        "get mutatingwebhookconfigurations.admissionregistration.k8s.io gpu-scheduler-webhook",
        "patch mutatingwebhookconfigurations.admissionregistration.k8s.io gpu-scheduler-webhook",
        "get validatingwebhookconfigurations.admissionregistration.k8s.io gpu-scheduler-webhook",
        "patch validatingwebhookconfigurations.admissionregistration.k8s.io gpu-scheduler-webhook",
    ]
    assert [str(one) for one in webhook_permissions(SYSTEM, own_certificate=False)] == [
        "list nodes",
        "watch nodes",
        *LISTED_QUEUES,
    ]


def test_denied_permissions_are_named() -> None:
    refused = cluster.check_permissions([Permission("", "pods", "create", "binding")], 40)
    assert (refused.level, refused.message) == (CheckLevel.FAIL, "1 of 40 denied: create pods/binding")
    assert cluster.check_permissions([], 40).level is CheckLevel.OK


@pytest.mark.parametrize(
    ("lease", "level", "message"),
    [
        (None, CheckLevel.WARN, "No scheduler has ever run in this cluster"),
        (Leader(""), CheckLevel.WARN, "No scheduler is running: the last one has stopped"),
        (Leader(renewed=NOW - 190), CheckLevel.WARN, "The leader host-1 has not renewed its Lease for 3m10s"),
        (Leader(), CheckLevel.OK, "host-1, renewed 2s ago, 1 open commit"),
    ],
    ids=["no lease", "released", "silent", "alive"],
)
def test_the_leader_or_its_absence_is_reported(lease: Leader | None, level: CheckLevel, message: str) -> None:
    found = cluster.check_leader(lease, NOW, 1)
    assert (found.level, found.message) == (level, message)


def test_a_table_warns_when_no_scheduler_leads() -> None:
    assert leader_problem(Leader(), NOW) == ""
    assert warn_of_leader(Leader(), NOW, 80) == []
    assert plain(warn_of_leader(None, NOW, 80), 80) == (
        "No scheduler has ever run in this cluster. Nothing starts until a scheduler\nruns: gpu-scheduler scheduler"
    )


@pytest.mark.parametrize(
    ("names", "committed", "level"),
    [
        ({}, {}, CheckLevel.OK),
        ({"1-0-0": "u"}, {"1-0-0": "u"}, CheckLevel.OK),
        ({"1-0-0": "u"}, {}, CheckLevel.INFO),
        ({}, {"1-0-0": "u"}, CheckLevel.FAIL),
        ({"1-0-0": "another"}, {"1-0-0": "u"}, CheckLevel.FAIL),
    ],
    ids=["nothing", "committed", "void", "missing", "replaced"],
)
def test_placements_and_the_lease_must_agree(
    names: dict[str, str], committed: dict[str, str], level: CheckLevel
) -> None:
    assert cluster.check_placements(names, committed).level is level


def test_pods_of_missing_gangs_and_long_waits_are_warned_of() -> None:
    scene = Scene()
    scene.pod("lost-0", shape_of(1), GangKey("volcano", "team", "lost"), created=NOW)
    scene.waits("fresh", 1, shape_of(1))
    scene.pod("old", shape_of(1), created=NOW - 7200)
    gangs, waiting = cluster.check_gangs(scene.look(), NOW)
    assert (gangs.level, gangs.message) == (CheckLevel.WARN, "pods name gangs that do not exist: team/lost (1 pod)")
    assert (waiting.level, waiting.message) == (CheckLevel.WARN, "1 gang for over an hour: team/old (120m)")
    assert waiting.remedy == "gpu-scheduler explain team/old"
    assert [check.level for check in cluster.check_gangs(Scene().look(), NOW)] == [CheckLevel.OK, CheckLevel.OK]


def test_a_gang_that_waits_for_long_without_pods_is_warned_of() -> None:
    scene = Scene(a_node("n1", 4))
    expected = (Expected(shape_of(8), 2),)
    scene.gang("podless", 2, created=NOW - 7200, expected=expected)
    scene.gang("fresh", 2, expected=expected)
    scene.gang("reserved", 1, created=NOW - 7200, expected=(Expected(shape_of(1), 1),), notes=Notes(admitted_at=NOW))
    scene.gang("ended", 2, created=NOW - 7200)
    _, waiting = cluster.check_gangs(scene.look(), NOW)
    assert (waiting.level, waiting.message) == (CheckLevel.WARN, "1 gang for over an hour: team/podless (120m)")


@pytest.mark.parametrize(
    ("nodes", "level"),
    [
        ([], CheckLevel.WARN),
        ([a_node("n1")], CheckLevel.OK),
        ([a_node("n1", assigns=False)], CheckLevel.INFO),
        ([a_node("n1", ready=False)], CheckLevel.WARN),
        ([a_node("n1", unhealthy=frozenset({0}))], CheckLevel.WARN),
    ],
    ids=["none", "assigned", "counted", "not ready", "unhealthy"],
)
def test_nodes_are_judged_by_their_gpus(nodes: list[Node], level: CheckLevel) -> None:
    assert cluster.check_nodes(Scene(*nodes).look()).level is level


def test_a_misspelt_annotation_is_pointed_out_with_the_closest_one() -> None:
    metas = [Meta(f"train-{i}", "team", annotations={"gpu-scheduler.io/gangmin": "2", "x": "y"}) for i in range(3)]
    metas.append(Meta("other", "team", annotations={"gpu-scheduler.io/purple": ""}))
    found = check_annotations(metas)
    assert (found.level, found.message) == (
        CheckLevel.WARN,
        "unknown and without effect: "
        "gpu-scheduler.io/gangmin (team/train-0 and 2 others, did you mean gpu-scheduler.io/gang-min?), "
        "gpu-scheduler.io/purple (team/other)",
    )
    good = Meta("train-0", "team", annotations={"gpu-scheduler.io/gang-min": "2", "example.com/gangmin": "2"})
    assert check_annotations([good, Meta("bare", "team")]).level is CheckLevel.OK


def test_a_resource_that_no_node_has_is_pointed_out_with_the_closest_one() -> None:
    scene = Scene(a_node("n1"))
    scene.waits("train", 2, Shape((("nvidia.com/gpus", 1),)))
    scene.waits("fine", 1, shape_of(1))
    found = check_resources(scene.look())
    assert (found.level, found.message) == (
        CheckLevel.WARN,
        "no node has nvidia.com/gpus (team/train, did you mean nvidia.com/gpu?)",
    )
    assert check_resources(Scene(a_node("n1")).look()).level is CheckLevel.OK


def test_a_queue_that_does_not_exist_is_pointed_out_with_the_closest_one() -> None:
    scene = Scene(a_node("n1"))
    scene.queue(Queue("team-a"))
    scene.waits("train", 1, shape_of(1), queue="team_a")
    scene.waits("fine", 1, shape_of(1), queue="team-a")
    scene.waits("nameless", 1, shape_of(1))
    found = check_queue_names(scene.look())
    assert (found.level, found.message) == (
        CheckLevel.WARN,
        "no such queue: team_a (team/train, did you mean team-a?)",
    )
    assert check_queue_names(Scene().look()).level is CheckLevel.OK
