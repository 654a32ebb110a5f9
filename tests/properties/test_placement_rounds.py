"""Whole rounds, applied and executed: properties of every plan on random clusters."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.engine.state.mirror import Mirror
from rota.model.attempt import EVICTED, StatusBlock
from rota.model.columns import ints
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec, JobStatus
from rota.model.lifecycle import AttemptState, JobState, TaskState
from rota.model.limits import BLOCK_TASKS, PREEMPT_MARGIN
from rota.model.namespace import NamespaceRecord
from rota.model.node import Connection, Eligibility, NodeIntent, NodeLoad, NodeSpec
from rota.model.plan import Plan
from rota.model.shape import Constraint, Op, RunMode, SpreadTerm
from rota.model.task import TaskBlock
from rota.rules.reconciler_names import ROUND_KEY
from rota.scheduler.plan import Scheduler
from rota.scheduler.round import SchedulerSettings
from rota.testing import records
from rota.testing.builders import add_job, apply, at, node_status, placements
from tests.properties.oracle import Live, Machine, Oracle, speaks_of
from tests.properties.test_placement import labels, machines, specs

STARTED = (AttemptState.ACCEPTED, AttemptState.RUNNING)
rounds = settings(max_examples=100, derandomize=True)


class Cluster:
    """A mirror, a scheduler, and nodes that start and end their attempts."""

    def __init__(self, nodes: list[Machine], quotas: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.mirror = Mirror()
        self.scheduler = Scheduler(SchedulerSettings())
        self.ms = 0
        for number, machine in enumerate(nodes):
            self.join(f"n{number}", machine)
        for name, quota in (quotas or {}).items():
            self.mirror.apply(NamespaceRecord(name, dict(quota)))

    def join(self, name: str, machine: Machine) -> None:
        self.mirror.apply(NodeSpec(NodeId(name), name, labels=dict(machine.labels)))
        self.mirror.apply(NodeIntent(NodeId(name), Eligibility.OPEN, machine.taints))
        self.mirror.apply(node_status(name, machine.capacity))
        self.mirror.connect(NodeId(name), Connection.UP)

    def submit(self, number: int, fields: Mapping[str, Any]) -> JobSpec:
        spec = records.job(number, **fields)
        add_job(self.mirror, spec)
        return spec

    def round(self) -> Plan:
        self.ms += 1
        self.mirror.now_ms = self.ms
        return apply(self.mirror, self.scheduler.decide(self.mirror, ROUND_KEY, at(self.ms)))

    def start_all(self) -> None:
        """Every node starts its offered attempts."""
        for job in list(self.mirror.jobs):
            for index in self.tasks(job, AttemptState.OFFERED):
                self.report(job, index, AttemptState.RUNNING)

    def end_evicted(self) -> None:
        """Evicted attempts have stopped, and their tasks are pending again."""
        for job, entry in list(self.mirror.jobs.items()):
            for index in self.tasks(job):
                block, position = divmod(index, BLOCK_TASKS)
                if entry.attempts[block].flags[position] & EVICTED:
                    self.report(job, index, AttemptState.STOPPED)
                    self.want_again(job, index)

    def end(self, job: JobId, index: int, ran_ms: int = 10_000) -> None:
        """A task has succeeded."""
        self.report(job, index, AttemptState.SUCCEEDED, ran_us=ran_ms * 1000)
        block, position = divmod(index, BLOCK_TASKS)
        self.mirror.apply(records.decided(self.task(job, block), [position], state=TaskState.SUCCEEDED))
        if self.mirror.jobs[job].task_counts.ended == self.mirror.jobs[job].spec.count:
            self.mirror.apply(JobStatus(job, JobState.SUCCEEDED))

    def want_again(self, job: JobId, index: int) -> None:
        block, position = divmod(index, BLOCK_TASKS)
        before = self.task(job, block)
        attempt = ints(before, "wanted")[position] + 1
        self.mirror.apply(records.decided(before, [position], wanted=attempt))

    def report(self, job: JobId, index: int, state: AttemptState, **columns: int) -> None:
        entry = self.mirror.jobs[job]
        block, position = divmod(index, BLOCK_TASKS)
        before = entry.statuses.get(block) or StatusBlock.new(job, block, entry.spec.block_size(block))
        number = ints(entry.attempts[block], "number")[position]
        self.mirror.apply(records.reported(before, [position], state, number=number, **columns))

    def task(self, job: JobId, block: int) -> TaskBlock:
        entry = self.mirror.jobs[job]
        return entry.tasks.get(block) or TaskBlock.new(job, block, entry.spec.block_size(block))

    def tasks(self, job: JobId, state: AttemptState | None = None) -> list[int]:
        """Its live tasks, or those of them in that state."""
        return [index for index in placements(self.mirror, job) if state in (None, self.state(job, index))]

    def state(self, job: JobId, index: int) -> AttemptState:
        entry = self.mirror.jobs[job]
        block, position = divmod(index, BLOCK_TASKS)
        status = entry.statuses.get(block)
        number = ints(entry.attempts[block], "number")[position]
        if status is None or ints(status, "number")[position] != number:
            return AttemptState.OFFERED
        return AttemptState(status.state[position])

    def seen(self) -> Oracle:
        """Live tasks by node, computed from the records."""
        oracle = Oracle()
        for node in self.mirror.node_table.ids:
            entry = self.mirror.nodes[node]
            assert entry.status is not None
            labels = {**entry.spec.labels, "node": entry.spec.name, "cluster": "default"}
            taints = entry.intent.taints if entry.intent else ()
            oracle.machines.append(Machine(entry.status.capacity, labels, taints, entry.open))
            oracle.known |= set(entry.status.capacity)
            slot = self.mirror.node_table.slot[node]
            oracle.live += [self.live(job, index, slot) for job, index in sorted(entry.assigned)]
        return oracle

    def live(self, job: JobId, index: int, slot: int) -> Live:
        block, position = divmod(index, BLOCK_TASKS)
        entry = self.mirror.jobs[job]
        return Live(entry.spec, slot, entry.attempts[block].gpus.get(position, 0), index=index)


jobs = st.lists(
    st.builds(
        lambda fields, count, priority, more: {**fields, "count": count, "priority": priority, **more},
        specs,
        st.integers(1, 5),
        st.sampled_from([10, 50, 55, 90]),
        st.fixed_dictionaries(
            {},
            optional={
                "gang": st.booleans(),
                "preemptible": st.just(False),
                "evict_at_most": st.integers(0, 2),
                "run": st.sampled_from([RunMode.AT_LEAST_ONCE, RunMode.AT_MOST_ONCE]),
                "user": st.sampled_from(["ann", "bob"]),
                "expect_seconds": st.sampled_from([1.0, 60.0]),
            },
        ),
    ),
    min_size=4,
    max_size=9,
)
quotas = st.dictionaries(
    st.sampled_from(["default", "other"]),
    st.dictionaries(st.sampled_from(["tasks", "cpu", "memory"]), st.sampled_from([2, 4, 2000, 3000])),
)
ends = st.lists(st.integers(0, 30), max_size=3)
lives = given(st.lists(machines, min_size=2, max_size=5), jobs, quotas, st.lists(ends, max_size=6))


def live_through(
    nodes: list[Machine], jobs: list[dict[str, Any]], quotas: Mapping[str, Any], ends: list[list[int]]
) -> list[Plan]:
    """In each step a job is submitted, some tasks end and a round is decided; every plan is checked."""
    cluster = Cluster(nodes, quotas)
    plans = []
    for number, fields in enumerate(jobs, 1):
        cluster.submit(number, fields)
        before, flags = cluster.seen(), evicted(cluster)
        plans.append(cluster.round())
        check(cluster, before)
        check_evictions(cluster, evicted(cluster) - flags)
        cluster.start_all()
        for at_ in ends[number - 1] if number <= len(ends) else []:
            running = [(job, i) for job in cluster.mirror.jobs for i in cluster.tasks(job, STARTED[1])]
            plain = [task for task in running if not cluster.mirror.jobs[task[0]].spec.gang]
            if plain:
                cluster.end(*plain[at_ % len(plain)])
        cluster.end_evicted()
    return plans


def check(cluster: Cluster, before: Oracle) -> None:
    after = cluster.seen()
    after.assert_nothing_is_promised_twice()
    assert not after.broken_rules()
    known = [(live.spec.id, live.slot, live.devices) for live in before.live]
    for live in after.live:
        name = (live.spec.id, live.slot, live.devices)
        if name in known:
            known.remove(name)
        else:
            check_new(before, after, live)
    for job, entry in cluster.mirror.jobs.items():
        unfinished = entry.spec.count - entry.task_counts.ended
        assert not entry.spec.gang or len(cluster.tasks(job)) in (0, unfinished), "half a gang"
    check_quotas(cluster, after)


def check_new(before: Oracle, after: Oracle, live: Live) -> None:
    """New attempts satisfy constraints and affinity, or are the first of their kind."""
    assert after.admits(live.spec, live.slot)
    for term in live.spec.near:
        others = [
            other for other in after.live if other is not live and speaks_of(term, live.spec, other.spec)
        ]
        domains = {after.domain(term, other.slot) for other in others}
        here = after.domain(term, live.slot)
        known = [other for other in before.live if speaks_of(term, live.spec, other.spec)]
        nobody = all(before.domain(term, other.slot) is None for other in known)
        first = nobody and speaks_of(term, live.spec, live.spec)
        kept = here is not None and (here in domains or first)
        assert term.weight is not None or kept, (live.identity, here, domains, term)
    for rule in live.spec.spread:
        more = after.ahead_of_emptiest(live.spec, rule, live.slot)
        assert rule.weight is not None or (more is not None and more <= rule.skew)


def check_quotas(cluster: Cluster, after: Oracle) -> None:
    for name, namespace in cluster.mirror.namespaces.items():
        ours = [live.spec for live in after.live if live.spec.namespace == name]
        for resource, most in namespace.quota.items():
            held = len(ours) if resource == "tasks" else sum(spec.needs.get(resource, 0) for spec in ours)
            assert held <= most, (name, resource)


def evicted(cluster: Cluster) -> set[tuple[JobId, int]]:
    return {
        (job, index)
        for job, entry in cluster.mirror.jobs.items()
        for index in cluster.tasks(job)
        if entry.attempts[index // BLOCK_TASKS].flags[index % BLOCK_TASKS] & EVICTED
    }


def check_evictions(cluster: Cluster, new: set[tuple[JobId, int]]) -> None:
    """Only evictable tasks were evicted, for a high enough priority, and within their budgets."""
    highest = max(
        (entry.spec.priority for entry in cluster.mirror.jobs.values() if entry.task_counts.pending),
        default=0,
    )
    for job, _ in new:
        spec = cluster.mirror.jobs[job].spec
        assert spec.preemptible
        assert spec.run is not RunMode.AT_MOST_ONCE
        assert spec.priority + PREEMPT_MARGIN <= highest
    going = evicted(cluster)
    for job, entry in cluster.mirror.jobs.items():
        budget = entry.spec.evict_at_most
        assert budget is None or sum(task[0] == job for task in going) <= budget


@rounds
@lives
def test_no_plan_violates_a_placement_rule(
    nodes: list[Machine], jobs: list[dict[str, Any]], quotas: dict[str, Any], ends: list[list[int]]
) -> None:
    live_through(nodes, jobs, quotas, ends)


@settings(max_examples=30, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 6))
def test_lookahead_tasks_count_against_the_quota(quota: int, others: int, again: int) -> None:
    """Tasks so short that lookahead is used: those start without asking the server."""
    cluster = Cluster([Machine({"cpu": 4000, "memory": 8}, {})], {"other": {"tasks": quota}})
    cluster.submit(1, {"needs": {"cpu": 4000 // others}, "count": others})
    cluster.round()
    short = cluster.submit(2, {"needs": {"cpu": 1000}, "count": 50, "namespace": "other"})
    cluster.mirror.jobs[short.id].run_us = 2000.0
    for number in range(again):
        cluster.submit(10 + number, {"needs": {"cpu": 100}, "namespace": "default"})
        cluster.mirror.apply(NamespaceRecord("third", {"tasks": number}))  # a quota has grown: decide again
        cluster.round()

        check_quotas(cluster, cluster.seen())


def test_spread_holds_beside_a_reservation() -> None:
    """Where a reservation leaves place for only some tasks, spread counts the others as well."""
    racks = [{"rack": "r1"}, {"rack": "r1"}, {"rack": "r2"}]
    cluster = Cluster([Machine({"cpu": 9000, "memory": 8}, rack) for rack in racks])
    cluster.submit(1, {"needs": {"cpu": 4000}, "count": 3, "expect_seconds": 10.0})
    cluster.round()
    cluster.start_all()
    only_there = Constraint("rack", Op.EQUAL, ("r2",))
    cluster.submit(2, {"needs": {"cpu": 8000}, "expect_seconds": 10.0, "where": (only_there,)})
    spread = cluster.submit(3, {"needs": {"cpu": 1000}, "count": 8, "spread": (SpreadTerm("rack", 1),)})
    cluster.round()

    on = list(placements(cluster.mirror, spread.id).values())
    assert (on.count("n0") + on.count("n1"), on.count("n2")) == (2, 1)


@settings(max_examples=30, derandomize=True)
@lives
def test_the_same_history_gives_the_same_plans(
    nodes: list[Machine], jobs: list[dict[str, Any]], quotas: dict[str, Any], ends: list[list[int]]
) -> None:
    assert live_through(nodes, jobs, quotas, ends) == live_through(nodes, jobs, quotas, ends)


@settings(max_examples=40, derandomize=True)
@given(st.lists(st.tuples(labels, st.booleans()), min_size=2, max_size=6), jobs, st.randoms())
def test_the_order_in_which_nodes_joined_matters_to_ties_only(
    nodes: list[tuple[dict[str, str], bool]], jobs: list[dict[str, Any]], random: Any
) -> None:
    """No two nodes are equal: their loads are such that no sum of tasks makes two of them tie."""
    found = []
    named = [(f"n{number}", _uneven(number, *node)) for number, node in enumerate(nodes)]
    for order in (named, random.sample(named, len(named))):
        cluster = Cluster([])
        for name, machine in order:
            cluster.join(name, machine)
            cluster.mirror.measure(NodeId(name), NodeLoad(0, machine.capacity["memory"] - int(name[1:]) - 1))
        for number, fields in enumerate(jobs, 1):
            cluster.submit(number, {**fields, "preemptible": False, "expect_seconds": None})
            cluster.round()
        found.append([placements(cluster.mirror, job) for job in cluster.mirror.jobs])

    assert found[0] == found[1]


def _uneven(number: int, labels: Mapping[str, str], gpus: bool) -> Machine:
    primes = [1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099]
    capacity = {"cpu": 2000 + 100 * number, "memory": primes[number]}
    return Machine({**capacity, **({"gpu": 2000} if gpus else {})}, labels)
