"""What commits write: by the right epoch, along the state tables, and true to what really happened."""

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from rota.keeper.resources.reservations import AttemptKey
from rota.model.attempt import EVICTED, LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import changes, column, ints, where, widened
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec, JobStatus, JobTombstone, SubmitKey
from rota.model.lifecycle import (
    ATTEMPT,
    ATTEMPT_FIRST_END,
    JOB,
    TASK,
    TASK_ENDS,
    AttemptState,
    JobState,
    NodeState,
    TaskState,
)
from rota.model.limits import BLOCK_TASKS
from rota.model.node import NodeStatus
from rota.model.recovery import RecoveryAnswers
from rota.model.rollout import JobRollout
from rota.model.task import TaskBlock
from rota.sim.checks import availability, recovery, start_order
from rota.sim.checks.brake import BrakeChecks
from rota.sim.checks.deadlines import DeadlineChecks
from rota.sim.checks.nodes import NodeHistory
from rota.sim.checks.placements import LivePlacement, PlacementChecks
from rota.sim.checks.process_log import ProcessLog
from rota.sim.checks.quarantine import QuarantineChecks
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World
from rota.store import codec
from rota.store.memory import is_durable
from rota.store.protocol import Batch

_STATE_NAMES = [state.name.lower() for state in AttemptState]


def reachable(table: Mapping[tuple[Any, Any], Any]) -> dict[Any, set[Any]]:
    """The states reachable from each state in any number of steps: one commit may take several."""
    found: dict[Any, set[Any]] = {}
    for (state, _), after in table.items():
        found.setdefault(state, set()).add(after)
    for _ in range(len(found)):
        for after in found.values():
            after.update(*[found.get(state, ()) for state in sorted(after)])
    return found


_JOB, _TASK, _ATTEMPT = (reachable(table) for table in (JOB, TASK, ATTEMPT))  # nodes are not restricted


