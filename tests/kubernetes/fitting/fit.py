"""Compares our fit rules with kube-scheduler's Filter plugins, on random clusters.

    python -m tests.kubernetes.fitting.fit --version 1.35 --cases 5000 --start 1

A case is one pod and one cluster. The last line is the summary; the exit code is 1 if a case differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.fitting import ours
from tests.kubernetes.fitting.clusters import PODS_EACH, Case, is_narrow, make_case
from tests.kubernetes.fitting.helper import HelperError, KubeFit
from tests.kubernetes.fitting.shrink import shrink


@dataclass
class Tally:
    """The results of a run."""

    cases: int = 0
    invalid: int = 0
    pairs: int = 0
    accepted: int = 0
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.cases} cases ({self.pairs} pod and node pairs, {self.accepted} accepted,"
            f" {self.invalid} invalid pods left out): {len(self.differences)} differences"
        )


def compare(kube: KubeFit, cases: int, start: int) -> Tally:
    """Runs cases from a seed on; prints differences as the smallest cluster that shows them."""
    tally = Tally()
    seed = start
    while tally.cases < cases:
        case = make_case(seed, kube.minor)
        known = kube.requests(case.cluster["pods"])
        case.cluster["pods"] = [p for p, one in zip(case.cluster["pods"], known, strict=True) if "invalid" not in one]
        answer = kube.place(case.cluster, case.pods)
        for number, theirs in enumerate(answer["pods"]):
            if "invalid" in theirs:
                tally.invalid += 1
            elif tally.cases < cases:
                tally.cases += 1
                tally.pairs += len(case.cluster["nodes"])
                tally.accepted += len(theirs["accepted"])
                if any(_differences(answer["cluster"], theirs)):
                    tally.differences.append(_print_difference(kube, seed, Case(case.cluster, [case.pods[number]])))
        seed += 1
    return tally


def _differences(cluster: Json, theirs: Json) -> Iterator[str]:
    """Nodes that only one of both accepts, with the reason."""
    try:
        verdicts = ours.place(cluster, theirs["pod"])
    except Exception as error:  # any exception is a difference to report
        yield f"ours fails: {error!r}"
        return
    for name, refusal in sorted(verdicts.items()):
        if (not refusal) != (name in theirs["accepted"]):
            yield f"{name}: ours {refusal or 'accepts'}, theirs {theirs.get('refused', {}).get(name, 'accepts')}"


def _print_difference(kube: KubeFit, seed: int, case: Case) -> str:
    """Prints a difference, shrunk to what is needed to see it."""

    def differs(smaller: Json) -> bool:
        if not is_narrow(smaller["cluster"]):
            return False
        try:
            answer = kube.place(smaller["cluster"], [smaller["pod"]])
        except HelperError:
            return False
        theirs = answer["pods"][0]
        return "invalid" not in theirs and any(_differences(answer["cluster"], theirs))

    small = shrink({"cluster": case.cluster, "pod": case.pods[0]}, differs)
    answer = kube.place(small["cluster"], [small["pod"]])
    found = "; ".join(_differences(answer["cluster"], answer["pods"][0]))
    return f"seed {seed}, pod {case.pods[0]['metadata']['name']}: {found}\n{json.dumps(small, indent=1)}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare our fit rules with kube-scheduler's.")
    parser.add_argument("--version", default="1.35")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--start", type=int, default=1, help=f"the first seed; each makes {PODS_EACH} cases")
    options = parser.parse_args()
    begun = time.monotonic()
    with KubeFit(options.version) as kube:
        tally = compare(kube, options.cases, options.start)
    for difference in tally.differences[:10]:
        sys.stdout.write(f"{difference}\n\n")
    sys.stdout.write(f"fit, Kubernetes {options.version}: {tally} in {time.monotonic() - begun:.0f} s\n")
    return 1 if tally.differences else 0


if __name__ == "__main__":
    sys.exit(main())
