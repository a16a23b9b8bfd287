"""Writes the webhooks and admission policies of the chart, with words in capitals for what only an installation knows.

python scripts/write_chart_webhooks.py
"""

from __future__ import annotations

from pathlib import Path

import yaml

from gpu_scheduler.webhook.configuration import make_configurations, make_policies
from gpu_scheduler.webhook.policy import AdmissionPolicy

FILES = Path(__file__).parents[1] / "charts" / "gpu-scheduler" / "files"
HEAD = "# Made by scripts/write_chart_webhooks.py. The template fills in the words in capitals and adds clientConfig.\n"


def make_files() -> dict[str, str]:
    """What the chart's files must say, by name."""
    rules = AdmissionPolicy(frozenset({"SCHEDULER_NAMES"}), (), scheduler_account="SCHEDULER_ACCOUNT")
    made = make_configurations({"url": ""}, rules, system_namespace="SYSTEM_NAMESPACE", guard=True)
    files = {}
    for kind, configuration in zip(("mutating", "validating"), made, strict=True):
        hooks = [{key: hook[key] for key in hook if key != "clientConfig"} for hook in configuration["webhooks"]]
        files[f"{kind}-webhooks.yaml"] = HEAD + _write(hooks)
    files["admission-policies.yaml"] = HEAD.replace(" and adds clientConfig", "") + _write(make_policies(rules))
    return files


def _write(found: object) -> str:
    return yaml.dump(found, Dumper=_Plain, sort_keys=False, width=120)


class _Plain(yaml.SafeDumper):
    """Writes what is there twice twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


if __name__ == "__main__":
    for name, text in make_files().items():
        (FILES / name).write_text(text)
