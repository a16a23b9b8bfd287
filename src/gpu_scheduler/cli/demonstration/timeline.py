"""The timeline of runs as a page of its own: GPUs as rows, time across, jobs as colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil

from gpu_scheduler.cli.demonstration.observer import Run, Span
from gpu_scheduler.kube.wording import count

WIDTH = 960.0
LEFT, RIGHT = 64.0, 16.0
ROW, GAP = 9.0, 7.0
"""The height of a GPU's row, and the space between two nodes."""
HEAD, FOOT = 72.0, 26.0
"""The space above and below the rows of a run."""

LABEL = (64.0, 18.0)
"""From this width and height on a block bears its job's name."""

COLOURS = (("#0969a8", "#4aa8e0"), ("#c2571a", "#f0924f"), ("#7a4fb5", "#b08ce8"), ("#17825a", "#45c08f"))
"""For every job: on light ground, and on dark."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a moment and a GPU are in the picture of a run."""

    seconds: float
    rows: dict[tuple[str, int], float]
    bottom: float

    def x(self, when: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * when / self.seconds

    def ticks(self) -> Iterable[int]:
        step = next(step for step in (1, 2, 5, 10, 30, 60, 600) if self.seconds / step <= 16 or step == 600)
        return range(0, int(self.seconds) + 1, step)


def draw_page(runs: Sequence[Run]) -> str:
    """The page: all runs above each other on one scale of time. It loads nothing, and every name is escaped."""
    jobs = list(dict.fromkeys(job.name for run in runs for job in run.jobs))
    # A second more than the longest run, so that what goes on can be seen to.
    seconds = ceil(max(run.length for run in runs)) + 1
    parts = "".join(_draw_run(run, jobs, seconds) for run in runs)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The same jobs, twice</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}{_draw_colours(jobs)}</style></head><body><main>"
        f"<h1>The same {count(len(jobs), 'job')}, twice</h1>{_draw_legend(runs[0], jobs)}"
        f"{_draw_patterns(jobs)}{parts}</main></body></html>\n"
    )


def _draw_colours(jobs: Sequence[str]) -> str:
    """A colour for each job, as a variable of the style sheet."""
    light = "".join(f"--job{i}:{COLOURS[i % len(COLOURS)][0]};" for i in range(len(jobs)))
    dark = "".join(f"--job{i}:{COLOURS[i % len(COLOURS)][1]};" for i in range(len(jobs)))
    fills = "".join(
        f".job{i}{{fill:var(--job{i})}}.wait{i}{{fill:url(#wait{i})}}.name{i}{{stroke:var(--job{i})}}"
        for i in range(len(jobs))
    )
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{fills}"


def _draw_patterns(jobs: Sequence[str]) -> str:
    """Stripes in every job's colour, for GPUs that are held and do nothing."""
    patterns = "".join(
        f'<pattern id="wait{i}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="6" height="6" class="job{i}" opacity=".18"/><rect width="2" height="6" class="job{i}"/>'
        "</pattern>"
        for i in range(len(jobs))
    )
    return f'<svg width="0" height="0" class="hidden" aria-hidden="true"><defs>{patterns}</defs></svg>'


def _draw_legend(run: Run, jobs: Sequence[str]) -> str:
    asked = {job.name: f"{job.pods} pods x {count(job.gpus, 'GPU')}" for job in run.jobs}
    entries = [
        f'<li><svg width="14" height="14"><rect width="14" height="14" rx="3" class="job{i}"/></svg>'
        f"<b>{escape(name)}</b> {escape(asked.get(name, ''))}</li>"
        for i, name in enumerate(jobs)
    ]
    signs = (("job0", "computes"), ("wait0", "holds a GPU and waits for its siblings"), ("free", "free"))
    meanings = [
        f'<li><svg width="22" height="14"><rect width="22" height="14" rx="3" class="{style}"/></svg>{told}</li>'
        for style, told in signs
    ]
    return "".join(f'<ul class="legend">{"".join(items)}</ul>' for items in (entries, meanings))


def say_verdict(run: Run) -> str:
    """How a run ended, in one sentence."""
    done = f"{len(run.finished)} of {count(len(run.jobs), 'job')} finished"
    if run.finished:
        return f"{done}, the last one after {max(run.finished.values()):.1f} s."
    if run.locked is not None:
        held = len({span.gpu for span in run.spans if span.end == run.length})
        return f"{done}. {held} of {sum(run.capacity.values())} GPUs are held, and none computes."
    return f"{done}."


def _draw_run(run: Run, jobs: Sequence[str], seconds: float) -> str:
    scale = _make_scale(run, seconds)
    height = scale.bottom + FOOT
    spans = "".join(_draw_span(span, jobs, scale) for span in run.spans)
    labels = "".join(_draw_label(block, jobs, scale) for block in _find_blocks(run.spans))
    title = f"{run.title[:1].upper()}{run.title[1:]}"
    return (
        f'<svg class="run" viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}" '
        f'data-run="{escape(run.title)}">'
        f'<text x="0" y="20" class="title">{escape(title)}</text>'
        f'<text x="0" y="39" class="verdict">{escape(say_verdict(run))}</text>'
        f"{_draw_ground(run, scale)}{spans}{labels}{_draw_marks(run, scale)}</svg>"
    )


def _make_scale(run: Run, seconds: float) -> _Scale:
    rows: dict[tuple[str, int], float] = {}
    y = HEAD
    for node, gpus in run.capacity.items():
        for index in range(gpus):
            rows[node, index] = y
            y += ROW
        y += GAP
    return _Scale(seconds, rows, y - GAP)


