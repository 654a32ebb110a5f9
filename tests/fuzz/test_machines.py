"""Machines of a stage behave like nodes, where the histories depend on it."""

from rota.model.ids import JobId
from rota.model.messages import JobOrders, ReportedState, Start, task_template
from rota.testing.builders import job_spec
from rota.testing.stage import StageMachine


def test_a_machine_skips_orders_for_attempts_it_holds() -> None:
    """After a reconnect, orders that were not read are sent again: they must not restart a task."""
    machine = StageMachine("a", {"cpu": 1000}, {})
    short = JobOrders(JobId("1"), task_template(job_spec(1)), [Start(0, 1, firm=False)], [])
    firm = JobOrders(JobId("2"), task_template(job_spec(2)), [Start(0, 1, firm=True)], [])
    machine.receive_orders([short])
    machine.receive_orders([firm])
    machine.messages()
    machine.receive_orders([short])

    assert machine.held[JobId("1"), 0].state is ReportedState.RUNNING
    assert machine.messages() == []
