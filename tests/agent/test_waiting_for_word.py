"""What may run once, or one at a time, is started only when the control plane has on disk who took it."""

from rota.agent.desk import Desk
from rota.agent.plan import Facts
from rota.agent.words import Words
from rota.model.ids import JobId
from rota.model.shape import RunMode
from rota.model.sync import Claim, JobClaims, JobOrders, Said, Start, Stop, work_of
from rota.testing.builders import claims, job_spec

ONE = JobId("1")
WELL = Facts(frozenset(), leaving=False)
START = Start(0, 1, firm=True)


def ordered(run: RunMode = RunMode.AT_MOST_ONCE) -> Desk:
    desk = Desk()
    desk.replace_all([])
    orders = [JobOrders(ONE, work_of(job_spec(run=run)), [START], [])]
    desk.learn(orders)
    (handed_on,) = desk.obey(orders, WELL)
    assert handed_on == JobOrders(ONE, orders[0].work, [], [])
    return desk


def test_it_is_handed_on_when_the_word_that_took_it_is_stored() -> None:
    desk = ordered()
    taken = desk.take_changes()
    desk.said(5, taken)

    assert taken == [JobClaims(ONE, [Claim(0, 1, Said.ACCEPTED)])]
    assert desk.released(4) == []
    (handed_on,) = desk.released(5)
    assert handed_on == JobOrders(ONE, None, [START], [])  # its work went ahead
    assert desk.released(6) == []


def test_a_new_connection_asks_anew() -> None:
    """What was answered on the old one is not the word on this one."""
    desk = ordered()
    desk.said(5, desk.take_changes())
    desk.said(1, desk.inventory())

    assert desk.released(0) == []
    assert [one.start for one in desk.released(1)] == [[START]]


def test_a_stop_that_comes_first_ends_it_before_it_began() -> None:
    desk = ordered()
    desk.said(5, desk.take_changes())
    (handed_on,) = desk.obey([JobOrders(ONE, None, [], [Stop(0, 1)])], WELL)

    assert handed_on.stop == []
    assert desk.take_changes() == [JobClaims(ONE, [Claim(0, 1, Said.WITHDRAWN)])]
    assert desk.released(5) == []


def test_without_its_keeper_it_is_forgotten_and_offered_again() -> None:
    desk = ordered()
    desk.said(5, desk.take_changes())
    desk.lose_keeper()
    desk.replace_all([])

    assert desk.inventory() == []
    assert desk.released(5) == []


def test_the_shortest_lease_of_what_is_here_counts_also_after_the_agents_restart() -> None:
    desk = Desk()
    assert desk.lease_ms is None

    desk.replace_all([claims(1, Said.RUNNING, (0, 1))], {ONE: 20_000, JobId("2"): 3_000})
    assert desk.lease_ms == 20_000


def test_a_lease_counts_from_the_last_word_that_was_heard() -> None:
    words = Words()
    for now_ms in (1000, 2000, 3000):
        words.say(now_ms)
    words.stale_ms(echo=2, now_ms=3500)

    assert words.heard_ms == 2000


def test_a_node_that_holds_no_leases_refuses() -> None:
    desk = Desk()
    orders = [JobOrders(ONE, work_of(job_spec(run=RunMode.ONE_AT_A_TIME)), [START], [])]
    desk.learn(orders)

    assert desk.obey(orders, WELL._replace(holds_leases=False)) == []
    assert desk.take_changes() == [
        JobClaims(ONE, [Claim(0, 1, Said.REFUSED, reason="this node cannot hold run leases")])
    ]
