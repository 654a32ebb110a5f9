"""One round: ranking, jobs that fit nowhere, limits, refusals and backoff."""

from collections.abc import Callable

import msgspec
import pytest

from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId, NodeId
from rota.model.job import Unschedulable
from rota.model.lifecycle import NodeState
from rota.model.limits import BLOCK_TASKS, REFUSAL_MS, RETRY_BACKOFF_FIRST_MS
from rota.model.messages import ReportedState
from rota.model.node import Connection, Eligibility, NodeIntent, NodeLoad
from rota.model.plan import NO_CHANGE
from rota.model.recovery import Retry
from rota.model.shape import Constraint, Op
from rota.testing.builders import GIB, add_job, add_node, job_spec, node_status, placements, where
from tests.scheduler.rounds import Rounds

ONE_CPU = {"cpu": 1000}
A, B = NodeId("a"), NodeId("b")


def test_without_jobs_there_is_nothing_to_do() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")

    assert rounds.go() is NO_CHANGE


def test_a_task_goes_to_a_fitting_node_and_the_plan_says_why() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 500})
    add_node(rounds.mirror, "b", ONE_CPU)
    job = add_job(rounds.mirror, job_spec())

    plan = rounds.go(ms=5)

    assert placements(rounds.mirror, job) == {0: "b"}
    assert plan.why == "1 task of job 1 on the only fitting node"
    assert [(event.kind, event.node, event.indices) for event in plan.events] == [
        ("task.placed", "b", ((0, 0),))
    ]


def test_the_higher_priority_is_first_then_the_earlier_whatever_the_shape() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000, "memory": GIB})
    early = add_job(rounds.mirror, job_spec(1))
    late = add_job(rounds.mirror, job_spec(2, needs={"cpu": 1000, "memory": 1}))
    urgent = add_job(rounds.mirror, job_spec(3, priority=60, needs={"cpu": 1000, "memory": 2}))

    rounds.go()

    assert [placements(rounds.mirror, job) for job in (urgent, early, late)] == [{0: "a"}, {0: "a"}, {}]


def test_jobs_of_one_shape_are_served_in_the_order_of_their_numbers_not_of_their_spelling() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    tenth, second = add_job(rounds.mirror, job_spec(10)), add_job(rounds.mirror, job_spec(2))

    rounds.go()

    assert (placements(rounds.mirror, second), placements(rounds.mirror, tenth)) == ({0: "a"}, {})


def test_a_large_job_that_fits_nowhere_does_not_hold_up_a_small_one() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    large = add_job(rounds.mirror, job_spec(1, priority=90, needs={"cpu": 64_000}))
    small = add_job(rounds.mirror, job_spec(2))

    rounds.go()

    assert (placements(rounds.mirror, large), placements(rounds.mirror, small)) == ({}, {0: "a"})


def test_an_array_over_several_blocks_is_placed_in_order() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 1000 * (BLOCK_TASKS + 10)})
    job = add_job(rounds.mirror, job_spec(count=3 * BLOCK_TASKS))

    plan = rounds.go()

    assert list(placements(rounds.mirror, job)) == list(range(BLOCK_TASKS + 10))
    assert [record.key for record in plan.puts] == ["attempt/1/0", "attempt/1/1"]


def test_a_round_twice_places_nothing_twice() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 8000})
    job = add_job(rounds.mirror, job_spec(count=3))
    rounds.go()

    assert rounds.go() is NO_CHANGE
    assert rounds.mirror.jobs[job].attempts[0].number == bytes([1, 0, 0, 0] * 3)


# ---- jobs that fit nowhere


def test_a_shape_that_fits_nowhere_is_not_tried_until_free_resources_grow() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_job(rounds.mirror, job_spec(count=2))
    rounds.go()
    blocked = rounds.go()
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=0)
    grown = rounds.go()

    assert blocked is NO_CHANGE
    assert len(grown.puts) == 1


def test_a_new_job_of_a_shape_that_fits_nowhere_costs_nothing_either() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_job(rounds.mirror, job_spec(1, count=2))
    rounds.go()
    add_job(rounds.mirror, job_spec(2))

    assert rounds.go() is NO_CHANGE


SSD = {"cpu": 4000, "memory": GIB}
GROWTHS: dict[str, tuple[Callable[[Mirror], object], Callable[[Mirror], object]]] = {
    "a node joins": (
        lambda mirror: mirror.apply(NodeIntent(A, Eligibility.DRAINING)),
        lambda mirror: add_node(mirror, "b", SSD, labels={"disk": "ssd"}),
    ),
    "a node opens": (
        lambda mirror: mirror.apply(NodeIntent(A, Eligibility.CORDONED)),
        lambda mirror: mirror.apply(NodeIntent(A, Eligibility.OPEN)),
    ),
    "a node connects": (
        lambda mirror: mirror.connect(A, Connection.DOWN),
        lambda mirror: mirror.connect(A, Connection.UP),
    ),
    "a node has more": (
        lambda mirror: mirror.apply(node_status("a", {"cpu": 500, "memory": GIB}, labels={"disk": "ssd"})),
        lambda mirror: mirror.apply(node_status("a", SSD, labels={"disk": "ssd"})),
    ),
    "a node has another label": (
        lambda mirror: mirror.apply(node_status("a", SSD, labels={"disk": "hdd"})),
        lambda mirror: mirror.apply(node_status("a", SSD, labels={"disk": "ssd"})),
    ),
    "a node measures more free memory": (
        lambda mirror: mirror.measure(A, NodeLoad(memory_free=1)),
        lambda mirror: mirror.measure(A, NodeLoad(memory_free=GIB)),
    ),
}


