"""Forged: lost tasks that are not handled by their recovery policy, or decided twice."""

from collections.abc import Callable

from rota.model.attempt import EVICTED
from rota.model.ids import NodeId
from rota.model.job import JobKind, Recovery
from rota.model.lifecycle import AttemptState, TaskState
from rota.model.node import Eligibility, NodeIntent, NodeSpec
from rota.model.recovery import RecoveryAnswer, RecoveryAnswers, RecoveryDecision
from rota.testing.builders import job_spec
from rota.testing.records import decided, placed, reported
from tests.sim.check_stage import ATTEMPTS, ONE, STATUSES, TASKS, CheckStage


def recovered_by(policy: Recovery) -> CheckStage:
    return CheckStage(job_spec(1, count=2, recovery=policy, user="sim", controller="b"))


def two_decisions_are_accepted() -> None:
    stage = recovered_by(Recovery.CONTROLLER)
    stage.write(RecoveryAnswers(ONE, {0: RecoveryAnswer(1, RecoveryDecision.RETRY)}))
    stage.write(RecoveryAnswers(ONE, {0: RecoveryAnswer(1, RecoveryDecision.FAIL)}))


def a_lost_task_to_be_canceled_is_placed_again() -> None:
    recovered_by(Recovery.CANCEL).place("n1", "n2")


def a_lost_task_is_placed_without_a_decision() -> None:
    recovered_by(Recovery.CONTROLLER).place("n1", "n2")


def a_task_stopped_by_a_leaving_node_is_placed_again() -> None:
    stage = recovered_by(Recovery.CONTROLLER)
    block = stage.place("n1")
    stage.checks.leaves([(ONE, 0, 1)])
    stage.write(reported(STATUSES, [0], AttemptState.STOPPED))
    stage.write(placed(block, [0], "n2"))


def a_task_stopped_by_a_drain_ends_as_canceled() -> None:
    stage = recovered_by(Recovery.NONE)
    stage.place("n1")
    stage.write(NodeIntent(NodeId("n1"), Eligibility.DRAINING))
    stage.write(placed(ATTEMPTS, [0], "n1", flags=EVICTED))
    stage.write(reported(STATUSES, [0], AttemptState.STOPPED))
    stage.write(decided(TASKS, [0], state=TaskState.CANCELED))


def a_lost_task_ends_against_its_policy() -> None:
    stage = recovered_by(Recovery.NONE)
    stage.place("n1")
    stage.write(reported(STATUSES, [0], AttemptState.LOST))
    stage.write(decided(TASKS, [0], state=TaskState.CANCELED))


def a_system_job_loses_its_task_and_not_its_node() -> None:
    lost_on_every_node()


def lost_on_every_node(deletes: tuple[str, ...] = ()) -> None:
    stage = CheckStage(job_spec(1, count=2, kind=JobKind.SYSTEM))
    stage.write(NodeSpec(NodeId("n1"), "n1"))
    stage.place("n1")
    stage.write(reported(STATUSES, [0], AttemptState.LOST))
    stage.write(decided(TASKS, [0], state=TaskState.CANCELED), deletes=deletes)


FORGED: dict[Callable[[], None], str] = {
    two_decisions_are_accepted: "two decisions on task 0 of job 1 were accepted",
    a_lost_task_to_be_canceled_is_placed_again: "was lost and is placed again, with recovery cancel",
    a_lost_task_is_placed_without_a_decision: (
        "was lost and is placed again, and its controller decided: None"
    ),
    a_task_stopped_by_a_leaving_node_is_placed_again: "is placed again, and its controller decided: None",
    a_task_stopped_by_a_drain_ends_as_canceled: (
        "task 0 of job 1 was lost and ends as <TaskState.CANCELED: 4>"
    ),
    a_lost_task_ends_against_its_policy: "task 0 of job 1 was lost and ends as <TaskState.CANCELED: 4>",
    a_system_job_loses_its_task_and_not_its_node: "was lost and ends as <TaskState.CANCELED: 4>, not as None",
}
