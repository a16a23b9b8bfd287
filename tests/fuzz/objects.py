"""Objects of every kind that the scheduler watches, from the bytes of an API server to decisions.

The damaged object stands between two good ones, once in a list and once in a watch. The good ones must always be seen,
and pods beside it that have a node of their own must be placed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, Effect, Report, TookOver
from gpu_scheduler.gangs.contract import GROUP, QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.dialects import DIALECTS
from gpu_scheduler.gangs.pods.annotations import bind_annotations
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.informer import Informer
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.status.messages import describe
from gpu_scheduler.scheduler.translate import Translator
from gpu_scheduler.scheduler.watcher import make_translator, optional_kinds, required_kinds
from tests.fuzz import seeds
from tests.fuzz.canned import Canned, Reply
from tests.fuzz.seeds import dump, stored
from tests.fuzz.target import Input, Target
from tests.unit.webhook.reviewing import container, pod

_NOW = 1_750_000_000.0
_SETTINGS = Settings(scheduler_names=("gpu-scheduler", "volcano"), identity="fuzz")
_SERVED = Served((*(kind for dialect in DIALECTS for kind in dialect.resources[:1]), QUEUES, VOLCANO_QUEUES))


def _neighbours() -> dict[str, list[Json]]:
    """A gang of two with a node and a queue of its own."""
    mark = {"dedicated": "beside"}
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "9", "nvidia.com/gpu": "2"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    taint = {"key": "dedicated", "value": "beside", "effect": "NoSchedule"}
    node = {"metadata": {"name": "beside", "labels": mark}, "spec": {"taints": [taint]}, "status": status}
    tolerated = [{"key": "dedicated", "operator": "Equal", "value": "beside", "effect": "NoSchedule"}]
    notes = {f"{GROUP}/gang": "beside", f"{GROUP}/gang-min": "2", f"{GROUP}/queue": "beside"}
    members = [
        pod(
            f"beside-{i}", notes, containers=[container(gpus="1")], nodeSelector=mark, tolerations=tolerated, priority=9
        )
        for i in range(2)
    ]
    return {
        "nodes": [stored(node, namespace="")],
        "pods": [stored(member, i, namespace="beside", uid=f"beside-{i}") for i, member in enumerate(members)],
        "queues": [stored({"metadata": {"name": "beside"}, "spec": {"weight": 1}}, namespace="")],
    }


_NEIGHBOURS = {plural: [dump(one) for one in found] for plural, found in _neighbours().items()}
_AROUND = {"nodes": seeds.nodes()[0], **seeds.others()}
"""Objects that others refer to; present in valid form unless it is the damaged one."""


def _lists(plural: str, damaged: bytes | None) -> bytes:
    first, *rest = _NEIGHBOURS.get(plural, [b""])
    around = [dump(_AROUND[plural])] if plural in _AROUND and damaged is None else []
    items = [one for one in (first, *around, damaged or b"", *rest) if one]
    return b'{"metadata":{"resourceVersion":"1000"},"items":[%b]}' % b",".join(items)


def _watches(plural: str, damaged: bytes) -> bytes:
    line = b'{"type":"ADDED","object":%b}\n'
    # The neighbours come again, newer than the damaged object: events after it on the same watch must arrive.
    again = [one.replace(b'"resourceVersion": "1', b'"resourceVersion": "2', 1) for one in _NEIGHBOURS.get(plural, [])]
    return b"".join(line % one for one in (damaged, *again))


def _script(given: Input) -> Canned:
    kind, way = given.head.split()
    body = given.body.replace(b"\n", b" ")
    asked: set[tuple[str, str]] = set()

    def answer(method: str, path: str, params: Mapping[str, str], _body: bytes) -> Reply | None:
        plural = path.rpartition("/")[2] if kind not in _DIALECTS else path
        found = plural == (_DIALECTS.get(kind, kind))
        short = path.rpartition("/")[2]
        if method != "GET" or (path, params.get("watch", "")) in asked:
            return None
        asked.add((path, params.get("watch", "")))
        if "watch" not in params:
            return Reply(_lists(short, body if found and way == "list" else b"" if found else None))
        if found and way == "watch":
            return Reply(pieces=[_watches(short, body)])
        return None

    return Canned(answer)


async def _follow(canned: Canned, see: Translator) -> None:
    """Lists and watches every kind once, in the order of the cluster watcher."""
    *first, last = required_kinds(see)
    async with canned.client() as client:
        for resource, form, handler in (*first, *optional_kinds(see, _SERVED), last):
            informer: Informer[Any] = Informer(client, resource, form, handler)
            await canned.follow(informer)
            if informer.problem:
                raise AssertionError(f"{resource.plural} are not followed any more: {informer.problem}")


def _decide(see: Translator) -> tuple[Engine, list[Effect]]:
    engine = Engine(_SETTINGS.core)
    effects: list[Effect] = []
    for event in see.take_events():
        effects += engine.handle(event, _NOW)
    effects += engine.handle(TookOver(()), _NOW)
    for later in (0.0, 1.0, 400.0):
        effects += engine.run_cycle(_NOW + later)
    return engine, effects


def _tell(see: Translator, engine: Engine, effects: list[Effect]) -> None:
    """Encodes everything that would be written about the gangs."""
    for effect in effects:
        if isinstance(effect, Report):
            report = engine.report(effect.key, _NOW)
            assert report is not None
            told = describe(report)
            assert told.message.isprintable()
            subject = see.registry.object_of(effect.key)
            if subject is not None:
                dump([patch.body for patch in see.registry.encode(effect.key, subject, effect.status, told, _NOW)])
            engine.explain(effect.key, _NOW)


def _is_json(body: bytes) -> bool:
    """Whether a server could send it; a server that sends anything else cannot be watched at all."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    except RecursionError:
        return body.count(b"[") == body.count(b"]") and body.count(b"{") == body.count(b"}")
    return True


