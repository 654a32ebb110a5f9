"""After any legal records in any order the mirror equals a full reload."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rota.engine.state.mirror import Mirror
from rota.engine.state.replay import replay_commit
from rota.model.attempt import LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import Draft, widened
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import Counters, JobCluster, JobIntent, JobSpec, JobStatus, SubmitKey, resized
from rota.model.lifecycle import (
    ATTEMPT,
    NODE,
    AttemptEvent,
    AttemptState,
    JobState,
    NodeState,
    TaskState,
    step,
)
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Connection, Eligibility, NodeIntent, NodeLoad, NodeSpec, NodeStatus
from rota.model.plan import Record
from rota.model.task import TaskBlock
from rota.rules.phases import FIRST_END, Phase
from rota.testing import records
from tests.properties.by_hand import Disk, Task, counted, nodes, shown, specs, state_of, tasks

Block = TypeVar("Block", TaskBlock, AttemptBlock, StatusBlock)
Change = Callable[[Draft[Any], int, Task], dict[str, Any]]

counts = st.sampled_from([1, 2, 2, 3, 3, 4, 5, BLOCK_TASKS + 2])
needs = st.sampled_from([{}, {"cpu": 500}, {"cpu": 500, "memory": 2**20}, {"gpu": 1}])
capacities = st.sampled_from([{"cpu": 4000}, {"cpu": 8000, "memory": 2**30}, {"cpu": 8000, "gpu": 2}])
labels = st.sampled_from([{}, {"zone": "a"}, {"zone": "b", "node": "lies"}])


class Cluster(RuleBasedStateMachine):
    """A cluster whose components write random records that their state tables permit."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = Mirror()
        self.disk: dict[Key, Record] = {}
        self.counters = Counters()
        self.standby = Mirror()
        self.unheard: dict[Key, Record | None] = {}  # what a standby will replay as one commit

    @initialize(count=counts, wanted=needs)
    def begin(self, count: int, wanted: dict[str, int]) -> None:
        self.join({"cpu": 4000, "memory": 2**30, "gpu": 2}, {})
        self.submit(count, wanted, 50, active=True)

    # ---- users and operators

    @rule(count=counts, wanted=needs, priority=st.sampled_from([10, 50]), active=st.booleans())
    def submit(self, count: int, wanted: dict[str, int], priority: int, active: bool) -> None:
        self.counters = msgspec.structs.replace(self.counters, jobs=self.counters.jobs + 1)
        spec = records.job(self.counters.jobs, count=count, needs=wanted, priority=priority)
        self.write(spec, SubmitKey("default", spec.name, spec.id, ""), self.counters)
        if active:
            self.write(JobCluster(spec.id, "default"), JobStatus(spec.id, JobState.ACTIVE))

    @rule(data=st.data(), count=counts)
    def resize(self, data: st.DataObject, count: int) -> None:
        """Scale a job up or down."""
        for spec in some(data, [*self.jobs_that_are(JobState.ACTIVE), *self.jobs_that_are(None)]):
            self.write(msgspec.structs.replace(resized(spec, count), version=spec.version + 1))

    def join(self, capacity: dict[str, int], given: dict[str, str]) -> None:
        self.counters = msgspec.structs.replace(self.counters, nodes=self.counters.nodes + 1)
        name = NodeId(f"n{self.counters.nodes}")
        self.write(NodeSpec(name, f"name-{name}", labels=given), self.counters)
        self.write(records.node(name, capacity=capacity))

    def leave(self, name: NodeId) -> None:
        if all(task.cell.node != name for _, task in self.live()):
            self.erase(f"node/{name}/")

    # ---- nodes

    @rule(data=st.data(), capacity=capacities, given=labels, ms=st.integers(0, 2000))
    def something_about_a_node(
        self, data: st.DataObject, capacity: dict[str, int], given: dict[str, str], ms: int
    ) -> None:
        self.mirror.now_ms += ms
        name = self.a_node(data)
        match data.draw(st.sampled_from(["join", "leave", "wish", "observe", "report"])):
            case "join":
                self.join(capacity, given)
            case "leave":
                self.leave(name)
            case "wish":
                self.write(NodeIntent(name, data.draw(st.sampled_from(Eligibility))))
            case "observe":
                self.mirror.connect(name, data.draw(st.sampled_from(Connection)))
                self.mirror.mark_seen(name)
                self.mirror.measure(name, NodeLoad(100, memory_free=ms))
            case _:
                self.report_of_itself(data, name, capacity, given)

    def report_of_itself(
        self, data: st.DataObject, name: NodeId, capacity: dict[str, int], given: dict[str, str]
    ) -> None:
        before = self.disk[Key(f"node/{name}/status")]
        assert isinstance(before, NodeStatus)
        then = data.draw(
            st.sampled_from([then for (state, _), then in NODE.items() if state is before.state])
        )
        boot = data.draw(st.sampled_from(["boot-1", "boot-2"]))
        self.write(records.node(name, state=then, capacity=capacity, labels=given, boot_id=boot))
        if then is NodeState.LOST:
            self.report(
                AttemptEvent.NODE_LOST,
                [live_task for live_task in self.live() if live_task[1].cell.node == name],
            )

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def report_of_attempts(self, data: st.DataObject) -> None:
        live = self.live()
        states = {task.cell.attempt for _, task in live}
        event = data.draw(
            st.sampled_from([e for e in AttemptEvent if any((s, e) in ATTEMPT for s in states)])
        )
        self.report(
            event,
            some(data, [live_task for live_task in live if (live_task[1].cell.attempt, event) in ATTEMPT]),
        )

    # ---- scheduler

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), flags=st.sampled_from([0, LOOKAHEAD]), most=st.sampled_from([0, 1, 3, BLOCK_TASKS]))
    def place(self, data: st.DataObject, flags: int, most: int) -> None:
        """Indices to place: placed ones in any order, others from the lowest index on."""
        name = self.a_node(data)
        pending = self.pending()
        spec = data.draw(st.sampled_from([spec for spec, _ in pending]))
        again = [pair for pair in pending if pair[1].cell.number]
        first = [pair for pair in pending if pair[0] is spec and not pair[1].cell.number][:most]

        def change(draft: Draft[Any], position: int, task: Task) -> dict[str, Any]:
            known = draft.record.nodes
            draft["number"][position] += 1
            draft["tries"][position] = task.cell.wanted
            draft["node"][position] = (*known, name).index(name)
            draft["flags"][position] = flags
            return {"nodes": known if name in known else (*known, name)}

        self.change(AttemptBlock, some(data, again) + first, change)

    # ---- controllers

    @precondition(lambda self: self.unsettled())
    @rule(data=st.data(), retry=st.booleans(), pause_ms=st.integers(0, 3000))
    def settle(self, data: st.DataObject, retry: bool, pause_ms: int) -> None:
        def change(draft: Draft[Any], position: int, task: Task) -> dict[str, Any]:
            if task.cell.attempt is AttemptState.SUCCEEDED:
                draft["state"][position] = TaskState.SUCCEEDED
            elif task.cell.task is TaskState.UNWANTED:
                draft["state"][position] = TaskState.CANCELED
            elif retry:
                draft["wanted"][position] += 1
                draft["not_before"][position] = self.mirror.now_ms + pause_ms
            else:
                draft["state"][position] = TaskState.FAILED
            return {}

        self.change(TaskBlock, some(data, self.unsettled()), change)

    @rule(data=st.data())
    def something_about_jobs(self, data: st.DataObject) -> None:
        match data.draw(st.sampled_from(["activate", "cancel", "end", "expire"])):
            case "activate":
                for spec in self.jobs_that_are(None):
                    self.write(JobCluster(spec.id, "default"), JobStatus(spec.id, JobState.ACTIVE))
            case "cancel":
                self.cancel(some(data, self.jobs_that_are(JobState.ACTIVE))[:1])
            case "end":
                self.end()
            case _:
                self.expire()

    def cancel(self, chosen: list[JobSpec]) -> None:
        for spec in chosen:
            self.write(JobIntent(spec.id, cancel=True), JobStatus(spec.id, JobState.CANCELING))
            written = blocks_of(self.disk, spec.id)
            found = [(spec, task) for task in tasks(self.disk, spec) if task.index // BLOCK_TASKS in written]
            self.change(TaskBlock, [one for one in found if one[1].cell.phase < FIRST_END], unwant)

    def end(self) -> None:
        for spec in specs(self.disk):
            phases = {task.cell.phase for task in tasks(self.disk, spec)}
            state = state_of(self.disk, spec.id)
            if state is JobState.ACTIVE and all(phase >= FIRST_END for phase in phases):
                self.write(JobStatus(spec.id, JobState.SUCCEEDED))
            elif state is JobState.CANCELING and all(p is Phase.PENDING or p >= FIRST_END for p in phases):
                self.write(JobStatus(spec.id, JobState.CANCELED))

    def expire(self) -> None:
        for status in [
            record for record in self.disk.values() if isinstance(record, JobStatus) and record.ended
        ]:
            for kind in ("job", "task", "attempt", "status"):
                self.erase(f"{kind}/{status.id}/")
            self.erase(f"submit/default/job-{status.id}")

    # ---- a standby

    @rule()
    def commit(self) -> None:
        """A standby receives only the last value of each record."""
        self.standby.now_ms = self.mirror.now_ms
        puts = [record for record in self.unheard.values() if record is not None]
        replay_commit(self.standby, puts, [key for key, record in self.unheard.items() if record is None])
        self.unheard.clear()
        again = Mirror()
        again.now_ms = self.mirror.now_ms
        again.load(self.disk.values())

        assert shown(self.standby, again.now_ms) == shown(again, again.now_ms)
        assert as_kept(self.standby) == as_kept(again)
        assert sums(self.standby) == sums(again)

    # ---- invariants

    @invariant()
    def it_is_what_can_be_counted_by_hand(self) -> None:
        assert shown(self.mirror, self.mirror.now_ms) == counted(self.disk, self.mirror.now_ms)

    @invariant()
    def it_is_what_reading_everything_again_gives(self) -> None:
        again = Mirror()
        again.now_ms = self.mirror.now_ms
        again.load(reversed(self.disk.values()))
        again.inherit(self.mirror)

        assert shown(again, again.now_ms) == shown(self.mirror, self.mirror.now_ms)
        assert as_kept(again) == as_kept(self.mirror)

    # ---- helpers

    def write(self, *written: Record) -> None:
        for record in written:
            self.mirror.apply(record)
            self.disk[record.key] = self.unheard[record.key] = record

    def erase(self, prefix: str) -> None:
        for key in [key for key in self.disk if key.startswith(prefix)]:
            self.mirror.forget(key)
            del self.disk[key]
            self.unheard[key] = None

    def change(self, kind: type[Block], chosen: Iterable[tuple[JobSpec, Task]], change: Change) -> None:
        """Change the cells of these tasks, each block written once."""
        drafts: dict[Key, tuple[Draft[Any], dict[str, Any]]] = {}
        for spec, task in chosen:
            block, position = divmod(task.index, BLOCK_TASKS)
            new = kind.new(spec.id, block, spec.block_size(block))
            known = widened(self.disk.get(new.key, new), spec.block_size(block))
            draft, fields = drafts.setdefault(new.key, (Draft(known), {}))
            fields |= change(draft, position, task)
        for draft, fields in drafts.values():
            self.write(draft.done(**fields))

    def report(self, event: AttemptEvent, chosen: Iterable[tuple[JobSpec, Task]]) -> None:
        def change(draft: Draft[Any], position: int, task: Task) -> dict[str, Any]:
            draft["number"][position] = task.cell.number
            draft["state"][position] = step(ATTEMPT, task.cell.attempt, event)
            return {}

        self.change(StatusBlock, chosen, change)

    def a_node(self, data: st.DataObject) -> NodeId:
        if not nodes(self.disk):
            self.join({"cpu": 4000}, {})
        return NodeId(data.draw(st.sampled_from(nodes(self.disk))))

    def jobs_that_are(self, state: JobState | None) -> list[JobSpec]:
        return [spec for spec in specs(self.disk) if state_of(self.disk, spec.id) is state]

    def live(self) -> list[tuple[JobSpec, Task]]:
        return self.all_tasks(lambda task: task.cell.live)

    def pending(self) -> list[tuple[JobSpec, Task]]:
        found = self.all_tasks(lambda task: task.cell.phase is Phase.PENDING)
        return [one for one in found if state_of(self.disk, one[0].id) is JobState.ACTIVE]

    def unsettled(self) -> list[tuple[JobSpec, Task]]:
        """Their attempts have ended, and no decision about the tasks is recorded yet."""
        open_ = (TaskState.WANTED, TaskState.UNWANTED)

        def unsettled(task: Task) -> bool:
            tried = AttemptState.SUCCEEDED <= task.cell.attempt < AttemptState.REFUSED
            return tried and task.cell.task in open_ and task.cell.tries == task.cell.wanted

        return self.all_tasks(unsettled)

    def all_tasks(self, fits: Callable[[Task], bool]) -> list[tuple[JobSpec, Task]]:
        return [(spec, task) for spec in specs(self.disk) for task in tasks(self.disk, spec) if fits(task)]


def unwant(draft: Draft[Any], position: int, task: Task) -> dict[str, Any]:
    waits = task.cell.phase is Phase.PENDING
    draft["state"][position] = TaskState.CANCELED if waits else TaskState.UNWANTED
    return {}


def blocks_of(disk: Disk, job: JobId) -> set[int]:
    kinds = (TaskBlock, AttemptBlock, StatusBlock)
    return {record.block for record in disk.values() if isinstance(record, kinds) and record.job == job}


def as_kept(mirror: Mirror) -> dict[str, Any]:
    """Derived values other than counts."""
    table = mirror.node_table
    return {
        "nodes": {
            node: (
                entry.spec,
                entry.intent,
                entry.status,
                (entry.connection, entry.load),
                (entry.open, bool(table.open[table.slot[node]])),
                dict(table.labels[table.slot[node]]),
                {
                    resource: int(table.capacity[row, table.slot[node]])
                    for resource, row in table.rows.items()
                    if table.capacity[row, table.slot[node]]
                },
            )
            for node, entry in mirror.nodes.items()
        },
        "jobs": {
            job: (
                entry.spec,
                entry.intent,
                entry.cluster,
                entry.status,
                entry.tasks,
                entry.attempts,
                entry.statuses,
            )
            for job, entry in mirror.jobs.items()
        },
        "others": (mirror.counters, mirror.submit_keys, mirror.clusters, mirror.subscribers),
    }


def sums(mirror: Mirror) -> dict[str, Any]:
    """Sums over live attempts, by node."""
    table = mirror.node_table
    return {
        node: (
            {
                name: int(table.reserved[row, slot])
                for name, row in table.rows.items()
                if table.reserved[row, slot]
            },
            (int(table.held[slot]), int(table.queued[slot])),
            mirror.nodes[node].assigned,
        )
        for node, slot in table.slot.items()
        if node in mirror.nodes
    }


T = TypeVar("T")


def some(data: st.DataObject, candidates: list[T]) -> list[T]:
    """A sample: one, a few or all of them."""
    if not candidates:
        return []
    few = st.lists(st.sampled_from(range(len(candidates))), min_size=1, max_size=3, unique=True)
    chosen = data.draw(st.just(range(len(candidates))) | few)
    return [candidates[position] for position in chosen]


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
