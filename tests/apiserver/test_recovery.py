"""Decisions on lost tasks: by which callers, and how often; and the recovery fields of a spec."""

from typing import Any

import pytest

from rota.apiserver.access import Caller
from rota.apiserver.admission.recovery import (
    LossResolution,
    resolve_losses,
    resolve_losses_by_user,
    unresolved_losses,
)
from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views import job_spec
from rota.engine.state.mirror import Mirror
from rota.identity.tokens import Role
from rota.model.errors import BadField, Conflict, NotAllowed, NotFound, Rejected
from rota.model.ids import JobId
from rota.model.job import Recovery
from rota.model.limits import ANSWERS_MAX
from rota.model.plan import Plan
from rota.model.recovery import Loss, RecoveryAnswer, RecoveryAnswers, RecoveryDecision, WhenControllerAbsent
from rota.testing.builders import at
from tests.apiserver.builders import ADA, spec, tasks

ANN = Caller("ann", Role.SUBMITTER, ("default",))
OWNED: dict[str, Any] = {"recovery": Recovery.CONTROLLER, "user": "ann", "controller": "ci"}


def lost(count: int = 4, **changes: Any) -> Mirror:
    """Tasks 1 and 2 of job 1 wait for ann:ci, lost in attempt 3."""
    mirror = Mirror()
    mirror.apply(spec(1, count=count, **(OWNED | changes)))
    mirror.apply(tasks("1", count, losses={1: Loss(3, 5, 5), 2: Loss(3, 5, 5)}))
    return mirror


def resolution(
    *indices: int, attempt: int = 3, word: str = "again", subscriber: str = "ci", job: str = "1"
) -> LossResolution:
    return LossResolution(subscriber, job, indices, attempt, word)


def test_a_decision_is_stored_with_an_event_and_may_be_repeated() -> None:
    mirror = lost()
    plan = resolve_losses(mirror, resolution(2, 1), ANN)
    (answers,) = plan.puts
    assert isinstance(answers, RecoveryAnswers)
    mirror.apply(answers)
    again = resolve_losses(mirror, resolution(1, 2), ANN)

    assert answers == RecoveryAnswers(
        answers.id,
        {1: RecoveryAnswer(3, RecoveryDecision.RETRY), 2: RecoveryAnswer(3, RecoveryDecision.RETRY)},
    )
    assert [(event.kind, event.indices, event.attempt, event.state) for event in plan.events] == [
        ("task.resolved", ((1, 2),), 3, "again")
    ]
    assert (again.puts, again.events, again.answer, again.fenced) == ((), (), "1", True)


def test_the_first_decision_counts() -> None:
    mirror = lost()
    mirror.apply(*resolve_losses(mirror, resolution(1), ANN).puts)

    with pytest.raises(Conflict, match="'again' was decided before for attempt 3 of task 1"):
        resolve_losses(mirror, resolution(1, word="fail"), ANN)


@pytest.mark.parametrize(
    ("caller", "sent", "error", "field"),
    [
        (ADA, resolution(1), NotAllowed, "subscriber"),
        (ANN, resolution(1, subscriber="other"), NotAllowed, "subscriber"),
        (ANN, resolution(1, subscriber=""), BadField, "subscriber"),
        (Caller("ann", Role.VIEWER, ("default",)), resolution(1), NotAllowed, None),
        (Caller("ann", Role.SUBMITTER, ("films",)), resolution(1), NotFound, None),
        (ANN, resolution(1, job="2"), NotFound, None),
        (ANN, resolution(1, word="perhaps"), BadField, "word"),
        (ANN, resolution(1, attempt=2), Conflict, "attempt"),
        (ANN, resolution(0), Conflict, None),
        (ANN, resolution(), BadField, "indices"),
        (ANN, resolution(4), BadField, "indices"),
        (ANN, resolution(*[0] * (ANSWERS_MAX + 1)), BadField, "indices"),
    ],
)
def test_other_callers_and_invalid_decisions_are_refused(
    caller: Caller, sent: LossResolution, error: type[Rejected], field: str | None
) -> None:
    with pytest.raises(error) as refused:
        resolve_losses(lost(), sent, caller)

    assert refused.value.field == field


def test_neither_of_two_tasks_is_decided_if_one_cannot_be() -> None:
    with pytest.raises(Conflict, match="task 0 of job 1 is not waiting for a decision"):
        resolve_losses(lost(), resolution(0, 1), ANN)


def test_a_controller_cannot_decide_for_a_job_that_the_scheduler_recovers() -> None:
    with pytest.raises(Conflict, match="recovered by: scheduler"):
        resolve_losses(lost(recovery=Recovery.SCHEDULER), resolution(1), ANN)


