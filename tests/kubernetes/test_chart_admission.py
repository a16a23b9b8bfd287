"""What a real API server refuses and changes with the chart installed, with the webhook as a process beside it.

The webhook uses the service account of the chart, and creates its own certificate.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_scheduler.k8s.objects import Json
from tests.integration.live import free_port
from tests.kubernetes.api import MERGE, Access, Answer, Api
from tests.kubernetes.charts import CHARTS, run_helm
from tests.kubernetes.cluster import sign_in
from tests.kubernetes.combinations import SYSTEM
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.helpers import Pods, binding, eventually, pod
from tests.kubernetes.webhooks import PROGRAM, Webhook, late_scheduler

HOME = "chart-admission"
PODS = f"/api/v1/namespaces/{HOME}/pods"
SETS = f"/apis/apps/v1/namespaces/{HOME}/statefulsets"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:gpu-scheduler"
WEBHOOK_ACCOUNT = f"system:serviceaccount:{SYSTEM}:gpu-scheduler-webhook"
RULES = ("webhook-cluster", "webhook-certificate-cluster", "webhook-certificate")
DEVICES = "gpu-scheduler.io/devices"
REFUSAL = "only the scheduler may write gpu-scheduler.io/devices"
NOTES = ("gpu-scheduler.io/notes", "gpu-scheduler.io/status")
REFUSAL_OF_NOTES = "only the scheduler may write gpu-scheduler.io/notes and gpu-scheduler.io/status on a gang"
VARIABLE = "CUDA_VISIBLE_DEVICES"
GANGS = {"1.35": ("v1alpha1", "workloads"), "1.37": ("v1beta1", "podgroups")}

_numbers = count(1)

pytestmark = pytest.mark.xdist_group("charts")


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """The installed chart, and its webhook, ready."""
    port = free_port()
    release = ("gpu-scheduler", "--namespace", SYSTEM)
    values = {"webhook": {"url": f"https://127.0.0.1:{port}"}}
    chart = CHARTS / "gpu-scheduler"
    run_helm("install", *release, chart, "--create-namespace", values=values, kubeconfig=plane.kubeconfig())
    kubeconfig = tmp_path_factory.mktemp("webhook") / "webhook.kubeconfig"
    kubeconfig.write_text(json.dumps(asyncio.run(_prepare(plane))))
    running = Webhook(kubeconfig, port)
    try:
        running.start()
        asyncio.run(_wait(plane.access, plane.minor, running))
        yield running
    finally:
        running.stop()
        run_helm("uninstall", *release, kubeconfig=plane.kubeconfig())
        asyncio.run(_clear(plane.access))


async def _prepare(plane: ControlPlane) -> Json:
    """Creates a namespace that is ready for pods; returns a kubeconfig of the webhook's account."""
    async with Api(plane.access) as api:
        await api.must("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
        account = f"/api/v1/namespaces/{HOME}/serviceaccounts/default"
        await eventually(partial(_exists, api, account), "the account without which there are no pods")
        config: Json = json.loads(plane.kubeconfig().read_text())
        config["users"][0]["user"]["token"] = await sign_in(api, "gpu-scheduler-webhook")
    return config


async def _clear(access: Access) -> None:
    """Deletes the namespace and its pods: without nodes a controller would end them later, during other tests."""
    async with Api(access) as api:
        await api.must("DELETE", f"/api/v1/namespaces/{HOME}")

        async def gone() -> bool:
            for found in (await api.must("GET", PODS))["items"]:
                await Pods(api, HOME).delete(found["metadata"]["name"], gracePeriodSeconds=0)
            return not await _exists(api, f"/api/v1/namespaces/{HOME}")

        await eventually(gone, "the namespace to be gone")


async def _exists(api: Api, path: str) -> bool:
    return (await api.ask("GET", path)).code == 200


async def _wait(access: Access, minor: str, running: Webhook) -> None:
    """Waits until the API server enforces the policies and trusts the webhook."""
    async with Api(access) as api:
        wait = Ask(api, minor)
        await eventually(wait.is_guarded, "the policies")
        await eventually(wait.is_answered(running), f"the webhook; it says: {running.log.read_text()}")


class Ask:
    """Requests without lasting effect."""

    def __init__(self, api: Api, minor: str = "") -> None:
        self._api = api
        self._minor = minor

    async def is_guarded(self) -> bool:
        """Whether the policies are in force."""
        forged = pod("forged", meta={"annotations": {DEVICES: "0"}})
        late = binding("nobody", "node1", annotations={"gpu-scheduling-map": "0=node1:0"})
        version, plural = GANGS[self._minor]
        gangs = f"/apis/scheduling.k8s.io/{version}/namespaces/{HOME}/{plural}"
        forged_gang = {"metadata": {"name": "forged", "annotations": {NOTES[0]: "{}"}}, "spec": gang_spec(plural)}
        asked = [(PODS, forged, REFUSAL), (gangs, forged_gang, REFUSAL_OF_NOTES)]
        asked.append((f"/api/v1/namespaces/{HOME}/bindings", late, "cannot change after the pod is created"))
        for path, body, refusal in asked:
            if refusal not in (await self._api.ask("POST", f"{path}?dryRun=All", body)).message:
                return False
        return True

    def is_answered(self, running: Webhook) -> Any:
        """Whether pods of ours are admitted."""

        async def look() -> bool:
            assert running.is_alive, f"the webhook ended: {running.log.read_text()}"
            return (await self._api.ask("POST", f"{PODS}?dryRun=All", ours("asked"))).code == 201

        return look


@pytest.fixture
async def admin(plane: ControlPlane, webhook: Webhook) -> AsyncIterator[Api]:
    """The API of a cluster with the chart, as an administrator, not as the scheduler."""
    async with Api(plane.access) as found:
        yield found


@pytest.fixture
async def name(admin: Api) -> str:
    """A pod to which the scheduler has assigned devices."""
    found = f"given-{next(_numbers)}"
    await admin.must("POST", PODS, pod(found, meta={"annotations": {"free": "1"}}))
    await admin.must("PATCH", f"{PODS}/{found}", annotate(DEVICES, "0"), content_type=MERGE, impersonate_user=ACCOUNT)
    return found


def annotate(key: str, value: str | None) -> Json:
    return {"metadata": {"annotations": {key: value}}}


def ours(name: str, *, meta: Json | None = None, **spec: Any) -> Json:
    """A pod of ours."""
    return pod(name, meta=meta, schedulerName="gpu-scheduler", **spec)


async def send(api: Api, method: str, path: str, body: Json, **headers: str) -> Answer:
    """Sends a request; patches are merge patches."""
    if method == "PATCH":
        headers["content_type"] = MERGE
    return await api.ask(method, path, body, **headers)


# -- reserved annotations

WRITES = {
    "a new one": ("PATCH", "", annotate("gpu-scheduler.io/attempt", "1")),
    "another value": ("PATCH", "", annotate(DEVICES, "1")),
    "none any more": ("PATCH", "", annotate(DEVICES, None)),
    "with the status": ("PATCH", "/status", annotate("gpu-scheduler.io/status", "{}")),
    "with the node": ("POST", "/binding", binding("", "node1", annotations={DEVICES: "1"})),
    "of a container": ("POST", "/binding", binding("", "n", annotations={"visible-devices.gpu-scheduler.io/a": "1"})),
}
"""Annotations that only the scheduler may write."""

INNOCENT = {
    "a note of one's own": ("PATCH", "", annotate("gpu-scheduler.io/gang", "mine")),
    "no note": ("PATCH", "", annotate("free", None)),
    "a status": ("PATCH", "/status", {"status": {"message": "x"}}),
    "a node": ("POST", "/binding", binding("", "node1")),
}


def named(body: Json, name: str) -> Json:
    """A Binding must have the name of its pod."""
    return {**body, "metadata": {**body["metadata"], "name": name}} if body.get("kind") == "Binding" else body


@pytest.mark.parametrize(("method", "part", "body"), WRITES.values(), ids=WRITES)
async def test_only_the_scheduler_may_write_reserved_annotations(
    admin: Api, name: str, method: str, part: str, body: Json
) -> None:
    path, body = f"{PODS}/{name}{part}", named(body, name)
    refused = await send(admin, method, path, body)
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert REFUSAL in refused.message
    assert (await Pods(admin, HOME).get(name))["metadata"]["annotations"] == {"free": "1", DEVICES: "0"}
    taken = await send(admin, method, path, body, impersonate_user=ACCOUNT)
    assert taken.code in (200, 201), taken.message


@pytest.mark.parametrize(("method", "part", "body"), INNOCENT.values(), ids=INNOCENT)
async def test_other_changes_of_such_a_pod_are_allowed(
    admin: Api, name: str, method: str, part: str, body: Json
) -> None:
    answer = await send(admin, method, f"{PODS}/{name}{part}", named(body, name))
    assert answer.code in (200, 201), answer.message


async def test_a_pod_cannot_be_created_with_devices(admin: Api) -> None:
    refused = await admin.ask("POST", PODS, pod("forged", meta={"annotations": {DEVICES: "0"}}))
    assert (refused.code, REFUSAL in refused.message) == (403, True)


def gang_spec(plural: str) -> Json:
    """A native gang of one, as Workload or as PodGroup."""
    gang: Json = {"policy": {"gang": {"minCount": 1}}, "name": "workers"}
    return {"podGroups": [gang]} if plural == "workloads" else {"schedulingPolicy": gang["policy"]}


async def test_only_the_scheduler_may_write_the_notes_of_a_gang(admin: Api, plane: ControlPlane) -> None:
    version, plural = GANGS[plane.minor]
    path = f"/apis/scheduling.k8s.io/{version}/namespaces/{HOME}/{plural}"
    written = await admin.must("POST", path, {"metadata": {"name": "job"}, "spec": gang_spec(plural)})
    for key in NOTES:
        refused = await send(admin, "PATCH", f"{path}/job", annotate(key, "{}"))
        assert (refused.code, REFUSAL_OF_NOTES in refused.message) == (403, True)
        taken = await send(admin, "PATCH", f"{path}/job", annotate(key, "{}"), impersonate_user=ACCOUNT)
        assert taken.code == 200, taken.message
    taken = await send(admin, "PATCH", f"{path}/job", annotate("gpu-scheduler.io/queue", "mine"))
    assert taken.code == 200, taken.message
    forged = await send(admin, "PATCH", f"{path}/job", annotate(NOTES[0], "forged"))
    assert (forged.code, REFUSAL_OF_NOTES in forged.message) == (403, True)
    # Replacing a gang by its own manifest removes the notes, which gains nothing.
    current = await admin.must("GET", f"{path}/job")
    assert current["metadata"]["annotations"].keys() >= {*NOTES}

    async def replaced() -> Json:
        """The reply; nothing if a controller was faster, such as the one that adds the finalizer."""
        version = (await admin.must("GET", f"{path}/job"))["metadata"]["resourceVersion"]
        body = {**written, "metadata": {**written["metadata"], "resourceVersion": version}}
        answer = await admin.ask("PUT", f"{path}/job", body)
        assert answer.code in (200, 409), answer.message
        return answer.body if answer.code == 200 else {}

    assert not (await eventually(replaced, "no conflict"))["metadata"].get("annotations")


SETTLED = {
    "a map": {"annotations": {"gpu-scheduling-map": "0=node2:5"}},
    "a share": {"annotations": {"gpu-scheduler.io/gpu-milli": "100"}},
    "an index": {"labels": {"apps.kubernetes.io/pod-index": "5"}},
}


@pytest.mark.parametrize("meta", SETTLED.values(), ids=SETTLED)
@pytest.mark.parametrize("who", [{}, {"impersonate_user": ACCOUNT}], ids=["a user", "the scheduler"])
async def test_a_bind_cannot_change_what_a_pod_was_created_with(
    admin: Api, name: str, meta: Json, who: dict[str, str]
) -> None:
    body = binding(name, "node1")
    body["metadata"] |= meta
    for path in (f"{PODS}/{name}/binding", f"/api/v1/namespaces/{HOME}/bindings")[: 1 if who else 2]:
        refused = await admin.ask("POST", path, body, **who)
        assert (refused.code, "cannot change after the pod is created" in refused.message) == (403, True), (
            refused.message
        )
    assert (await Pods(admin, HOME).get(name))["metadata"]["annotations"] == {"free": "1", DEVICES: "0"}


# -- the webhook


def variables(found: Json) -> list[Json]:
    return [one for one in found["spec"]["containers"][0].get("env", ()) if one["name"] == VARIABLE]


async def test_a_pod_with_a_map_gets_its_gpus_as_variables(admin: Api, webhook: Webhook) -> None:
    meta = {"annotations": {"gpu-scheduling-map": "0=node1:0,1\n1=node2:2"}}
    made = await admin.must("POST", PODS, ours("mapped-1", meta=meta))
    assert variables(made) == [{"name": VARIABLE, "value": "2"}]
    assert f"Injecting {VARIABLE}=2 for pod mapped-1 (index 1)" in webhook.log.read_text()


async def test_a_pod_that_requests_gpus_reads_the_annotation_of_the_scheduler(admin: Api) -> None:
    container = {"name": "main", "image": "any", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    (found,) = variables(await admin.must("POST", PODS, ours("asks", containers=[container])))
    assert found["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.annotations['gpu-scheduler.io/visible-devices']"


async def test_an_invalid_map_is_refused_with_its_line(admin: Api) -> None:
    meta = {"annotations": {"gpu-scheduling-map": "0=node1:0,1\n1=node2:x"}}
    refused = await admin.ask("POST", PODS, ours("mapped-9", meta=meta))
    assert refused.code >= 400
    assert "line 2" in refused.message


async def test_a_grace_period_above_the_ceiling_is_refused(admin: Api) -> None:
    refused = await admin.ask("POST", f"{PODS}?dryRun=All", ours("slow", terminationGracePeriodSeconds=3601))
    assert refused.code >= 400
    assert "'3601' is longer than pods may take to end here; write at most 3600" in refused.message
    await admin.must("POST", f"{PODS}?dryRun=All", ours("slow", terminationGracePeriodSeconds=3600))


async def test_a_queue_is_checked_against_its_parent(admin: Api) -> None:
    queues = "/apis/gpu-scheduler.io/v1alpha1/queues"

    def queue(name: str, **spec: Any) -> Json:
        return {"apiVersion": "gpu-scheduler.io/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}

    gpus = {"nvidia.com/gpu": 4}
    refused = await admin.ask("POST", queues, queue("admission-child", parent="admission-parent"))
    assert (refused.code, "spec.parent: there is no queue 'admission-parent'" in refused.message) == (422, True)
    await admin.must("POST", queues, queue("admission-parent", quota=gpus))
    await admin.must("POST", queues, queue("admission-child", parent="admission-parent", quota=gpus))
    raised = {"spec": {"quota": {"nvidia.com/gpu": 5}}}
    refused = await admin.ask("PATCH", f"{queues}/admission-child", raised, content_type=MERGE)
    assert (refused.code, "write at most 4" in refused.message) == (422, True), refused.message
    for name in ("admission-child", "admission-parent"):
        await admin.must("DELETE", f"{queues}/{name}")


async def test_pods_of_other_schedulers_are_not_changed(admin: Api) -> None:
    meta = {"annotations": {"gpu-scheduling-map": "nonsense"}}
    assert variables(await admin.must("POST", PODS, pod("other-0", meta=meta))) == []


async def test_a_pod_with_a_generated_name_has_no_index(admin: Api) -> None:
    lines = "\n".join(f"{number}=node1:0" for number in range(10))
    body = ours("", meta={"generateName": "job-", "annotations": {"gpu-scheduling-map": lines}})
    del body["metadata"]["name"]
    for _ in range(20):  # a third of the names would end in a number
        refused = await admin.ask("POST", f"{PODS}?dryRun=All", body)
        assert (refused.code, "metadata.generateName gives it none" in refused.message) == (422, True), refused.message


async def test_a_pod_that_becomes_ours_after_our_webhook_is_refused(admin: Api) -> None:
    meta = {"annotations": {"gpu-scheduling-map": "0=node1:0"}, "labels": {"late": "yes"}}
    async with late_scheduler(admin, HOME, "gpu-scheduler"):

        async def renamed() -> bool:
            made = await admin.ask("POST", f"{PODS}?dryRun=All", pod("late", meta={"labels": {"late": "yes"}}))
            return bool(made.body.get("spec", {}).get("schedulerName") == "gpu-scheduler")

        await eventually(renamed, "the webhook that comes late")
        refused = await admin.ask("POST", PODS, pod("late-0", meta=meta))
    assert (refused.code, f"{VARIABLE} must be 0," in refused.message) == (422, True), refused.message


async def test_a_stateful_set_of_a_gang_becomes_parallel(admin: Api) -> None:
    labels = {"app": "gang"}
    template = ours("x", meta={"labels": labels, "annotations": {"gpu-scheduler.io/gang-min": "2"}})
    spec = {"replicas": 2, "serviceName": "gang", "selector": {"matchLabels": labels}, "template": template}
    body = {"metadata": {"name": "gang"}, "spec": spec}
    made = await admin.must("POST", SETS, body)
    assert made["spec"]["podManagementPolicy"] == "Parallel"
    # Its manifest is applied repeatedly, with and without the default value.
    for again in ({**spec, "replicas": 3}, {**spec, "podManagementPolicy": "OrderedReady"}):
        changed = await admin.must("PUT", f"{SETS}/gang", {**body, "spec": again})
        assert changed["spec"]["podManagementPolicy"] == "Parallel"


async def test_the_pods_of_the_check_chart_get_the_gpus_of_its_map(admin: Api, plane: ControlPlane) -> None:
    release = ("check", "--namespace", HOME)
    chart = CHARTS / "gpu-scheduler-check"
    await asyncio.to_thread(run_helm, "install", *release, chart, kubeconfig=plane.kubeconfig())
    for number, devices in enumerate(("0,1", "2", "0,1,2")):
        path = f"{PODS}/check-gpu-scheduler-check-{number}"
        await eventually(partial(_exists, admin, path), path)
        assert variables(await admin.must("GET", path)) == [{"name": VARIABLE, "value": devices}]
    (test,) = yaml.safe_load_all(
        await asyncio.to_thread(run_helm, "get", "hooks", *release, kubeconfig=plane.kubeconfig())
    )
    await admin.must("POST", f"{PODS}?dryRun=All", test)
    await asyncio.to_thread(run_helm, "uninstall", *release, kubeconfig=plane.kubeconfig())


async def test_without_the_webhook_only_our_pods_are_refused(admin: Api, webhook: Webhook) -> None:
    await admin.must("POST", PODS, ours("before"))
    webhook.stop()
    try:
        refused = await admin.ask("POST", PODS, ours("refused"))
        assert refused.code == 500
        assert 'failed calling webhook "pods.gpu-scheduler.io"' in refused.message
        await admin.must("POST", PODS, pod("unharmed"))
        await admin.must("PATCH", f"{PODS}/before", {"metadata": {"labels": {"x": "y"}}}, content_type=MERGE)
        assert (await Pods(admin, HOME).delete("before")).code == 200
    finally:
        webhook.start()
        await eventually(Ask(admin).is_answered(webhook), "the webhook to answer again")


# -- the accounts


async def test_doctor_accepts_the_account_of_the_scheduler(admin: Api, plane: ControlPlane, tmp_path: Path) -> None:
    """Runs what `helm test` runs in a pod."""
    settings = (await admin.must("GET", f"/api/v1/namespaces/{SYSTEM}/configmaps/gpu-scheduler"))["data"]
    config = json.loads(plane.kubeconfig().read_text())
    config["users"][0]["user"]["token"] = await sign_in(admin, "gpu-scheduler")
    flags = {"config": settings["scheduler.yaml"], "kubeconfig": json.dumps(config)}
    command = [*PROGRAM, "doctor", "--output", "json"]
    for flag, text in flags.items():
        command += [f"--{flag}", str(write(tmp_path / flag, text))]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    found = {check["check"]: check["level"] for check in json.loads(done.stdout)}
    assert (done.returncode, found["permissions"], found["placements"], found["queues"]) == (0, "ok", "ok", "ok")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def allowed() -> set[tuple[str, str, str]]:
    """Group, resource and verb of everything that the webhook may do."""
    found = [yaml.safe_load((CHARTS / "gpu-scheduler" / "files" / f"{name}-rules.yaml").read_text()) for name in RULES]
    rules = [rule for one in found for rule in one]
    return {one for rule in rules for one in product(rule["apiGroups"], rule["resources"], rule["verbs"])}


async def test_the_account_of_the_webhook_has_exactly_the_permissions_that_it_uses(
    admin: Api, plane: ControlPlane
) -> None:
    def requests() -> list[Json]:
        lines = [json.loads(line) for line in plane.audit_log.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["user"]["username"] == WEBHOOK_ACCOUNT]

    async def used() -> bool:
        found = [line.get("objectRef", {}) | {"verb": line["verb"]} for line in requests()]
        return allowed() <= {(one.get("apiGroup", ""), one.get("resource", ""), one["verb"]) for one in found}

    queues, queue = "/apis/gpu-scheduler.io/v1alpha1/queues", {"metadata": {"name": "reviewed"}, "spec": {}}
    await admin.must("POST", queues, {"apiVersion": "gpu-scheduler.io/v1alpha1", "kind": "Queue", **queue})
    await admin.must("DELETE", f"{queues}/reviewed")
    await eventually(used, f"all of {sorted(allowed())} to be used")  # watches are audited when they begin
    assert [line for line in requests() if line["responseStatus"]["code"] == 403] == []
