"""The timeline of runs as SVG and as an HTML page: a row for each GPU, time to the right, a colour for each job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil

from gpu_scheduler.base.text import count
from gpu_scheduler.cli.demonstration.observer import DemoRun, GpuSpan

WIDTH = 960.0
LEFT, RIGHT = 64.0, 16.0
ROW, GAP = 9.0, 7.0
"""The height of a GPU's row, and the space between two nodes."""
HEAD, FOOT = 72.0, 26.0
"""The space above and below the rows of a run."""
MARGIN, BETWEEN = 28.0, 22.0
"""The space around the picture, and between its parts."""
ENTRY, LINE = 240.0, 26.0
"""The width and height of an entry of the legend."""

LABEL = (64.0, 18.0)
"""The smallest block, width and height, that is labelled with its job."""
LABEL_WIDTH = 180.0
"""The width of the label of a deadlock."""

COLOURS = (("#0969a8", "#4aa8e0"), ("#c2571a", "#f0924f"), ("#7a4fb5", "#b08ce8"), ("#17825a", "#45c08f"))
"""The colour of each job on a light and on a dark background."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """The coordinates of times and GPUs."""

    seconds: float
    rows: dict[tuple[str, int], float]
    bottom: float

    def x(self, when: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * when / self.seconds

    def ticks(self) -> Iterable[int]:
        step = next(step for step in (1, 2, 5, 10, 30, 60, 600) if self.seconds / step <= 16 or step == 600)
        return range(0, int(self.seconds) + 1, step)


def draw_page(runs: Sequence[DemoRun]) -> str:
    """The picture as an HTML page that loads nothing else."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The same jobs, twice</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_PAGE}</style></head><body><main>{draw_picture(runs)}</main></body></html>\n"
    )


def draw_picture(runs: Sequence[DemoRun]) -> str:
    """All runs as one SVG with a common time scale; every name is escaped."""
    jobs = list(dict.fromkeys(job.name for run in runs for job in run.jobs))
    # One second more than the longest run, to show that a deadlock goes on.
    seconds = ceil(max(run.length for run in runs)) + 1
    legend, y = _draw_legend(runs[0], jobs)
    parts = []
    for run in runs:
        scale = _make_scale(run, seconds)
        y += BETWEEN
        parts.append(_draw_run(run, jobs, scale, y))
        y += scale.bottom + FOOT
    width, height = WIDTH + 2 * MARGIN, y + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {width:g} {height:g}" '
        f'font-family="system-ui,-apple-system,Segoe UI,Roboto,DejaVu Sans,sans-serif">'
        f"<style>{_STYLE}{_draw_colours(jobs)}</style><defs>{_draw_patterns(jobs)}</defs>"
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="12" class="card"/>'
        f"{legend}{''.join(parts)}</svg>"
    )


def _draw_colours(jobs: Sequence[str]) -> str:
    """The CSS of the job colours."""

    def list_fills(ground: int) -> str:
        colours = [(i, COLOURS[i % len(COLOURS)][ground]) for i in range(len(jobs))]
        return "".join(f".job{i}{{fill:{colour}}}.name{i}{{stroke:{colour}}}" for i, colour in colours)

    stripes = "".join(f".wait{i}{{fill:url(#wait{i})}}" for i in range(len(jobs)))
    return f"{stripes}{list_fills(0)}@media(prefers-color-scheme:dark){{{list_fills(1)}}}"


def _draw_patterns(jobs: Sequence[str]) -> str:
    """Striped patterns in the job colours, for GPUs that are held by waiting pods."""
    return "".join(
        f'<pattern id="wait{i}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="6" height="6" class="job{i}" opacity=".18"/><rect width="2" height="6" class="job{i}"/>'
        "</pattern>"
        for i in range(len(jobs))
    )


