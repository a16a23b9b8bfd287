"""Asks Kubernetes' own code: the program kube-fit, one request per line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

import msgspec

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.binaries import build


class HelperError(Exception):
    """The request was invalid, or the program has ended."""


class KubeFit:
    """A running kube-fit of one version. Use it as `with KubeFit("1.35") as kube`."""

    def __init__(self, minor: str) -> None:
        self.minor = minor
        self._program: Path = build(minor) / "kube-fit"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KubeFit:
        self._process = subprocess.Popen([self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process is not None
        self._process.communicate()  # it ends with its input

    def place(self, cluster: Json, pods: list[Json]) -> Json:
        """For each pod, the nodes that pass all Filter plugins; objects get the API server's defaults."""
        return self._ask({"cluster": cluster, "pods": pods})

    def requests(self, pods: list[Json]) -> list[Json]:
        """For each pod, its total requests."""
        found: list[Json] = self._ask({"pods": pods})["pods"] if pods else []
        return found

    def quantities(self, texts: list[str]) -> list[Json]:
        """For each text, whether it is a quantity, and its amount."""
        found: list[Json] = self._ask({"quantities": texts})["quantities"]
        return found

    def _ask(self, question: Json) -> Json:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise HelperError(f"{self._program} has ended with {self._process.wait()}")
        answer: Json = msgspec.json.decode(line)
        if "error" in answer:
            raise HelperError(answer["error"])
        return answer