@pytest.mark.parametrize(("close", "grow"), GROWTHS.values(), ids=GROWTHS)
def test_a_job_that_fitted_nowhere_is_placed_once(
    close: Callable[[Mirror], object], grow: Callable[[Mirror], object]
) -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", SSD, labels={"disk": "ssd"})
    close(rounds.mirror)
    spec = job_spec(needs={"cpu": 1000, "memory": 2}, where=(where("disk", "==", "ssd"),))
    job = add_job(rounds.mirror, spec)
    rounds.go()
    before = placements(rounds.mirror, job)
    grow(rounds.mirror)
    rounds.go()

    assert (len(before), len(placements(rounds.mirror, job))) == (0, 1)


@pytest.mark.parametrize("state", [NodeState.SUSPECT, NodeState.LOST, NodeState.LEFT])
def test_a_node_that_is_not_ready_gets_nothing(state: NodeState) -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", state=state)
    job = add_job(rounds.mirror, job_spec())
    rounds.go()

    assert placements(rounds.mirror, job) == {}


@pytest.mark.parametrize("eligibility", [Eligibility.CORDONED, Eligibility.DRAINING])
def test_a_closed_node_gets_nothing(eligibility: Eligibility) -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    rounds.mirror.apply(NodeIntent(A, eligibility))
    job = add_job(rounds.mirror, job_spec())
    rounds.go()

    assert placements(rounds.mirror, job) == {}


# ---- the job's own limit


def test_no_more_tasks_are_under_way_than_parallel_allows() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 8000})
    limited = add_job(rounds.mirror, job_spec(1, count=5, parallel=2))
    other = add_job(rounds.mirror, job_spec(2))
    rounds.go()
    first = placements(rounds.mirror, limited)
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=0)
    rounds.go()

    assert (list(first), list(placements(rounds.mirror, limited))) == ([0, 1], [1, 2])
    assert placements(rounds.mirror, other) == {0: "a"}  # it does not wait for the limited one


# ---- refusals


def refused_by_a() -> Rounds:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 4000})
    add_job(rounds.mirror, job_spec(1))
    rounds.go(ms=1000)
    rounds.report("a", 1, ReportedState.REFUSED, (0, 1), ms=1000, reason="no such directory")
    return rounds


def test_a_refusal_excludes_that_node_for_that_shape_for_thirty_seconds() -> None:
    rounds = refused_by_a()
    other_shape = add_job(rounds.mirror, job_spec(2, needs={"cpu": 500}))
    plan = rounds.go(ms=1000)
    early = rounds.go(ms=1000 + REFUSAL_MS - 1).puts
    rounds.go(ms=1000 + REFUSAL_MS)

    assert plan.wake_at_ms == 1000 + REFUSAL_MS
    assert early == ()
    assert placements(rounds.mirror, JobId("1")) == {0: "a"}
    assert placements(rounds.mirror, other_shape) == {0: "a"}


def test_a_refused_task_goes_to_the_next_node_immediately_as_the_same_try() -> None:
    rounds = refused_by_a()
    add_node(rounds.mirror, "b", {"cpu": 1000})
    rounds.go(ms=1000)

    block = rounds.mirror.jobs[JobId("1")].attempts[0]
    assert placements(rounds.mirror, JobId("1")) == {0: "b"}
    assert (block.number, block.tries) == (bytes([2, 0, 0, 0]), bytes(2))


@pytest.mark.parametrize("change", [{"boot_id": "boot-2"}, {"capacity": {"cpu": 9000}}])
def test_a_refusal_counts_no_longer_when_the_node_reports_a_change(change: dict[str, object]) -> None:
    rounds = refused_by_a()
    status = rounds.mirror.nodes[A].status
    assert status is not None
    rounds.go(ms=1000)
    rounds.mirror.apply(msgspec.structs.replace(status, **change))
    rounds.go(ms=1001)

    assert placements(rounds.mirror, JobId("1")) == {0: "a"}


def test_a_later_job_of_the_same_shape_avoids_the_refusing_node() -> None:
    rounds = refused_by_a()
    again = add_job(rounds.mirror, job_spec(2))
    rounds.go(ms=2000)

    assert placements(rounds.mirror, again) == {}


def test_after_a_restart_a_refusal_is_not_attributed_to_the_accepting_node() -> None:
    rounds = refused_by_a()
    add_node(rounds.mirror, "b", {"cpu": 1000})
    rounds.go(ms=1000)  # attempt 2 is offered to b
    job = rounds.mirror.jobs[JobId("1")]
    again = Mirror()
    again.load([job.spec, *job.attempts.values(), *job.statuses.values()])

    assert B not in again.refused_by(job.spec.refusal_key)


