"""The load report interval follows the amount of pending work, within bounds."""

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


def test_nodes_report_more_often_when_busy_and_most_often_while_tasks_are_pending() -> None:
    made = stage()
    idle = report_ms(made.mirror, A, BOUNDS)
    made.submit(job_spec(1, count=2))
    at_work = report_ms(made.mirror, A, BOUNDS)
    made.submit(job_spec(2))
    queued = report_ms(made.mirror, A, BOUNDS)

    assert (idle, at_work, queued) == (16_000, 4_000, 1_000)


def test_many_nodes_report_less_often_but_within_the_bounds() -> None:
    many, too_many = _nodes(10_000), _nodes(40_000)

    assert report_ms(many, A, IntervalBounds(1_000, 5_000)) == 5_000
    assert report_ms(many, A, IntervalBounds(1_000, 1_000)) == 1_000
    assert report_ms(too_many, A, BOUNDS) == 16_000


def _nodes(count: int) -> Mirror:
    mirror = stage().mirror
    mirror.nodes |= {NodeId(str(number)): mirror.nodes[A] for number in range(count - 1)}
    return mirror


def test_the_reconnect_spread_grows_with_the_nodes_within_the_suspect_timeout() -> None:
    spread = [spread_ms(nodes, lost_ms=30_000) for nodes in (1, 2, 100, 1_000, 10_000)]

    assert spread == [12, 24, 1_536, 12_000, 12_000]
    assert spread_ms(1_001, 30_000) == spread_ms(1_024, 30_000)
    assert spread_ms(10_000, 600_000) == 196_608