class RecordChecks:
    """All durable records; compares each commit with the records before it and with the simulated world."""

    def __init__(
        self, world: World, nodes: NodeHistory, process_log: ProcessLog, deadlines: DeadlineChecks
    ) -> None:
        self.known: dict[str, Any] = {}
        self.expired: dict[str, Any] = {}  # records of expired jobs
        self.left: dict[AttemptKey, None] = {}  # attempts that ended because their node left or was drained
        self.forgotten: dict[str, Any] = {}  # records that a restarted memory store has lost
        self.attempts = 0
        self.epoch = 0
        self._world = world
        self._nodes = nodes
        self._process_log = process_log
        self._deadlines = deadlines
        self._placements = PlacementChecks(self.known, world, self._is_healthy)
        self._placed: dict[NodeId, None] = {}
        self._deleted: dict[str, Any] = {}  # node records that this commit deletes
        self._made: dict[str, JobId] | None = {}  # by job name: each name is submitted under one key
        self.quarantine = QuarantineChecks(self.known, world)
        self._brakes = BrakeChecks(self.known, world)

    def committed(self, batch: Batch) -> list[NodeId]:
        """Check a commit and apply it; return the nodes on which it reserves resources."""
        if batch.epoch < self.epoch:
            raise InvariantBroken(f"epoch {batch.epoch} wrote after epoch {self.epoch}")
        self.epoch = batch.epoch
        # Ordering: widen old blocks first, so that blocks before and after a scale-up have equal length.
        fresh = {key: codec.decode(key, value) for key, value in batch.puts}
        self._widen(fresh)
        self._deleted = dict.fromkeys(key for key in batch.deletes if key.startswith("node/"))
        # An attempt may end in the commit that places it.
        placed_first = sorted(fresh, key=lambda key: not key.startswith("attempt/"))
        # Compare each record with `known` before any of this commit is applied to it.
        for key in placed_first:
            record = fresh[key]
            self._compare(self.known.get(key), record, fresh)
            self._compare_rare(self.known.get(key), record, fresh)
        self.known |= fresh
        expired = {
            record.id
            for record in fresh.values()
            if isinstance(record, JobTombstone) and self._has_expired(record)
        }
        for key in batch.deletes:
            deleted = self.known.pop(key, None)
            if isinstance(deleted, JobSpec):
                self._placements.forget(deleted)
            if key.partition("/")[2].partition("/")[0] in expired:
                self.expired[key] = deleted
        self._placements.check()
        for record in fresh.values():
            if isinstance(record, AttemptBlock):
                self._count_live(record.job)
        placed, self._placed = self._placed, {}
        return list(placed)

    def forget(self) -> None:
        """A memory store was restarted: jobs are gone until nodes bring them back."""
        lost = {key: record for key, record in self.known.items() if not is_durable(key)}
        self.forgotten |= lost
        for key in lost:
            del self.known[key]
        self._placements = PlacementChecks(self.known, self._world, self._is_healthy)
        self.quarantine = QuarantineChecks(self.known, self._world)
        self._made = None  # an unanswered submit is repeated, and the server has lost its key
        self._process_log.failures.clear()
        self._deadlines.forget_requests()

    def _widen(self, fresh: dict[str, Any]) -> None:
        """Extend task blocks that were written before the job was scaled up."""
        for spec in [spec for spec in fresh.values() if isinstance(spec, JobSpec) and spec.version > 1]:
            for block in range(spec.blocks):
                for key in (f"{kind}/{spec.id}/{block}" for kind in ("task", "attempt", "status")):
                    if key in self.known:
                        self.known[key] = widened(self.known[key], spec.block_size(block))
        for key, record in fresh.items():
            if isinstance(record, TaskBlock | AttemptBlock | StatusBlock):
                spec = fresh.get(f"job/{record.job}/spec") or self.known[f"job/{record.job}/spec"]
                fresh[key] = widened(record, spec.block_size(record.block))

    def _is_healthy(self, node: str) -> bool:
        return self._nodes.is_healthy(self._nodes.machines[node])

    def _compare(self, before: Any, now: Any, fresh: dict[str, Any]) -> None:
        start_order.check_record(self.known, fresh, before, now)
        match now:
            case JobSpec():
                self._made_once(now.name, now.id)
            case SubmitKey() if before is not None:
                raise InvariantBroken(f"submit {now.name} made job {before.job} and job {now.job}")
            case JobStatus():
                old = JobState.SUBMITTED if before is None else before.state
                _follows(_JOB, old, now.state, f"job {now.id}")
            case NodeStatus(state=NodeState.LOST) if before is None or before.state is not NodeState.LOST:
                self._nodes.declare_lost(now.id)
                self._brakes.check_lost(now.id, fresh)
            case TaskBlock():
                self._compare_tasks(before, now, fresh)
            case StatusBlock():
                self._compare_statuses(before, now, fresh)
            case AttemptBlock():
                self._compare_attempts(before, now, fresh)
            case _:
                pass

    def _compare_rare(self, before: Any, now: Any, fresh: dict[str, Any]) -> None:
        match now:
            case RecoveryAnswers():
                recovery.check_answers(before, now)
            case JobRollout():
                intent: Any = fresh.get(f"job/{now.id}/wish") or self.known[f"job/{now.id}/wish"]
                self._world.count(f"rollout: {'rolling back' if intent.back_from else 'a newer version'}")
            case _:
                pass

    def _has_expired(self, tombstone: JobTombstone) -> bool:
        """Whether the job expired, in contrast to being deleted by a user."""
        status = self.known.get(f"job/{tombstone.id}/status")
        if tombstone.state != "deleted" and (status is None or not status.ended):
            raise InvariantBroken(f"job {tombstone.id} has expired and had not ended")
        return tombstone.state != "deleted"

    def _made_once(self, name: str, job: JobId) -> None:
        if self._made is not None and self._made.setdefault(name, job) != job:
            raise InvariantBroken(f"one submit made job {self._made[name]} and job {job}")

    def _compare_tasks(self, before: TaskBlock | None, now: TaskBlock, fresh: dict[str, Any]) -> None:
        before = before or TaskBlock.new(now.job, now.block, now.size)
        old = before.state
        availability.check_availability(self.known, fresh, before, now)
        for at, number in now.renew.items():
            if before.renew.get(at) != number:
                self._deadlines.evict((now.job, now.block * BLOCK_TASKS + at, number))
        for at in where(column(before, "wanted") != column(now, "wanted")):
            self._placements.touch((now.job, now.block * BLOCK_TASKS + at))
        for at in changes(old, now.state):
            was, state, index = old[at], now.state[at], now.block * BLOCK_TASKS + at
            name = f"task {index} of job {now.job}"
            if was in TASK_ENDS:
                raise InvariantBroken(
                    f"the result of {name} changed: {TaskState(was)!r} to {TaskState(state)!r}"
                )
            _follows(_TASK, TaskState(was), TaskState(state), name)
            self._placements.touch((now.job, index))
            is_missing = not _is_placed(ChainMap(fresh, self.known), now, at)
            self.quarantine.state_changed(
                (now.job, index), TaskState(was), TaskState(state), is_missing=is_missing
            )
            if state == TaskState.UNWANTED:
                self._deadlines.expect_stop((now.job, index))
            elif TaskState(state) in TASK_ENDS:
                recovery.check_end(ChainMap(self._deleted, fresh, self.known), now, at, self.left)

    def _compare_statuses(self, before: StatusBlock | None, now: StatusBlock, fresh: dict[str, Any]) -> None:
        before = before or StatusBlock.new(now.job, now.block, len(now.state))
        number, old_number = ints(now, "number"), ints(before, "number")
        for at in _moved(before, now, changes(before.state, now.state)):
            state, key = now.state[at], (now.job, now.block * BLOCK_TASKS + at, number[at])
            name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
            if number[at] < old_number[at]:
                raise InvariantBroken(f"{name} was followed by {old_number[at]}")
            was = before.state[at] if number[at] == old_number[at] else 0
            if was == state:
                continue
            if was >= ATTEMPT_FIRST_END:
                raise InvariantBroken(
                    f"the end of {name} changed: {AttemptState(was)!r} to {AttemptState(state)!r}"
                )
            _follows(_ATTEMPT, AttemptState(was), AttemptState(state), name)
            self._world.count(f"attempt: {_STATE_NAMES[was]} to {_STATE_NAMES[state]}")
            if state == AttemptState.LOST:
                self._explain_loss(now, at, fresh)
            self._placements.report(key[:2], key[2], AttemptState(state))
            if state >= ATTEMPT_FIRST_END:
                spec = fresh.get(f"job/{now.job}/spec") or self.known[f"job/{now.job}/spec"]
                self._process_log.compare(spec, key, AttemptState(state))

    def _explain_loss(self, now: StatusBlock, at: int, fresh: dict[str, Any]) -> None:
        attempts = self.known.get(f"attempt/{now.job}/{now.block}")
        number = ints(now, "number")[at]
        if attempts is not None and ints(attempts, "number")[at] == number:
            node = attempts.nodes[ints(attempts, "node")[at]]
            self.quarantine.lost((now.job, now.block * BLOCK_TASKS + at), node)
            status = fresh.get(f"node/{node}/status")
            is_asked = status is None or status.state not in (NodeState.LOST, NodeState.LEFT)
            key = (now.job, now.block * BLOCK_TASKS + at, number)
            spec = self.known.get(f"job/{now.job}/spec")
            if spec is not None and spec.lease_ms is not None:
                self._nodes.lose_lease(node, key)
            else:
                self._nodes.lose(node, key, is_asked=is_asked)

    def _compare_attempts(
        self, before: AttemptBlock | None, now: AttemptBlock, fresh: dict[str, Any]
    ) -> None:
        before = before or AttemptBlock.new(now.job, now.block, len(now.flags))
        number, old_number = ints(now, "number"), ints(before, "number")
        key = f"status/{now.job}/{now.block}"
        status = fresh.get(key) or self.known.get(key)
        spec = fresh.get(f"job/{now.job}/spec") or self.known[f"job/{now.job}/spec"]
        intent = fresh.get(f"job/{now.job}/wish") or self.known.get(f"job/{now.job}/wish")
        for at in changes(before.flags, now.flags):
            if now.flags[at] & EVICTED:
                self._evicted(now, at, fresh)
        for at in _moved(before, now, []):
            old, new = old_number[at], number[at]
            self.attempts += 1
            name = f"task {now.block * BLOCK_TASKS + at} of job {now.job}"
            if intent is not None and intent.paused:
                raise InvariantBroken(f"{name} is placed while its job is paused")
            if new < old:
                raise InvariantBroken(f"{name} went back from attempt {old} to {new}")
            known = 0 if status is None else ints(status, "number")[at]
            ended = status is not None and known >= old and status.state[at] >= ATTEMPT_FIRST_END
            recovery.check_next_attempt(ChainMap(fresh, self.known), spec, before, at, self.left)
            adoption = fresh.get(f"job/{now.job}/adoption") or self.known.get(f"job/{now.job}/adoption")
            is_brought = adoption is not None and new <= adoption.attempts_before
            if old and not ended and not is_brought:
                raise InvariantBroken(f"{name} got attempt {new} while attempt {old} had not ended")
            node, task = now.nodes[ints(now, "node")[at]], (now.job, now.block * BLOCK_TASKS + at)
            self.quarantine.placed(task, fresh)
            waits = bool(now.flags[at] & LOOKAHEAD)
            self._placements.place(LivePlacement(spec, task, new, node, now.gpus.get(at, 0), waits=waits))
            if not waits:
                self._placed[node] = None

    def _evicted(self, now: AttemptBlock, at: int, fresh: dict[str, Any]) -> None:
        """An eviction from a drained node is a loss for the recovery policy; any other one is not."""
        key = (now.job, now.block * BLOCK_TASKS + at, ints(now, "number")[at])
        self._deadlines.evict(key)
        name = f"node/{now.nodes[ints(now, 'node')[at]]}/wish"
        intent = fresh.get(name) or self.known.get(name)
        if intent is not None and intent.drains:
            self.left[key] = None

    def _count_live(self, job: JobId) -> None:
        """Check the `parallel` limit of a job after a placement."""
        spec = self.known[f"job/{job}/spec"]
        if spec.parallel is None:
            return
        live = 0
        for block in range(spec.blocks):
            attempts, status = (
                self.known.get(f"attempt/{job}/{block}"),
                self.known.get(f"status/{job}/{block}"),
            )
            if attempts is not None:
                number = column(attempts, "number")
                live += int((number > 0).sum())
                if status is not None:
                    over = (column(status, "number") == number) & (
                        column(status, "state") >= ATTEMPT_FIRST_END
                    )
                    live -= int((over & (number > 0)).sum())
        if live > spec.parallel:
            raise InvariantBroken(
                f"{live} tasks of job {job} are placed, and at most {spec.parallel} may run at once"
            )


def _is_placed(records: Mapping[str, Any], now: TaskBlock, at: int) -> bool:
    """Whether the task has an attempt; a task of an adopted job may be known without one."""
    attempts = records.get(f"attempt/{now.job}/{now.block}")
    is_adopted = f"job/{now.job}/adoption" in records
    return not is_adopted or (attempts is not None and ints(attempts, "number")[at] > 0)


def _follows(table: dict[Any, set[Any]], old: Any, new: Any, what: str) -> None:
    if new != old and new not in table.get(old, ()):
        raise InvariantBroken(f"{what} went from {old!r} to {new!r}, which no table allows")


def _moved(before: Any, now: Any, also: list[int]) -> list[int]:
    """Positions at which the attempt number changed, and those of `also`."""
    if before.number == now.number:
        return also
    return sorted({*also, *where(column(before, "number") != column(now, "number"))})
