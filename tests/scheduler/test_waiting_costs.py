"""Pending jobs cost other jobs nothing; measured in trials of queues, not in seconds."""

from typing import Any

import pytest

from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import JobKind, JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import REFUSAL_MS, RESERVATION_BACKOFF_MS, RESERVATION_LATE_MS
from rota.model.messages import ReportedState
from rota.model.recovery import Retry
from rota.model.shape import AffinityTerm, Constraint, Op, RunMode, SpreadTerm
from rota.scheduler.explain.why import explain_job
from rota.testing.builders import GIB, add_job, add_node, at, job_spec, placements
from rota.watcher import leases
from tests.scheduler.rounds import Rounds

MANY = 2_000
ONE_CPU = {"cpu": 1000}


class Crowd(Rounds):
    """A node of four cores, half of it taken by a service."""

    def __init__(self) -> None:
        super().__init__()
        add_node(self.mirror, "a", {"cpu": 4000, "memory": 64 * GIB})
        add_job(self.mirror, job_spec(1, needs={"cpu": 2000}, kind=JobKind.SERVICE))
        self.go()
        self.report("a", 1, ReportedState.RUNNING, (0, 1))
        self.number = 100_000
        self.ms = 10

    @property
    def tries(self) -> int:
        return self.cache.queue.trials

    def wait(self, **fields: Any) -> None:
        """Submit many jobs that fit nowhere."""
        for number in range(2, MANY + 2):
            own = {name: one(number) if callable(one) else one for name, one in fields.items()}
            add_job(self.mirror, job_spec(number, **({"needs": {"cpu": 3000}} | own)))
        self.go(self.ms)

    def run_short(self) -> int:
        """Number of trials while one job is submitted, starts and ends, with a round after each step."""
        self.number, self.ms, before = self.number + 1, self.ms + 10, self.tries
        short = add_job(self.mirror, job_spec(self.number, needs=ONE_CPU))
        self.go(self.ms)
        assert placements(self.mirror, short) == {0: "a"}
        self.report("a", self.number, ReportedState.RUNNING, (0, 1), ms=self.ms)
        self.go(self.ms + 1)
        self.report("a", self.number, ReportedState.EXITED, (0, 1), exit_code=0, ms=self.ms + 2)
        self.go(self.ms + 2)
        return self.tries - before


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"workdir": lambda number: f"/home/{number}"},
        {"needs": lambda number: {"cpu": 3000, "memory": number << 20}},
        {"expect_seconds": float},
        {"user": lambda number: f"user-{number}"},
        {
            "namespace": lambda number: f"space-{number}",
            "near": (AffinityTerm(Constraint("job", Op.EXISTS)),),
        },
        {"spread": (SpreadTerm("node", 1),)},
    ],
    ids=["alike", "directories", "amounts", "expectations", "users", "near", "spread"],
)
def test_a_short_job_costs_one_trial_however_many_jobs_are_pending(fields: dict[str, Any]) -> None:
    crowd = Crowd()
    crowd.wait(**fields)
    crowd.run_short()

    assert [crowd.run_short() for _ in range(3)] == [1, 1, 1]


def test_gangs_of_one_size_that_fit_in_part_cost_one_trial_when_free_resources_grow() -> None:
    """Amounts do not show how many tasks of a gang fit: one gang is tried for all of its size."""
    crowd = Crowd()
    crowd.wait(needs={"cpu": 1500}, gang=True, count=2)
    crowd.run_short()

    assert [crowd.run_short() for _ in range(3)] == [2, 2, 2]


def test_a_gang_starts_when_several_nodes_have_grown_in_turn() -> None:
    rounds = Rounds()
    nodes = ("a", "b")
    for name in nodes:
        add_node(rounds.mirror, name, {"cpu": 2000})
    where = [(Constraint("node", Op.EQUAL, (name,)),) for name in nodes]
    for number, condition in enumerate(where, 1):
        add_job(rounds.mirror, job_spec(number, needs={"cpu": 2000}, where=condition))
    rounds.go()
    gang = add_job(rounds.mirror, job_spec(3, count=4, gang=True))
    rounds.go(10)
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=0, ms=20)
    rounds.go(20)
    add_job(rounds.mirror, job_spec(4, needs={"cpu": 2000}, where=where[0]))
    rounds.go(30)
    rounds.report("b", 2, ReportedState.EXITED, (0, 1), exit_code=0, ms=40)
    rounds.go(40)
    rounds.report("a", 4, ReportedState.EXITED, (0, 1), exit_code=0, ms=50)
    rounds.go(50)

    assert len(placements(rounds.mirror, gang)) == 4


