"""A seed -> a random history of users, nodes and servers, played on the real loop and checked at each step.

The stage runs the real admission, loop and reconcilers without a world. After every step the live mirror must
equal one that was loaded afresh from the records, no node may be overcommitted, no key may be parked, no
result may change, and a loop that starts from the same records must find nothing to do (at the latest after a
minute, by when periodic looks have happened). At the end everything is canceled and must come to its end.
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
from tests.fuzz.world import WEIGHTS, World

SHRINK_PLAYS = 500  # enough for a history of 600 steps that a dozen of them make fail
LAG_MS = 60_000  # within which the loop looks by itself at what nothing has woken it for
_BLOCKS = ("task", "attempt", "status")  # kinds of records that are about many tasks
_SOURCE = Path(rota.__file__).parent


class Step(NamedTuple):
    """One thing that happens; details are drawn from its own number, so that other steps can be left out."""

    verb: str
    number: int

    def __str__(self) -> str:
        return f"{self.verb}:{self.number}"


class Failure(NamedTuple):
    """What does not hold, and what had happened until then."""

    kind: str  # tells failures apart while a history is shrunk
    problem: str
    told: list[str]


class Wrong(Exception):
    """An invariant does not hold."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind


def history(seed: int, length: int) -> list[Step]:
    rng = Random(seed)
    verbs = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=length)
    return [Step(verb, rng.getrandbits(32)) for verb in ("join", "join", *verbs)]


def play(steps: list[Step]) -> Failure | None:
    """Play a history to its end; returns the first thing that does not hold."""
    world, checks, told = World(), Checks(), list[str]()
    try:
        for step in steps:
            told.append(f"{step}  ...")
            told[-1] = f"{step}  {world.do(step.verb, Random(step.number))}"
            # Half of the steps are refused commands, or change machines only. They write nothing and take no
            # time; if one changed the mirror all the same, the next look would see it, and there is one at
            # the end.
            if world.has_changed:
                checks.look(world.stage)
        told.append("end  everything is canceled, every node calls and obeys")
        world.end_everything()
        checks.look(world.stage)
        checks.look_for_rest(world)
    except Wrong as wrong:
        return Failure(wrong.kind, str(wrong), told)
    except Exception as error:  # whatever the product raises is the finding
        where = _origin(error)
        return Failure(
            f"{type(error).__name__} in {where}", f"{type(error).__name__}: {error} in {where}", told
        )
    return None


def shrink(steps: list[Step], kind: str) -> list[Step]:
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


class Checks:
    """What must hold after every step."""

    def __init__(self) -> None:
        self._results: dict[JobId, object] = {}

    def look(self, stage: Stage) -> None:
        twin = _twin(stage)
        if found := differences(picture(stage.mirror), picture(twin.mirror)):
            area = "/".join(found[0].partition(":")[0].split("/")[::2])
            raise Wrong(f"difference in {area}", "\n".join(found[:8]))
        for problem in overcommitted(stage.mirror):
            raise Wrong("overcommitted", problem)
        self._look_at_results(stage)
        if first := _overlooked(twin):
            stage.wait(LAG_MS)
            # Only what is found twice was overlooked: the wait itself makes other work due.
            if twice := [found for found in _overlooked(_twin(stage)) if found in first]:
                problem = (
                    f"a server that restarts now would write {twice[:5]}, and the one that runs does not"
                )
                raise Wrong(f"overlooked {twice[0].partition('/')[0]}", problem)

    def _look_at_results(self, stage: Stage) -> None:
        known = stage.mirror.jobs
        for job, before in self._results.items():
            if job in known and _result(known[job]) != before:
                raise Wrong(
                    "changed result", f"job {job} ended as {before}, and now is {_result(known[job])}"
                )
        self._results = {job: _result(entry) for job, entry in known.items() if _has_ended(entry)}

    def look_for_rest(self, world: World) -> None:
        if left := world.open_jobs():
            job = world.stage.mirror.jobs[left[0]]
            raise Wrong("endless", f"job {left[0]} does not end: {job.status}, {job.task_counts.as_dict()}")
        held = {node: entry.assigned for node, entry in world.stage.mirror.nodes.items() if entry.assigned}
        if held:
            raise Wrong("left over", f"all jobs have ended, and nodes still hold {held}")


def _overlooked(twin: Stage) -> list[str]:
    """What only a restarted server writes: a wake-up was lost. Keys of records, and the tasks of a block."""
    before = dict(twin.records)
    twin.run_to_quiescence()
    changed = [key for key in {**before, **twin.records} if before.get(key) != twin.records.get(key)]
    return [found for key in changed for found in parts(key, before.get(key), twin.records.get(key))]


def parts(key: Key, before: bytes | None, now: bytes | None) -> list[str]:
    """A block is written for up to 256 tasks, which need have nothing in common: each of them is one part.

    Else one task that is about to be looked at, and another that becomes due while we wait for that look,
    would count as one that was overlooked.
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
    """A stage without machines that has just read the records, and knows what the live one has observed."""
    twin = Stage()
    twin.now_ms, twin.wall_shift_ms = stage.now_ms, stage.wall_shift_ms
    # Equal nodes are chosen by their slots, so the twin has them in the same order.
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
    _share_promises(stage, twin)
    return twin


def _slot_of(stage: Stage, key: str) -> int:
    kind, _, rest = key.partition("/")
    return stage.mirror.node_table.slot.get(NodeId(rest.partition("/")[0]), -1) if kind == "node" else -1


def _share_promises(stage: Stage, twin: Stage) -> None:
    """Room that is promised, or being made, for a job is held for a while, and a restart forgets it."""
    known = stage.scheduler.cache
    if known is None:
        return
    memory = twin.scheduler.cache = SchedulerCache(twin.mirror, SchedulerSettings())
    memory.head_of_line, memory.backoffs = known.head_of_line, dict(known.backoffs)
    names, slots = stage.mirror.node_table.ids, twin.mirror.node_table.slot
    for job, nominations in known.nominated.items():
        memory.nominated[job] = [one._replace(slot=slots[names[one.slot]]) for one in nominations]


def _has_ended(entry: JobEntry) -> bool:
    return entry.status is not None and entry.status.ended


def _result(entry: JobEntry) -> object:
    return entry.status, dict(entry.phases)


def _origin(error: Exception) -> str:
    """The innermost function of the product that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_SOURCE)]
    last = (ours or frames)[-1]
    return f"{Path(last.filename).stem}.{last.name}"