def _draw_ground(run: Run, scale: _Scale) -> str:
    """Rows of free GPUs, the names of nodes, and the seconds below."""
    drawn = [
        f'<rect x="{LEFT:g}" y="{y:g}" width="{WIDTH - LEFT - RIGHT:g}" height="{ROW - 1:g}" class="free">'
        f"<title>{escape(node)} GPU {index}</title></rect>"
        for (node, index), y in scale.rows.items()
    ]
    for node, gpus in run.capacity.items():
        middle = scale.rows[node, 0] + gpus * ROW / 2
        drawn.append(f'<text x="{LEFT - 10:g}" y="{middle + 4:g}" class="node">{escape(node)}</text>')
    for tick in scale.ticks():
        x = scale.x(tick)
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD:g}" y2="{scale.bottom + 4:g}" class="tick"/>')
        drawn.append(f'<text x="{x:.1f}" y="{scale.bottom + 18:g}" class="second">{tick} s</text>')
    return "".join(drawn)


def _draw_span(span: Span, jobs: Sequence[str], scale: _Scale) -> str:
    x, width = scale.x(span.start), scale.x(span.end) - scale.x(span.start)
    rank = jobs.index(span.job)
    does = "computes" if span.computing else "waits for its siblings"
    told = f"{span.pod}: {span.gpu[0]} GPU {span.gpu[1]}, {span.start:.1f} s to {span.end:.1f} s, {does}"
    return (
        f'<rect x="{x:.1f}" y="{scale.rows[span.gpu]:g}" width="{width:.1f}" height="{ROW - 1:g}" '
        f'class="span {"job" if span.computing else "wait"}{rank}" data-job="{escape(span.job)}" '
        f'data-pod="{escape(span.pod)}"><title>{escape(told)}</title></rect>'
    )


def _find_blocks(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans of one job that compute on neighbouring GPUs at the same time."""
    ordered = sorted((span for span in spans if span.computing), key=lambda s: (s.job, s.gpu[0], s.gpu[1], s.start))
    numbered = enumerate(ordered)
    groups = groupby(numbered, key=lambda item: (item[1].job, item[1].gpu[0], item[1].gpu[1] - item[0]))
    return [[span for _, span in group] for _, group in groups]


def _draw_label(block: Sequence[Span], jobs: Sequence[str], scale: _Scale) -> str:
    """The job's name in the middle of a block that has room for it."""
    start, end = scale.x(max(span.start for span in block)), scale.x(min(span.end for span in block))
    top, bottom = scale.rows[block[0].gpu], scale.rows[block[-1].gpu] + ROW
    if end - start < LABEL[0] or bottom - top < LABEL[1]:
        return ""
    job, x, y = block[0].job, (start + end) / 2, (top + bottom) / 2 + 4
    return f'<text x="{x:.1f}" y="{y:g}" class="label name{jobs.index(job)}">{escape(job)}</text>'


def _draw_marks(run: Run, scale: _Scale) -> str:
    """When all pods were there, and since when nothing moves."""
    x = scale.x(run.submitted)
    drawn = (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 18:g}" y2="{scale.bottom:g}" class="arrived"/>'
        f'<text x="{x - 6:.1f}" y="{HEAD - 8:g}" class="comes">all pods are submitted</text>'
    )
    if run.locked is None:
        return drawn
    x, middle = scale.x(run.locked), (HEAD + scale.bottom) / 2 + 4
    return drawn + (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 18:g}" y2="{scale.bottom:g}" class="lock"/>'
        f'<text x="{x + 6:.1f}" y="{HEAD - 8:g}" class="locked">locked: nothing moves any more</text>'
        f'<text x="{scale.x(run.length) + 10:.1f}" y="{middle:g}" class="locked">for ever …</text>'
    )


_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--dim:#5d6878;--ground:#f4f6f9;--card:#fff;--edge:#dde2ea;--free:#eef1f5;
--alarm:#b42318;--label:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--dim:#98a3b3;--ground:#11151b;--card:#1a2028;--edge:#2c3540;
--free:#232b35;--alarm:#ff8f7d;--label:#10151b}}
body{margin:0;padding:2rem 1rem;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:62rem;margin:auto;padding:1.5rem 2rem;background:var(--card);border:1px solid var(--edge);
border-radius:12px}
h1{margin:0 0 .75rem;font-size:1.4rem}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1.5rem;margin:0 0 .25rem;padding:0;list-style:none;color:var(--dim)}
.legend b{color:var(--ink)}
.legend svg{margin-right:.5rem;vertical-align:-2px}
.hidden{position:absolute}
.run{display:block;width:100%;height:auto;margin-top:1.75rem}
.title{font-size:17px;font-weight:600;fill:var(--ink)}
.verdict,.node,.second{font-size:13px;fill:var(--dim)}
.node{text-anchor:end}
.second{text-anchor:middle;font-size:11px}
.free{fill:var(--free)}
.tick{stroke:var(--edge);stroke-width:1}
.span:hover{opacity:.7}
.label{font-size:13px;font-weight:600;text-anchor:middle;fill:var(--label);paint-order:stroke;stroke-width:5px;
stroke-linejoin:round;pointer-events:none}
.arrived{stroke:var(--dim);stroke-dasharray:2 3}
.comes{font-size:12px;text-anchor:end;fill:var(--dim)}
.lock{stroke:var(--alarm);stroke-width:2;stroke-dasharray:5 3}
.locked{font-size:13px;font-weight:600;fill:var(--alarm)}
"""
