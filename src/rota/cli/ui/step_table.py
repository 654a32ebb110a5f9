"""The steps of a task as a table: state, exit code, duration, and a bar of its share of the total."""

import time
from collections.abc import Iterator, Sequence

from rota.cli.ui.formats import clean, format_duration, signal_name
from rota.cli.ui.output import TableColumn, table
from rota.client.views import Step

STATE_SIGNS = {"succeeded": "✓", "running": "▶", "waiting": "·", "skipped": "-"}  # all other states: ✗
BAR_WIDTH = 20


def step_lines(steps: Sequence[Step]) -> Iterator[str]:
    if not steps:
        return
    now_ms = time.time_ns() // 1_000_000
    total_ms = max(1, sum(_took_ms(step, now_ms) or 0 for step in steps))
    yield ""
    yield from table(
        [
            TableColumn("STEP", lambda step: step.step, right=True),
            TableColumn("NAME", lambda step: clean(step.name)),
            TableColumn("", lambda step: STATE_SIGNS.get(step.state, "✗")),
            TableColumn("STATE", lambda step: step.state),
            TableColumn("EXIT", _exit),
            TableColumn("TOOK", lambda step: _took(step, now_ms), right=True),
            TableColumn("", lambda step: "▇" * round(BAR_WIDTH * (_took_ms(step, now_ms) or 0) / total_ms)),
        ],
        steps,
    )


def _exit(step: Step) -> str:
    if step.signal:
        return signal_name(step.signal)
    return "-" if step.exit_code is None else str(step.exit_code)


def _took(step: Step, now_ms: int) -> str:
    took_ms = _took_ms(step, now_ms)
    return "-" if took_ms is None else format_duration(took_ms / 1000)


def _took_ms(step: Step, now_ms: int) -> int | None:
    if step.started_at_ms is None:
        return None
    if step.ended_at_ms is None and step.state != "running":  # its end was not observed
        return None
    return max(0, (step.ended_at_ms or now_ms) - step.started_at_ms)
