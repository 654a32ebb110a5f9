"""Rollout of a service: which tasks are replaced when, when it has failed, and what it rolls back to."""

from typing import Any

import pytest

from rota.controllers import retry
from rota.controllers.attempt_end import AttemptEnd
from rota.engine.state.entries import JobEntry
from rota.model.errors import Rejected
from rota.model.ids import JobId
from rota.model.job import JobKind
from rota.model.lifecycle import AttemptState
from rota.model.rollout import RolloutState
from rota.model.service import Health, HealthCheck, RolloutPolicy, ServiceStatus
from rota.testing.builders import job_spec
from rota.testing.stage import Stage
from tests.controllers.one_node_stage import end, job, stage

ONE = JobId("1")


def serving(count: int = 4, **fields: Any) -> Stage:
    """A service on two nodes, one of them with free resources."""
    cluster = stage(8, b=8)
    cluster.submit(job_spec(1, kind=JobKind.SERVICE, count=count, **fields))
    return cluster


def update(cluster: Stage, colour: str = "red", most: int | None = None, **rollout: Any) -> None:
    changes: dict[str, object] = {"env": {"COLOUR": colour}}
    cluster.update(ONE, changes | ({"rollout": rollout} if rollout else {}), most)


def versions(cluster: Stage) -> list[int]:
    status = job(cluster).statuses[0]
    return [status.versions.get(at, 1) for at in range(job(cluster).spec.count)]


def live(cluster: Stage, index: int, health: Health, restarts: int = 0) -> None:
    for machine in cluster.machines.values():
        machine.report_service_status((ONE, index), ServiceStatus(restarts, health=health.value))
    cluster.run_to_quiescence()


def state(entry: JobEntry) -> RolloutState | None:
    return None if entry.rollout is None else entry.rollout.state


def test_max_parallel_tasks_are_replaced_at_a_time() -> None:
    cluster = serving()
    update(cluster, most=3)

    assert versions(cluster) == [2, 2, 2, 1]


def test_tasks_unavailable_for_other_reasons_count() -> None:
    cluster = serving()
    end(cluster, 3, code=1, ran_ms=1)
    update(cluster, most=2)
    cluster.wait(1)

    assert versions(cluster)[:3].count(2) == 1, "task 3 restarts as the newer version by itself"


def test_tasks_that_do_not_serve_are_replaced_immediately() -> None:
    """Replacing an unhealthy task is no loss; healthy ones stay while too many are unavailable."""
    cluster = serving(check=HealthCheck(command=("well",)))
    for index in (0, 1):
        live(cluster, index, Health.HEALTHY)
    for index in (2, 3):
        live(cluster, index, Health.UNHEALTHY)
    update(cluster)

    assert versions(cluster) == [1, 1, 2, 2]


def test_an_end_of_an_older_version_costs_no_backoff() -> None:
    ended = AttemptEnd(AttemptState.FAILED)
    spec = job_spec(kind=JobKind.SERVICE)

    assert retry.decide_restart(spec, ended, 3, is_wanted=True).counts_as_retry
    assert not retry.decide_restart(spec, ended._replace(is_outdated=True), 3, is_wanted=True).counts_as_retry


def test_a_task_in_backoff_starts_immediately_as_the_newer_version() -> None:
    cluster = serving(count=1)
    for _ in range(9):
        end(cluster, 0, code=1, ran_ms=1)
        cluster.wait(300_000)
    end(cluster, 0, code=1, ran_ms=1)
    assert job(cluster).task_counts.pending == 1
    update(cluster)

    assert versions(cluster) == [2]


def test_the_silence_of_a_node_proves_nothing() -> None:
    """What happened on the node is reported when it reconnects."""
    cluster = serving(count=1)
    update(cluster, healthy="4s", deadline="1h")
    cluster.wait(1_000)
    node = next(machine for machine in cluster.machines.values() if (ONE, 0) in machine.held)
    node.silent = True
    cluster.wait(6_000)
    while_silent = state(job(cluster))
    cluster.end_silence(node)
    cluster.wait(2_000)

    assert while_silent is RolloutState.IN_PROGRESS
    assert state(job(cluster)) is RolloutState.DONE


@pytest.mark.parametrize("gone", ["stopped", "lost"])
def test_a_fault_of_the_cluster_is_no_failure_of_the_new_version(gone: str) -> None:
    cluster = serving()
    update(cluster)
    node = next(name for name, machine in cluster.machines.items() if (ONE, 0) in machine.held)
    if gone == "lost":
        cluster.machines[node].crash()
        cluster.cut(cluster.machines[node])
        cluster.wait(60_000)
    else:
        cluster.drain(node, None)

    assert state(job(cluster)) is not RolloutState.FAILED
    assert job(cluster).spec.version == 2


