"""The node's veto: starts that it cannot run are refused with a reason; stops are always accepted."""

import pytest

from rota.agent.plan import HostFacts, plan, veto
from rota.model.ids import JobId
from rota.model.messages import AttemptReport, JobOrders, JobReports, ReportedState, Start, Stop, TaskTemplate
from rota.model.shape import RunMode

JOB = JobId("7")
FINE = HostFacts(frozenset(), leaving=False)


def work(workdir: str | None = None, **needs: int) -> TaskTemplate:
    return TaskTemplate("test", ("true",), {}, workdir, needs, 1, 1000, None, RunMode.AT_LEAST_ONCE)


def test_orders_without_objection_are_accepted_unchanged() -> None:
    orders = [JobOrders(JOB, None, [Start(0, 1, firm=True, gpus=0b10)], [])]

    assert plan(orders, {JOB: work(gpu=500)}, FINE).accepted == orders


def test_a_refused_start_does_not_block_a_stop() -> None:
    orders = JobOrders(JOB, None, [Start(0, 2, firm=True)], [Stop(1, 1)])
    actions = plan([orders], {JOB: work("/gone")}, HostFacts(frozenset({"/gone"}), leaving=False))

    assert actions.accepted == [orders._replace(start=[])]
    reason = "there is no directory /gone"
    assert actions.refused == [JobReports(JOB, [AttemptReport(0, 2, ReportedState.REFUSED, reason=reason)])]


@pytest.mark.parametrize(
    ("facts", "asked", "reason"),
    [
        (FINE, None, "the job's spec did not come"),
        (HostFacts(frozenset(), leaving=True), work(), "this node is leaving"),
        (
            HostFacts(frozenset(), leaving=False, outdated_keeper=True),
            work(cpu=1000),
            "its keeper is of another release",
        ),
    ],
)
def test_a_veto_has_a_reason(facts: HostFacts, asked: TaskTemplate | None, reason: str) -> None:
    refusal = veto(asked, facts)

    assert refusal is not None
    assert refusal.startswith(reason)