def _draw_legend(run: DemoRun, jobs: Sequence[str]) -> tuple[str, float]:
    """The legend and its height."""
    asked = {job.name: f"{job.pods} pods x {count(job.gpus, 'GPU')}" for job in run.jobs}
    y = MARGIN + 20
    drawn = [f'<text x="{MARGIN:g}" y="{y:g}" class="head">The same {count(len(jobs), "job")}, twice</text>']
    columns = int(WIDTH // ENTRY)
    for i, name in enumerate(jobs):
        x, line = MARGIN + i % columns * ENTRY, y + 34 + i // columns * LINE
        text = f'<tspan class="who">{escape(name)}</tspan> {escape(asked.get(name, ""))}'
        drawn.append(_draw_entry(x, line, 14, f"job{i}", text))
    y += 34 + -(-len(jobs) // columns) * LINE
    symbols = (("job0", "computes"), ("wait0", "holds a GPU while waiting for other pods"), ("free", "free"))
    for (style, text), x in zip(symbols, (0, ENTRY / 2, 2 * ENTRY), strict=True):
        drawn.append(_draw_entry(MARGIN + x, y, 22, style, text))
    return "".join(drawn), y


def _draw_entry(x: float, y: float, width: float, style: str, text: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y - 12:g}" width="{width:g}" height="14" rx="3" class="{style}"/>'
        f'<text x="{x + width + 8:g}" y="{y:g}" class="entry">{text}</text>'
    )


def describe_outcome(run: DemoRun) -> str:
    """The outcome of a run in one sentence."""
    done = f"{len(run.finished)} of {count(len(run.jobs), 'job')} finished"
    if run.finished:
        return f"{done}, the last one after {max(run.finished.values()):.1f} s."
    if run.deadlocked_at is not None:
        held = len({span.gpu for span in run.spans if span.end == run.length})
        return f"{done}. {held} of {sum(run.capacity.values())} GPUs are held, and none computes."
    return f"{done}."


def _draw_run(run: DemoRun, jobs: Sequence[str], scale: _Scale, top: float) -> str:
    height = scale.bottom + FOOT
    spans = "".join(_draw_span(span, jobs, scale) for span in run.spans)
    labels = "".join(_draw_label(block, jobs, scale) for block in _find_blocks(run.spans))
    title = f"{run.title[:1].upper()}{run.title[1:]}"
    verdict = "verdict good" if len(run.finished) == len(run.jobs) else "verdict bad"
    return (
        f'<svg class="run" x="{MARGIN:g}" y="{top:g}" width="{WIDTH:g}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}" data-run="{escape(run.title)}">'
        f'<text x="0" y="20" class="title">{escape(title)}</text>'
        f'<text x="0" y="39" class="{verdict}">{escape(describe_outcome(run))}</text>'
        f"{_draw_ground(run, scale)}{spans}{_draw_rest(run, jobs, scale)}{labels}{_draw_marks(run, scale)}</svg>"
    )


def _make_scale(run: DemoRun, seconds: float) -> _Scale:
    rows: dict[tuple[str, int], float] = {}
    y = HEAD
    for node, gpus in run.capacity.items():
        for index in range(gpus):
            rows[node, index] = y
            y += ROW
        y += GAP
    return _Scale(seconds, rows, y - GAP)


def _draw_ground(run: DemoRun, scale: _Scale) -> str:
    """The background: rows of free GPUs, node names, and the time axis."""
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


def _draw_span(span: GpuSpan, jobs: Sequence[str], scale: _Scale) -> str:
    x, width = scale.x(span.start), scale.x(span.end) - scale.x(span.start)
    rank = jobs.index(span.job)
    activity = "computes" if span.computing else "waits for other pods of its job"
    text = f"{span.pod}: {span.gpu[0]} GPU {span.gpu[1]}, {span.start:.1f} s to {span.end:.1f} s, {activity}"
    return (
        f'<rect x="{x:.1f}" y="{scale.rows[span.gpu]:g}" width="{width:.1f}" height="{ROW - 1:g}" '
        f'class="span {"job" if span.computing else "wait"}{rank}" data-job="{escape(span.job)}" '
        f'data-pod="{escape(span.pod)}"><title>{escape(text)}</title></rect>'
    )


def _draw_rest(run: DemoRun, jobs: Sequence[str], scale: _Scale) -> str:
    """What a deadlock keeps holding after the last observation, faded."""
    if run.deadlocked_at is None:
        return ""
    x = scale.x(run.length)
    width = WIDTH - RIGHT - x
    return "".join(
        f'<rect x="{x:.1f}" y="{scale.rows[span.gpu]:g}" width="{width:.1f}" height="{ROW - 1:g}" '
        f'class="rest wait{jobs.index(span.job)}"/>'
        for span in run.spans
        if span.end == run.length
    )


def _find_blocks(spans: Iterable[GpuSpan]) -> list[list[GpuSpan]]:
    """Groups of computing spans of one job on adjacent GPUs."""
    ordered = sorted((span for span in spans if span.computing), key=lambda s: (s.job, s.gpu[0], s.gpu[1], s.start))
    numbered = enumerate(ordered)
    groups = groupby(numbered, key=lambda item: (item[1].job, item[1].gpu[0], item[1].gpu[1] - item[0]))
    return [[span for _, span in group] for _, group in groups]


def _draw_label(block: Sequence[GpuSpan], jobs: Sequence[str], scale: _Scale) -> str:
    """The name of the job in the middle of a block that is large enough."""
    start, end = scale.x(max(span.start for span in block)), scale.x(min(span.end for span in block))
    top, bottom = scale.rows[block[0].gpu], scale.rows[block[-1].gpu] + ROW
    if end - start < LABEL[0] or bottom - top < LABEL[1]:
        return ""
    # In the middle of a row: a gap between rows would cross the text.
    middle = scale.rows[block[len(block) // 2].gpu] + ROW / 2
    job, x, y = block[0].job, (start + end) / 2, middle + 4
    return f'<text x="{x:.1f}" y="{y:g}" class="label name{jobs.index(job)}">{escape(job)}</text>'


def _draw_marks(run: DemoRun, scale: _Scale) -> str:
    """The marks for the last submitted pod and for the deadlock."""
    x = scale.x(run.submitted)
    drawn = (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 18:g}" y2="{scale.bottom:g}" class="arrived"/>'
        f'<text x="{x - 6:.1f}" y="{HEAD - 8:g}" class="comes">all pods are submitted</text>'
    )
    if run.deadlocked_at is None:
        return drawn
    x, last = scale.x(run.deadlocked_at), scale.x(run.length)
    text = "deadlock: nothing changes" if last - x > LABEL_WIDTH else "deadlock"
    return drawn + (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 18:g}" y2="{scale.bottom:g}" class="lock"/>'
        f'<text x="{x + 6:.1f}" y="{HEAD - 8:g}" class="locked">{text}</text>'
        f'<line x1="{last:.1f}" x2="{last:.1f}" y1="{HEAD - 18:g}" y2="{scale.bottom:g}" class="lock"/>'
        f'<text x="{last + 6:.1f}" y="{HEAD - 8:g}" class="locked">without end …</text>'
    )


_PAGE = """
:root{color-scheme:light dark}
body{margin:0;padding:2rem 1rem;background:#f4f6f9}
main{max-width:64rem;margin:auto;overflow-x:auto}
.picture{display:block;width:100%;min-width:45rem;height:auto}
@media(prefers-color-scheme:dark){body{background:#11151b}}
"""

# Colours are literal: not every SVG viewer supports CSS variables.
_STYLE = """
.card{fill:#fff;stroke:#dde2ea}
.head,.title,.who{fill:#1c2430;font-weight:600}
.head{font-size:22px}
.title{font-size:17px}
.entry{font-size:14px}
.entry,.verdict,.node,.second,.comes{fill:#5d6878}
.verdict,.node,.locked{font-size:13px}
.good,.bad,.locked{font-weight:600}
.good{fill:#17694a}
.bad,.locked{fill:#b42318}
.node,.comes{text-anchor:end}
.second{text-anchor:middle;font-size:11px}
.free{fill:#eef1f5}
.tick{stroke:#dde2ea;stroke-width:1}
.span:hover{opacity:.7}
.rest{opacity:.3}
.label{font-size:13px;font-weight:600;text-anchor:middle;fill:#fff;paint-order:stroke;stroke-width:5px;
stroke-linejoin:round;pointer-events:none}
.arrived{stroke:#5d6878;stroke-dasharray:2 3}
.comes{font-size:12px}
.lock{stroke:#b42318;stroke-width:2;stroke-dasharray:5 3}
@media(prefers-color-scheme:dark){
.card{fill:#1a2028;stroke:#2c3540}
.head,.title,.who{fill:#e6eaf0}
.entry,.verdict,.node,.second,.comes{fill:#98a3b3}
.good{fill:#5fd0a0}
.bad,.locked{fill:#ff8f7d}
.free{fill:#232b35}
.tick{stroke:#2c3540}
.label{fill:#10151b}
.arrived{stroke:#98a3b3}
.lock{stroke:#ff8f7d}
}
"""
