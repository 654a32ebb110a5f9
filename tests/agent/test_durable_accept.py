"""What may run once, or one at a time, is started only when the control plane has on disk who took it."""

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
from rota.testing.builders import claims, job_spec

ONE = JobId("1")
WELL = HostFacts(frozenset(), leaving=False)
START = Start(0, 1, firm=True)


def ordered(run: RunMode = RunMode.AT_MOST_ONCE) -> AttemptTracker:
    desk = AttemptTracker()
    desk.replace_all([])
    orders = [JobOrders(ONE, task_template(job_spec(run=run)), [START], [])]
    desk.remember_templates(orders)
    (handed_on,) = desk.apply_orders(orders, WELL)
    assert handed_on == JobOrders(ONE, orders[0].work, [], [])
    return desk


def test_a_start_is_forwarded_when_its_accept_is_durable() -> None:
    desk = ordered()
    taken = desk.drain_changes()
    desk.sent_in(5, taken)

    assert taken == [JobReports(ONE, [AttemptReport(0, 1, ReportedState.ACCEPTED)])]
    assert desk.released_by(4) == []
    (handed_on,) = desk.released_by(5)
    assert handed_on == JobOrders(ONE, None, [START], [])  # its work went ahead
    assert desk.released_by(6) == []


def test_a_new_connection_accepts_again() -> None:
    """What was answered on the old one is not the word on this one."""
    desk = ordered()
    desk.sent_in(5, desk.drain_changes())
    desk.sent_in(1, desk.inventory())

    assert desk.released_by(0) == []
    assert [one.start for one in desk.released_by(1)] == [[START]]


def test_a_stop_withdraws_a_deferred_start() -> None:
    desk = ordered()
    desk.sent_in(5, desk.drain_changes())
    (handed_on,) = desk.apply_orders([JobOrders(ONE, None, [], [Stop(0, 1)])], WELL)

    assert handed_on.stop == []
    assert desk.drain_changes() == [JobReports(ONE, [AttemptReport(0, 1, ReportedState.WITHDRAWN)])]
    assert desk.released_by(5) == []


def test_a_deferred_start_is_forgotten_with_its_keeper() -> None:
    desk = ordered()
    desk.sent_in(5, desk.drain_changes())
    desk.on_keeper_lost()
    desk.replace_all([])

    assert desk.inventory() == []
    assert desk.released_by(5) == []


def test_the_shortest_lease_counts_also_after_a_restart_of_the_agent() -> None:
    desk = AttemptTracker()
    assert desk.lease_ms is None

    desk.replace_all([claims(1, ReportedState.RUNNING, (0, 1))], {ONE: 20_000, JobId("2"): 3_000})
    assert desk.lease_ms == 20_000


def test_a_lease_counts_from_the_last_acknowledged_message() -> None:
    words = MessageSequence()
    for now_ms in (1000, 2000, 3000):
        words.next_number(now_ms)
    words.stale_ms(echo=2, now_ms=3500)

    assert words.acknowledged_ms == 2000


def test_a_node_without_leases_refuses() -> None:
    desk = AttemptTracker()
    orders = [JobOrders(ONE, task_template(job_spec(run=RunMode.ONE_AT_A_TIME)), [START], [])]
    desk.remember_templates(orders)

    assert desk.apply_orders(orders, WELL._replace(holds_leases=False)) == []
    assert desk.drain_changes() == [
        JobReports(
            ONE, [AttemptReport(0, 1, ReportedState.REFUSED, reason="this node cannot hold run leases")]
        )
    ]
