"""A seed -> a random history of users, nodes and servers, played on the real loop and checked at each step.

The stage runs the real admission, loop and reconcilers without I/O. After every step the live mirror must
equal one that is freshly loaded from the records, no node may be overcommitted, no key may be parked, no
result may change, and a loop that starts from the same records must find nothing to do, at the latest after a
minute, when periodic decisions have been made. At the end everything is canceled, and every job must end.
"""

import traceback
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import rota
from rota.engine.state.entries import JobEntry
from rota.model.columns import ints
from rota.model.ids import JobId, Key, NodeId
from rota.scheduler.round import SchedulerCache, SchedulerSettings
from rota.store import codec
from rota.testing.stage import Stage
from tests.fuzz.picture import differences, overcommitted, picture
from tests.fuzz.world import WEIGHTS, FuzzWorld

SHRINK_PLAYS = 500  # enough to shrink a history of 600 steps to a dozen
LAG_MS = 60_000  # within which the loop decides every key periodically
_BLOCKS = ("task", "attempt", "status")  # kinds of records that cover many tasks
_SOURCE = Path(rota.__file__).parent


class HistoryStep(NamedTuple):
    """One step of a history; its details are drawn from its own number, so that others can be left out."""

    verb: str
    number: int

    def __str__(self) -> str:
        return f"{self.verb}:{self.number}"


class HistoryFailure(NamedTuple):
    """The violated invariant, and the steps until then."""

    kind: str  # must stay the same while a history is shrunk
    problem: str
    steps: list[str]