def test_the_number_of_remembered_decisions_is_bounded() -> None:
    mirror = lost()
    before = {index: RecoveryAnswer(1, RecoveryDecision.RETRY) for index in range(10, 10 + ANSWERS_MAX)}
    mirror.apply(RecoveryAnswers(mirror.jobs[spec(1).id].spec.id, before))
    (answers,) = resolve_losses(mirror, resolution(1, 2), ANN).puts

    assert isinstance(answers, RecoveryAnswers)
    assert len(answers.decisions) == ANSWERS_MAX
    assert {1, 2} <= answers.decisions.keys()


def test_unresolved_tasks_are_listed() -> None:
    assert [index for index, _ in unresolved_losses(lost().jobs[spec(1).id])] == [1, 2]


def test_a_spec_names_its_controller_and_is_shown_as_it_can_be_submitted() -> None:
    body = {
        "command": ["true"],
        "recovery": "controller",
        "controller": "ci",
        "when_no_controller": "scheduler",
        "controller_wait": "5m",
    }
    parsed = parse_spec(body)
    shown = job_spec.spec_json(parsed)

    assert (parsed.controller, parsed.when_no_controller) == ("ci", WhenControllerAbsent.SCHEDULER)
    assert parsed.controller_wait_seconds == 300
    assert parse_spec(body | {name: shown[name] for name in body if name != "command"}) == parsed


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("controller", {"recovery": "controller"}),
        ("controller", {"recovery": "controller", "controller": "a b"}),
        ("controller", {"controller": "ci"}),
        ("when_no_controller", {"recovery": "none", "when_no_controller": "wait"}),
        ("when_no_controller", {"recovery": "controller", "controller": "ci", "when_no_controller": "cry"}),
        ("controller_wait", {"recovery": "controller", "controller": "ci", "controller_wait": -1}),
        ("controller_wait", {"recovery": "cancel", "controller_wait": 5}),
    ],
)
def test_a_contradiction_about_recovery_is_refused_by_its_field(field: str, body: dict[str, Any]) -> None:
    with pytest.raises(BadField) as refused:
        parse_spec({"command": ["true"], **body})

    assert (refused.value.field, bool(refused.value.hint)) == (field, True)


def by_hand(mirror: Mirror, caller: Caller = ADA, **body: Any) -> Plan[JobId]:
    return resolve_losses_by_user(mirror, "1", body, caller, at(0))


def test_a_caller_who_may_cancel_may_decide_by_hand() -> None:
    mirror = lost()
    plan = by_hand(mirror, word="again")
    (answers,) = plan.puts
    mirror.apply(answers)
    repeated = by_hand(mirror, word="again", indices=[1, 2])

    assert answers == RecoveryAnswers(
        JobId("1"),
        {1: RecoveryAnswer(3, RecoveryDecision.RETRY), 2: RecoveryAnswer(3, RecoveryDecision.RETRY)},
    )
    assert plan.events[0].why == "ada, by hand, decides 'again' for tasks 1-2 of job 1, lost in attempt 3"
    assert (repeated.puts, repeated.answer) == ((), "1")


def test_a_decision_by_hand_covers_named_tasks_and_their_lost_attempts() -> None:
    mirror = lost()
    mirror.apply(tasks("1", 4, losses={1: Loss(3, 5, 5), 2: Loss(7, 5, 5)}))
    one = by_hand(mirror, word="fail", indices=[2])
    both = by_hand(mirror, word="fail")

    assert one.puts == (RecoveryAnswers(JobId("1"), {2: RecoveryAnswer(7, RecoveryDecision.FAIL)}),)
    assert [(event.indices, event.attempt) for event in both.events] == [(((1, 1),), 3), (((2, 2),), 7)]


def test_tasks_that_are_not_waiting_cannot_be_decided() -> None:
    mirror = lost()
    with pytest.raises(Conflict, match="task 0 of job 1 is not waiting for a decision"):
        by_hand(mirror, word="again", indices=[0])
    with pytest.raises(BadField) as unknown:
        by_hand(mirror, word="forget")
    with pytest.raises(BadField) as missing:
        by_hand(mirror)
    mirror.apply(tasks("1", 4))
    with pytest.raises(Conflict, match="no task of job 1 is waiting for a decision"):
        by_hand(mirror, word="again")

    assert unknown.value.field == missing.value.field == "word"


def test_a_decision_by_hand_needs_the_right_to_cancel() -> None:
    with pytest.raises(Rejected):
        by_hand(lost(), Caller("eve", Role.VIEWER, ("default",)), word="again")
