"""Orders: the difference between what is assigned and what was sent; none twice, and losses are repaired."""

import msgspec

from rota.controllers import batch
from rota.engine.state.mirror import Mirror
from rota.model.attempt import LOOKAHEAD
from rota.model.ids import JobId
from rota.model.job import JobIntent
from rota.model.messages import JobOrders, ReportedState, Start, Stop, TaskTemplate
from rota.model.node import Connection
from rota.testing.builders import add_job, add_node, apply, at, job_reports, job_spec
from rota.testing.stage import Stage, StageMachine
from rota.watcher.dispatch import DispatchState
from tests.watcher.placed_work import ONE, A, B, place, placed, report, report_state


def starts(orders: list[JobOrders]) -> list[tuple[JobId, int, int]]:
    return [
        (job_orders.job, start.index, start.attempt) for job_orders in orders for start in job_orders.start
    ]


def stops(orders: list[JobOrders]) -> list[tuple[JobId, int, int]]:
    return [(job_orders.job, stop.index, stop.attempt) for job_orders in orders for stop in job_orders.stop]


def cancel(mirror: Mirror) -> None:
    mirror.apply(JobIntent(ONE, cancel=True))
    apply(mirror, batch.decide(mirror, "1", at(0)))


def test_an_assigned_attempt_is_started_with_its_template() -> None:
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


def test_a_start_names_the_gpus_of_the_attempt() -> None:
    mirror = Mirror()
    add_node(mirror, "a", {"cpu": 8000, "gpu": 2000})
    add_job(mirror, job_spec(count=3, needs={"cpu": 1000, "gpu": 500}))
    place(mirror)

    (orders,) = DispatchState([]).orders(mirror, A)

    assert [start.gpus for start in orders.start] == [0b01, 0b01, 0b10]


def test_attempts_of_an_unloadable_job_are_not_stopped() -> None:
    """The server could not load the job, but knows that it exists."""
    mirror = placed(count=1)
    inventory = [
        job_reports(1, ReportedState.RUNNING, (0, 1)),
        job_reports(7, ReportedState.RUNNING, (0, 1)),
        job_reports(8, ReportedState.RUNNING, (0, 1)),
    ]
    mirror.unloadable = frozenset((JobId("7"),))

    assert stops(DispatchState(inventory).orders(mirror, A)) == [(JobId("8"), 0, 1)]


def test_no_order_is_sent_twice() -> None:
    mirror = placed(count=2)
    dispatch = DispatchState([])
    dispatch.orders(mirror, A)
    again = dispatch.orders(mirror, A)
    report_state(mirror, ReportedState.RUNNING, (0, 1))

    assert (again, dispatch.orders(mirror, A)) == ([], [])


def test_a_node_gets_orders_for_its_own_attempts_only() -> None:
    assert DispatchState([]).orders(placed(), B) == []


def test_the_template_of_a_job_is_sent_once_per_connection() -> None:
    mirror = placed()
    dispatch = DispatchState([])
    first = dispatch.orders(mirror, A)
    report_state(mirror, ReportedState.EXITED, (0, 1), exit_code=0)
    dispatch.on_reports([job_reports(1, ReportedState.EXITED, (0, 1))])
    add_job(mirror, job_spec(2))
    place(mirror)
    second = dispatch.orders(mirror, A)

    assert [(job_orders.job, job_orders.work is not None) for job_orders in first + second] == [
        ("1", True),
        ("2", True),
    ]


def test_later_tasks_of_a_job_are_sent_without_its_template() -> None:
    mirror = placed(count=2, parallel=1)
    mirror.connect(B, Connection.DOWN)
    dispatch = DispatchState([])
    dispatch.orders(mirror, A)
    over = job_reports(1, ReportedState.EXITED, (0, 1), exit_code=0, ran_us=10**6)
    report(mirror, "a", over)
    apply(mirror, batch.decide(mirror, "1/0", at(0)))
    dispatch.on_reports([over])
    place(mirror)

    assert dispatch.orders(mirror, A) == [JobOrders(ONE, None, [Start(1, 1, firm=True)], [])]


def test_a_lookahead_attempt_is_not_reserved() -> None:
    mirror = placed(count=2)
    block = mirror.jobs[ONE].attempts[0]
    mirror.apply(msgspec.structs.replace(block, flags=bytes([0, LOOKAHEAD])))

    (orders,) = DispatchState([]).orders(mirror, A)

    assert orders.start == [Start(0, 1, firm=True), Start(1, 1, firm=False)]


# ---- stopping


def test_an_attempt_no_longer_desired_is_stopped_once() -> None:
    mirror = placed(count=2)
    dispatch = DispatchState([])
    dispatch.orders(mirror, A)
    cancel(mirror)

    (orders,) = dispatch.orders(mirror, A)

    assert orders == JobOrders(ONE, None, [], [Stop(0, 1), Stop(1, 1)])
    assert dispatch.orders(mirror, A) == []


def test_an_attempt_no_longer_desired_and_never_sent_is_not_started() -> None:
    mirror = placed()
    cancel(mirror)

    assert starts(DispatchState([]).orders(mirror, A)) == []


