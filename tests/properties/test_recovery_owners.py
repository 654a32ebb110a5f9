"""Under losses, returns, refusals, restarts and cancels each loss is resolved once, by the right policy."""

from contextlib import suppress
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.engine.state.entries import JobEntry
from rota.model.columns import ints
from rota.model.errors import Rejected
from rota.model.ids import JobId
from rota.model.job import JobKind, Recovery
from rota.model.lifecycle import ATTEMPT_FIRST_END, TASK_ENDS, AttemptState
from rota.model.messages import ReportedState
from rota.model.recovery import RecoveryDecision, WhenControllerAbsent
from rota.model.shape import RunMode
from rota.rules.phases import Phase
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine

NODES = ("a", "b", "c")
OWNER = "ann:ci"
COUNT = 3

nodes = st.sampled_from(NODES)
jobs = st.integers(1, 4)
tasks = st.tuples(jobs, st.integers(0, COUNT - 1))
ends_by_itself = st.fixed_dictionaries(
    {
        "recovery": st.sampled_from(Recovery),
        "when_no_controller": st.sampled_from(WhenControllerAbsent),
        "run": st.sampled_from(RunMode),
        "retries": st.integers(0, 1),
        "lease_seconds": st.sampled_from((3.0, 20.0, 90.0)),
    }
)
specs = st.one_of(ends_by_itself, ends_by_itself, st.just({"kind": JobKind.SERVICE}))
steps = st.one_of(
    st.tuples(st.just("cut"), nodes),
    st.tuples(st.just("crash"), nodes),
    st.tuples(st.just("back"), nodes),
    st.tuples(st.just("silence"), nodes),
    st.tuples(st.just("refuse"), nodes),
    st.tuples(st.just("wait"), st.sampled_from((1_000, 15_000, 31_000, 61_000))),
    st.tuples(st.just("wait"), st.just(31_000)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("stall"), st.sampled_from((2_000, 30_000))),
    st.tuples(st.just("cancel"), jobs),
    st.tuples(st.just("end"), tasks, st.sampled_from((0, 0, 1))),
    st.tuples(st.just("say"), tasks, st.integers(1, 4), st.sampled_from(RecoveryDecision)),
    st.tuples(st.just("say"), tasks, st.just(1), st.sampled_from(RecoveryDecision)),
    st.tuples(st.just("come")),
    st.tuples(st.just("go")),
)