def _read(given: Input) -> str:
    if not _is_json(given.body.replace(b"\n", b" ")):
        return "not JSON"
    see = make_translator(_SETTINGS)
    asyncio.run(_follow(_script(given), see))
    engine, effects = _decide(see)
    _tell(see, engine, effects)
    commits = [effect for effect in effects if isinstance(effect, Commit)]
    binds = [bind for commit in commits for bind in commit.binds]
    for bind in binds:
        bind_annotations(see.pods[bind.uid], bind.devices, _SETTINGS.core.gpu_resources)
    placed = {bind.uid: bind.node for bind in binds}
    strangers = [uid for uid, node in placed.items() if node == "beside" and not uid.startswith("beside-")]
    neighbours = [placed.get(f"beside-{i}") for i in range(2)]
    assert strangers or neighbours == ["beside", "beside"], f"the neighbours were placed on {neighbours}"
    others = len(see.pods) - 2
    return f"{len(placed) - 2} placed" if len(placed) > 2 else "not placed" if others else "seen"


_DIALECTS = {dialect.name: dialect.resources[0].path() for dialect in DIALECTS if dialect.resources}


def _inputs() -> list[Input]:
    found: dict[str, list[Json]] = {
        "pods": seeds.pods(),
        "nodes": seeds.nodes(),
        "queues": seeds.queues(),
        **{plural: [one] for plural, one in seeds.others().items()},
        **seeds.groups(),
    }
    return [
        Input(f"{kind} {way}", dump(one)) for kind, made in found.items() for one in made for way in ("list", "watch")
    ]


_ALL = _inputs()


def _of(*kinds: str) -> list[Input]:
    return [given for given in _ALL if given.head.split()[0] in kinds]


TARGETS = (
    Target("pods", _read, _of("pods")),
    Target("nodes", _read, _of("nodes", *seeds.others())),
    Target("gangs", _read, _of("queues", *_DIALECTS)),
)
