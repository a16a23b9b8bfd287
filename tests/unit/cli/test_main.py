"""The command line: its commands, its imports, and its errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpu_scheduler.cli.cluster_options import ClusterTarget
from gpu_scheduler.cli.main import INSPECT, SECTIONS, cli, plugin
from gpu_scheduler.cli.scheduler import KEYS
from gpu_scheduler.scheduler.settings import FIELDS

COMMANDS = (*INSPECT, "demo", "scheduler", "webhook", "certs", "check-service", "validate")
HEAVY = ("numpy", "rich", "aiohttp", "msgspec", "gpu_scheduler.core.engine")


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom gpu_scheduler.cli.main import cli\n"
        f"cli({arguments!r}, standalone_mode=False)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout.startswith("Usage:")


def test_every_listed_command_exists_with_the_same_help() -> None:
    context = click.Context(cli)
    for entries in SECTIONS.values():
        for name, entry in entries.items():
            command = cli.get_command(context, name)
            assert command is not None
            assert command.name == name
            assert command.get_short_help_str(200).split()[0] == entry.help.split()[0]
    assert cli.get_command(context, "nothing") is None


@pytest.mark.parametrize("name", [name for entries in SECTIONS.values() for name in entries])
def test_the_help_of_every_command_has_examples(name: str) -> None:
    text = CliRunner().invoke(cli, [name, "--help"]).output
    assert f"Examples:\n    gpu-scheduler {name}" in text


def test_the_kubectl_plugin_has_only_the_commands_that_inspect() -> None:
    context = click.Context(plugin)
    assert plugin.list_commands(context) == ["gangs", "nodes", "queues", "explain", "doctor"]
    assert plugin.get_command(context, "scheduler") is None
    assert (
        "Usage: kubectl gang nodes" in CliRunner().invoke(plugin, ["nodes", "--help"], prog_name="kubectl gang").output
    )


@pytest.mark.parametrize("name", [*INSPECT, "scheduler", "webhook", "validate"])
def test_every_command_shows_examples_and_takes_a_kubeconfig(name: str) -> None:
    shown = CliRunner().invoke(cli, [name, "--help"]).output
    assert "Examples:" in shown
    assert "--kubeconfig" in shown
    assert "--context" in shown


@pytest.mark.parametrize(
    "name",
    [("gangs",), ("nodes",), ("queues",), ("explain", "x"), ("doctor",), ("scheduler",), ("webhook",), ("validate",)],
)
def test_a_kubeconfig_that_does_not_exist_is_one_line(name: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "gpu_scheduler.cli.main", *name, "--kubeconfig", "/nowhere/config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu-scheduler: ")
    assert "/nowhere/config" in line


def test_watch_requires_a_table() -> None:
    done = CliRunner().invoke(cli, ["gangs", "--watch", "-o", "json"])
    assert done.exit_code == 2
    assert "--watch prints a table; leave out -o json" in done.output


def test_given_names_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("schedulerNames: [mine]\nholdSeconds: 7\n")
    assert ClusterTarget(None, None, None, ("volcano",)).settings().scheduler_names == ("gpu-scheduler", "volcano")
    settings = ClusterTarget(None, None, file, ("volcano", "mine")).settings(logLevel="debug", identity=None)
    assert settings.scheduler_names == ("mine", "volcano")
    assert (settings.hold, settings.log_level) == (7.0, "debug")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "nowhere"], "listenAddress"),
        (["--lease-duration", "-1"], "leaseDurationSeconds"),
        (["--scheduler-name", "Not A Name"], "schedulerNames"),
    ],
)
def test_an_invalid_flag_is_one_line(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["scheduler", *arguments])
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_every_flag_of_the_scheduler_is_a_setting() -> None:
    assert set(KEYS.values()) <= set(FIELDS)
