"""Orders: what is assigned, less what the node was told; nothing twice, and whatever was lost is healed."""

import msgspec

from rota.controllers import batch
from rota.engine.state.mirror import Mirror
from rota.model.attempt import LOOKAHEAD
from rota.model.ids import JobId
from rota.model.job import JobIntent
from rota.model.messages import JobOrders, ReportedState, Start, Stop, TaskTemplate
from rota.model.node import Connection
from rota.testing.builders import add_job, add_node, apply, at, claims, job_spec
from rota.testing.stage import Stage, StageMachine
from rota.watcher.dispatch import DispatchState
from tests.watcher.placed_work import ONE, A, B, hear, place, placed, say


def starts(orders: list[JobOrders]) -> list[tuple[JobId, int, int]]:
    return [(one.job, start.index, start.attempt) for one in orders for start in one.start]


def stops(orders: list[JobOrders]) -> list[tuple[JobId, int, int]]:
    return [(one.job, stop.index, stop.attempt) for one in orders for stop in one.stop]


def cancel(mirror: Mirror) -> None:
    mirror.apply(JobIntent(ONE, cancel=True))
    apply(mirror, batch.decide(mirror, "1", at(0)))


def test_what_is_assigned_is_started_with_all_the_node_must_know() -> None:
    mirror = placed(count=2, env={"K": "V"}, workdir="/tmp", timeout_seconds=1.5, grace_seconds=0.25)

    (orders,) = DispatchState([]).orders(mirror, A)

    assert orders.start == [Start(0, 1, firm=True), Start(1, 1, firm=True)]
    assert orders.work == TaskTemplate(
        name="job-1",
        argv=("true",),
        env={"K": "V"},
        workdir="/tmp",
        needs={"cpu": 1000},
        count=2,
        grace_ms=250,
        timeout_ms=1500,
        run=mirror.jobs[ONE].spec.run,
    )


def test_an_attempt_is_told_which_gpus_it_was_given() -> None:
    mirror = Mirror()
    add_node(mirror, "a", {"cpu": 8000, "gpu": 2000})
    add_job(mirror, job_spec(count=3, needs={"cpu": 1000, "gpu": 500}))
    place(mirror)

    (orders,) = DispatchState([]).orders(mirror, A)

    assert [start.gpus for start in orders.start] == [0b01, 0b01, 0b10]


def test_work_of_a_job_that_was_set_aside_is_not_stopped() -> None:
    """The server could not load it, and knows that it exists."""
    mirror = placed(count=1)
    inventory = [
        claims(1, ReportedState.RUNNING, (0, 1)),
        claims(7, ReportedState.RUNNING, (0, 1)),
        claims(8, ReportedState.RUNNING, (0, 1)),
    ]
    mirror.unloadable = frozenset((JobId("7"),))

    assert stops(DispatchState(inventory).orders(mirror, A)) == [(JobId("8"), 0, 1)]


def test_nothing_is_told_twice() -> None:
    mirror = placed(count=2)
    told = DispatchState([])
    told.orders(mirror, A)
    again = told.orders(mirror, A)
    say(mirror, ReportedState.RUNNING, (0, 1))

    assert (again, told.orders(mirror, A)) == ([], [])


def test_a_node_is_told_of_its_own_attempts_only() -> None:
    assert DispatchState([]).orders(placed(), B) == []


def test_a_job_is_described_once_per_connection() -> None:
    mirror = placed()
    told = DispatchState([])
    first = told.orders(mirror, A)
    say(mirror, ReportedState.EXITED, (0, 1), exit_code=0)
    told.on_reports([claims(1, ReportedState.EXITED, (0, 1))])
    add_job(mirror, job_spec(2))
    place(mirror)
    second = told.orders(mirror, A)

    assert [(one.job, one.work is not None) for one in first + second] == [("1", True), ("2", True)]


def test_later_tasks_of_a_job_come_without_its_description() -> None:
    mirror = placed(count=2, parallel=1)
    mirror.connect(B, Connection.DOWN)
    told = DispatchState([])
    told.orders(mirror, A)
    over = claims(1, ReportedState.EXITED, (0, 1), exit_code=0, ran_us=10**6)
    hear(mirror, "a", over)
    apply(mirror, batch.decide(mirror, "1/0", at(0)))
    told.on_reports([over])
    place(mirror)

    assert told.orders(mirror, A) == [JobOrders(ONE, None, [Start(1, 1, firm=True)], [])]


def test_what_may_wait_on_the_node_is_not_firm() -> None:
    mirror = placed(count=2)
    block = mirror.jobs[ONE].attempts[0]
    mirror.apply(msgspec.structs.replace(block, flags=bytes([0, LOOKAHEAD])))

    (orders,) = DispatchState([]).orders(mirror, A)

    assert orders.start == [Start(0, 1, firm=True), Start(1, 1, firm=False)]


# ---- stopping


def test_what_is_no_longer_wanted_is_stopped_once() -> None:
    mirror = placed(count=2)
    told = DispatchState([])
    told.orders(mirror, A)
    cancel(mirror)

    (orders,) = told.orders(mirror, A)

    assert orders == JobOrders(ONE, None, [], [Stop(0, 1), Stop(1, 1)])
    assert told.orders(mirror, A) == []


