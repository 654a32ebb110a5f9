"""Each check can fail: what is forged is told in the words of the promise it breaks."""

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
    forged_adoptions,
    forged_fleets,
    forged_kinds,
    forged_owners,
    forged_places,
    forged_reports,
    forged_words,
    forged_work,
)
from tests.sim.stage import ATTEMPTS, ONE, STATUSES, TASKS, Stage

ELSEWHERE = ("scenario.py", "replay.py", "seeds/services.py")  # what is said only when a whole run is over


def an_older_epoch_writes() -> None:
    stage = Stage()
    stage.write(epoch=3)
    stage.write(epoch=2)


def a_job_goes_back() -> None:
    stage = Stage()
    stage.write(JobStatus(ONE, JobState.SUCCEEDED))
    stage.write(JobStatus(ONE, JobState.ACTIVE))


def a_task_is_wanted_again() -> None:
    stage = Stage()
    stage.write(decided(TASKS, [1], state=TaskState.UNWANTED))
    stage.write(TASKS)


def a_result_changes() -> None:
    stage = Stage()
    stage.write(decided(TASKS, [1], state=TaskState.SUCCEEDED))
    stage.write(decided(TASKS, [1], state=TaskState.FAILED))


def a_report_names_an_older_attempt() -> None:
    stage = Stage()
    stage.write(reported(STATUSES, [0], AttemptState.RUNNING, number=2))
    stage.write(reported(STATUSES, [0], AttemptState.RUNNING, number=1))


def the_end_of_an_attempt_changes() -> None:
    stage = Stage()
    stage.write(reported(STATUSES, [0], AttemptState.STOPPED))
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED))


def what_runs_is_withdrawn() -> None:
    stage = Stage()
    stage.write(reported(STATUSES, [0], AttemptState.RUNNING))
    stage.write(reported(STATUSES, [0], AttemptState.WITHDRAWN))


def an_attempt_is_lost_for_no_reason() -> None:
    stage = Stage()
    stage.write(placed(ATTEMPTS, [0], "n1"))
    stage.write(reported(STATUSES, [0], AttemptState.LOST))


def a_number_goes_back() -> None:
    stage = Stage()
    stage.place("n1", "n2")
    stage.write(placed(ATTEMPTS, [0], "n1"))


def a_task_is_placed_while_it_lives() -> None:
    stage = Stage()
    stage.write(placed(stage.place("n1"), [0], "n2"))


def an_attempt_starts_twice() -> None:
    stage = Stage()
    stage.place("n1")
    stage.born("n1")
    stage.born("n2")


def an_attempt_starts_before_it_is_written() -> None:
    Stage().born("n1")


def what_may_run_once_runs_again() -> None:
    stage = Stage(job_spec(1, count=2, run=RunMode.AT_MOST_ONCE))
    stage.place("n1", "n2")
    stage.born("n1")
    stage.born("n2", attempt=2)


def what_runs_one_at_a_time_runs_twice() -> None:
    stage = Stage(job_spec(1, count=2, run=RunMode.ONE_AT_A_TIME))
    stage.world.count("fault: cut off")
    stage.place("n1", "n2")
    stage.born("n1")
    stage.born("n2", attempt=2)


def a_lease_is_lost_for_nothing() -> None:
    Stage(job_spec(1, count=2, run=RunMode.ONE_AT_A_TIME)).place("n1", "n2")


def a_machine_runs_more_than_it_has() -> None:
    stage = Stage()
    stage.write(placed(ATTEMPTS, [0, 1], "n1"))
    stage.born("n1", index=0)
    stage.born("n1", index=1)


def a_device_is_given_away_twice() -> None:
    stage = forged_places.stage_of(needs={"gpu": 600})
    stage.checks.nodes.machines["n1"].capacity["gpu"] = 2000
    stage.write(forged_places.with_gpus(0b01, 0b10))
    stage.born("n1", index=0, gpus=("1",))
    stage.born("n1", index=1, gpus=("1",))


def two_attempts_live_on() -> None:
    stage = Stage()
    stage.place("n1", "n2")
    stage.born("n1")
    stage.born("n2", attempt=2)
    stage.checks.check()
    stage.world.run(OVERLAP_MS + GRACE_MS + 1)
    stage.checks.check()


def one_key_makes_two_jobs() -> None:
    Stage().checks.acknowledged("key", ONE, JobId("2"))


def an_answer_comes_before_the_write() -> None:
    Stage().checks.acknowledged("key", JobId("2"), None)


def a_job_is_gone() -> None:
    stage = Stage()
    stage.write(deletes=("job/1/spec", "job/1/status"))
    stage.end()