def test_a_failure_of_an_old_task_does_not_fail_the_new_version() -> None:
    cluster = serving()
    update(cluster)
    end(cluster, 3, code=1, ran_ms=1)

    assert state(job(cluster)) is RolloutState.IN_PROGRESS


def test_paused_time_does_not_count_towards_the_rollout_deadline() -> None:
    cluster = serving()
    update(cluster, deadline="1m")
    intent = job(cluster).intent
    assert intent is not None
    live(cluster, 0, Health.DOWN, restarts=1)
    cluster.put(type(intent)(ONE, replace=2, paused=True))
    cluster.wait(600_000)
    cluster.put(type(intent)(ONE, replace=2))
    cluster.wait(59_000)
    before = state(job(cluster))
    cluster.wait(1_000)

    assert before is RolloutState.IN_PROGRESS
    assert job(cluster).spec.version == 3, "and now it is over"


def test_added_tasks_stay_after_a_rollback() -> None:
    cluster = serving(count=2)
    cluster.update(ONE, {"env": {"COLOUR": "red"}, "count": 3}, None)
    end(cluster, 2, code=1, ran_ms=1)

    assert (job(cluster).spec.version, job(cluster).spec.count, job(cluster).spec.env) == (3, 3, {})


def test_an_update_during_a_rollout_rolls_back_to_the_last_good_version() -> None:
    cluster = serving()
    update(cluster, "red")
    update(cluster, "blue")
    end(cluster, 0, code=1, ran_ms=1)

    assert job(cluster).spec.env == {}
    assert versions(cluster)[1:] == [1, 1, 1], "tasks of the good version were left alone"


def test_a_rollback_is_never_failed() -> None:
    cluster = serving()
    update(cluster, deadline="1m")
    end(cluster, 0, code=1, ran_ms=1)
    for _ in range(3):
        end(cluster, 0, code=1, ran_ms=1)
        cluster.wait(120_000)

    assert (job(cluster).spec.version, state(job(cluster))) == (3, RolloutState.DONE)


def test_an_update_after_a_failed_rollout_is_not_rolled_back_by_a_restart() -> None:
    cluster = serving()
    cluster.update(
        ONE, {}, replace=True
    )  # a rollout of version 1 itself: there is no version to roll back to
    end(cluster, 0, code=1, ran_ms=1)
    assert state(job(cluster)) is RolloutState.FAILED
    cluster.update(ONE, {"env": {"COLOUR": "red"}}, replace=False)

    cluster.restart()

    assert (job(cluster).spec.version, job(cluster).spec.env) == (2, {"COLOUR": "red"})


def test_a_failed_rollout_is_rolled_back_when_its_user_allows_it_later() -> None:
    cluster = serving()
    update(cluster, rollback=False)
    end(cluster, 0, code=1, ran_ms=1)
    cluster.update(ONE, {"rollout": {"rollback": True}}, replace=False)

    assert job(cluster).spec.env == {}


def test_a_canceled_service_is_not_rolled_back() -> None:
    cluster = serving()
    update(cluster)
    cluster.cancel(ONE)

    assert job(cluster).task_counts.ended == 4
    assert job(cluster).spec.version == 2


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_parallel": 0}, "rollout.max_parallel"),
        ({"healthy": "soon"}, "rollout.healthy"),
        ({"deadline": "5s", "healthy": "10s"}, "rollout.deadline"),
        ({"rollback": "yes"}, "rollout.rollback"),
        ({"speed": 1}, "rollout.speed"),
    ],
)
def test_an_invalid_rollout_field_is_rejected_with_a_reason(given: dict[str, Any], field: str) -> None:
    with pytest.raises(Rejected) as refused:
        update(serving(), **given)

    assert refused.value.field == field


def test_only_services_are_rolled_out() -> None:
    cluster = stage()
    cluster.submit(job_spec(1))
    with pytest.raises(Rejected) as refused:
        update(cluster, healthy="1s")

    assert refused.value.field == "rollout"


def test_omitted_rollout_fields_keep_their_values() -> None:
    cluster = serving()
    update(cluster, healthy="3s")
    update(cluster, "blue", deadline="3m")

    assert job(cluster).spec.rollout == RolloutPolicy(healthy_seconds=3, deadline_seconds=180)