def test_what_is_no_longer_wanted_and_was_never_told_is_not_started() -> None:
    mirror = placed()
    cancel(mirror)

    assert starts(DispatchState([]).orders(mirror, A)) == []


def test_a_stop_lost_with_the_connection_is_told_again_on_the_next() -> None:
    mirror = placed()
    told = DispatchState([])
    told.orders(mirror, A)
    cancel(mirror)
    told.orders(mirror, A)
    next_told = DispatchState([claims(1, ReportedState.RUNNING, (0, 1))])

    assert stops(next_told.orders(mirror, A)) == [("1", 0, 1)]


def test_what_the_node_holds_and_should_not_is_stopped_once() -> None:
    mirror = placed()
    told = DispatchState(
        [
            claims(1, ReportedState.RUNNING, (0, 1)),
            claims(7, ReportedState.RUNNING, (3, 2)),
            claims(8, ReportedState.QUEUED, (0, 1)),
        ]
    )

    assert sorted(stops(told.orders(mirror, A))) == [("7", 3, 2), ("8", 0, 1)]
    assert told.orders(mirror, A) == []


def test_an_older_attempt_that_the_node_still_runs_gives_way_to_the_newer() -> None:
    mirror = placed()
    say(mirror, ReportedState.REFUSED, (0, 1))
    place(mirror)  # attempt 2, on b
    told = DispatchState([claims(1, ReportedState.RUNNING, (0, 1))])

    assert stops(told.orders(mirror, A)) == [("1", 0, 1)]
    assert starts(DispatchState([]).orders(mirror, B)) == [("1", 0, 2)]


def test_an_older_attempt_is_stopped_also_where_the_newer_is_on_the_same_node() -> None:
    mirror = placed()
    mirror.connect(B, Connection.DOWN)
    say(mirror, ReportedState.LOST, (0, 1))
    apply(mirror, batch.decide(mirror, "1/0", at(0)))
    place(mirror)  # attempt 2, on a again
    told = DispatchState([claims(1, ReportedState.RUNNING, (0, 1))])
    orders = told.orders(mirror, A)

    assert starts(orders) == [("1", 0, 2)]
    assert stops(orders) == [("1", 0, 1)]


# ---- healing


def test_what_the_inventory_names_is_not_started_again() -> None:
    mirror = placed(count=2)

    assert starts(DispatchState([claims(1, ReportedState.RUNNING, (0, 1))]).orders(mirror, A)) == [
        ("1", 1, 1)
    ]


def test_what_the_inventory_calls_ended_is_neither_started_nor_stopped_once_entered() -> None:
    mirror = placed()
    inventory = [claims(1, ReportedState.EXITED, (0, 1), exit_code=0)]
    hear(mirror, "a", *inventory)

    assert DispatchState(inventory).orders(mirror, A) == []


def test_an_order_lost_with_the_connection_is_given_on_the_next() -> None:
    mirror = placed()
    DispatchState([]).orders(mirror, A)

    assert starts(DispatchState([]).orders(mirror, A)) == [("1", 0, 1)]


def test_what_the_node_said_is_over_needs_no_order() -> None:
    mirror = placed()
    told = DispatchState([])
    told.orders(mirror, A)
    over = claims(1, ReportedState.EXITED, (0, 1), exit_code=0)
    hear(mirror, "a", over)
    told.on_reports([over])

    assert told.orders(mirror, A) == []


def test_what_is_over_is_not_started_again_while_its_report_is_on_the_way_to_disk() -> None:
    mirror = placed()
    told = DispatchState([])
    told.orders(mirror, A)
    told.on_reports([claims(1, ReportedState.EXITED, (0, 1), exit_code=0)])

    assert told.orders(mirror, A) == []


def test_a_stale_word_does_not_make_us_forget_the_current_attempt() -> None:
    mirror = placed()
    told = DispatchState([])
    told.orders(mirror, A)
    told.on_reports([claims(1, ReportedState.STOPPED, (0, 7))])

    assert told.orders(mirror, A) == []


def test_jobs_that_are_over_are_not_remembered_for_as_long_as_the_connection_lasts() -> None:
    made = Stage()
    machine = StageMachine("a", {"cpu": 4000}, {})
    made.join(machine)
    most = 0
    for number in range(1, 501):
        made.submit(job_spec(number))
        machine.end((JobId(str(number)), 0), 0, 5)
        made.run_to_quiescence()
        assert machine.told is not None
        most = max(most, len(machine.told.sent_templates))

    assert most <= 100


def test_a_job_that_comes_again_after_it_was_forgotten_is_told_again() -> None:
    made = Stage()
    machine = StageMachine("a", {"cpu": 1000}, {})
    made.join(machine)
    made.submit(job_spec(1000, retries=1))
    machine.end((JobId("1000"), 0), 1, 5)  # after a pause it comes again
    made.run_to_quiescence()
    for number in range(1, 200):
        made.submit(job_spec(number))
        machine.end((JobId(str(number)), 0), 0, 5)
        made.run_to_quiescence()
    assert machine.told is not None
    assert JobId("1000") not in machine.told.sent_templates
    made.wait(2000)

    assert (JobId("1000"), 0) in machine.held
    assert JobId("1000") in machine.told.sent_templates
