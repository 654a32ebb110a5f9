"""An attempt in a container: it has started when that is there, and ended when that is gone. [I/O]"""

import threading
from collections.abc import Callable, Iterable

from rota.keeper.attempt import Kernel, Running
from rota.keeper.book import Book
from rota.keeper.boxes import last_line
from rota.keeper.container.argv import Verdict
from rota.keeper.looks import LAST_LOOK_NS
from rota.keeper.output.segments import Measure, Outputs
from rota.keeper.rules import Key
from rota.keeper.sandbox import CANNOT_BEGIN, Report
from rota.keeper.service.life import UNHEALTHY
from rota.keeper.spawn import Around, Spawner


def spawn(spawner: Spawner, attempt: Running) -> int:
    """Start it, in a container if it has an image."""
    key, output, spec = attempt.key, attempt.segment.path, attempt.to_start()
    attempt.box = spawner.pack(key, spec, attempt.gpus)
    if attempt.box:
        return spawner.send(key, attempt.box, output)
    attempt.group = group = attempt.group or spawner.enclose(key, attempt.spec)
    attempt.cell = spawner.confine(attempt.spec, attempt.cell)
    report = Report() if spec.sandbox else None
    try:
        pid = spawner.spawn(key, spec, attempt.gpus, output, Around(group, attempt.cell, report))
    except BaseException:
        if report:
            report.close()
        raise
    attempt.report = report
    if group:
        spawner.revise(group, attempt.spec)  # it may have changed since the group was made
    return pid


def tell_start(attempt: Running, lock: threading.Lock, book: Book) -> None:
    """Until its container is there, this node may turn out to be unable to make it."""
    box = attempt.box
    if box is None:
        book.started(attempt)
        return

    def tell() -> None:
        with lock:
            if attempt.outcome is None:
                box.is_told = True
                book.started(attempt)

    box.attend(lambda: attempt.outcome is not None, tell)


def clear(attempt: Running, lock: threading.Lock, look: Callable[[], None]) -> None:
    """Its command line has ended, which is not yet the container; what that used is not known."""
    box, outcome = attempt.box, attempt.outcome
    if box is None or outcome is None:
        return
    outcome.cpu_us = outcome.peak_kib = 0

    def tell(verdict: Verdict) -> None:
        with lock:
            box.verdict = verdict
            look()

    code = -outcome.signum if outcome.signum else outcome.exit_code or 0
    box.clear(code, attempt.segment.path + b".err", attempt.segment.at.err_bytes, tell)


def look_inside(attempt: Running) -> None:
    """Who watches a sandbox has ended: by itself, if the command had not even begun."""
    outcome, report = attempt.outcome, attempt.report
    if report is None:
        return
    attempt.report, has_begun = None, report.close()
    if not has_begun and outcome and outcome.exit_code and outcome.reason is None:
        words = last_line(attempt.segment.path + b".err", attempt.segment.at.err_bytes)
        outcome.exit_code = CANNOT_BEGIN
        outcome.reason = f"its sandbox cannot be made here: {words.removeprefix('bwrap: ')}"


def may_be_there(attempt: Running) -> bool:
    return attempt.box is not None and attempt.box.verdict is None


def is_unsure(attempt: Running) -> bool:
    """Whether it is still to be seen that this node can run it: it has for the steps before."""
    if attempt.spec.container is None or len(attempt.marks) > 1:
        return False
    return not (attempt.box and attempt.box.is_told)


def live(waiting: Iterable[Key], running: Iterable[Running]) -> list[list[object]]:
    """What is told of all that has not ended."""
    rows: list[list[object]] = [[*key, "queued", None] for key in waiting]
    for attempt in running:
        is_over = attempt.ending not in (None, UNHEALTHY)
        state = "stopping" if is_over else "queued" if is_unsure(attempt) else "running"
        rows.append([*attempt.key, state, attempt.started_ms])
    return rows


def written(attempt: Running, outputs: Outputs, kernel: Kernel) -> Measure | None:
    """How far its output reaches; None: not yet sure. Who has left its group is not waited for."""
    if may_be_there(attempt) or not attempt.has_left_cell():
        return None
    is_patient = attempt.pause_ns < LAST_LOOK_NS
    return outputs.last(attempt.segment, lambda: is_patient and kernel.has_members(attempt.pid))


def refusal(attempt: Running) -> str | None:
    """Take over what was found out of its end, or its step's; a reason if this node could not even begin."""
    verdict = attempt.box.verdict if attempt.box else None
    if attempt.box is None or verdict is None or attempt.outcome is None:
        return None
    attempt.outcome.peak_kib = verdict.peak_bytes >> 10
    if attempt.ending is not None:
        return None
    attempt.outcome.exit_code, attempt.outcome.reason = verdict.exit_code, verdict.reason
    attempt.outcome.cause = verdict.cause
    if not verdict.is_refused:
        return None
    if not attempt.box.is_told:
        return verdict.reason
    attempt.ending = "lost"
    return None
