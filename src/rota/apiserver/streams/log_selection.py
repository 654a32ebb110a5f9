"""Which output is wanted + how a job stands -> the attempts that have it."""

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
    job: JobId
    index: int | None = None  # None: all tasks
    attempt: int | None = None  # None: the newest; while following, also those to come
    from_first: bool = False  # begin with the oldest attempt that is known
    streams: tuple[str, ...] = STREAMS
    offset: int = 0  # of the first attempt, where one stream of one task is wanted
    follow: bool = False
    window: LogWindow = WHOLE_LOG
    resume: Mapping[StreamKey, int] = field(default_factory=dict)  # up to where some streams are known


@dataclass(frozen=True, slots=True)
class ReadableAttempt:
    """An attempt that has, or may have, something to read."""

    index: int
    attempt: int
    node: NodeId
    started_ms: int = 0  # wall clock of its node
    has_ended: bool = False


def log_request(wanted: LogSelection, begun: ReadableAttempt, stream: str, offset: int) -> LogRequest:
    """What was read before is passed over; of that stream the rest is wanted, all of it."""
    at = (wanted.job, begun.index, begun.attempt, stream)
    known = wanted.resume.get((begun.index, begun.attempt, stream))
    if known is not None:
        return LogRequest(*at, max(offset, known), wanted.follow)
    return LogRequest(*at, offset, wanted.follow, wanted.window)


class AttemptSearch:
    """Which attempts of a job have begun since the last look. Only blocks that changed are looked at."""

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
        self._scanned[block] = _records(entry, block)
        found: list[ReadableAttempt] = []
        for position in self._positions(entry, block):
            found += self._new_attempts(entry, block, position)
        return found

    def _positions(self, entry: JobEntry, block: int) -> list[int]:
        """Of tasks that have a newer attempt than those found."""
        numbers = column(entry.attempts[block], "number").tolist()
        if self._selection.index is not None:
            position = self._selection.index % BLOCK_TASKS
            return [position] if numbers[position] > self._found[block][position] else []
        known = self._found[block]
        return [position for position, number in enumerate(numbers) if number > known[position]]

    def _new_attempts(self, entry: JobEntry, block: int, position: int) -> list[ReadableAttempt]:
        index, known = block * BLOCK_TASKS + position, self._found[block]
        news = [
            placed
            for placed in attempts_of(entry, index)
            if placed.number > known[position] and _has_started(placed)
        ]
        if not news:
            return []
        first_look = known[position] == 0
        known[position] = news[-1].number
        if self._selection.attempt is not None:
            news = [placed for placed in news if placed.number == self._selection.attempt]
        elif first_look and not self._selection.from_first:
            news = news[-1:]
        return [_readable(index, placed) for placed in news if _is_within(placed, self._selection.window)]


def require_attempt(entry: JobEntry, index: int, attempt: int) -> None:
    known = [placed.number for placed in attempts_of(entry, index)]
    if attempt not in known:
        hint = f"it has: {', '.join(map(str, known))}" if known else "it has none yet"
        raise NotFound(f"task {entry.spec.id}.{index} has no attempt {attempt}", field="attempt", hint=hint)


def _records(entry: JobEntry, block: int) -> tuple[AttemptBlock | None, StatusBlock | None]:
    return entry.attempts.get(block), entry.statuses.get(block)


def _has_started(placed: PlacedAttempt) -> bool:
    """Or about to begin; what was refused or withdrawn never did."""
    return AttemptState.ACCEPTED <= placed.state < AttemptState.REFUSED


def _is_within(placed: PlacedAttempt, window: LogWindow) -> bool:
    """Whether it may have written something at that time, as far as its node has told."""
    status = placed.status
    if status is None:
        return True
    over = placed.state >= ATTEMPT_FIRST_END and 0 < status.ended_at_ms < window.since_ms
    return not over and not 0 < window.until_ms < status.started_at_ms


def _readable(index: int, placed: PlacedAttempt) -> ReadableAttempt:
    started_ms = placed.status.started_at_ms if placed.status else 0
    return ReadableAttempt(index, placed.number, placed.node, started_ms, placed.state >= ATTEMPT_FIRST_END)
