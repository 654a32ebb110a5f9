"""The output that a reader selects + the attempts of a job -> the attempts to read, each once."""

from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rota.apiserver.views.jobs import has_ended
from rota.apiserver.views.tasks import PlacedAttempt, attempts_of
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import column
from rota.model.errors import NotFound
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import ATTEMPT_FIRST_END, AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.messages import WHOLE_LOG, LogRequest, LogWindow
from rota.rules.phases import FIRST_END

STREAMS = ("stdout", "stderr")

StreamKey = tuple[int, int, str]  # index, attempt, stream


@dataclass(frozen=True, slots=True)
class LogSelection:
    """The output of a job that a reader asks for."""

    job: JobId
    index: int | None = None  # None: all tasks
    attempt: int | None = None  # None: the newest; while following, also later ones
    from_first: bool = False  # start with the oldest attempt that is known
    streams: tuple[str, ...] = STREAMS
    offset: int = 0  # in the first attempt, if one stream of one task is read
    follow: bool = False
    window: LogWindow = WHOLE_LOG
    # Offsets up to which the reader has streams.
    resume: Mapping[StreamKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadableAttempt:
    """An attempt that has started or is about to, and so may have output."""

    index: int
    attempt: int
    node: NodeId
    started_ms: int = 0  # wall clock of its node
    has_ended: bool = False


def log_request(selection: LogSelection, readable: ReadableAttempt, stream: str, offset: int) -> LogRequest:
    """The request to the node for one stream; a resumed stream is read to its end, whatever the window."""
    name = (selection.job, readable.index, readable.attempt, stream)
    known = selection.resume.get((readable.index, readable.attempt, stream))
    # The reader has a part of the stream: a window by time or lines could leave out bytes after that part.
    if known is not None:
        return LogRequest(*name, max(offset, known), selection.follow)
    return LogRequest(*name, offset, selection.follow, selection.window)


class AttemptSearch:
    """Finds the attempts of a job that started since the last scan. Only changed blocks are scanned."""

    def __init__(self, selection: LogSelection) -> None:
        self._selection = selection
        self._scanned: dict[int, tuple[AttemptBlock | None, StatusBlock | None]] = {}
        self._found: defaultdict[int, array[int]] = defaultdict(lambda: array("I", [0] * BLOCK_TASKS))

    def has_ended(self, mirror: Mirror) -> bool:
        entry = mirror.jobs.get(self._selection.job)
        if entry is None or has_ended(entry):
            return True
        if self._selection.index is None:
            return False
        block, position = divmod(self._selection.index, BLOCK_TASKS)
        return block in entry.phases and entry.phases[block][position] >= FIRST_END

    def changed_blocks(self, mirror: Mirror) -> list[int]:
        entry = mirror.jobs.get(self._selection.job)
        if entry is None:
            return []
        blocks = sorted(entry.attempts)
        if self._selection.index is not None:
            own = self._selection.index // BLOCK_TASKS
            blocks = [own] if own in entry.attempts else []
        return [block for block in blocks if self._scanned.get(block) != _records(entry, block)]

    def scan_block(self, mirror: Mirror, block: int) -> list[ReadableAttempt]:
        entry = mirror.jobs.get(self._selection.job)
        if entry is None or block not in entry.attempts:
            return []
        # Before the scan: the records compared next time are those that this scan has seen.
        self._scanned[block] = _records(entry, block)
        found: list[ReadableAttempt] = []
        for position in self._positions(entry, block):
            found += self._new_attempts(entry, block, position)
        return found

    def _positions(self, entry: JobEntry, block: int) -> list[int]:
        """The positions of tasks that have a newer attempt than those found."""
        numbers = column(entry.attempts[block], "number").tolist()
        if self._selection.index is not None:
            position = self._selection.index % BLOCK_TASKS
            return [position] if numbers[position] > self._found[block][position] else []
        known = self._found[block]
        return [position for position, number in enumerate(numbers) if number > known[position]]

    def _new_attempts(self, entry: JobEntry, block: int, position: int) -> list[ReadableAttempt]:
        index, known = block * BLOCK_TASKS + position, self._found[block]
        new = [
            placed
            for placed in attempts_of(entry, index)
            if placed.number > known[position] and _has_started(placed)
        ]
        if not new:
            return []
        is_first_scan = known[position] == 0
        known[position] = new[-1].number
        if self._selection.attempt is not None:
            new = [placed for placed in new if placed.number == self._selection.attempt]
        # Only at first: an attempt that starts later is newer output, and follows.
        elif is_first_scan and not self._selection.from_first:
            new = new[-1:]
        return [_readable(index, placed) for placed in new if _is_within(placed, self._selection.window)]


def require_attempt(entry: JobEntry, index: int, attempt: int) -> None:
    known = [placed.number for placed in attempts_of(entry, index)]
    if attempt not in known:
        hint = f"it has: {', '.join(map(str, known))}" if known else "it has none yet"
        raise NotFound(f"task {entry.spec.id}.{index} has no attempt {attempt}", field="attempt", hint=hint)


def _records(entry: JobEntry, block: int) -> tuple[AttemptBlock | None, StatusBlock | None]:
    return entry.attempts.get(block), entry.statuses.get(block)


def _has_started(placed: PlacedAttempt) -> bool:
    """Whether it has started or is about to; a refused or withdrawn attempt never started."""
    return AttemptState.ACCEPTED <= placed.state < AttemptState.REFUSED


def _is_within(placed: PlacedAttempt, window: LogWindow) -> bool:
    """Whether the attempt may have written something in the window, by the times that its node reported."""
    status = placed.status
    if status is None:
        return True
    ended_before = placed.state >= ATTEMPT_FIRST_END and 0 < status.ended_at_ms < window.since_ms
    return not ended_before and not 0 < window.until_ms < status.started_at_ms


def _readable(index: int, placed: PlacedAttempt) -> ReadableAttempt:
    started_ms = placed.status.started_at_ms if placed.status else 0
    return ReadableAttempt(index, placed.number, placed.node, started_ms, placed.state >= ATTEMPT_FIRST_END)
