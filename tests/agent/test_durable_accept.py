"""Attempts of at_most_once and one_at_a_time start only when their accept is durable on the server."""

from rota.agent.attempts import AttemptTracker
from rota.agent.plan import HostFacts
from rota.agent.sequence import MessageSequence
from rota.model.ids import JobId
from rota.model.messages import (
    AttemptReport,
    JobOrders,
    JobReports,
    ReportedState,
    Start,
    Stop,
    task_template,
)
from rota.model.shape import RunMode
from rota.testing.builders import job_reports, job_spec

ONE = JobId("1")
WELL = HostFacts(frozenset(), leaving=False)
START = Start(0, 1, firm=True)


def ordered(run: RunMode = RunMode.AT_MOST_ONCE) -> AttemptTracker:
    tracker = AttemptTracker()
    tracker.replace_all([])
    orders = [JobOrders(ONE, task_template(job_spec(run=run)), [START], [])]
    tracker.remember_templates(orders)
    (forwarded,) = tracker.apply_orders(orders, WELL)
    assert forwarded == JobOrders(ONE, orders[0].work, [], [])
    return tracker


def test_a_start_is_forwarded_when_its_accept_is_durable() -> None:
    tracker = ordered()
    taken = tracker.drain_changes()
    tracker.sent_in(5, taken)

    assert taken == [JobReports(ONE, [AttemptReport(0, 1, ReportedState.ACCEPTED)])]
    assert tracker.released_by(4) == []
    (forwarded,) = tracker.released_by(5)
    assert forwarded == JobOrders(ONE, None, [START], [])  # its template was forwarded before
    assert tracker.released_by(6) == []


def test_a_new_connection_accepts_again() -> None:
    """Sequence numbers of the old connection do not count on the new one."""
    tracker = ordered()
    tracker.sent_in(5, tracker.drain_changes())
    tracker.sent_in(1, tracker.inventory())

    assert tracker.released_by(0) == []
    assert [one.start for one in tracker.released_by(1)] == [[START]]


def test_a_stop_withdraws_a_deferred_start() -> None:
    tracker = ordered()
    tracker.sent_in(5, tracker.drain_changes())
    (forwarded,) = tracker.apply_orders([JobOrders(ONE, None, [], [Stop(0, 1)])], WELL)

    assert forwarded.stop == []
    assert tracker.drain_changes() == [JobReports(ONE, [AttemptReport(0, 1, ReportedState.WITHDRAWN)])]
    assert tracker.released_by(5) == []


def test_a_deferred_start_is_forgotten_with_its_keeper() -> None:
    tracker = ordered()
    tracker.sent_in(5, tracker.drain_changes())
    tracker.on_keeper_lost()
    tracker.replace_all([])

    assert tracker.inventory() == []
    assert tracker.released_by(5) == []


def test_the_shortest_lease_counts_also_after_a_restart_of_the_agent() -> None:
    tracker = AttemptTracker()
    assert tracker.lease_ms is None

    tracker.replace_all([job_reports(1, ReportedState.RUNNING, (0, 1))], {ONE: 20_000, JobId("2"): 3_000})
    assert tracker.lease_ms == 20_000


def test_a_lease_counts_from_the_last_acknowledged_message() -> None:
    sequence = MessageSequence()
    for now_ms in (1000, 2000, 3000):
        sequence.next_number(now_ms)
    sequence.stale_ms(echo=2, now_ms=3500)

    assert sequence.acknowledged_ms == 2000


def test_a_node_without_leases_refuses() -> None:
    tracker = AttemptTracker()
    orders = [JobOrders(ONE, task_template(job_spec(run=RunMode.ONE_AT_A_TIME)), [START], [])]
    tracker.remember_templates(orders)

    assert tracker.apply_orders(orders, WELL._replace(holds_leases=False)) == []
    assert tracker.drain_changes() == [
        JobReports(
            ONE, [AttemptReport(0, 1, ReportedState.REFUSED, reason="this node cannot hold run leases")]
        )
    ]
