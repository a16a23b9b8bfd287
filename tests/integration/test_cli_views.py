"""`gangs`, `nodes`, `queues`, `explain` and `doctor` as a user runs them: gangs run, wait and are broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import gang, gang_job, member, queue
from tests.integration.live import Live, World, free_port
from tests.integration.running import PROGRAM, TIMEOUT, Follower, eventually, run_program
from tests.integration.scenes import force, metadata
from tests.integration.test_commands import assert_one_line

GPU = "nvidia.com/gpu"
Wide = Callable[[Json], str]
Done = subprocess.CompletedProcess[str]


def view(live: Live, *arguments: str) -> Done:
    """Runs a command against a namespace's cluster, whatever its result."""
    command = [*PROGRAM, *arguments, "--kubeconfig", str(live.cluster.folder / "kubeconfig")]
    return subprocess.run(command, capture_output=True, text=True, env=unlimited(), timeout=2 * TIMEOUT, check=False)


def unlimited() -> dict[str, str]:
    """An environment without a limit on the width of lines."""
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"}


def see(live: Live, *arguments: str) -> str:
    """Runs a command that must succeed without error output; returns its output."""
    done = view(live, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def read(live: Live, *arguments: str) -> Any:
    """The same as JSON."""
    return json.loads(see(live, *arguments, "-o", "json"))


def rows(text: str) -> dict[str, list[str]]:
    """The lines of a table, split at blanks, by their first word."""
    cells = [line.split() for line in text.splitlines() if line.strip()]
    return {words[0]: words for words in cells}


@pytest.fixture
def busy(live: Live) -> Live:
    """A namespace in which one gang runs, one lacks capacity, one lacks pods, and one lacks its object."""
    live.create(*gang("volcano", "first", 3, gpus=8))
    live.wait_bound("first-0", "first-1", "first-2")
    live.create(*gang("volcano", "train", 2, gpus=8), *gang("volcano", "few", 3)[:2], *gang("volcano", "lost", 2)[1:])
    live.wait_reason("train-0", "holds 24")
    return live


# -- quarantine


def test_nodes_and_doctor_show_the_gpus_that_the_leader_keeps_in_quarantine(world: World) -> None:
    live = world.cluster("--nodes", "1")
    config = Path(live.cluster.folder.parent) / f"{live.cluster.folder.name}.yaml"
    config.write_text("quarantineSeconds: 600\n")
    world.scheduler(live, "--config", str(config)).run()
    live.create(member("first", 8))
    live.wait_bound("first")
    force(live, "first")

    def held() -> list[Json]:
        (node,) = read(live, "nodes")
        return [part for device in node["devices"] for part in device["held"] if part["hold"] == "quarantined"]

    found = eventually(held, "the quarantine on the Lease")
    assert [part["holder"] for part in found] == [f"{live.namespace}/first"] * 8
    assert all(part["until"] for part in found)
    (check,) = [one for one in read(live, "doctor") if one["check"] == "quarantine"]
    assert (check["level"], check["message"].startswith("8 GPUs of pods that vanished")) == ("warn", True)
    live.create(member("second", 8))
    assert "holds 8" in eventually(
        lambda: text if "holds 8" in (text := view(live, "explain", "-n", live.namespace, "second").stdout) else "",
        "a message that counts the GPUs in quarantine",
    )


# -- gangs


def test_gangs_shows_running_and_waiting_gangs_with_reasons(busy: Live) -> None:
    head, *lines = see(busy, "gangs", "-n", busy.namespace).splitlines()
    assert head.split() == ["GANG", "PHASE", "MEMBERS", "WAITING", "REASON"]
    found = {line.split()[0]: line.split(maxsplit=4)[1:] for line in lines}
    assert list(found) == ["train", "few", "lost", "first"]
    assert found["first"] == ["running", "3/3"]
    assert found["train"][:2] == ["waiting", "0/2"]
    assert found["train"][3] == "needs 16 nvidia.com/gpu in blocks of 8; 1 of 2 members fit now"
    assert found["few"][3] == "1 of 3 pods exist; 2 more must be created"
    assert (found["lost"][:2], found["lost"][3]) == (["orphaned", "0/?"], "its PodGroup does not exist")


def test_gangs_as_json(busy: Live) -> None:
    found = {one["name"]: one for one in read(busy, "gangs", "-n", busy.namespace)}
    train = found["train"]
    assert train["message"] == (
        "needs 16 nvidia.com/gpu in blocks of 8; 1 of 2 members fit now. Short by 8 nvidia.com/gpu. "
        f"{busy.namespace}/first holds 24. Starts when enough of it is free; a minimum of 1 would start now."
    )
    said = busy.wait_reason("train-0", "holds 24")
    assert said == f"gang {busy.namespace}/train (PodGroup): {train['message']}"
    assert (train["reason"], train["dialect"], train["queue"]) == ("NotEnoughResources", "volcano", "default")
    assert (train["minimum"], train["running"], train["waiting"]) == (2, 0, 2)
    assert found["first"]["phase"] == "running"
    assert found["lost"]["minimum"] is None


def test_gangs_of_all_namespaces_have_their_namespace(busy: Live) -> None:
    found = [one for one in read(busy, "gangs", "-A") if one["namespace"] == busy.namespace]
    assert sorted(one["name"] for one in found) == ["few", "first", "lost", "train"]
    assert busy.namespace in see(busy, "gangs", "-A")
    names = see(busy, "gangs", "-A", "-o", "name").split()
    assert f"{busy.namespace}/train" in names
    assert f"{busy.namespace}/train  waiting" in see(busy, "explain", f"{busy.namespace}/train")


def test_gangs_of_an_empty_namespace_mentions_other_namespaces(busy: Live) -> None:
    text = see(busy, "gangs", "-n", "kube-public")
    assert text.startswith("No gangs in this namespace; ")
    assert text.endswith("in others (-A).\n")


def test_gangs_counts_running_single_pods_and_lists_them_with_all(live: Live) -> None:
    live.create(member("one"), member("two"))
    live.wait_bound("one", "two")
    assert see(live, "gangs", "-n", live.namespace).splitlines()[1:] == [
        "Not shown: 2 single pods that are not waiting (--all)."
    ]
    assert rows(see(live, "gangs", "-n", live.namespace, "--all")).keys() == {"GANG", "one", "two"}


def test_a_job_is_found_by_its_name(live: Live) -> None:
    (job,) = gang_job("annotation", "train", 2)
    del job["spec"]["template"]["metadata"]["annotations"]["gpu-scheduler.io/gang"]
    live.create(job)
    eventually(lambda: len(live.bound()) == 2, "both pods to be bound")
    assert see(live, "gangs", "-n", live.namespace, "-o", "name") == "Job/train\n"
    assert see(live, "explain", "-n", live.namespace, "train").startswith(f"{live.namespace}/Job/train  running")


@contextmanager
def watching(live: Live, *arguments: str) -> Iterator[Follower]:
    """Within the block, a running command."""
    command = [*PROGRAM, *arguments, "--kubeconfig", str(live.cluster.folder / "kubeconfig")]
    environment = {**unlimited(), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as run:
        follower = Follower(run)
        reader = threading.Thread(target=follower.read)
        reader.start()
        try:
            yield follower
        finally:
            run.kill()
            reader.join(TIMEOUT)


def test_a_watched_table_is_printed_again_when_it_changes(live: Live) -> None:
    live.create(*gang("volcano", "train", 2)[:2])
    with watching(live, "gangs", "-n", live.namespace, "--watch") as follower:
        follower.wait_for(r"^train +gathering +0/2")
        live.create(gang("volcano", "train", 2)[2])
        follower.wait_for(r"^train +running +2/2")
        follower.process.send_signal(signal.SIGINT)
        assert follower.process.wait(TIMEOUT) == 0
    assert not any("Traceback" in line for line in follower.lines)
    assert sum(line.startswith("GANG") for line in follower.lines) >= 2


def test_watch_and_json_exclude_each_other() -> None:
    done = run_program("gangs", "--watch", "-o", "json")
    assert done.returncode == 2
    assert "--watch prints a table; leave out -o json" in done.stderr


# -- nodes


def test_nodes_shows_every_gpu_and_its_holder(busy: Live) -> None:
    text = see(busy, "nodes")
    nodes = set(busy.wait_bound("first-0", "first-1", "first-2").values())
    letter = next(
        line.split()[0] for line in text.splitlines() if f" {busy.namespace}/first: 24 GPUs on 3 nodes" in line
    )
    found = rows(text)
    for node in nodes:
        assert found[node] == [node, "8/8", *[letter] * 8]
    assert "24 of 32 GPUs used on 4 nodes." in text


def test_nodes_as_json(busy: Live) -> None:
    node = busy.wait_bound("first-0")["first-0"]
    (found,) = read(busy, "nodes", node)
    assert (found["name"], found["gpus"], found["used"], found["ready"]) == (node, 8, 8, True)
    held = {"holder": f"{busy.namespace}/first", "milli": 1000, "hold": "used"}
    assert found["devices"] == [{"index": index, "healthy": True, "held": [held]} for index in range(8)]
    assert [one["name"] for one in read(busy, "nodes")] == ["node1", "node2", "node3", "node4"]


def test_a_node_that_does_not_exist_is_an_error(live: Live) -> None:
    done = view(live, "nodes", "nodex")
    assert_one_line(done, "gpu-scheduler: no node is called nodex")
    assert done.returncode == 1


# -- queues


def test_queues_shows_limits_and_use(live: Live, wide: Wide) -> None:
    name = wide(queue("research", quota={GPU: 2}, limit={GPU: 4}))
    live.create(*gang("annotation", "first", 3, meta=metadata(queue=name)))
    live.wait_bound("first-0", "first-1", "first-2")
    live.create(*gang("annotation", "train", 2, meta=metadata(queue=name)))
    text = see(live, "queues")
    assert rows(text)[name] == [name, "1", "2", "3", "1", "0", "1", "1", "1", "open"]
    lines = text.splitlines()
    assert lines[lines.index(next(line for line in lines if line.startswith(name))) + 1].endswith(
        "3 used, quota 2, limit 4"
    )
    assert "default" in rows(text)
    assert "root" not in rows(text)
    (found,) = [one for one in read(live, "queues") if one["name"] == name]
    assert (found["running"], found["waiting"], found["open"]) == (1, 1, True)
    use = {"used": 3, "quota": 2, "limit": 4, "total": 32, "borrowed": 1, "lent": 0, "reclaimable": 1}
    assert found["resources"][GPU] == use


# -- explain


def test_explain_gives_the_reason_the_holders_and_the_cure(busy: Live) -> None:
    text = see(busy, "explain", "-n", busy.namespace, "train")
    first = f"{busy.namespace}/first"
    for part in (
        f"{busy.namespace}/train  waiting  (volcano gang)",
        "0 running, 2 waiting, minimum 2",
        f"Holders of nvidia.com/gpu\n  {first}  24\n",
        "What would help\n  - 1 member would find a place now: a smaller gang would start.\n"
        f"  - It starts when {first} ends.\n",
        "Earliest start\n  Not known: the gangs that hold what it needs have no known end.\n",
    ):
        assert part in text
    assert rows(text.split("Members")[1])["train-0"] == ["train-0", "waiting", "8"]
    assert see(busy, "explain", "-n", busy.namespace, "train-1").splitlines()[0] == text.splitlines()[0]


def test_explain_as_json(busy: Live) -> None:
    found = read(busy, "explain", "-n", busy.namespace, "train")
    assert (found["phase"], found["reason"], found["fits_now"]) == ("waiting", "NotEnoughResources", False)
    assert found["holders"] == [{"name": f"{busy.namespace}/first", "amount": 24}]
    lacks = found["refusals"][0]
    assert (lacks["reason"], lacks["subject"], lacks["short_by"]) == ("RESOURCE", GPU, 8)
    assert [one["state"] for one in found["members"]] == ["waiting", "waiting"]


def test_explain_of_a_gang_that_lacks_pods(busy: Live) -> None:
    text = see(busy, "explain", "-n", busy.namespace, "few")
    assert "Why\n  1 of 3 pods exist; 2 more must be created.\n\nMembers\n" in text


def test_explain_of_a_running_gang_lists_its_nodes(busy: Live) -> None:
    text = see(busy, "explain", "-n", busy.namespace, "first")
    node = busy.wait_bound("first-0")["first-0"]
    assert rows(text)["first-0"] == ["first-0", "running", node, "8", "(0-7)"]
    assert "Why" not in text


def test_explain_of_an_unknown_name_offers_the_nearest(busy: Live) -> None:
    done = view(busy, "explain", "-n", busy.namespace, "trian")
    assert_one_line(done, f"no gang, pod or job is called {busy.namespace}/trian; did you mean train")
    assert done.returncode == 1


def test_explain_of_a_pod_of_another_scheduler_names_that_scheduler(live: Live) -> None:
    live.create(member("other", scheduler="kai-scheduler"))
    done = view(live, "explain", "-n", live.namespace, "other")
    assert_one_line(
        done, "names the scheduler 'kai-scheduler'; spec.schedulerName must be one that this scheduler serves: "
    )


# -- doctor


def test_doctor_accepts_a_healthy_cluster_and_reports_lost_objects(busy: Live) -> None:
    fine = ("api", "clock", "permissions", "placements", "queues", "dialects", "leader", "nodes", "waiting")

    def look() -> dict[str, Json]:
        """What doctor finds when nothing is slow; it would rightly warn about slowness."""
        found = {one["check"]: one for one in read(busy, "doctor")}
        return found if {found[name]["level"] for name in fine} == {"ok"} else {}

    def shown() -> str:
        text = see(busy, "doctor")
        return text if "ok    leader" in text else ""

    found = eventually(look, "a cluster in order")
    assert found["gangs"]["level"] == "warn"
    assert f"{busy.namespace}/lost (2 pods)" in found["gangs"]["message"]
    text = eventually(shown, "the same for people")
    assert "-> Create the gang objects again, or delete the pods" in text


def test_doctor_and_gangs_say_that_no_scheduler_runs(world: World) -> None:
    live = world.cluster("--nodes", "1")
    eventually(lambda: " Ready " in live.cluster.run("get", "nodes").stdout, "a ready node")
    live.create(*gang("annotation", "train", 2))
    text = see(live, "gangs")
    assert "fits now: it starts with the scheduler's next cycle" in text
    assert text.endswith(
        "No scheduler has ever run in this cluster. Nothing starts until a scheduler runs: gpu-scheduler scheduler\n"
    )
    leader = next(one for one in read(live, "doctor") if one["check"] == "leader")
    assert leader == {
        "check": "leader",
        "level": "warn",
        "message": "No scheduler has ever run in this cluster",
        "remedy": "Start one: gpu-scheduler scheduler.",
    }
    scheduler = world.scheduler(live).run()
    live.wait_bound("train-0", "train-1")
    assert scheduler.stop() == 0
    assert "No scheduler is running: the last one has stopped." in see(live, "gangs")


# -- unreachable servers


VIEWS = (("gangs",), ("nodes",), ("queues",), ("explain", "x"))


@pytest.mark.parametrize("command", VIEWS, ids=lambda command: command[0])
def test_an_unreachable_server_is_a_one_line_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = run_program(*command, "--kubeconfig", str(dead_end(tmp_path)))
    assert_one_line(done, "gpu-scheduler: https://127.0.0.1:", "does not answer")
    assert done.returncode == 1


def test_doctor_fails_when_the_server_is_unreachable(tmp_path: Path) -> None:
    done = run_program("doctor", "--kubeconfig", str(dead_end(tmp_path)))
    assert done.returncode == 1
    assert done.stdout.startswith("fail  api  https://127.0.0.1:")
    assert done.stdout.endswith("1 fail.\n")


@pytest.mark.parametrize("command", [*VIEWS, ("doctor",), ("scheduler",)], ids=lambda command: command[0])
def test_a_missing_kubeconfig_is_a_one_line_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = run_program(*command, "--kubeconfig", str(tmp_path / "missing"))
    assert_one_line(done, str(tmp_path / "missing"))
    assert done.returncode == 2


def test_an_unknown_context_is_a_one_line_error(live: Live) -> None:
    done = view(live, "gangs", "--context", "elsewhere")
    assert_one_line(done, "elsewhere")
    assert done.returncode == 2


def dead_end(folder: Path) -> Path:
    """A kubeconfig of a server that does not exist."""
    cluster = {"name": "x", "cluster": {"server": f"https://127.0.0.1:{free_port()}"}}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    users = [{"name": "x", "user": {"token": "x"}}]
    whole = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "x"}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(whole))
    return path


# -- kubectl


def test_the_commands_work_as_a_kubectl_plugin(busy: Live, tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["kubectl-gang"].partition(":")
    script = tmp_path / "kubectl-gang"
    script.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
    script.chmod(0o755)
    environment = {**busy.cluster.environment, "COLUMNS": "120", "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(*arguments: str) -> Done:
        command = ["kubectl", "gang", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=2 * TIMEOUT, check=False
        )

    assert rows(run("gangs", "-n", busy.namespace).stdout)["train"][1:3] == ["waiting", "0/2"]
    assert "holds 24" in run("explain", "-n", busy.namespace, "train").stdout
    unknown = run("explain", "-n", busy.namespace, "absent")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("kubectl gang: no gang, pod or job is called")
    assert run("scheduler").returncode == 2
