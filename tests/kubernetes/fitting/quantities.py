"""Compares our quantities and pod requests with apimachinery's and kube-scheduler's, on random and on edge cases.

    python -m tests.kubernetes.fitting.quantities --version 1.35 --cases 2000 --pods 500 --start 1

The last line is the summary; the exit code is 1 if a case differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from random import Random

from embedded_kube.schema.quantities import canonical
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.quantity import MAX_LENGTH, MAX_VALUE, QuantityError, parse_nano, parse_value
from tests.kubernetes.fitting import ours
from tests.kubernetes.fitting.clusters import resize
from tests.kubernetes.fitting.helper import KubeFit
from tests.kubernetes.fitting.pods import PodGenerator

SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_WORDS = """
+ - . +. -. 0 -0 +0 00 0.0 -0.0 .5 5. 1..2 1.2.3 --1 +-1 1K 1ki 1KI 1mi 1B 1KB 1MiB 1e 1E 1e+ 1e- 1E+3 1e3k 1e3Ki
0x10 1_000 1,5 1,000 inf nan NaN Infinity 1e3.5 e3 .e3 E 1Ee3 1n1 1mm 8Ei 7.99Ei 10E 16Ei 9223372036854775807
9223372036854775808 -9223372036854775808 9223372036854775807m 9223372036854775.807 0.9Gi 1.1Gi 0.1 0.01 0.001 0.0001
0.000000001 0.0000000001 1e18 1e19 1E18 1e-9 1e-10 1e-30 005Gi 12345678901234567890123 1.00000000000000000001
0.30000000000000004 1024 1024Ki 1023Mi 0.5Ki 0.5m 1.5m 1500m 1000k 1000Ki 1e3 1e4 1e5 12e6 1.2e6 0.1e1 100e-3
1000000e-3 5.0Gi 00.50Mi
"""
EDGES = (*_WORDS.split(), "", "1 ", " 1", "1 k", "\u0661", "\uff11", "1\u200b", "1\n", *SUFFIXES[1:])


def make_quantity(random: Random) -> str:
    """A text that is a quantity, or almost one."""
    if random.random() < 0.15:
        return random.choice(EDGES)
    digits = "".join(random.choices("0123456789", k=random.choice((1, 1, 2, 3, 4, 7, 15, 18, 19, 20))))
    if random.random() < 0.4:
        at = random.randint(0, len(digits))
        digits = f"{digits[:at]}.{digits[at:]}"
    if random.random() < 0.3:
        digits += "0" * random.randint(1, 6)
    exponent = f"{random.choice('eE')}{random.choice(('', '+', '-'))}{random.randint(0, 20)}"
    text = (
        random.choice(("", "", "", "", "-", "+"))
        + digits
        + (exponent if random.random() < 0.25 else random.choice(SUFFIXES))
    )
    if random.random() < 0.1:
        at = random.randint(0, len(text))
        text = text[:at] + random.choice("eEiKkm.+- 0x") + text[at + random.randint(0, 1) :]
    # With an exponent beyond int32 Go does not terminate; we refuse those.
    return text if not re.search("[eE][+-]?[0-9]{4}", text) else make_quantity(random)


def quantity_difference(text: str, theirs: Json) -> str | None:
    """What we read differently, or nothing."""
    try:
        nano = parse_nano(text)
    except QuantityError:
        valid = "invalid" not in theirs
        return f"{text!r}: ours refuses, theirs {theirs['text']}" if valid and len(text) <= MAX_LENGTH else None
    if "invalid" in theirs:
        return f"{text!r}: ours {nano}n, theirs refuses"
    wanted: Json = {}
    if not (_HUGE.search(text) and abs(nano) >= MAX_VALUE * 10**9):
        wanted["stored"] = canonical(text)
    if _counts(text, nano):
        wanted["value"] = parse_value(text)
    for name, mine in wanted.items():
        if mine != theirs[name]:
            return f"{text!r}: {name}: ours {mine}, theirs {theirs[name]}"
    return None


_HUGE = re.compile("[MGTPE0-9]$")
"""Beyond 1000E the API server stores the digits and drops the rest; canonical() keeps the amount."""

_EASY = re.compile(r"-[0-9]{1,15}(\.[0-9]{1,3})?[mkMGT]?")
"""Negative amounts that Go reads without its exact path, which loses signs (k8s/quantity.py)."""


def _counts(text: str, nano: int) -> bool:
    """Whether Go's result is as documented: beyond int64 it wraps around, and see _EASY."""
    return abs(nano) < MAX_VALUE * 10**9 and (nano >= 0 or bool(_EASY.fullmatch(text)))


def compare_quantities(kube: KubeFit, cases: int, start: int) -> list[str]:
    """The differences among some texts, edge cases first."""
    random = Random(start)
    texts = [*EDGES, *(make_quantity(random) for _ in range(cases))][:cases]
    pairs = zip(texts, kube.quantities(texts), strict=True)
    return [found for text, theirs in pairs if (found := quantity_difference(text, theirs))]


# -- pod requests


def make_pods(random: Random, count: int, minor: str) -> Iterator[Json]:
    """Pods with containers of every kind, some of them running and being resized."""
    maker = PodGenerator(random, ("n1", "n2"), minor)
    for number in range(count):
        pod = maker.make(f"p{number}", few=True)
        if random.random() < 0.3:
            pod["spec"]["nodeName"] = "n1"
            resize(random, pod, minor)
        yield pod


def compare_requests(kube: KubeFit, cases: int, start: int) -> tuple[int, list[str]]:
    """How many valid pods were compared, and those whose requests differ."""
    random = Random(start)
    compared, found = 0, []
    while compared < cases:
        for theirs in kube.requests(list(make_pods(random, 100, kube.minor))):
            if "invalid" not in theirs and compared < cases:
                compared += 1
                mine, problem = ours.requests(theirs["pod"])
                wanted = {name: amount for name, amount in theirs["requests"].items() if amount}
                if mine != wanted or problem:
                    spec = json.dumps(theirs["pod"]["spec"])
                    found.append(f"ours {mine} {problem}, theirs {wanted}: {spec}")
    return compared, found


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare our quantities and pod requests with Kubernetes'.")
    parser.add_argument("--version", default="1.35")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--start", type=int, default=1, help="the seed")
    options = parser.parse_args()
    begun = time.monotonic()
    with KubeFit(options.version) as kube:
        texts = compare_quantities(kube, options.cases, options.start)
        pods, requests = compare_requests(kube, options.pods, options.start)
    for difference in (*texts[:40], *requests[:10]):
        sys.stdout.write(f"{difference}\n")
    sys.stdout.write(
        f"quantities, Kubernetes {options.version}, seed {options.start}: {options.cases} quantities, {len(texts)}"
        f" differences; {pods} pods, {len(requests)} differences in {time.monotonic() - begun:.0f} s\n"
    )
    return 1 if texts or requests else 0


if __name__ == "__main__":
    sys.exit(main())
