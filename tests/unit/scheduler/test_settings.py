"""Settings from the configuration file and flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler.core.state import Config
from gpu_scheduler.gangs.ceilings import Ceilings
from gpu_scheduler.scheduler.settings import FIELDS, SettingsError, load_settings


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text)
    return file


def problems(file: Path | None, **overrides: object) -> list[str]:
    with pytest.raises(SettingsError) as found:
        load_settings(file, overrides)
    assert str(found.value) == "\n".join(found.value.problems)
    return [line.removeprefix(f"{file}: ") for line in found.value.problems]


def test_defaults_are_those_of_the_engine_and_of_the_contract() -> None:
    settings = load_settings()
    assert settings.core == Config()
    assert settings.scheduler_names == ("gpu-scheduler",)
    assert (settings.namespace, settings.lease_name) == ("gpu-scheduler-system", "gpu-scheduler")
    assert (settings.lease_duration, settings.renew) == (15.0, 2.0)
    assert (settings.listen, settings.in_flight) == (":8080", 64)
    assert (settings.log_format, settings.log_level) == ("console", "info")


def test_every_process_has_its_own_identity() -> None:
    assert load_settings().identity != load_settings().identity
    assert load_settings(None, {"identity": "me"}).identity == "me"


def test_file_overrides_defaults(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        schedulerNames: [gpu-scheduler, volcano]
        holdSeconds: 60
        topologyLevels:
          - {name: zone, label: topology.kubernetes.io/zone}
          - {name: block, label: example.com/block}
        gangs: false
        gpuResources: [amd.com/gpu]
        quarantineSeconds: 0
        maxGraceSeconds: 60
        maxHoldSeconds: 90
        maxGangMembers: 64
        maxPodlessDrainSeconds: 90
        maxPodlessShapes: 7
        priorityClasses: {team-a: [low], "*": []}
        priorityScope: cluster
        minRuntimeSeconds: 600
        """,
    )
    settings = load_settings(file)
    assert settings.scheduler_names == ("gpu-scheduler", "volcano")
    core = settings.core
    assert (core.hold, core.gangs, core.gpu_resources, core.quarantine) == (60.0, False, ("amd.com/gpu",), 0.0)
    assert (core.max_grace, core.max_podless_drain, core.max_podless_shapes) == (60.0, 90.0, 7)
    assert (core.cluster_priority, core.min_runtime) == (True, 600.0)
    assert settings.ceilings == Ceilings(60.0, {"team-a": frozenset({"low"}), "*": frozenset()}, 90.0, 64)
    assert core.levels == (("zone", "topology.kubernetes.io/zone"), ("block", "example.com/block"))


def test_flags_override_the_file_unless_absent(tmp_path: Path) -> None:
    file = write(tmp_path, "holdSeconds: 60\ninFlight: 8\n")
    settings = load_settings(file, {"holdSeconds": 5, "inFlight": None})
    assert (settings.hold, settings.in_flight) == (5.0, 8)


def test_empty_file_keeps_the_defaults(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, "# nothing\n"))
    assert (settings.core, settings.ceilings) == (Config(), Ceilings())


def test_gangs_may_ask_for_the_hold_that_all_gangs_get(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, "holdSeconds: 7200\nmaxHoldSeconds: 60\n"))
    assert settings.ceilings.max_hold == 7200.0


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        shedulerNames: [x]
        holdSeconds: -1
        gangs: "yes"
        quarantineSeconds: .inf
        gpuResources: []
        listenAddress: 8080
        inFlight: 1.5
        logFormat: xml
        leaseName: Not A Name
        priorityClasses: {Team A: [low]}
        priorityScope: Cluster
        minRuntimeSeconds: -1
        """,
    )
    assert problems(file) == [
        "shedulerNames: no such setting; did you mean schedulerNames?",
        "holdSeconds: must be a number of seconds, 0 or more, not -1",
        "gangs: must be true or false, not 'yes'",
        "quarantineSeconds: must be a number of seconds, 0 or more, not inf",
        "gpuResources: must be a list of resource names, such as [nvidia.com/gpu], not []",
        'listenAddress: must be a port with or without a host, such as ":8080" or "127.0.0.1:8080", not 8080',
        "inFlight: must be a whole number from 1 to 100000, not 1.5",
        "logFormat: must be console or json, not 'xml'",
        "leaseName: must be a name such as gpu-scheduler, not 'Not A Name'",
        "priorityClasses: must be lists of priority classes by namespace, such as "
        """{team-a: [low], "*": [low, high]}, not {'Team A': ['low']}""",
        "priorityScope: must be queue or cluster, not 'Cluster'",
        "minRuntimeSeconds: must be a number of seconds, 0 or more, not -1",
    ]


def test_unknown_key_without_a_close_match_lists_all_keys(tmp_path: Path) -> None:
    (line,) = problems(write(tmp_path, "zzz: 1\n"))
    assert line == f"zzz: no such setting; known are {', '.join(FIELDS)}"


def test_wrong_flag_is_reported_as_command_line() -> None:
    assert problems(None, logLevel="loud") == [
        "command line: logLevel: must be debug, info, warning or error, not 'loud'"
    ]


def test_conflicting_settings_are_refused(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "topologyLevels: [{name: node, label: a/b}, {name: rack, label: a/c}, {name: rack, label: a/d}]\n",
    )
    assert problems(file, renewSeconds=9) == [
        "command line: renewSeconds: must be at most a third of leaseDurationSeconds, which is 15, "
        "so that one lost request does no harm, not 9",
        'topologyLevels: "node" is a level of every cluster; choose another name',
        'topologyLevels: "rack" is the name of two levels; choose another name',
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- a\n", "must be a mapping of settings, such as schedulerNames: [gpu-scheduler]"),
        ("a: [\n", ", line 1: did not find expected node content"),
        ("inFlight: 1\ninFlight: 2\n", ", line 1: inFlight is given twice"),
        ('"in\\nFlight": 1\n', "in Flight: no such setting; did you mean inFlight?"),
    ],
)
def test_invalid_file_is_reported_with_its_line(tmp_path: Path, text: str, line: str) -> None:
    file = write(tmp_path, text)
    (found,) = problems(file)
    assert found.removeprefix(str(file)) == line


def test_missing_file_is_reported(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == ["cannot be read: No such file or directory"]