def test_jobs_of_many_directories_share_one_queue() -> None:
    crowd = Crowd()
    crowd.wait(workdir=lambda number: f"/home/{number}")

    assert [len(turns) for _, turns in crowd.mirror.pending_queues()] == [MANY]


def test_a_round_without_changes_tries_nothing_behind_a_reservation() -> None:
    """One large job waits for tasks with a known end, with very many small jobs behind it."""
    crowd = Crowd()
    add_job(crowd.mirror, job_spec(99_999, needs={"cpu": 1000}, priority=90, expect_seconds=600.0))
    crowd.go()
    crowd.report("a", 99_999, ReportedState.RUNNING, (0, 1), started_at_ms=at(0).wall_ms)
    add_job(crowd.mirror, job_spec(99_998, needs={"cpu": 2000}, priority=80))
    crowd.wait(needs=lambda number: {"cpu": 1000, "memory": number << 20})
    held_back, before = len(crowd.mirror.jobs[JobId("5")].attempts), crowd.tries
    for ms in range(20, 30):
        crowd.mirror.apply(JobStatus(JobId("99999"), JobState.ACTIVE, wanted_at_ms=ms))
        crowd.go(ms)

    assert held_back == 0
    assert crowd.tries == before


def test_jobs_in_backoff_are_in_no_queue() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 1000 * MANY})
    for number in range(1, MANY + 1):
        add_job(rounds.mirror, job_spec(number, needs=ONE_CPU, retries=1, retry=Retry(delay_ms=60_000)))
    rounds.go()
    for number in range(1, MANY + 1):
        rounds.report("a", number, ReportedState.EXITED, (0, 1), exit_code=1, ms=100)
    before = rounds.cache.queue.trials
    plan = rounds.go(100)

    assert list(rounds.mirror.pending_queues()) == []
    assert rounds.cache.queue.trials == before
    assert plan.wake_at_ms is not None
    rounds.go(plan.wake_at_ms)
    assert any(placements(rounds.mirror, job) for job in rounds.mirror.jobs)


def test_a_refusal_concerns_its_directory_and_its_owner_alone() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 4000})
    bad = add_job(rounds.mirror, job_spec(1, workdir="/missing"))
    rounds.go()
    rounds.report("a", 1, ReportedState.REFUSED, (0, 1), reason="there is no directory /missing")
    same = [add_job(rounds.mirror, job_spec(number, workdir="/missing")) for number in (2, 3)]
    others = [
        add_job(rounds.mirror, job_spec(4, workdir="/there")),
        add_job(rounds.mirror, job_spec(5)),
        add_job(rounds.mirror, job_spec(6, workdir="/missing", namespace="other")),
    ]
    rounds.go(10)
    meanwhile = [placements(rounds.mirror, job) for job in (bad, *same)]
    started = [placements(rounds.mirror, job) for job in others]
    rounds.go(REFUSAL_MS)

    assert started == [{0: "a"}] * 3
    assert meanwhile == [{}, {}, {}]
    assert placements(rounds.mirror, bad) == {0: "a"}


def test_a_job_near_another_starts_after_it_although_no_node_has_grown() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 4000})
    beside = AffinityTerm(Constraint("job", Op.EQUAL, ("job-2",)))
    follower = add_job(rounds.mirror, job_spec(1, near=(beside,)))
    rounds.go()
    add_job(rounds.mirror, job_spec(2))
    rounds.go(10)
    rounds.go(20)

    assert placements(rounds.mirror, follower) == {0: "a"}


def test_a_system_job_without_free_resources_delays_no_other_of_its_shape() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_node(rounds.mirror, "b", ONE_CPU)
    add_job(rounds.mirror, job_spec(1))
    rounds.go()
    add_job(rounds.mirror, job_spec(2, kind=JobKind.SYSTEM))
    rounds.go(10)
    rounds.go(20)
    add_node(rounds.mirror, "c", {"cpu": 500})
    plain = add_job(rounds.mirror, job_spec(3, needs={"cpu": 500}))
    rounds.go(30)

    assert placements(rounds.mirror, plain) == {0: "c"}


# ---- reservations


def held_back_for(expect_seconds: float) -> Rounds:
    """Job 1 runs for longer than expected, job 2 is the head of line, job 3 is behind it."""
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 4000})
    add_job(rounds.mirror, job_spec(1, needs={"cpu": 3000}, expect_seconds=expect_seconds))
    rounds.go()
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1), started_at_ms=at(0).wall_ms)
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 4000}))
    add_job(rounds.mirror, job_spec(3))
    rounds.go()
    return rounds


