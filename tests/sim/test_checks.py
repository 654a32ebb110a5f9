"""Each check can fail: every forgery is reported by the text of the invariant that it violates."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import rota.sim
from rota.model.ids import JobId, NodeId
from rota.model.job import JobStatus, JobTombstone
from rota.model.lifecycle import AttemptState, JobState, TaskState
from rota.model.node import NodeSpec
from rota.model.shape import RunMode
from rota.sim.checks.suite import GRACE_MS, OVERLAP_MS
from rota.sim.world.invariant import InvariantBroken
from rota.testing.builders import job_spec
from rota.testing.records import decided, placed, reported
from tests.sim import (
    forged_adoption,
    forged_answers,
    forged_jobs,
    forged_machines,
    forged_placements,
    forged_recovery,
    forged_results,
    forged_work,
)
from tests.sim.check_stage import ATTEMPTS, ONE, STATUSES, TASKS, CheckStage

ELSEWHERE = ("scenario.py", "replay.py", "seeds/services.py")  # raised only at the end of a whole run


def an_older_epoch_writes() -> None:
    stage = CheckStage()
    stage.write(epoch=3)
    stage.write(epoch=2)


def a_job_goes_back() -> None:
    stage = CheckStage()
    stage.write(JobStatus(ONE, JobState.SUCCEEDED))
    stage.write(JobStatus(ONE, JobState.ACTIVE))


def a_canceled_task_is_desired_again() -> None:
    stage = CheckStage()
    stage.write(decided(TASKS, [1], state=TaskState.UNWANTED))
    stage.write(TASKS)


def a_result_changes() -> None:
    stage = CheckStage()
    stage.write(decided(TASKS, [1], state=TaskState.SUCCEEDED))
    stage.write(decided(TASKS, [1], state=TaskState.FAILED))


def a_report_names_an_older_attempt() -> None:
    stage = CheckStage()
    stage.write(reported(STATUSES, [0], AttemptState.RUNNING, number=2))
    stage.write(reported(STATUSES, [0], AttemptState.RUNNING, number=1))


def the_end_of_an_attempt_changes() -> None:
    stage = CheckStage()
    stage.write(reported(STATUSES, [0], AttemptState.STOPPED))
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED))


def a_running_attempt_is_withdrawn() -> None:
    stage = CheckStage()
    stage.write(reported(STATUSES, [0], AttemptState.RUNNING))
    stage.write(reported(STATUSES, [0], AttemptState.WITHDRAWN))


def an_attempt_is_lost_without_a_fault() -> None:
    stage = CheckStage()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    stage.write(reported(STATUSES, [0], AttemptState.LOST))


def a_number_goes_back() -> None:
    stage = CheckStage()
    stage.place("n1", "n2")
    stage.write(placed(ATTEMPTS, [0], "n1"))


def a_live_task_is_placed_again() -> None:
    stage = CheckStage()
    stage.write(placed(stage.place("n1"), [0], "n2"))


def an_attempt_starts_twice() -> None:
    stage = CheckStage()
    stage.place("n1")
    stage.process_started("n1")
    stage.process_started("n2")


def an_attempt_starts_before_it_is_written() -> None:
    CheckStage().process_started("n1")


def an_at_most_once_task_runs_twice() -> None:
    stage = CheckStage(job_spec(1, count=2, run=RunMode.AT_MOST_ONCE))
    stage.place("n1", "n2")
    stage.process_started("n1")
    stage.process_started("n2", attempt=2)


def a_one_at_a_time_task_runs_twice() -> None:
    stage = CheckStage(job_spec(1, count=2, run=RunMode.ONE_AT_A_TIME))
    stage.world.count("fault: cut off")
    stage.place("n1", "n2")
    stage.process_started("n1")
    stage.process_started("n2", attempt=2)


def a_lease_is_lost_without_a_fault() -> None:
    CheckStage(job_spec(1, count=2, run=RunMode.ONE_AT_A_TIME)).place("n1", "n2")


def a_machine_runs_more_than_it_has() -> None:
    stage = CheckStage()
    stage.write(placed(ATTEMPTS, [0, 1], "n1"))
    stage.process_started("n1", index=0)
    stage.process_started("n1", index=1)


def a_gpu_is_given_away_twice() -> None:
    stage = forged_placements.stage_of(needs={"gpu": 600})
    stage.checks.nodes.machines["n1"].capacity["gpu"] = 2000
    stage.write(forged_placements.with_gpus(0b01, 0b10))
    stage.process_started("n1", index=0, gpus=("1",))
    stage.process_started("n1", index=1, gpus=("1",))


def two_attempts_live_on() -> None:
    stage = CheckStage()
    stage.place("n1", "n2")
    stage.process_started("n1")
    stage.process_started("n2", attempt=2)
    stage.checks.check()
    stage.world.run(OVERLAP_MS + GRACE_MS + 1)
    stage.checks.check()


def one_key_makes_two_jobs() -> None:
    CheckStage().checks.acknowledged("key", ONE, JobId("2"))


def an_answer_comes_before_the_write() -> None:
    CheckStage().checks.acknowledged("key", JobId("2"), None)


def a_job_is_gone() -> None:
    stage = CheckStage()
    stage.write(deletes=("job/1/spec", "job/1/status"))
    stage.end()


def a_job_does_not_end() -> None:
    stage = CheckStage()
    stage.write(decided(TASKS, [0], state=TaskState.FAILED))
    stage.end()


def a_process_is_left_behind() -> None:
    stage = CheckStage()
    stage.place("n1")
    stage.process_started("n1")
    stage.write(JobStatus(ONE, JobState.CANCELED), decided(TASKS, [0, 1], state=TaskState.CANCELED))
    stage.end(canceled={ONE: None})


def a_success_is_made_up() -> None:
    stage = CheckStage()
    stage.write(JobStatus(ONE, JobState.SUCCEEDED), decided(TASKS, [0, 1], state=TaskState.SUCCEEDED))
    stage.end()


def a_task_is_canceled_without_a_request() -> None:
    stage = CheckStage()
    stage.write(JobStatus(ONE, JobState.CANCELED), decided(TASKS, [0, 1], state=TaskState.CANCELED))
    stage.end()


def a_job_ends_before_its_tasks() -> None:
    stage = CheckStage()
    stage.write(JobStatus(ONE, JobState.FAILED), decided(TASKS, [0], state=TaskState.LOST))
    stage.end()


def a_mirror_lacks_a_record() -> None:
    stage = CheckStage()
    server = stage.server()
    stage.write(TASKS)
    stage.checks.check_mirror(server)


def a_mirror_holds_what_has_ended() -> None:
    stage = CheckStage()
    stage.write(NodeSpec(NodeId("n1"), "n1"))
    server = stage.server()
    server.mirror.nodes[NodeId("n1")].assigned[ONE, 0] = 1
    stage.checks.check_mirror(server)


def a_mirror_counts_wrongly() -> None:
    stage = CheckStage()
    server = stage.server()
    server.mirror.jobs[ONE].task_counts.by_phase[0] += 1
    stage.checks.check_mirror(server)


def tasks_are_left_without_their_job() -> None:
    stage = CheckStage()
    server = stage.server()
    stage.write(TASKS)
    stage.write(deletes=("job/1/spec", "job/1/status"))
    stage.checks.check_mirror(server)


FORGED: dict[Callable[[], None], str] = {
    an_older_epoch_writes: "epoch 2 wrote after epoch 3",
    a_job_goes_back: "job 1 went from <JobState.SUCCEEDED: 'succeeded'> to <JobState.ACTIVE: 'active'>",
    a_canceled_task_is_desired_again: (
        "task 1 of job 1 went from <TaskState.UNWANTED: 1> to <TaskState.WANTED: 0>"
    ),
    a_result_changes: "the result of task 1 of job 1 changed: <TaskState.SUCCEEDED: 2> to",
    a_report_names_an_older_attempt: "attempt 1 of task 0 of job 1 was followed by 2",
    the_end_of_an_attempt_changes: "the end of attempt 1 of task 0 of job 1 changed: <AttemptState.STOPPED",
    a_running_attempt_is_withdrawn: "attempt 1 of task 0 of job 1 went from <AttemptState.RUNNING: 3> to",
    an_attempt_is_lost_without_a_fault: "task 0 of job 1 was lost on n1, which no fault had touched",
    a_number_goes_back: "task 0 of job 1 went back from attempt 2 to 1",
    a_live_task_is_placed_again: "task 0 of job 1 got attempt 2 while attempt 1 had not ended",
    an_attempt_starts_twice: "attempt 1 of task 0 of job 1 was started twice: on n1 and on n2",
    an_attempt_starts_before_it_is_written: "task 0 of job 1 was started on n1 and is not on disk",
    a_one_at_a_time_task_runs_twice: "job 1 runs one at a time and runs as attempts 1 on n1, 2 on n2",
    a_lease_is_lost_without_a_fault: "attempt 1 of task 0 of job 1 was lost on n1 without any fault",
    an_at_most_once_task_runs_twice: (
        "task 0 of job 1 may run once and was started again: attempt 2 of task 0"
    ),
    a_machine_runs_more_than_it_has: "n1 runs 2000 of cpu, more than it has",
    a_gpu_is_given_away_twice: "n1 runs 1200 of GPU 1, more than it has",
    two_attempts_live_on: "task 0 of job 1 runs as attempts 1 on n1, 2 on n2, with both well",
    one_key_makes_two_jobs: "submit key was answered with job 2 and with job 1",
    an_answer_comes_before_the_write: "submit key was answered with job 2, which is not on disk",
    a_job_is_gone: "job 1 was acknowledged and is gone",
    a_job_does_not_end: "job 1 has not ended: 1 failed, 1 wanted",
    a_process_is_left_behind: "task 0 of job 1 still runs on ['n1']",
    a_success_is_made_up: "task 0 of job 1 is recorded as succeeded and never did",
    a_task_is_canceled_without_a_request: "task 0 of job 1 was canceled without a request",
    a_job_ends_before_its_tasks: "job 1 is failed and its task 1 is <TaskState.WANTED: 0>",
    a_mirror_lacks_a_record: "server-1 believes other than what is on disk: ['task/1/0']",
    a_mirror_holds_what_has_ended: "server-1 believes of node n1: {'assigned': {('1', 0): 1},",
    a_mirror_counts_wrongly: "server-1 believes of job 1: {'tasks': {'pending': 3,",
    tasks_are_left_without_their_job: "a record cannot be loaded: task/1/0 could not be applied: KeyError",
    **forged_work.FORGED,
    **forged_jobs.FORGED,
    **forged_recovery.FORGED,
    **forged_results.FORGED,
    **forged_answers.FORGED,
    **forged_placements.FORGED,
    **forged_machines.FORGED,
    **forged_adoption.FORGED,
}


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_a_violated_invariant_is_reported(forge: Callable[[], None]) -> None:
    assert FORGED[forge] in violation(forge)


def test_every_check_has_a_forgery() -> None:
    root = Path(rota.sim.__path__[0])
    paths = [path for path in root.rglob("*.py") if str(path.relative_to(root)) not in ELSEWHERE]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    raised = [node.exc for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    broken = [
        error
        for error in raised
        if isinstance(error, ast.Call) and ast.unparse(error.func) == InvariantBroken.__name__
    ]
    patterns = [pattern(error.args[0]) for error in broken]
    sentences = [violation(forge) for forge in FORGED]

    assert patterns
    assert [
        expected
        for expected in patterns
        if not any(re.fullmatch(expected, sentence) for sentence in sentences)
    ] == []


def violation(forge: Callable[[], None]) -> str:
    with pytest.raises(InvariantBroken) as broken:
        forge()
    return str(broken.value)


def pattern(sentence: ast.expr) -> str:
    """A pattern for the text of a check, with any values."""
    parts = sentence.values if isinstance(sentence, ast.JoinedStr) else [sentence]
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)


def test_a_run_without_violations_raises_nothing() -> None:
    stage = CheckStage()
    stage.place("n1", "n2")
    first, second = stage.process_started("n1"), stage.process_started("n2", attempt=2)
    stage.process_ended("n1", first, 0)
    stage.process_ended("n2", second, 0)
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED, number=2))
    stage.write(decided(decided(TASKS, [0], state=TaskState.SUCCEEDED), [1], state=TaskState.LOST))
    stage.write(JobStatus(ONE, JobState.FAILED))
    stage.end()
    stage.checks.check_mirror(stage.server())

    assert stage.world.counts["task: two attempts alive at once"] == 1


def test_an_adopted_attempt_that_succeeds_violates_nothing() -> None:
    forged_adoption.an_attempt_is_adopted_and_succeeds()


def test_a_reported_failure_counts() -> None:
    forged_results.a_reported_failure_counts()


def test_a_job_that_satisfies_all_rules_may_be_placed() -> None:
    forged_placements.a_placement_that_satisfies_all_rules()


def test_a_job_is_spread_over_the_nodes_of_its_cluster() -> None:
    forged_placements.a_spread_over_the_nodes_of_its_own_cluster()


def test_a_waiting_job_may_be_canceled_with_its_failed_cluster() -> None:
    forged_jobs.a_waiting_job_is_canceled_with_its_failed_cluster()


def test_a_lost_task_of_a_system_job_may_end_with_its_node() -> None:
    forged_recovery.lost_on_every_node(deletes=("node/n1/spec",))


def test_two_attempts_may_live_while_a_node_is_unhealthy() -> None:
    stage = CheckStage()
    stage.checks.nodes.is_healthy = lambda machine: machine.name == "n1"
    stage.place("n1", "n2")
    stage.process_started("n1")
    stage.process_started("n2", attempt=2)
    for _ in range(100):
        stage.world.run(stage.world.now_ms + 1000)
        stage.checks.check()

    stage.checks.nodes.is_healthy = lambda _: True
    stage.checks.check()
    stage.world.run(stage.world.now_ms + OVERLAP_MS + GRACE_MS)
    stage.checks.check()


def test_a_job_that_has_ended_and_expired_was_not_lost() -> None:
    stage = CheckStage()
    stage.write(JobStatus(ONE, JobState.CANCELED))
    stage.write(JobTombstone(ONE, 0, 0, "canceled"), deletes=("job/1/spec", "job/1/status"))

    stage.end(canceled={ONE: None})


def test_a_job_that_its_user_deleted_may_be_gone() -> None:
    stage = CheckStage()
    stage.write(deletes=("job/1/spec", "job/1/status"))
    stage.end(deleted={ONE: None})

    assert "job/1/spec" not in stage.checks.known
