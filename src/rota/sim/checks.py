"""What may never break: looked at whenever something is written, started or answered, and at the end."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rota.engine.mirror import Mirror
from rota.keeper.rules import Key
from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import changes, column, ints, where
from rota.model.ids import JobId
from rota.model.job import JobSpec, JobStatus
from rota.model.lifecycle import (
    ATTEMPT,
    ATTEMPT_FIRST_END,
    JOB,
    NODE,
    TASK,
    TASK_FIRST_END,
    AttemptState,
    JobState,
    NodeState,
    TaskState,
)
from rota.model.limits import BLOCK_TASKS
from rota.model.node import NodeStatus
from rota.model.shape import RunMode
from rota.model.task import TaskBlock
from rota.sim.keeping import Child
from rota.sim.machine import Machine
from rota.sim.server import Server
from rota.sim.world import World
from rota.store import codec
from rota.store.protocol import Batch

OVERLAP_MS = 10_000  # after the nodes of two attempts of one task are well again, one is dead
GRACE_MS = 15_000  # what a deaf program is given on top, and the time to kill it


class Broken(Exception):
    """A promise does not hold."""


def _reachable(table: Mapping[tuple[Any, Any], Any]) -> dict[Any, set[Any]]:
    """Several steps may fall into one commit."""
    found: dict[Any, set[Any]] = {}
    for (state, _), after in table.items():
        found.setdefault(state, set()).add(after)
    for _ in range(len(found)):
        for after in found.values():
            after.update(*[found.get(state, ()) for state in sorted(after)])
    return found


def _moved(before: Any, now: Any, also: list[int]) -> list[int]:
    """Positions at which the attempt's number is another, and these."""
    if before.number == now.number:
        return also
    return sorted({*also, *where(column(before, "number") != column(now, "number"))})


_JOB, _TASK, _ATTEMPT, _NODE = (_reachable(table) for table in (JOB, TASK, ATTEMPT, NODE))


