"""The content of the check service, as JSON and as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from gpu_scheduler.base.text import one_line
from gpu_scheduler.cli.nvidia_smi import Gpu, Gpus

SERVICE = "gpu-scheduler-check"
VARIABLE = "CUDA_VISIBLE_DEVICES"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Where this process runs, and CUDA_VISIBLE_DEVICES, which is None when not set."""

    pod: str
    namespace: str
    node: str
    visible_devices: str | None


def read_identity(environment: Mapping[str, str], hostname: str) -> PodIdentity:
    """Reads the variables of the downward API; the hostname replaces a missing pod name."""
    pod, namespace, node = (environment.get(name) for name in ("POD_NAME", "POD_NAMESPACE", "NODE_NAME"))
    return PodIdentity(pod or hostname, namespace or UNKNOWN, node or UNKNOWN, environment.get(VARIABLE))


def describe(identity: PodIdentity) -> list[str]:
    """The log lines at the start; scripts compare the first one."""
    devices = f"{VARIABLE} is not set" if identity.visible_devices is None else f"{VARIABLE}={identity.visible_devices}"
    return [one_line(line) for line in (devices, f"Pod {identity.namespace}/{identity.pod} on node {identity.node}")]


def as_json(identity: PodIdentity, gpus: Gpus) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "service": SERVICE,
        "pod": identity.pod,
        "namespace": identity.namespace,
        "node": identity.node,
        "cuda_visible_devices": identity.visible_devices,
        "gpus": [asdict(gpu) for gpu in gpus.found],
        "problem": gpus.problem or None,
    }


def draw_page(identity: PodIdentity, gpus: Gpus) -> str:
    """The report as an HTML page. It loads nothing else, and every value is escaped."""
    rows = "".join(
        f"<div><dt>{escape(title)}</dt><dd>{escape(value)}</dd></div>"
        for title, value in (("Pod", identity.pod), ("Namespace", identity.namespace), ("Node", identity.node))
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(identity.pod)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta http-equiv="refresh" content="5">'
        f"<style>{_STYLE}</style></head><body><main><h1>GPU check</h1><dl>{rows}</dl>"
        f"<h2><code>{VARIABLE}</code></h2><p class=devices>{_draw_devices(identity.visible_devices)}</p>"
        f"<h2>GPUs</h2>{_draw_gpus(gpus)}"
        '<footer>The same as <a href="/api">JSON</a>. This page reloads every 5 seconds.</footer>'
        "</main></body></html>"
    )


def _draw_devices(devices: str | None) -> str:
    if devices is None:
        return "<em>not set</em>"
    chips = "".join(f"<b>{escape(word)}</b>" for word in map(str.strip, devices.split(",")) if word)
    return chips or "<em>empty: no GPU is visible</em>"


def _draw_gpus(gpus: Gpus) -> str:
    if gpus.problem:
        return f"<p><em>{escape(gpus.problem)}</em></p>"
    if not gpus.found:
        return "<p><em>none found</em></p>"
    head = "".join(f"<th>{title}</th>" for title in ("Index", "Name", "Memory", "Utilization"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_draw_gpu, gpus.found))}</tbody></table>"


def _draw_gpu(gpu: Gpu) -> str:
    used, total, busy = gpu.memory_used, gpu.memory_total, gpu.utilization_percent
    memory = f"{_meter(used, total)} {_say(used)} of {_say(total)} MiB"
    name = f"{escape(gpu.name)}<small>{escape(gpu.uuid)}</small>"
    cells = (str(gpu.index), name, memory, f"{_meter(busy, 100)} {_say(busy)} %")
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _meter(value: int | None, most: int | None) -> str:
    return f'<meter min="0" max="{most}" value="{value}"></meter>' if value is not None and most else ""


def _say(amount: int | None) -> str:
    return "?" if amount is None else str(amount)


_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--dim:#5d6878;--ground:#f4f6f9;--card:#fff;--edge:#dde2ea;--accent:#2f6f00}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--dim:#98a3b3;--ground:#11151b;--card:#1a2028;--edge:#2c3540;
--accent:#9bdc4a}}
*{box-sizing:border-box}
body{margin:0;padding:2rem 1rem;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:46rem;margin:auto;padding:1.5rem 2rem;background:var(--card);border:1px solid var(--edge);
border-radius:12px}
h1{margin:0 0 1rem;font-size:1.4rem}
h2{margin:1.75rem 0 .5rem;font-size:1rem;color:var(--dim)}
dl{display:flex;flex-wrap:wrap;gap:1rem 2.5rem;margin:0}
dt,small,footer,em{color:var(--dim)}
dt,small,footer{font-size:.8rem}
dd{margin:0;font-weight:600;overflow-wrap:anywhere}
.devices{display:flex;flex-wrap:wrap;gap:.5rem;margin:0}
.devices b{padding:.1rem .8rem;border:2px solid var(--accent);border-radius:8px;color:var(--accent);font-size:1.4rem;
overflow-wrap:anywhere}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.5rem .5rem .5rem 0;border-bottom:1px solid var(--edge);text-align:left;vertical-align:top}
th{color:var(--dim);font-size:.8rem;font-weight:500}
small{display:block;overflow-wrap:anywhere}
meter{width:5rem}
footer{margin-top:1.75rem}
a{color:inherit}
"""
