"""Deleting a lost node: tasks it may still run under a lease are continued elsewhere."""

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


def joined(cluster: Stage, name: str) -> StageMachine:
    machine = StageMachine(name, {"cpu": 1000}, {"leases": "pid-namespace"})
    cluster.join(machine)
    return machine


def delete(cluster: Stage, name: str) -> None:
    cluster.ask("apiserver", lambda view, _: delete_node(view, name, USER))
    cluster.run_to_quiescence()


def test_a_lost_node_is_deleted_when_its_leases_have_ended_and_its_job_goes_on() -> None:
    cluster = Stage()
    lost = joined(cluster, "a")
    cluster.submit(job_spec(1, run=RunMode.ONE_AT_A_TIME, lease_seconds=LEASE_SECONDS))
    other = joined(cluster, "b")
    cluster.cut(lost)
    cluster.wait(LOST_MS + 1000)
    with pytest.raises(Conflict, match="may still run 1 tasks under a lease") as refusal:
        delete(cluster, "a")
    assert refusal.value.hint is not None
    assert "138 s after its last message" in refusal.value.hint
    assert (ONE, 0) not in other.held, "its lease is valid"
    cluster.wait(110_000)

    assert (ONE, 0) in other.held
    delete(cluster, "a")
    assert "a" not in cluster.mirror.nodes


def test_a_lost_node_without_attempts_is_deleted_immediately() -> None:
    cluster = Stage()
    lost = joined(cluster, "a")
    cluster.submit(job_spec(1))
    joined(cluster, "b")
    cluster.cut(lost)
    cluster.wait(LOST_MS + 1000)

    delete(cluster, "a")
    assert "a" not in cluster.mirror.nodes
