"""A node that is lost is deleted; what it may still run under a lease goes on elsewhere all the same."""

import pytest

from rota.apiserver.admission.node_actions import delete_node
from rota.model.errors import Conflict
from rota.model.ids import JobId
from rota.model.limits import LOST_MS
from rota.model.shape import RunMode
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine
from rota.testing.user_requests import USER

ONE = JobId("1")
LEASE_SECONDS = 120.0


def joined(made: Stage, name: str) -> StageMachine:
    machine = StageMachine(name, {"cpu": 1000}, {"leases": "pid-namespace"})
    made.join(machine)
    return machine


def delete(made: Stage, name: str) -> None:
    made.ask("apiserver", lambda view, _: delete_node(view, name, USER))
    made.run_to_quiescence()


def test_a_lost_node_is_deleted_when_its_leases_have_ended_and_its_job_goes_on() -> None:
    made = Stage()
    lost = joined(made, "a")
    made.submit(job_spec(1, run=RunMode.ONE_AT_A_TIME, lease_seconds=LEASE_SECONDS))
    other = joined(made, "b")
    made.cut(lost)
    made.wait(LOST_MS + 1000)
    with pytest.raises(Conflict, match="may still run 1 tasks under a lease") as refusal:
        delete(made, "a")
    assert refusal.value.hint is not None
    assert "138 s after its last message" in refusal.value.hint
    assert (ONE, 0) not in other.held, "its lease is valid"
    made.wait(110_000)

    assert (ONE, 0) in other.held
    delete(made, "a")
    assert "a" not in made.mirror.nodes


def test_a_lost_node_that_holds_nothing_is_deleted_at_once() -> None:
    made = Stage()
    lost = joined(made, "a")
    made.submit(job_spec(1))
    joined(made, "b")
    made.cut(lost)
    made.wait(LOST_MS + 1000)

    delete(made, "a")
    assert "a" not in made.mirror.nodes
