"""A line that is blocked is never left out wrongly: after every step a scheduler that tries everything finds
nothing to start that the one which remembers has left waiting."""

import random
from typing import Any

import pytest

from rota.model.columns import ints
from rota.model.ids import JobId, NodeId
from rota.model.job import JobIntent, JobStatus
from rota.model.lifecycle import AttemptState, JobState
from rota.model.limits import BLOCK_TASKS, REFUSAL_MS
from rota.model.namespace import NamespaceRecord
from rota.model.node import Eligibility, NodeIntent, NodeLoad, NodeSpec
from rota.model.shape import AffinityTerm, Constraint, Op, SpreadTerm
from rota.rules.reconciler_names import ROUND_KEY
from rota.scheduler.plan import Scheduler
from rota.scheduler.round import SchedulerCache, SchedulerSettings
from rota.testing import records
from rota.testing.builders import at, node_status
from tests.properties.oracle import Machine
from tests.properties.test_placement_rounds import Cluster

STEPS = 60
NODES = ("n0", "n1", "n2", "n3")
AMOUNTS = ({"cpu": 500}, {"cpu": 1000}, {"cpu": 1000, "memory": 3}, {"cpu": 3000}, {"cpu": 4000, "memory": 6})


class History:
    """One cluster and its history, drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.cluster = Cluster([])
        self.mirror = self.cluster.mirror
        self.jobs = 0
        for name in NODES:
            self.cluster.join(name, self.machine())

    def machine(self) -> Machine:
        capacity = {"cpu": self.dice.choice([2000, 4000]), "memory": self.dice.choice([4, 8])}
        if self.dice.random() < 0.3:
            capacity["gpu"] = 2000
        return Machine(capacity, {"rack": self.dice.choice(["a", "b"])})

    def step(self) -> str:
        actions = (self.submit, self.end, self.fail, self.refuse, self.wait, self.node, self.other)
        action = self.dice.choices(actions, (5, 4, 2, 1, 1, 1, 2))[0]
        self.cluster.start_all()
        action()
        self.cluster.end_evicted()
        return action.__name__

    def submit(self) -> None:
        dice, self.jobs = self.dice, self.jobs + 1
        fields: dict[str, Any] = {
            "needs": dict(dice.choice(AMOUNTS)),
            "count": dice.choice([1, 1, 2, 5]),
            "priority": dice.choice([50, 50, 50, 70]),
            "user": dice.choice(["ann", "bob"]),
            "namespace": dice.choice(["default", "default", "other"]),
            "labels": {"app": dice.choice(["x", "y"])},
            "expect_seconds": dice.choice([None, 5.0, 60.0]),
            "workdir": dice.choice([None, None, "/a", "/b"]),
            "name": f"job-{self.jobs}",
        }
        fields |= dice.choice([{}, {}, {}, self.rules(), {"gang": True}, {"parallel": 1}])
        if dice.random() < 0.2:
            fields["needs"]["gpu"] = dice.choice([500, 1000])
        self.cluster.submit(self.jobs, fields)

    def rules(self) -> dict[str, Any]:
        over, app = self.dice.choice(["node", "rack"]), Constraint("app", Op.EQUAL, (self.dice.choice("xy"),))
        weight = self.dice.choice([None, None, 10])
        near, apart = (
            {"near": (AffinityTerm(app, over, weight),)},
            {"apart": (AffinityTerm(app, over, weight),)},
        )
        return self.dice.choice([near, apart, {"spread": (SpreadTerm("rack", 1, weight),)}])

    def running(self) -> list[tuple[JobId, int]]:
        jobs = self.mirror.jobs
        return [(job, at_) for job in jobs for at_ in self.cluster.tasks(job, AttemptState.RUNNING)]

    def end(self) -> None:
        running = self.running()
        if running:
            self.cluster.end(*self.dice.choice(running))

    def fail(self) -> None:
        """A task fails and is retried after its backoff."""
        running = self.running()
        if not running:
            return
        job, index = self.dice.choice(running)
        self.cluster.report(job, index, AttemptState.FAILED, ran_us=10_000_000)  # too long for lookahead
        block, position = divmod(index, BLOCK_TASKS)
        before = self.cluster.task(job, block)
        attempt = ints(before, "wanted")[position] + 1
        later_ms = self.cluster.ms + self.dice.choice([0, 100, 5000])
        self.mirror.apply(records.decided(before, [position], wanted=attempt, not_before=later_ms))

    def refuse(self) -> None:
        """All nodes refuse their offers until time advances."""
        self.submit()
        self.cluster.round()
        for index in self.cluster.tasks(JobId(str(self.jobs)), AttemptState.OFFERED):
            self.cluster.report(JobId(str(self.jobs)), index, AttemptState.REFUSED)

    def wait(self) -> None:
        self.cluster.ms += self.dice.choice([200, 6000, REFUSAL_MS + 1])

    def node(self) -> None:
        name = self.dice.choice(NODES)
        match self.dice.randrange(5):
            case 0:
                self.mirror.apply(NodeIntent(NodeId(name), Eligibility.CORDONED))
            case 1:
                self.mirror.apply(NodeIntent(NodeId(name), Eligibility.OPEN))
            case 2:
                rack = self.dice.choice(["a", "b", "c"])
                self.mirror.apply(NodeSpec(NodeId(name), name, labels={"rack": rack}))
            case 3:
                self.mirror.measure(NodeId(name), NodeLoad(0, self.dice.choice([1, 4, 8])))
            case _:
                capacity = dict(self.machine().capacity)
                self.mirror.apply(node_status(name, capacity, labels={"hint": str(self.cluster.ms)}))

    def other(self) -> None:
        waiting = [job for job, entry in self.mirror.jobs.items() if entry.task_counts.pending]
        if not waiting or self.dice.random() < 0.4:
            self.mirror.apply(NamespaceRecord("other", {"cpu": self.dice.choice([1000, 3000, 9000])}))
            return
        job = self.dice.choice(waiting)
        if self.mirror.jobs[job].task_counts.live or self.dice.random() < 0.5:
            intent = self.mirror.jobs[job].intent
            self.mirror.apply(JobIntent(job, paused=not (intent is not None and intent.paused)))
        else:
            self.mirror.apply(JobStatus(job, JobState.CANCELED))

    def rest(self) -> None:
        """Run rounds until nothing is decided."""
        for _ in range(20):
            if not self.cluster.round().puts:
                return
        raise AssertionError("it does not come to rest")

    def left_out(self) -> list[str]:
        """The plan of a scheduler that keeps nothing but reservations and nominations."""
        memory, fresh = self.cluster.scheduler.cache, Scheduler(SchedulerSettings())
        assert memory is not None
        fresh.cache = SchedulerCache(self.mirror, SchedulerSettings())
        fresh.cache.head_of_line = memory.head_of_line
        fresh.cache.nominated = {job: list(made) for job, made in memory.nominated.items()}
        plan = fresh.decide(self.mirror, ROUND_KEY, at(self.cluster.ms))
        # A job with placement rules evicts one task after the other: the next when the first has stopped.
        kinds = ("task.placed",) if memory.nominated else ("task.placed", "task.evicted")
        return [event.why for event in plan.events if event.kind in kinds]


@pytest.mark.parametrize("seed", range(60))
def test_a_job_that_could_start_does_start(seed: int) -> None:
    history = History(seed)
    for number in range(STEPS):
        action = history.step()
        history.rest()

        assert not history.left_out(), (seed, number, action)