class Story:
    """A stage, and everything observed on it."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.first_decisions: dict[
            tuple[int, int, int], RecoveryDecision
        ] = {}  # the first accepted decision on an attempt
        self.numbers: dict[tuple[JobId, int], int] = {}
        self.ends: dict[tuple[JobId, int], int] = {}
        for name in NODES:
            self.stage.join(StageMachine(name, {"cpu": 4000}, {"leases": "kept"}))

    def submit(self, number: int, spec: dict[str, Any]) -> None:
        self.stage.submit(job_spec(number, count=COUNT, user="ann", controller="ci", **spec))

    def tell(self, step: tuple[Any, ...]) -> None:
        getattr(self, f"do_{step[0]}")(*step[1:])
        self.look()

    def do_cut(self, name: str) -> None:
        self.stage.cut(self.stage.machines[name])

    def do_crash(self, name: str) -> None:
        self.stage.machines[name].crash()
        self.do_cut(name)

    def do_back(self, name: str) -> None:
        machine = self.stage.machines[name]
        machine.refuses = None
        if machine.dispatch is None:
            self.stage.call(machine)
        elif machine.silent:
            self.stage.end_silence(machine)

    def do_silence(self, name: str) -> None:
        self.stage.machines[name].silent = True

    def do_refuse(self, name: str) -> None:
        self.stage.machines[name].refuses = "not now"

    def do_wait(self, ms: int) -> None:
        for _ in range(0, ms, 1_000):
            self.stage.wait(1_000)
            self._look_at_leases()

    def do_stall(self, ms: int) -> None:
        self.stage.stall(ms)

    def do_restart(self) -> None:
        self.stage.restart()

    def do_cancel(self, number: int) -> None:
        if JobId(str(number)) in self.stage.mirror.jobs:
            self.stage.cancel(JobId(str(number)))

    def do_end(self, task: tuple[int, int], code: int) -> None:
        name = (JobId(str(task[0])), task[1])
        for machine in self.stage.machines.values():
            if name in machine.held and machine.held[name].state is ReportedState.RUNNING:
                machine.end(name, code, 1000)
        self.stage.run_to_quiescence()

    def do_say(self, task: tuple[int, int], attempt: int, decision: RecoveryDecision) -> None:
        job = JobId(str(task[0]))
        if job not in self.stage.mirror.jobs:
            return
        with suppress(Rejected):
            self.stage.answer(job, task[1], attempt, decision)
            first = self.first_decisions.setdefault((*task, attempt), decision)
            assert first is decision, "two decisions on one attempt were accepted"

    def do_come(self) -> None:
        if self.stage.mirror.presence.absent_since(OWNER) is not None:
            self.stage.watch(OWNER)

    def do_go(self) -> None:
        if self.stage.mirror.presence.absent_since(OWNER) is None:
            self.stage.disconnect(OWNER)

    # ---- invariants at every moment

    def look(self) -> None:
        self._look_at_leases()
        for job in self.stage.mirror.jobs.values():
            for index in range(job.spec.count):
                self._look_at_task(job, index)

    def _look_at_leases(self) -> None:
        """Check against what the machines themselves run."""
        runs = [task for machine in self.stage.machines.values() for task in machine.held]
        for job, index in runs:
            if self.stage.mirror.jobs[job].spec.run is RunMode.ONE_AT_A_TIME:
                assert runs.count((job, index)) == 1, f"task {index} of job {job} runs twice"

    def _look_at_task(self, job: JobEntry, index: int) -> None:
        name = (job.spec.id, index)
        holders = [node for node in self.stage.mirror.nodes.values() if name in node.assigned]
        assert len(holders) <= 1, f"two attempts of {name} count"
        task = job.tasks.get(0)
        state = 0 if task is None else task.state[index]
        assert self.ends.get(name, state) == state, f"the result of {name} has changed"
        if state in TASK_ENDS:
            self.ends[name] = state
        number = ints(job.attempts[0], "number")[index] if 0 in job.attempts else 0
        before = self.numbers.get(name, 0)
        assert number >= before, f"the attempts of {name} went back"
        self.numbers[name] = number
        if job.spec.run is RunMode.AT_MOST_ONCE or job.spec.recovery is not Recovery.CONTROLLER:
            assert task is None or index not in task.losses, (
                f"{name} has no recovery controller, and waits for a decision"
            )
        elif task is not None and index in task.losses:
            assert not holders, f"{name} waits for a decision and is placed nevertheless"
            assert job.statuses[0].state[index] >= ATTEMPT_FIRST_END
        for lost in _lost_before(job, index, number):
            self._look_at_recovery(job, index, lost)

    def _look_at_recovery(self, job: JobEntry, index: int, lost: int) -> None:
        """A lost attempt is followed by another only if its recovery policy decided so."""
        owner, name = job.spec.recovery, f"task {index} of job {job.spec.id}"
        assert owner in (Recovery.SCHEDULER, Recovery.CONTROLLER), f"{name} was recovered for {owner}"
        assert job.spec.run is not RunMode.AT_MOST_ONCE, f"{name} was started twice"
        if owner is Recovery.CONTROLLER:
            decision = self.first_decisions.get((int(job.spec.id), index, lost))
            allowed = (
                (None, RecoveryDecision.RETRY)
                if job.spec.when_no_controller is WhenControllerAbsent.SCHEDULER
                else (RecoveryDecision.RETRY,)
            )
            assert decision in allowed, f"{name} was placed again, and its controller decided {decision}"

    def to_its_end(self) -> None:
        """Heal all machines and let the controller answer: a forgotten task would stay unfinished."""
        for name in NODES:
            self.do_back(name)
        live: list[JobEntry] = []
        for _ in range(60):
            self.do_wait(31_000)
            self.look()
            live = [job for job in self.stage.mirror.jobs.values() if not _ended(job)]
            if not live:
                return
            for job in live:
                self._go_on(job)
        raise AssertionError(f"forgotten: {[(job.spec, job.task_counts.as_dict()) for job in live]}")

    def _go_on(self, job: JobEntry) -> None:
        if job.spec.is_service and job.task_counts.by_phase[Phase.RUNNING] == COUNT:
            self.stage.cancel(job.spec.id)  # it would never end
            return
        for index, loss in list(job.tasks[0].losses.items()) if 0 in job.tasks else ():
            self.do_say((int(job.spec.id), index), loss.attempt, RecoveryDecision.RETRY)
        if job.task_counts.held:
            self.stage.release(job.spec.id)
        for index in range(0 if job.spec.is_service else COUNT):
            self.do_end((int(job.spec.id), index), 0)


def _lost_before(job: JobEntry, index: int, number: int) -> list[int]:
    """Lost attempts of a task that were followed by others."""
    status = job.statuses.get(0)
    if status is None:
        return []
    ended = {old.number: old.state for old in status.older if old.position == index}
    ended[ints(status, "number")[index]] = status.state[index]
    return [
        attempt for attempt, state in ended.items() if state == AttemptState.LOST and 0 < attempt < number
    ]


def _ended(job: JobEntry) -> bool:
    return job.status is not None and job.status.ended


def play(wanted: list[dict[str, Any]], story: list[tuple[Any, ...]]) -> None:
    history = Story()
    for number, spec in enumerate(wanted, 1):
        history.submit(number, spec)
    for step in story:
        history.tell(step)
    history.to_its_end()


@settings(max_examples=100, deadline=None)
@given(st.lists(specs, min_size=1, max_size=4), st.lists(steps, min_size=5, max_size=25))
def test_each_loss_is_resolved_exactly_once_by_its_recovery_policy(
    wanted: list[dict[str, Any]], story: list[tuple[Any, ...]]
) -> None:
    play(wanted, story)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from((3.0, 20.0, 90.0)), st.lists(steps, min_size=5, max_size=25))
@example(3.0, [("cut", "b"), ("silence", "a"), ("wait", 31_000)])
@example(3.0, [("cut", "b"), ("stall", 2_000), ("stall", 2_000), ("stall", 2_000), ("cut", "a")])
def test_under_leases_one_attempt_lives(lease_seconds: float, story: list[tuple[Any, ...]]) -> None:
    play([{"run": RunMode.ONE_AT_A_TIME, "lease_seconds": lease_seconds, "retries": 3}], story)