def test_a_missed_reservation_lapses_and_its_job_backs_off() -> None:
    rounds = held_back_for(10.0)
    held_back = placements(rounds.mirror, JobId("3"))
    lapses_ms = 10_000 + RESERVATION_LATE_MS
    plan = rounds.go(lapses_ms - 1)
    rounds.go(lapses_ms)

    assert held_back == {}
    assert plan.wake_at_ms == lapses_ms
    assert placements(rounds.mirror, JobId("3")) == {0: "a"}
    assert rounds.cache.backoff_until_ms(JobId("2")) == lapses_ms + RESERVATION_BACKOFF_MS


def test_a_job_in_reservation_backoff_is_no_reason_for_others() -> None:
    rounds = held_back_for(10.0)
    before = explain_job(rounds.mirror, JobId("3"), at(0), known=rounds.scheduler.queue_snapshot)
    rounds.mirror.now_ms = 10_000 + RESERVATION_LATE_MS
    rounds.cache.drop_expired(rounds.mirror, at(rounds.mirror.now_ms))
    after = explain_job(
        rounds.mirror, JobId("3"), at(rounds.mirror.now_ms), known=rounds.scheduler.queue_snapshot
    )

    assert [reason.kind for reason in before.reasons][:1] == ["promised"]
    assert "promised" not in [reason.kind for reason in after.reasons]


def test_nothing_is_reserved_for_a_gang_that_nodes_refuse() -> None:
    rounds = Rounds()
    for name in ("a", "b"):
        add_node(rounds.mirror, name, {"cpu": 2000})
    fields = {"needs": {"cpu": 2000}, "gang": True, "count": 2}
    add_job(rounds.mirror, job_spec(1, workdir="/missing", **fields))
    rounds.go()
    for index, name in placements(rounds.mirror, JobId("1")).items():
        rounds.report(name, 1, ReportedState.REFUSED, (index, 1), reason="there is no directory /missing")
    plain = add_job(rounds.mirror, job_spec(2))
    rounds.go(10)

    assert len(placements(rounds.mirror, plain)) == 1


# ---- nodes, leases, neighbours


def test_the_slot_of_a_deleted_node_is_reused() -> None:
    mirror = Mirror()
    for number in range(100):
        add_node(mirror, f"n{number}", {"cpu": 1000 + number})
        mirror.forget(Key(f"node/n{number}/spec"))
    add_node(mirror, "last", {"cpu": 4000})

    assert mirror.node_table.size == 1
    assert (mirror.node_table.ids, mirror.node_table.slot) == ([NodeId("last")], {NodeId("last"): 0})
    assert mirror.node_table.free().tolist() == [[4000]]


def test_a_slot_is_not_reused_while_attempts_hold_resources_there() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_job(rounds.mirror, job_spec(1))
    rounds.go()
    rounds.mirror.forget(Key("node/a/spec"))
    add_node(rounds.mirror, "b", ONE_CPU)

    assert rounds.mirror.node_table.slot == {NodeId("a"): 0, NodeId("b"): 1}


def test_leases_are_looked_up_by_node() -> None:
    rounds = Rounds()
    for name in ("a", "b"):
        add_node(rounds.mirror, name, ONE_CPU, labels={"leases": "yes"})
    jobs = [add_job(rounds.mirror, job_spec(number, run=RunMode.ONE_AT_A_TIME)) for number in range(1, MANY)]
    rounds.go()

    assert {node: list(held) for node, held in rounds.mirror.leased_on.items()} == {
        node: [job for job in jobs if node in rounds.mirror.jobs[job].live_by_node] for node in ("a", "b")
    }
    assert [len(leases.lease_durations_ms(rounds.mirror, NodeId(name))) for name in ("a", "b")] == [1, 1]


def test_jobs_that_name_neighbours_of_their_own_are_loaded_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0
    holds = Constraint.holds

    def counting(constraint: Constraint, labels: Any) -> bool:
        nonlocal asked
        asked += 1
        return holds(constraint, labels)

    monkeypatch.setattr(Constraint, "holds", counting)
    found = []
    for count in (200, 400):
        asked, rounds = 0, Rounds()
        add_node(rounds.mirror, "a", {"cpu": 1000 * count})
        for number in range(1, count + 1):
            other = AffinityTerm(Constraint("job", Op.EQUAL, (f"other-{number}",)))
            add_job(rounds.mirror, job_spec(number, apart=(other,)))
        rounds.go()
        found.append(asked)

    assert found[1] <= 2 * found[0] + 10
