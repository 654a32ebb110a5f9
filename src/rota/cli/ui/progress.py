"""Progress of an array: a live bar on a terminal, otherwise a line per tenth."""

import sys
import time
from typing import Any, Protocol

from rota.cli.ui.formats import format_duration
from rota.cli.ui.output import colourful, print_note
from rota.client.views import JobStatus

STEPS = 10


class ProgressView(Protocol):
    """Shows the progress of a job; `update` gets each status."""

    def update(self, status: JobStatus) -> None: ...

    def close(self) -> None: ...


def progress_for(status: JobStatus, *, quiet: bool, logs: bool) -> ProgressView:
    """The progress view; not a bar if output is printed, too: they would overwrite each other."""
    if quiet:
        return QuietProgress()
    if colourful(sys.stderr) and not logs:
        return BarProgress(status)
    return LineProgress()


class QuietProgress:
    """Shows nothing, for `--quiet`."""

    def update(self, status: JobStatus) -> None:
        pass

    def close(self) -> None:
        pass


class LineProgress:
    """One line per tenth of the tasks."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._step = 0

    def update(self, status: JobStatus) -> None:
        step = status.tasks_ended * STEPS // max(1, status.count)
        if step > self._step and not status.is_final:
            self._step = step
            print_note(f"job {status.id}: {describe(status, time.monotonic() - self._started)}")

    def close(self) -> None:
        pass


class BarProgress:
    """A bar that stays on one line."""

    def __init__(self, status: JobStatus) -> None:
        from rich.console import Console  # noqa: PLC0415  importing rich takes 130 ms
        from rich.progress import BarColumn, TextColumn  # noqa: PLC0415  likewise
        from rich.progress import Progress as RichProgress  # noqa: PLC0415  likewise

        columns = (TextColumn("job {task.fields[id]}"), BarColumn(), TextColumn("{task.fields[words]}"))
        self._bar: Any = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=status.count, id=status.id, words="")
        self._started = time.monotonic()
        self._bar.start()

    def update(self, status: JobStatus) -> None:
        text = describe(status, time.monotonic() - self._started)
        self._bar.update(self._task, completed=status.tasks_ended, words=text)

    def close(self) -> None:
        self._bar.stop()


def describe(status: JobStatus, elapsed_seconds: float) -> str:
    """`40 of 100 tasks done, 8 running, 1 failed, 12.3/s, 5.0 s left`"""
    done = status.tasks_ended
    parts = [f"{done} of {status.count} tasks done"]
    parts += [
        f"{status.counts[state]} {state}"
        for state in ("running", "failed", "lost")
        if status.counts.get(state)
    ]
    if done and elapsed_seconds > 0:
        rate = done / elapsed_seconds
        parts += [f"{rate:.1f}/s", f"{format_duration((status.count - done) / rate)} left"]
    return ", ".join(parts)