def a_job_does_not_end() -> None:
    stage = Stage()
    stage.write(decided(TASKS, [0], state=TaskState.FAILED))
    stage.end()


def a_process_is_left_behind() -> None:
    stage = Stage()
    stage.place("n1")
    stage.born("n1")
    stage.write(JobStatus(ONE, JobState.CANCELED), decided(TASKS, [0, 1], state=TaskState.CANCELED))
    stage.end(canceled={ONE: None})


def a_success_is_made_up() -> None:
    stage = Stage()
    stage.write(JobStatus(ONE, JobState.SUCCEEDED), decided(TASKS, [0, 1], state=TaskState.SUCCEEDED))
    stage.end()


def nobody_canceled() -> None:
    stage = Stage()
    stage.write(JobStatus(ONE, JobState.CANCELED), decided(TASKS, [0, 1], state=TaskState.CANCELED))
    stage.end()


def a_job_ends_before_its_tasks() -> None:
    stage = Stage()
    stage.write(JobStatus(ONE, JobState.FAILED), decided(TASKS, [0], state=TaskState.LOST))
    stage.end()


def a_mirror_lacks_a_record() -> None:
    stage = Stage()
    server = stage.server()
    stage.write(TASKS)
    stage.checks.believes_the_disk(server)


def a_mirror_holds_what_has_ended() -> None:
    stage = Stage()
    stage.write(NodeSpec(NodeId("n1"), "n1"))
    server = stage.server()
    server.mirror.nodes[NodeId("n1")].assigned[ONE, 0] = 1
    stage.checks.believes_the_disk(server)


def a_mirror_counts_wrongly() -> None:
    stage = Stage()
    server = stage.server()
    server.mirror.jobs[ONE].task_counts.by_phase[0] += 1
    stage.checks.believes_the_disk(server)


def tasks_are_left_without_their_job() -> None:
    stage = Stage()
    server = stage.server()
    stage.write(TASKS)
    stage.write(deletes=("job/1/spec", "job/1/status"))
    stage.checks.believes_the_disk(server)


FORGED: dict[Callable[[], None], str] = {
    an_older_epoch_writes: "epoch 2 wrote after epoch 3",
    a_job_goes_back: "job 1 went from <JobState.SUCCEEDED: 'succeeded'> to <JobState.ACTIVE: 'active'>",
    a_task_is_wanted_again: "task 1 of job 1 went from <TaskState.UNWANTED: 1> to <TaskState.WANTED: 0>",
    a_result_changes: "the result of task 1 of job 1 changed: <TaskState.SUCCEEDED: 2> to",
    a_report_names_an_older_attempt: "attempt 1 of task 0 of job 1 was followed by 2",
    the_end_of_an_attempt_changes: "the end of attempt 1 of task 0 of job 1 changed: <AttemptState.STOPPED",
    what_runs_is_withdrawn: "attempt 1 of task 0 of job 1 went from <AttemptState.RUNNING: 3> to",
    an_attempt_is_lost_for_no_reason: "task 0 of job 1 was lost on n1, which nothing had befallen",
    a_number_goes_back: "task 0 of job 1 went back from attempt 2 to 1",
    a_task_is_placed_while_it_lives: "task 0 of job 1 got attempt 2 while attempt 1 had not ended",
    an_attempt_starts_twice: "attempt 1 of task 0 of job 1 was started twice: on n1 and on n2",
    an_attempt_starts_before_it_is_written: "task 0 of job 1 was started on n1 and is not on disk",
    what_runs_one_at_a_time_runs_twice: "job 1 runs one at a time and runs as attempts 1 on n1, 2 on n2",
    a_lease_is_lost_for_nothing: "attempt 1 of task 0 of job 1 was lost on n1 for nothing",
    what_may_run_once_runs_again: "task 0 of job 1 may run once and was started again: attempt 2 of task 0",
    a_machine_runs_more_than_it_has: "n1 runs 2000 of cpu, more than it has",
    a_device_is_given_away_twice: "n1 runs 1200 of GPU 1, more than it has",
    two_attempts_live_on: "task 0 of job 1 runs as attempts 1 on n1, 2 on n2, with both well",
    one_key_makes_two_jobs: "submit key was answered with job 2 and with job 1",
    an_answer_comes_before_the_write: "submit key was answered with job 2, which is not on disk",
    a_job_is_gone: "job 1 was acknowledged and is gone",
    a_job_does_not_end: "job 1 has not come to an end: 1 failed, 1 wanted",
    a_process_is_left_behind: "task 0 of job 1 still runs on ['n1']",
    a_success_is_made_up: "task 0 of job 1 is said to have succeeded and never did",
    nobody_canceled: "task 0 of job 1 was canceled by nobody",
    a_job_ends_before_its_tasks: "job 1 is failed and its task 1 is <TaskState.WANTED: 0>",
    a_mirror_lacks_a_record: "server-1 believes other than what is on disk: ['task/1/0']",
    a_mirror_holds_what_has_ended: "server-1 believes of node n1: {'assigned': {('1', 0): 1},",
    a_mirror_counts_wrongly: "server-1 believes of job 1: {'tasks': {'pending': 3,",
    tasks_are_left_without_their_job: "a record cannot be loaded: task/1/0 could not be applied: KeyError",
    **forged_work.FORGED,
    **forged_kinds.FORGED,
    **forged_owners.FORGED,
    **forged_reports.FORGED,
    **forged_words.FORGED,
    **forged_places.FORGED,
    **forged_fleets.FORGED,
    **forged_adoptions.FORGED,
}


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_what_breaks_a_promise_is_told(forge: Callable[[], None]) -> None:
    assert FORGED[forge] in told(forge)


