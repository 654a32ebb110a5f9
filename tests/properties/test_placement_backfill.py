"""If run times are as expected, no later job delays a reserved start."""

import heapq
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.ids import JobId
from rota.model.lifecycle import AttemptState
from rota.scheduler.policy import backfill
from rota.scheduler.policy.backfill import NEVER_MS, BackfillReservation
from rota.testing.builders import WALL_MS
from tests.properties.oracle import Machine
from tests.properties.test_placement_rounds import Cluster

UNKNOWN_SECONDS = 40  # run time of jobs without an expected time


class Coming(NamedTuple):
    """A job: when it is submitted, what it requests, how long it runs."""

    at_ms: int
    fields: dict[str, Any]

    @property
    def runs_ms(self) -> int:
        return int(1000 * (self.fields.get("expect_seconds") or UNKNOWN_SECONDS))


class Kept(NamedTuple):
    job: JobId
    made_ms: int
    promised_ms: int


class Life:
    """Time advances from event to event: a job is submitted or ends; then a round is decided."""

    def __init__(self, nodes: list[Machine], coming: list[Coming]) -> None:
        self.cluster = Cluster(nodes)
        self.events: list[tuple[int, str, int, int]] = []  # when, what, job, index
        self.jobs = dict(enumerate(coming, 1))
        self.promises: list[Kept] = []
        self.starts: list[tuple[JobId, int]] = []
        for number, coming_job in self.jobs.items():
            heapq.heappush(self.events, (coming_job.at_ms, "come", number, 0))

    def run(self) -> None:
        with mock.patch("rota.scheduler.round.find_reservation", self.promise):
            while self.events:
                now_ms = self.events[0][0]
                while self.events and self.events[0][0] == now_ms:
                    self.take(*heapq.heappop(self.events)[1:])
                self.cluster.ms = now_ms - 1
                self.cluster.round()
                self.start(now_ms)

    def take(self, what: str, number: int, index: int) -> None:
        if what == "come":
            self.cluster.submit(number, self.jobs[number].fields)
        else:
            self.cluster.end(JobId(str(number)), index, self.jobs[number].runs_ms)

    def start(self, now_ms: int) -> None:
        for number, coming_job in self.jobs.items():
            job = JobId(str(number))
            entry = self.cluster.mirror.jobs.get(job)
            for index in self.cluster.tasks(job, AttemptState.OFFERED) if entry else []:
                started_ms = WALL_MS + now_ms
                self.cluster.report(job, index, AttemptState.RUNNING, started_at_ms=started_ms)
                self.starts.append((job, now_ms))
                heapq.heappush(self.events, (now_ms + coming_job.runs_ms, "end", number, index))

    def promise(self, view: Any, placer: Any, job: Any, needed: int, now: Any) -> BackfillReservation | None:
        made = backfill.find_reservation(view, placer, job, needed, now)
        if made is not None and made.at_ms < NEVER_MS:
            self.promises.append(Kept(job.spec.id, now.ms, made.at_ms - WALL_MS))
        return made

    def broken(self) -> list[Kept]:
        """A higher-ranked job is not held back: nothing was reserved while an end was unknown."""
        return [
            promise
            for promise in self.promises
            if not any(self.settles(promise, *start) for start in self.starts)
        ]

    def settles(self, promise: Kept, job: JobId, ms: int) -> bool:
        return int(job) <= int(promise.job) and promise.made_ms <= ms <= promise.promised_ms


nodes = st.lists(
    st.builds(
        Machine,
        st.fixed_dictionaries(
            {"cpu": st.sampled_from([2000, 4000, 8000]), "memory": st.sampled_from([4, 8])}
        ),
        st.sampled_from([{"region": "eu"}, {"region": "us"}]),
    ),
    min_size=1,
    max_size=3,
)
comings = st.lists(
    st.builds(
        Coming,
        st.sampled_from([0, 0, 1000, 2000, 5000, 9000]),
        st.fixed_dictionaries(
            {
                "needs": st.fixed_dictionaries(
                    {"cpu": st.sampled_from([500, 1000, 1500, 2000, 4000])},
                    optional={"memory": st.integers(1, 8)},
                ),
                "count": st.integers(1, 4),
                "expect_seconds": st.sampled_from([1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 30.0, None]),
            },
            optional={
                "gang": st.booleans(),
            },
        ),
    ),
    min_size=6,
    max_size=14,
).map(lambda many: sorted(many, key=lambda one: one.at_ms))


@pytest.mark.slow
@settings(max_examples=150, derandomize=True)
@given(nodes, comings)
def test_no_job_delays_a_reserved_start(nodes: list[Machine], coming: list[Coming]) -> None:
    life = Life(nodes, coming)
    life.run()

    assert not life.broken()


@settings(max_examples=80, derandomize=True)
@given(nodes, comings)
def test_a_reservation_is_kept_when_few_nodes_are_considered(
    nodes: list[Machine], coming: list[Coming]
) -> None:
    life = Life(nodes, coming)
    with mock.patch.object(backfill, "_CANDIDATES", 1):
        life.run()

    assert not life.broken()


def test_a_reservation_is_made_and_kept() -> None:
    """A short task that does not delay the reserved long one starts first; one that would delay it waits."""
    whole, half = {"cpu": 4000}, {"cpu": 2000}
    life = Life(
        [Machine({"cpu": 4000, "memory": 8}, {})],
        [
            Coming(0, {"needs": half, "expect_seconds": 10.0}),
            Coming(1000, {"needs": whole, "expect_seconds": 5.0}),
            Coming(2000, {"needs": half, "expect_seconds": 20.0}),
            Coming(3000, {"needs": half, "expect_seconds": 7.0}),
        ],
    )
    life.run()

    assert life.starts == [("1", 0), ("4", 3000), ("2", 10_000), ("3", 15_000)]