class Checks:
    def __init__(self, world: World) -> None:
        self.world = world
        self.known: dict[str, Any] = {}
        self.machines: dict[str, Machine] = {}
        self.attempts = 0
        self.epoch = 0
        self.disturbed: dict[str, None] = {}  # nodes that a fault has touched: only they may lose work
        self.is_well: Callable[[Machine], bool] = lambda _: True
        self._born: dict[Key, str] = {}
        self._steps: dict[Key, int] = {}  # the last that was started
        self._succeeded: dict[tuple[str, int], int] = {}  # task -> exit code, by the work's own witness
        self._once: dict[tuple[str, int], Key] = {}
        self._live: dict[tuple[str, int], dict[Key, Machine]] = {}
        self._twice: dict[tuple[str, int], int | None] = {}  # tasks with two live processes -> well since
        self._used: dict[tuple[str, str], int] = {}

    # ---- what is written

    def committed(self, batch: Batch, revision: int) -> None:
        del revision
        if batch.epoch < self.epoch:
            raise Broken(f"epoch {batch.epoch} wrote after epoch {self.epoch}")
        self.epoch = batch.epoch
        fresh = {key: codec.decode(key, value) for key, value in batch.puts}
        for key, record in fresh.items():
            self._compare(self.known.get(key), record, fresh)
        self.known |= fresh
        for key in batch.deletes:
            self.known.pop(key, None)

    def _compare(self, before: Any, now: Any, fresh: dict[str, Any]) -> None:
        match now:
            case JobStatus():
                old = JobState.SUBMITTED if before is None else before.state
                self._follows(_JOB, old, now.state, f"job {now.id}")
            case NodeStatus():
                old = NodeState.READY if before is None else before.state
                self._follows(_NODE, old, now.state, f"node {now.id}")
            case TaskBlock():
                self._compare_tasks(before, now)
            case StatusBlock():
                self._compare_statuses(before, now)
            case AttemptBlock():
                self._compare_attempts(before, now, fresh)
            case _:
                pass

    def _follows(self, table: dict[Any, set[Any]], old: Any, new: Any, what: str) -> None:
        if new != old and new not in table.get(old, ()):
            raise Broken(f"{what} went from {old!r} to {new!r}, which no table allows")

    def _compare_tasks(self, before: TaskBlock | None, now: TaskBlock) -> None:
        old = bytes(now.size) if before is None else before.state
        for at in changes(old, now.state):
            was, state = old[at], now.state[at]
            name = f"task {now.block * BLOCK_TASKS + at} of job {now.job}"
            if was >= TASK_FIRST_END:
                raise Broken(f"the result of {name} changed: {TaskState(was)!r} to {TaskState(state)!r}")
            self._follows(_TASK, TaskState(was), TaskState(state), name)

    def _compare_statuses(self, before: StatusBlock | None, now: StatusBlock) -> None:
        before = before or StatusBlock.new(now.job, now.block, len(now.state))
        number, old_number = ints(now, "number"), ints(before, "number")
        for at in _moved(before, now, changes(before.state, now.state)):
            state = now.state[at]
            name = f"attempt {number[at]} of task {now.block * BLOCK_TASKS + at} of job {now.job}"
            if number[at] < old_number[at]:
                raise Broken(f"{name} was followed by {old_number[at]}")
            was = before.state[at] if number[at] == old_number[at] else 0
            if was == state:
                continue
            if was >= ATTEMPT_FIRST_END:
                raise Broken(f"the end of {name} changed: {AttemptState(was)!r} to {AttemptState(state)!r}")
            self._follows(_ATTEMPT, AttemptState(was), AttemptState(state), name)
            self.world.count(f"attempt: {_WORDS[was]} to {_WORDS[state]}")
            if state == AttemptState.LOST:
                self._explain_loss(now, at, name)

    def _explain_loss(self, now: StatusBlock, at: int, name: str) -> None:
        attempts = self.known.get(f"attempt/{now.job}/{now.block}")
        if attempts is not None and ints(attempts, "number")[at] == ints(now, "number")[at]:
            node = attempts.nodes[ints(attempts, "node")[at]]
            if node not in self.disturbed:
                raise Broken(f"{name} was lost on {node}, which nothing had befallen")

    def _compare_attempts(
        self, before: AttemptBlock | None, now: AttemptBlock, fresh: dict[str, Any]
    ) -> None:
        before = before or AttemptBlock.new(now.job, now.block, len(now.flags))
        number, old_number = ints(now, "number"), ints(before, "number")
        key = f"status/{now.job}/{now.block}"
        status = fresh.get(key) or self.known.get(key)
        for at in _moved(before, now, []):
            old, new = old_number[at], number[at]
            self.attempts += 1
            name = f"task {now.block * BLOCK_TASKS + at} of job {now.job}"
            if new < old:
                raise Broken(f"{name} went back from attempt {old} to {new}")
            known = 0 if status is None else ints(status, "number")[at]
            ended = status is not None and known >= old and status.state[at] >= ATTEMPT_FIRST_END
            if old and not ended:
                raise Broken(f"{name} got attempt {new} while attempt {old} had not ended")

    # ---- what is started

    def born(self, name_of_machine: str, child: Child) -> None:
        machine = self.machines[name_of_machine]
        key, task = child.key, child.key[:2]
        name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
        begun = self._born.get(key)
        follows = begun == machine.name and child.step > 1 and self._steps.get(key) == child.step - 1
        if begun is not None and not follows:
            raise Broken(f"{name} was started twice: on {begun} and on {machine.name}")
        self._born[key], self._steps[key] = machine.name, child.step
        block, at = divmod(key[1], BLOCK_TASKS)
        placed = self.known.get(f"attempt/{key[0]}/{block}")
        if placed is None or ints(placed, "number")[at] < key[2]:
            raise Broken(f"{name} was started on {machine.name} and is not on disk")
        spec = self.known[f"job/{key[0]}/spec"]
        if spec.run is RunMode.AT_MOST_ONCE and self._once.get(task, key) != key:
            raise Broken(f"task {key[1]} of job {key[0]} may run once and was started again: {name}")
        self._once[task] = key
        whole = machine.capacity | {_device(gpu): WHOLE_GPU for gpu in child.gpus}
        for resource, amount in _uses(spec, child).items():
            used = self._used[machine.name, resource] = self._used.get((machine.name, resource), 0) + amount
            if used > whole.get(resource, 0):
                raise Broken(f"{machine.name} runs {used} of {resource}, more than it has")
        live = self._live.setdefault(task, {})
        live[key] = machine
        if len(live) > 1:
            self.world.count("task: two attempts alive at once")
            self._twice[task] = None

    def died(self, name_of_machine: str, child: Child) -> None:
        machine = self.machines[name_of_machine]
        task = child.key[:2]
        live = self._live[task]
        del live[child.key]
        if len(live) < 2:
            self._twice.pop(task, None)
            if not live:
                del self._live[task]
        spec = self.known.get(f"job/{child.key[0]}/spec")
        for resource, amount in (_uses(spec, child) if spec is not None else {}).items():
            self._used[machine.name, resource] -= amount
        if child.status == 0 and child.is_last:
            self._succeeded[task] = 0

    def look_at_overlaps(self) -> None:
        """Once a second: two attempts of one task may live only while one of their nodes is not well."""
        for task, since_ms in list(self._twice.items()):
            well = all(self.is_well(machine) for machine in self._live[task].values())
            if not well:
                self._twice[task] = None
            elif since_ms is None:
                self._twice[task] = self.world.now_ms
            elif self.world.now_ms - since_ms > OVERLAP_MS + GRACE_MS:
                names = ", ".join(f"{key[2]} on {machine.name}" for key, machine in self._live[task].items())
                raise Broken(f"task {task[1]} of job {task[0]} runs as attempts {names}, with both well")

    # ---- what is answered

    def acknowledged(self, key: str, job: JobId, before: JobId | None) -> None:
        if before is not None and before != job:
            raise Broken(f"submit {key} was answered with job {before} and with job {job}")
        if f"job/{job}/spec" not in self.known:
            raise Broken(f"submit {key} was answered with job {job}, which is not on disk")

    # ---- in the end

    def at_the_end(
        self, jobs: Iterable[JobId], canceled: Mapping[JobId, None], deleted: Mapping[JobId, None]
    ) -> None:
        for job in jobs:
            spec, status = self.known.get(f"job/{job}/spec"), self.known.get(f"job/{job}/status")
            if spec is None and job in deleted:
                continue
            if spec is None:
                raise Broken(f"job {job} was acknowledged and is gone")
            if status is None or not status.ended:
                raise Broken(f"job {job} has not come to an end: {self._story(spec)}")
            self._look_at_results(spec, status, was_canceled=job in canceled)
        for task, live in self._live.items():
            raise Broken(f"task {task[1]} of job {task[0]} still runs on {[m.name for m in live.values()]}")

    def _look_at_results(self, spec: JobSpec, status: JobStatus, *, was_canceled: bool) -> None:
        for block in range(spec.blocks):
            tasks = self.known.get(f"task/{spec.id}/{block}")
            for at in range(spec.block_size(block)):
                state = TaskState.WANTED if tasks is None else TaskState(tasks.state[at])
                index = block * BLOCK_TASKS + at
                name = f"task {index} of job {spec.id}"
                if state is TaskState.SUCCEEDED and (spec.id, index) not in self._succeeded:
                    raise Broken(f"{name} is said to have succeeded and never did")
                if state is TaskState.CANCELED and not was_canceled:
                    raise Broken(f"{name} was canceled by nobody")
                if tasks is not None and state < TASK_FIRST_END:
                    raise Broken(f"job {spec.id} is {status.state} and its task {index} is {state!r}")

    def _story(self, spec: JobSpec) -> str:
        found: dict[str, int] = {}
        for block in range(spec.blocks):
            tasks = self.known.get(f"task/{spec.id}/{block}")
            for at in range(spec.block_size(block)):
                word = "wanted" if tasks is None else TaskState(tasks.state[at]).name.lower()
                found[word] = found.get(word, 0) + 1
        return ", ".join(f"{count} {word}" for word, count in found.items())

    def mirror_equals_disk(self, server: Server) -> None:
        """What the leader believes is what a fresh read gives, and so is all it derives from it."""
        held = _records_of(server)
        disk = {key: record for key, record in self.known.items() if key.split("/")[0] in _HELD}
        if held != disk:
            differing = [key for key in sorted(held.keys() | disk.keys()) if held.get(key) != disk.get(key)]
            raise Broken(f"{server.name} believes other than what is on disk: {differing[:5]}")
        fresh = Mirror()
        fresh.load(self.known.values())
        for name, entry in server.mirror.nodes.items():
            if fresh.nodes[name].assigned != entry.assigned:
                raise Broken(f"{server.name} believes {name} to hold what it does not")
        for job, mine in server.mirror.jobs.items():
            if fresh.jobs[job].tally.as_dict() != mine.tally.as_dict():
                raise Broken(f"{server.name} counts the tasks of job {job} wrongly")


_WORDS = [state.name.lower() for state in AttemptState]
_HELD = ("job", "task", "attempt", "status", "node")


def _uses(spec: JobSpec, child: Child) -> dict[str, int]:
    """What it takes of the machine, and of each device it was given."""
    each = min(spec.needs.get(GPU, 0), WHOLE_GPU)
    return spec.needs | {_device(gpu): each for gpu in child.gpus}


def _device(gpu: str) -> str:
    return f"GPU {gpu}"


def _records_of(server: Server) -> dict[str, Any]:
    """Everything its mirror holds, by key."""
    found: list[Any] = []
    for job in server.mirror.jobs.values():
        found += [job.spec, job.wish, job.cluster, job.status, job.verdict]
        found += [*job.tasks.values(), *job.attempts.values(), *job.statuses.values()]
    for node in server.mirror.nodes.values():
        found += [node.spec, node.wish, node.status]
    return {record.key: record for record in found if record is not None}