def test_no_check_is_without_a_forgery() -> None:
    root = Path(rota.sim.__path__[0])
    paths = [path for path in root.rglob("*.py") if str(path.relative_to(root)) not in ELSEWHERE]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    raised = [node.exc for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    broken = [
        one
        for one in raised
        if isinstance(one, ast.Call) and ast.unparse(one.func) == InvariantBroken.__name__
    ]
    patterns = [pattern(one.args[0]) for one in broken]
    sentences = [told(forge) for forge in FORGED]

    assert patterns
    assert [one for one in patterns if not any(re.fullmatch(one, sentence) for sentence in sentences)] == []


def told(forge: Callable[[], None]) -> str:
    with pytest.raises(InvariantBroken) as broken:
        forge()
    return str(broken.value)


def pattern(sentence: ast.expr) -> str:
    """What a check says, whatever the values in it."""
    parts = sentence.values if isinstance(sentence, ast.JoinedStr) else [sentence]
    return "".join(re.escape(str(one.value)) if isinstance(one, ast.Constant) else ".+" for one in parts)


def test_what_keeps_every_promise_is_not_told() -> None:
    stage = Stage()
    stage.place("n1", "n2")
    first, second = stage.born("n1"), stage.born("n2", attempt=2)
    stage.died("n1", first, 0)
    stage.died("n2", second, 0)
    stage.write(reported(STATUSES, [0], AttemptState.SUCCEEDED, number=2))
    stage.write(decided(decided(TASKS, [0], state=TaskState.SUCCEEDED), [1], state=TaskState.LOST))
    stage.write(JobStatus(ONE, JobState.FAILED))
    stage.end()
    stage.checks.believes_the_disk(stage.server())

    assert stage.world.counts["task: two attempts alive at once"] == 1


def test_work_that_is_adopted_and_ends_well_breaks_nothing() -> None:
    forged_adoptions.work_is_adopted_and_ends_well()


def test_a_failure_that_was_reported_counts() -> None:
    forged_reports.a_failure_that_was_reported_counts()


def test_who_heeds_every_wish_may_be_placed() -> None:
    forged_places.keeps_to_all_rules()


def test_who_is_to_be_spread_is_so_over_the_nodes_of_his_cluster() -> None:
    forged_places.is_spread_over_its_own_cluster()


def test_who_waits_for_others_may_be_given_up_with_his_cluster() -> None:
    forged_kinds.a_job_that_waits_is_given_up_with_its_cluster()


def test_a_lost_task_of_a_system_job_may_end_with_its_node() -> None:
    forged_owners.lost_on_every_node(deletes=("node/n1/spec",))


def test_two_attempts_may_live_while_a_node_is_not_well() -> None:
    stage = Stage()
    stage.checks.nodes.is_well = lambda machine: machine.name == "n1"
    stage.place("n1", "n2")
    stage.born("n1")
    stage.born("n2", attempt=2)
    for _ in range(100):
        stage.world.run(stage.world.now_ms + 1000)
        stage.checks.check()

    stage.checks.nodes.is_well = lambda _: True
    stage.checks.check()
    stage.world.run(stage.world.now_ms + OVERLAP_MS + GRACE_MS)
    stage.checks.check()


def test_a_job_that_has_ended_and_expired_was_not_lost() -> None:
    stage = Stage()
    stage.write(JobStatus(ONE, JobState.CANCELED))
    stage.write(JobTombstone(ONE, 0, 0, "canceled"), deletes=("job/1/spec", "job/1/status"))

    stage.end(canceled={ONE: None})


def test_a_job_that_its_user_deleted_may_be_gone() -> None:
    stage = Stage()
    stage.write(deletes=("job/1/spec", "job/1/status"))
    stage.end(deleted={ONE: None})

    assert "job/1/spec" not in stage.checks.known
