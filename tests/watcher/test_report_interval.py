"""How often a node tells how busy it is follows what goes on, within bounds."""

from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine
from rota.watcher.report_interval import IntervalBounds, report_ms, spread_ms

BOUNDS = IntervalBounds(1_000, 16_000)
A = NodeId("a")


def stage() -> Stage:
    made = Stage()
    made.join(StageMachine("a", {"cpu": 2000}, {}))
    return made


def test_idle_seldom_at_work_oftener_and_often_while_work_waits() -> None:
    one = stage()
    idle = report_ms(one.mirror, A, BOUNDS)
    one.submit(job_spec(1, count=2))
    at_work = report_ms(one.mirror, A, BOUNDS)
    one.submit(job_spec(2))
    queued = report_ms(one.mirror, A, BOUNDS)

    assert (idle, at_work, queued) == (16_000, 4_000, 1_000)


def test_many_nodes_speak_seldomer_but_never_beyond_the_bound() -> None:
    many, too_many = _nodes(10_000), _nodes(40_000)

    assert report_ms(many, A, IntervalBounds(1_000, 5_000)) == 5_000
    assert report_ms(many, A, IntervalBounds(1_000, 1_000)) == 1_000
    assert report_ms(too_many, A, BOUNDS) == 16_000


def _nodes(count: int) -> Mirror:
    mirror = stage().mirror
    mirror.nodes |= {NodeId(str(number)): mirror.nodes[A] for number in range(count - 1)}
    return mirror


def test_the_more_nodes_the_wider_they_spread_their_calls_but_none_is_taken_for_lost() -> None:
    spread = [spread_ms(nodes, lost_ms=30_000) for nodes in (1, 2, 100, 1_000, 10_000)]

    assert spread == [12, 24, 1_536, 12_000, 12_000]
    assert spread_ms(1_001, 30_000) == spread_ms(1_024, 30_000)
    assert spread_ms(10_000, 600_000) == 196_608