# ---- backoff after a failure


def failing_array() -> Rounds:
    """Two running tasks with retries left."""
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 8000})
    add_job(rounds.mirror, job_spec(count=2, retries=5, retry=Retry(jitter_percent=0)))
    rounds.go()
    return rounds


def test_a_failed_task_is_placed_again_after_its_backoff() -> None:
    rounds = failing_array()
    rounds.report("a", 1, ReportedState.EXITED, (1, 1), ms=100, exit_code=3)
    plan = rounds.go(ms=100)
    during = placements(rounds.mirror, JobId("1"))
    rounds.go(ms=100 + RETRY_BACKOFF_FIRST_MS)

    assert plan.wake_at_ms == 100 + RETRY_BACKOFF_FIRST_MS
    assert (list(during), list(placements(rounds.mirror, JobId("1")))) == ([0], [0, 1])


def test_a_round_after_one_backoff_wakes_at_the_end_of_the_next() -> None:
    rounds = failing_array()
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), ms=100, exit_code=3)
    rounds.report("a", 1, ReportedState.EXITED, (1, 1), ms=600, exit_code=3)
    rounds.go(ms=600)

    placed = rounds.go(ms=100 + RETRY_BACKOFF_FIRST_MS)

    assert placed.wake_at_ms == 100 + RETRY_BACKOFF_FIRST_MS + 1
    assert rounds.go(ms=100 + RETRY_BACKOFF_FIRST_MS + 1).wake_at_ms == 600 + RETRY_BACKOFF_FIRST_MS


def test_a_task_in_backoff_does_not_delay_others_of_its_shape() -> None:
    rounds = failing_array()
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), ms=100, exit_code=3)
    other = add_job(rounds.mirror, job_spec(2))
    rounds.go(ms=100)

    assert placements(rounds.mirror, other) == {0: "a"}


def test_a_thousand_equal_jobs_that_fit_nowhere_cost_one_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds()
    for number in range(1, 1001):
        add_job(rounds.mirror, job_spec(number))
    looks: list[JobId] = []

    def ready(entry: JobEntry, now_ms: int, most: int) -> list[int]:
        looks.append(entry.spec.id)
        return [0][:most]

    monkeypatch.setattr(JobEntry, "ready", ready)
    rounds.go(ms=0)
    rounds.go(ms=1)

    assert looks == ["1"]


# ---- jobs that must start now


def test_a_job_that_must_start_now_is_rejected_with_the_reason() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    job = add_job(rounds.mirror, job_spec(count=2, when_unschedulable=Unschedulable.REJECT))
    plan = rounds.go()

    assert placements(rounds.mirror, job) == {}
    assert [(event.kind, event.job) for event in plan.events] == [("placement.impossible", job)]
    assert rounds.mirror.jobs[job].verdict is not None


def test_a_job_that_must_start_now_starts_if_all_its_tasks_fit() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    job = add_job(rounds.mirror, job_spec(count=2, when_unschedulable=Unschedulable.REJECT))
    rounds.go()

    assert placements(rounds.mirror, job) == {0: "a", 1: "a"}
    assert rounds.mirror.jobs[job].verdict is None


def test_retries_of_a_started_job_wait_like_those_of_any_job() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    job = add_job(rounds.mirror, job_spec(1, count=2, retries=3, when_unschedulable=Unschedulable.REJECT))
    rounds.go()
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=1)
    other = add_job(rounds.mirror, job_spec(2))
    rounds.go(ms=1)
    rounds.go(ms=60_000)

    assert placements(rounds.mirror, other) == {0: "a"}
    assert rounds.mirror.jobs[job].verdict is None


# ---- after a reload


def test_blocked_queues_are_tried_again_with_a_new_mirror() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_job(rounds.mirror, job_spec(1, count=2, needs={"cpu": 2000}))
    rounds.go()
    grown = rounds.mirror.node_table.capacity_version
    rounds.mirror = Mirror()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    job = add_job(rounds.mirror, job_spec(1, count=2, needs={"cpu": 2000}))
    rounds.mirror.node_table.capacity_version = grown  # as it may well be by chance
    rounds.go()

    assert placements(rounds.mirror, job) == {0: "a"}


def test_labels_of_an_earlier_mirror_do_not_count() -> None:
    near = (Constraint("zone", Op.EQUAL, ("near",)),)
    rounds = Rounds()
    add_node(rounds.mirror, "a", labels={"zone": "near"})
    add_node(rounds.mirror, "b", labels={"zone": "far"})
    add_job(rounds.mirror, job_spec(1, where=near))
    rounds.go()
    rounds.mirror = Mirror()
    add_node(rounds.mirror, "b", labels={"zone": "far"})
    add_node(rounds.mirror, "a", labels={"zone": "near"})
    job = add_job(rounds.mirror, job_spec(1, where=near))
    rounds.go()

    assert placements(rounds.mirror, job) == {0: "a"}