class InvariantViolated(Exception):
    """An invariant does not hold."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind


def history(seed: int, length: int) -> list[HistoryStep]:
    rng = Random(seed)
    verbs = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=length)
    return [HistoryStep(verb, rng.getrandbits(32)) for verb in ("join", "join", *verbs)]


def play(steps: list[HistoryStep]) -> HistoryFailure | None:
    """Play a history to its end; return the first failure, if any."""
    world, checks, played = FuzzWorld(), HistoryChecks(), list[str]()
    try:
        for step in steps:
            played.append(f"{step}  ...")
            played[-1] = f"{step}  {world.do(step.verb, Random(step.number))}"
            # Half of the steps are refused commands, or change machines only. They write nothing and take no
            # time; if one changed the mirror all the same, the next check would see it, at the latest the one
            # at the end.
            if world.has_changed:
                checks.check(world.stage)
        played.append("end  everything is canceled, every node connects and applies its orders")
        world.end_everything()
        checks.check(world.stage)
        checks.check_end(world)
    except InvariantViolated as violation:
        return HistoryFailure(violation.kind, str(violation), played)
    except Exception as error:  # any error of the product is a finding
        where = _origin(error)
        return HistoryFailure(
            f"{type(error).__name__} in {where}", f"{type(error).__name__}: {error} in {where}", played
        )
    return None


def shrink(steps: list[HistoryStep], kind: str) -> list[HistoryStep]:
    """Leave out steps, many at a time and then one by one, while the same kind of failure remains."""
    size, plays = len(steps) // 2, 0
    while size and plays < SHRINK_PLAYS:
        at = 0
        while at < len(steps) and plays < SHRINK_PLAYS:
            fewer = steps[:at] + steps[at + size :]
            failure = play(fewer)
            plays += 1
            if failure is not None and failure.kind == kind:
                steps = fewer
            else:
                at += size
        size = min(size // 2, len(steps) // 2)
    return steps


class HistoryChecks:
    """The invariants that hold after every step."""

    def __init__(self) -> None:
        self._results: dict[JobId, object] = {}

    def check(self, stage: Stage) -> None:
        twin = _twin(stage)
        if found := differences(picture(stage.mirror), picture(twin.mirror)):
            area = "/".join(found[0].partition(":")[0].split("/")[::2])
            raise InvariantViolated(f"difference in {area}", "\n".join(found[:8]))
        for problem in overcommitted(stage.mirror):
            raise InvariantViolated("overcommitted", problem)
        self._check_results(stage)
        if first := _overlooked(twin):
            stage.wait(LAG_MS)
            # Only keys found twice were missed by a lost wake-up: the wait itself makes other keys due.
            if twice := [found for found in _overlooked(_twin(stage)) if found in first]:
                problem = (
                    f"a server that restarts now would write {twice[:5]}, and the one that runs does not"
                )
                raise InvariantViolated(f"overlooked {twice[0].partition('/')[0]}", problem)

    def _check_results(self, stage: Stage) -> None:
        known = stage.mirror.jobs
        for job, before in self._results.items():
            if job in known and _result(known[job]) != before:
                raise InvariantViolated(
                    "changed result", f"job {job} ended as {before}, and now is {_result(known[job])}"
                )
        self._results = {job: _result(entry) for job, entry in known.items() if _has_ended(entry)}

    def check_end(self, world: FuzzWorld) -> None:
        if left := world.open_jobs():
            job = world.stage.mirror.jobs[left[0]]
            raise InvariantViolated(
                "endless", f"job {left[0]} does not end: {job.status}, {job.task_counts.as_dict()}"
            )
        held = {node: entry.assigned for node, entry in world.stage.mirror.nodes.items() if entry.assigned}
        if held:
            raise InvariantViolated("left over", f"all jobs have ended, and nodes still hold {held}")


def _overlooked(twin: Stage) -> list[str]:
    """What a restarted server would write: keys of records, and tasks of blocks, whose wake-up was lost."""
    before = dict(twin.records)
    twin.run_to_quiescence()
    changed = [key for key in {**before, **twin.records} if before.get(key) != twin.records.get(key)]
    return [found for key in changed for found in parts(key, before.get(key), twin.records.get(key))]


def parts(key: Key, before: bytes | None, now: bytes | None) -> list[str]:
    """Split a changed block into its changed tasks, since its 256 tasks are independent.

    Otherwise one task that is due before the wait, and another that becomes due during it, would look like a
    single key whose wake-up was lost.
    """
    if now is None or key.partition("/")[0] not in _BLOCKS:
        return [key]
    new = _columns(codec.decode(key, now))
    old = {} if before is None else _columns(codec.decode(key, before))
    rows = [zip_longest(old.get(name, ()), values, fillvalue=0) for name, values in new.items()]
    tasks = {at for pairs in rows for at, (was, is_now) in enumerate(pairs) if was != is_now}
    return [f"{key} task {at}" for at in sorted(tasks)] or [key]


def _columns(block: Any) -> dict[str, list[int]]:
    return {name: list(ints(block, name)) for name in block.COLUMNS}


def _twin(stage: Stage) -> Stage:
    """A stage without machines that has just loaded the records and inherits the live one's observations."""
    twin = Stage()
    twin.now_ms, twin.wall_shift_ms = stage.now_ms, stage.wall_shift_ms
    # Ordering: equal nodes are chosen by slot, so the twin must load them in the same order.
    twin.records = dict(sorted(stage.records.items(), key=lambda record: _slot_of(stage, record[0])))
    twin.loop = twin._opened()
    live, fresh = stage.mirror, twin.mirror
    fresh.inherit(live)
    fresh.read_at_ms = live.read_at_ms
    fresh.refusals = live.refusals.copy()
    for node, entry in live.nodes.items():
        if node in fresh.nodes:
            fresh.nodes[node].last_seen_at_ms = entry.last_seen_at_ms
    for job, known in live.jobs.items():
        if job in fresh.jobs:
            fresh.jobs[job].run_us = known.run_us
    _share_reservations(stage, twin)
    return twin


def _slot_of(stage: Stage, key: str) -> int:
    kind, _, name = key.partition("/")
    return stage.mirror.node_table.slot.get(NodeId(name.partition("/")[0]), -1) if kind == "node" else -1


def _share_reservations(stage: Stage, twin: Stage) -> None:
    """Copy backfill reservations and nominations, which are held in memory and lost in a restart."""
    known = stage.scheduler.cache
    if known is None:
        return
    cache = twin.scheduler.cache = SchedulerCache(twin.mirror, SchedulerSettings())
    cache.head_of_line, cache.backoffs = known.head_of_line, dict(known.backoffs)
    names, slots = stage.mirror.node_table.ids, twin.mirror.node_table.slot
    for job, nominations in known.nominated.items():
        cache.nominated[job] = [
            nomination._replace(slot=slots[names[nomination.slot]]) for nomination in nominations
        ]


def _has_ended(entry: JobEntry) -> bool:
    return entry.status is not None and entry.status.ended


def _result(entry: JobEntry) -> object:
    return entry.status, dict(entry.phases)


def _origin(error: Exception) -> str:
    """The innermost function of the product in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_SOURCE)]
    last = (ours or frames)[-1]
    return f"{Path(last.filename).stem}.{last.name}"
