"""The lines of `rota top`, from nodes, jobs and keyboard input, as text with styles."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rota.cli.ui.bars import FREE, REQUESTED, USED, bar, share
from rota.cli.ui.formats import clean, format_age, format_number, format_size, plural
from rota.cli.ui.node_format import SIZES, state
from rota.cli.ui.output import COLOURS, STATE_WORD
from rota.client.server_views import Node
from rota.client.views import JobStatus

NODES, JOBS = "nodes", "jobs"
KEYS = (
    f"q quit   ↑↓ jk move   tab, n nodes, J jobs   / filter      {REQUESTED} requested   {USED} used beyond"
)
WAITING = ("pending", "offered", "queued")


class StyledText(NamedTuple):
    text: str
    style: str = ""


Line = list[StyledText]


@dataclass(frozen=True)
class TopSnapshot:
    """Nodes and jobs at one moment."""

    nodes: Sequence[Node] = ()
    jobs: Sequence[JobStatus] = ()
    problem: str | None = None  # why the last refresh failed


@dataclass(frozen=True)
class Typed:
    """The state of the user interface: pane, row and filter."""

    pane: str = NODES
    at: int = 0
    filter: str = ""
    typing: bool = False  # the filter is being typed
    over: bool = False


def press(typed: Typed, key: str) -> Typed:
    """The state after a key press."""
    if typed.typing:
        return _type(typed, key)
    match key:
        case "j" | "down":
            return replace(typed, at=typed.at + 1)
        case "k" | "up":
            return replace(typed, at=max(0, typed.at - 1))
        case "\t":
            return replace(typed, pane=JOBS if typed.pane == NODES else NODES, at=0)
        case _:
            return replace(typed, **_CHANGE_BY_KEY.get(key, {}))


_QUIT: dict[str, Any] = {"over": True}
_CHANGE_BY_KEY: dict[str, dict[str, Any]] = {
    "q": _QUIT,
    "\x03": _QUIT,
    "\x04": _QUIT,
    "n": {"pane": NODES, "at": 0},
    "J": {"pane": JOBS, "at": 0},
    "/": {"typing": True, "filter": "", "at": 0},
    "escape": {"filter": "", "at": 0},
}


def _type(typed: Typed, key: str) -> Typed:
    match key:
        case "\r" | "\n":
            return replace(typed, typing=False)
        case "escape":
            return replace(typed, typing=False, filter="")
        case "\x03":
            return replace(typed, over=True)
        case "\x7f" | "\b":
            return replace(typed, filter=typed.filter[:-1])
        case _ if len(key) == 1 and key.isprintable():
            return replace(typed, filter=typed.filter + key)
        case _:
            return typed


def busiest_first(nodes: Iterable[Node]) -> list[Node]:
    """Nodes by measured load of CPU or memory, whichever is higher, then by running tasks."""
    return sorted(nodes, key=lambda node: (-_load(node), -node.running, node.name))


def lines(snapshot: TopSnapshot, typed: Typed, width: int, height: int) -> list[Line]:
    """The lines of one screen."""
    head = [_title(snapshot), *(_total(snapshot.nodes, name, width) for name in _resources(snapshot.nodes))]
    foot: Line = [StyledText(_asks(typed) or KEYS, "reverse" if typed.typing else "dim")]
    rows_max = max(4, height - len(head) - 4)
    nodes = [
        entry for entry in busiest_first(snapshot.nodes) if _fits(typed, NODES, entry.name, state(entry))
    ]
    jobs = [
        entry
        for entry in snapshot.jobs
        if _fits(typed, JOBS, entry.id, entry.name, entry.state, entry.namespace)
    ]
    row_counts = {NODES: len(nodes), JOBS: len(jobs)}
    other = JOBS if typed.pane == NODES else NODES
    other_height = min(row_counts[other], max(rows_max // 3, rows_max - row_counts[typed.pane]))
    heights = {typed.pane: rows_max - other_height, other: other_height}
    node_rows = [_node(node, width) for node in nodes]
    job_rows = [_job(job, width) for job in jobs]
    return [
        *head,
        [],
        [StyledText(_node_heading(width), "bold")],
        *_scrolled(node_rows, typed, NODES, heights[NODES], "no node fits" if typed.filter else "no nodes"),
        [StyledText(_job_heading(width), "bold")],
        *_scrolled(
            job_rows, typed, JOBS, heights[JOBS], "no job fits" if typed.filter else "nothing runs or waits"
        ),
        foot,
    ]


def _title(snapshot: TopSnapshot) -> Line:
    ready = sum(node.state == "ready" for node in snapshot.nodes)
    running = sum(job.counts.get("running", 0) for job in snapshot.jobs)
    waiting = sum(_waiting(job) for job in snapshot.jobs)
    counts = f"{ready} of {plural(len(snapshot.nodes), 'node')} ready   {plural(running, 'task')} running, "
    title = [StyledText("rota", "bold"), StyledText(f"   {counts}{waiting} waiting")]
    if snapshot.problem is not None:
        title.append(StyledText(f"   {clean(snapshot.problem)}", "red"))
    return title


def _resources(nodes: Sequence[Node]) -> list[str]:
    return ["cpu", "memory", *(["gpu"] if any(node.capacity.get("gpu") for node in nodes) else [])]


def _total(nodes: Sequence[Node], name: str, width: int) -> Line:
    """Totals over the nodes that are neither lost nor have left."""
    here = [node for node in nodes if node.state not in ("lost", "left")]
    total = sum(node.capacity.get(name, 0) for node in here)
    asked = sum(node.reserved.get(name, 0) for node in here)
    used = sum((node.used or {}).get(name) or 0 for node in here)
    show = format_size if name in SIZES else format_number
    text = f"{show(asked)} requested   {show(round(used, 1))} used   of {show(total)}"
    cells = max(10, min(60, width - 60))
    return [StyledText(f"  {name:<7}"), *_bar(asked, used, total, cells), StyledText(f" {text}")]


def _node_heading(width: int) -> str:
    cells = _cells(width)
    bars = f"{'CPU':<{cells + 2}}  USED {'MEMORY':<{cells + 2}}  USED"
    return f"{'NODE':<16} {'STATE':<16} {bars}  LOAD  GPU  RUN QUEUE"


def _node(node: Node, width: int) -> Line:
    cells, used = _cells(width), node.used or {}
    row = [
        StyledText(f"{_cut(node.name, 16)} "),
        StyledText(f"{_cut(state(node), 16)} ", _colour(state(node))),
    ]
    for name in ("cpu", "memory"):
        total = node.capacity.get(name, 0)
        row += [
            *_bar(node.reserved.get(name, 0), used.get(name), total, cells),
            _share(used.get(name), total),
        ]
    load = (node.statistics or {}).get("load")
    gpu = f"{format_number(node.reserved.get('gpu', 0))}/{format_number(node.capacity.get('gpu', 0))}"
    waits = "    -" if load is None else f"{load:5.1f}"
    return [*row, StyledText(f" {waits} {gpu:>4} {node.running:>4} {node.queued:>5}")]


def _job_heading(width: int) -> str:
    return (
        f"{'JOB':<8} {'NAME':<20} {'STATE':<10} {'PROGRESS':<{_cells(width) + 2}}  DONE  RUNNING WAITING  AGE"
    )


def _job(job: JobStatus, width: int) -> Line:
    done = job.tasks_ended
    return [
        StyledText(f"{_cut(job.id, 8)} {_cut(job.name, 20)} "),
        StyledText(f"{_cut(job.state, 10)} ", _colour(job.state)),
        *_bar(done, done + job.counts.get("running", 0), job.count, _cells(width)),
        StyledText(f" {share(done, job.count):>4}% {job.counts.get('running', 0):>8} {_waiting(job):>7}"),
        StyledText(f" {format_age(job.submitted_at_ms):>4}"),
    ]


def _scrolled(rows: list[Line], typed: Typed, pane: str, height: int, nothing: str) -> list[Line]:
    """The rows around the chosen one; those that do not fit are counted."""
    if not rows:
        return [[StyledText(f"  {nothing}", "dim")]]
    chosen = min(typed.at, len(rows) - 1) if typed.pane == pane else -1
    first = max(0, min(chosen - height + 2, len(rows) - height)) if len(rows) > height else 0
    shown = [
        [StyledText(piece.text, "reverse") for piece in row] if number_ == chosen else row
        for number_, row in enumerate(rows)
    ][first : first + max(1, height - (len(rows) > height))]
    more = len(rows) - len(shown)
    return [*shown, *([[StyledText(f"  … {more} more", "dim")]] if more else [])]


def _bar(asked: float, used: float | None, total: float, cells: int) -> Line:
    text = bar(asked, used, total, cells)
    asked_at, used_at, free_at = text.count(REQUESTED), text.count(USED), text.count(FREE)
    return [
        StyledText("["),
        StyledText(REQUESTED * asked_at, "green"),
        StyledText(USED * used_at, "yellow"),
        StyledText(FREE * free_at, "dim"),
        StyledText("]"),
    ]


def _share(used: float | None, total: float) -> StyledText:
    if used is None:
        return StyledText("    - ")
    hundredths = share(used, total)
    return StyledText(f" {hundredths:>3}% ", "red" if hundredths >= 90 else "")


def _load(node: Node) -> int:
    used = node.used or {}
    return max(share(used.get(name) or 0, node.capacity.get(name, 0)) for name in ("cpu", "memory"))


def _waiting(job: JobStatus) -> int:
    return sum(job.counts.get(name, 0) for name in WAITING)


def _fits(typed: Typed, pane: str, *texts: str) -> bool:
    """Whether a row matches the filter, which applies only to the active pane."""
    return (
        not typed.filter or typed.pane != pane or any(typed.filter.lower() in text.lower() for text in texts)
    )


def _asks(typed: Typed) -> str:
    if typed.typing:
        return f"filter: {typed.filter}_"
    return f"filter: {typed.filter}   esc clears   {KEYS}" if typed.filter else ""


def _colour(text: str) -> str:
    word = STATE_WORD.match(text)
    return COLOURS.get(word[0], "") if word else ""


def _cut(text: str, width: int) -> str:
    text = clean(text)
    return f"{text:<{width}}" if len(text) <= width else text[: width - 1] + "…"


def _cells(width: int) -> int:
    return max(6, min(24, (width - 76) // 2))
