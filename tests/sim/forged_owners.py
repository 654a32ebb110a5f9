"""Forged: lost tasks with which somebody else deals than their owner, or their owner twice."""

from collections.abc import Callable

from rota.model.attempt import EVICTED
from rota.model.ids import NodeId
from rota.model.job import JobKind, Recovery
from rota.model.lifecycle import AttemptState, TaskState
from rota.model.node import Eligibility, NodeIntent, NodeSpec
from rota.model.recovery import RecoveryAnswer, RecoveryAnswers, RecoveryDecision
from rota.testing.builders import job_spec
from rota.testing.records import decided, placed, reported
from tests.sim.stage import ATTEMPTS, ONE, STATUSES, TASKS, Stage


def owned_by(owner: Recovery) -> Stage:
    return Stage(job_spec(1, count=2, recovery=owner, user="sim", controller="b"))


def an_owner_is_heard_twice() -> None:
    stage = owned_by(Recovery.CONTROLLER)
    stage.write(RecoveryAnswers(ONE, {0: RecoveryAnswer(1, RecoveryDecision.RETRY)}))
    stage.write(RecoveryAnswers(ONE, {0: RecoveryAnswer(1, RecoveryDecision.FAIL)}))


def what_is_to_be_canceled_is_placed_again() -> None:
    owned_by(Recovery.CANCEL).place("n1", "n2")


def a_controller_is_not_asked() -> None:
    owned_by(Recovery.CONTROLLER).place("n1", "n2")


def what_a_leaving_node_stopped_is_placed_again() -> None:
    stage = owned_by(Recovery.CONTROLLER)
    block = stage.place("n1")
    stage.checks.leaves([(ONE, 0, 1)])
    stage.write(reported(STATUSES, [0], AttemptState.STOPPED))
    stage.write(placed(block, [0], "n2"))


def what_a_drain_stopped_ends_as_canceled() -> None:
    stage = owned_by(Recovery.NONE)
    stage.place("n1")
    stage.write(NodeIntent(NodeId("n1"), Eligibility.DRAINING))
    stage.write(placed(ATTEMPTS, [0], "n1", flags=EVICTED))
    stage.write(reported(STATUSES, [0], AttemptState.STOPPED))
    stage.write(decided(TASKS, [0], state=TaskState.CANCELED))


def a_loss_ends_otherwise_than_its_owner_says() -> None:
    stage = owned_by(Recovery.NONE)
    stage.place("n1")
    stage.write(reported(STATUSES, [0], AttemptState.LOST))
    stage.write(decided(TASKS, [0], state=TaskState.CANCELED))


def a_system_job_loses_its_task_and_not_its_node() -> None:
    lost_on_every_node()


def lost_on_every_node(deletes: tuple[str, ...] = ()) -> None:
    stage = Stage(job_spec(1, count=2, kind=JobKind.SYSTEM))
    stage.write(NodeSpec(NodeId("n1"), "n1"))
    stage.place("n1")
    stage.write(reported(STATUSES, [0], AttemptState.LOST))
    stage.write(decided(TASKS, [0], state=TaskState.CANCELED), deletes=deletes)


FORGED: dict[Callable[[], None], str] = {
    an_owner_is_heard_twice: "of task 0 of job 1 its owner was heard twice",
    what_is_to_be_canceled_is_placed_again: "was lost and is placed again, and its owner is: cancel",
    a_controller_is_not_asked: "was lost and is placed again, and its controller said: None",
    what_a_leaving_node_stopped_is_placed_again: "is placed again, and its controller said: None",
    what_a_drain_stopped_ends_as_canceled: "task 0 of job 1 was lost and ends as <TaskState.CANCELED: 4>",
    a_loss_ends_otherwise_than_its_owner_says: "task 0 of job 1 was lost and ends as <TaskState.CANCELED: 4>",
    a_system_job_loses_its_task_and_not_its_node: "was lost and ends as <TaskState.CANCELED: 4>, not as None",
}
