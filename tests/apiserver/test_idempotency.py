"""A request on a job that is repeated with its key is carried out once."""

from typing import Any

import pytest

from rota.apiserver.access import Caller
from rota.apiserver.admission import actions, restart
from rota.apiserver.admission.idempotency import idempotent
from rota.engine.state.mirror import Mirror
from rota.identity.tokens import Role
from rota.model.errors import BadField, Conflict, NotFound
from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import REQUESTS_KEPT
from tests.apiserver.builders import ADA, NOW, RUNNING, attempts, spec, statuses

ONE = JobId("1")


@pytest.fixture
def mirror() -> Mirror:
    """A job whose only task runs."""
    made = Mirror()
    for record in (spec(1), JobStatus(ONE, JobState.ACTIVE), attempts("1", 1, number=[1])):
        made.apply(record)
    made.apply(statuses("1", 1, number=[1], state=[RUNNING]))
    return made


def records_written(mirror: Mirror, key: str | None, caller: Caller = ADA) -> int:
    """The number of records that a restart with this key writes."""
    plan = idempotent(restart.restart_tasks, key)(mirror, "1", {}, caller, NOW)
    for record in plan.puts:
        mirror.apply(record)
    return len(plan.puts)


def restart_task(mirror: Mirror, number: int) -> None:
    mirror.apply(attempts("1", 1, number=[number]))
    mirror.apply(statuses("1", 1, number=[number], state=[RUNNING]))


def requested_restarts(mirror: Mirror) -> dict[int, int]:
    intent = mirror.jobs[ONE].intent
    assert intent is not None
    return intent.restart


def test_a_repeated_restart_leaves_the_new_attempt_alone(mirror: Mirror) -> None:
    records_written(mirror, "k")
    restart_task(mirror, 2)

    assert records_written(mirror, "k") == 0
    assert requested_restarts(mirror) == {0: 1}
    assert records_written(mirror, "other") == 1
    assert requested_restarts(mirror) == {0: 2}


def test_without_a_key_each_request_is_a_new_one(mirror: Mirror) -> None:
    records_written(mirror, None)
    restart_task(mirror, 2)
    records_written(mirror, None)

    assert requested_restarts(mirror) == {0: 2}


def test_a_repeated_cancel_is_accepted_even_after_the_end(mirror: Mirror) -> None:
    cancel = idempotent(actions.cancel, "k")
    for record in cancel(mirror, "1", {}, ADA, NOW).puts:
        mirror.apply(record)
    mirror.apply(JobStatus(ONE, JobState.CANCELED))

    assert cancel(mirror, "1", {}, ADA, NOW).answer == ONE
    with pytest.raises(Conflict):
        actions.cancel(mirror, "1", {}, ADA, NOW)


def test_keys_belong_to_one_caller_and_the_oldest_expire(mirror: Mirror) -> None:
    bob = Caller("bob", Role.ADMIN, ("*",))
    records_written(mirror, "k")
    restart_task(mirror, 2)
    assert records_written(mirror, "k", bob) == 1
    for number in range(REQUESTS_KEPT):
        restart_task(mirror, 3 + number)
        records_written(mirror, f"k{number}")
    restart_task(mirror, 100)

    assert records_written(mirror, "k") == 1
    intent: Any = mirror.jobs[ONE].intent
    assert len(intent.requests) == REQUESTS_KEPT


def test_a_bad_key_and_an_invisible_job_are_refused(mirror: Mirror) -> None:
    stranger = Caller("eve", Role.SUBMITTER, ("elsewhere",))
    with pytest.raises(BadField):
        idempotent(restart.restart_tasks, "a key with spaces")
    with pytest.raises(NotFound):
        records_written(mirror, "k", stranger)