def test_a_stop_lost_with_the_connection_is_sent_on_the_next() -> None:
    mirror = placed()
    dispatch = DispatchState([])
    dispatch.orders(mirror, A)
    cancel(mirror)
    dispatch.orders(mirror, A)
    next_dispatch = DispatchState([job_reports(1, ReportedState.RUNNING, (0, 1))])

    assert stops(next_dispatch.orders(mirror, A)) == [("1", 0, 1)]


def test_an_unassigned_attempt_on_the_node_is_stopped_once() -> None:
    mirror = placed()
    dispatch = DispatchState(
        [
            job_reports(1, ReportedState.RUNNING, (0, 1)),
            job_reports(7, ReportedState.RUNNING, (3, 2)),
            job_reports(8, ReportedState.QUEUED, (0, 1)),
        ]
    )

    assert sorted(stops(dispatch.orders(mirror, A))) == [("7", 3, 2), ("8", 0, 1)]
    assert dispatch.orders(mirror, A) == []


def test_an_older_attempt_still_running_is_stopped_for_the_newer_one() -> None:
    mirror = placed()
    report_state(mirror, ReportedState.REFUSED, (0, 1))
    place(mirror)  # attempt 2, on b
    dispatch = DispatchState([job_reports(1, ReportedState.RUNNING, (0, 1))])

    assert stops(dispatch.orders(mirror, A)) == [("1", 0, 1)]
    assert starts(DispatchState([]).orders(mirror, B)) == [("1", 0, 2)]


def test_an_older_attempt_is_stopped_also_if_the_newer_is_on_the_same_node() -> None:
    mirror = placed()
    mirror.connect(B, Connection.DOWN)
    report_state(mirror, ReportedState.LOST, (0, 1))
    apply(mirror, batch.decide(mirror, "1/0", at(0)))
    place(mirror)  # attempt 2, on a again
    dispatch = DispatchState([job_reports(1, ReportedState.RUNNING, (0, 1))])
    orders = dispatch.orders(mirror, A)

    assert starts(orders) == [("1", 0, 2)]
    assert stops(orders) == [("1", 0, 1)]


# ---- after a reconnect


def test_an_attempt_in_the_inventory_is_not_started_again() -> None:
    mirror = placed(count=2)

    assert starts(DispatchState([job_reports(1, ReportedState.RUNNING, (0, 1))]).orders(mirror, A)) == [
        ("1", 1, 1)
    ]


def test_an_attempt_ended_in_the_inventory_needs_no_order_once_applied() -> None:
    mirror = placed()
    inventory = [job_reports(1, ReportedState.EXITED, (0, 1), exit_code=0)]
    report(mirror, "a", *inventory)

    assert DispatchState(inventory).orders(mirror, A) == []


def test_an_order_lost_with_the_connection_is_sent_on_the_next() -> None:
    mirror = placed()
    DispatchState([]).orders(mirror, A)

    assert starts(DispatchState([]).orders(mirror, A)) == [("1", 0, 1)]


def test_an_attempt_reported_as_ended_needs_no_order() -> None:
    mirror = placed()
    dispatch = DispatchState([])
    dispatch.orders(mirror, A)
    over = job_reports(1, ReportedState.EXITED, (0, 1), exit_code=0)
    report(mirror, "a", over)
    dispatch.on_reports([over])

    assert dispatch.orders(mirror, A) == []


def test_an_ended_attempt_is_not_restarted_while_its_report_is_not_durable() -> None:
    mirror = placed()
    dispatch = DispatchState([])
    dispatch.orders(mirror, A)
    dispatch.on_reports([job_reports(1, ReportedState.EXITED, (0, 1), exit_code=0)])

    assert dispatch.orders(mirror, A) == []


def test_a_stale_report_does_not_affect_the_current_attempt() -> None:
    mirror = placed()
    dispatch = DispatchState([])
    dispatch.orders(mirror, A)
    dispatch.on_reports([job_reports(1, ReportedState.STOPPED, (0, 7))])

    assert dispatch.orders(mirror, A) == []


def test_templates_of_ended_jobs_are_forgotten_within_a_connection() -> None:
    made = Stage()
    machine = StageMachine("a", {"cpu": 4000}, {})
    made.join(machine)
    most = 0
    for number in range(1, 501):
        made.submit(job_spec(number))
        machine.end((JobId(str(number)), 0), 0, 5)
        made.run_to_quiescence()
        assert machine.dispatch is not None
        most = max(most, len(machine.dispatch.sent_templates))

    assert most <= 100


def test_a_forgotten_template_is_sent_again_for_a_retry() -> None:
    made = Stage()
    machine = StageMachine("a", {"cpu": 1000}, {})
    made.join(machine)
    made.submit(job_spec(1000, retries=1))
    machine.end((JobId("1000"), 0), 1, 5)  # it is retried after a backoff
    made.run_to_quiescence()
    for number in range(1, 200):
        made.submit(job_spec(number))
        machine.end((JobId(str(number)), 0), 0, 5)
        made.run_to_quiescence()
    assert machine.dispatch is not None
    assert JobId("1000") not in machine.dispatch.sent_templates
    made.wait(2000)

    assert (JobId("1000"), 0) in machine.held
    assert JobId("1000") in machine.dispatch.sent_templates
