"""Forged: attempts that fail too often, live too long or are lost, and mirrors that differ from the disk."""

from collections.abc import Callable

from rota.model.attempt import EVICTED
from rota.model.columns import Draft
from rota.model.ids import JobId, NodeId
from rota.model.job import JobStatus, JobTombstone, SubmitKey
from rota.model.lifecycle import AttemptState, JobState, NodeState, TaskState
from rota.model.node import NodeSpec
from rota.sim.checks.deadlines import SLACK_MS
from rota.testing.builders import job_spec, node_status
from rota.testing.records import decided, placed, reported
from tests.sim.check_stage import ATTEMPTS, ONE, STATUSES, TASKS, CheckStage

A_MINUTE_MS = 60_000


def a_success_without_a_process() -> None:
    CheckStage().write(reported(STATUSES, [0], AttemptState.SUCCEEDED))


def a_success_is_recorded_as_a_failure() -> None:
    stage = CheckStage()
    stage.place("n1")
    stage.process_ended("n1", stage.process_started("n1"), 0)
    stage.write(reported(STATUSES, [0], AttemptState.FAILED))


def more_failures_than_retries() -> None:
    stage = CheckStage()
    block, status = ATTEMPTS, STATUSES
    for attempt in (1, 2):
        block = placed(block, [0], "n1")
        stage.write(block)
        stage.process_ended("n1", stage.process_started("n1", attempt=attempt), 1)
        status = reported(status, [0], AttemptState.FAILED, number=attempt)
        stage.write(status)


def a_task_fails_with_retries_left() -> None:
    stage = CheckStage(job_spec(1, count=1, retries=1))
    stage.place("n1")
    stage.process_ended("n1", stage.process_started("n1"), 1)
    stage.write(reported(STATUSES, [0], AttemptState.FAILED), decided(TASKS, [0], state=TaskState.FAILED))
    stage.write(JobStatus(ONE, JobState.FAILED))
    stage.end()


def an_attempt_times_out_too_early() -> None:
    stage = CheckStage(job_spec(1, count=2, timeout_seconds=5))
    stage.place("n1")
    child = stage.process_started("n1")
    stage.world.run(4_999)
    stage.process_ended("n1", child, -15)
    stage.write(reported(STATUSES, [0], AttemptState.TIMED_OUT))


def an_attempt_outlives_its_time_limit() -> None:
    stage = CheckStage(job_spec(1, count=2, timeout_seconds=5, grace_seconds=3))
    stage.place("n1")
    stage.checks.nodes.machines["n1"].keeper.start_life()
    stage.process_started("n1")
    for second in range(5, 5 + 3 + SLACK_MS // 1000 + 3):
        stage.world.run(1000 * second + 1)
        stage.checks.check()


def a_canceled_task_lives_on() -> None:
    stage = CheckStage(job_spec(1, count=2, grace_seconds=3))
    stage.place("n1")
    stage.process_started("n1")
    stage.write(decided(TASKS, [0], state=TaskState.UNWANTED))
    stage.checks.check()
    stage.world.run(3_000 + SLACK_MS + 1)
    stage.checks.check()


def an_evicted_attempt_lives_on() -> None:
    stage = CheckStage(job_spec(1, count=2, grace_seconds=3))
    block = stage.place("n1")
    stage.write(Draft(block).done(flags=bytes([EVICTED, 0])))
    stage.process_started("n1")
    stage.checks.check()
    stage.world.run(3_000 + SLACK_MS + 1)
    stage.checks.check()


def more_tasks_are_placed_than_parallel_allows() -> None:
    stage = CheckStage(job_spec(1, count=2, parallel=1))
    stage.write(placed(ATTEMPTS, [0, 1], "n1"))


def one_name_makes_two_jobs() -> None:
    CheckStage().write(job_spec(2, name="job-1"))


def one_key_is_written_twice() -> None:
    stage = CheckStage()
    stage.write(SubmitKey("default", "key", ONE, ""))
    stage.write(SubmitKey("default", "key", JobId("2"), ""))


def a_healthy_node_is_declared_lost() -> None:
    stage = CheckStage()
    stage.world.run(A_MINUTE_MS)
    stage.checks.check()
    stage.write(node_status("n1", state=NodeState.LOST))


def an_attempt_is_lost_whose_result_is_on_disk() -> None:
    stage = CheckStage()
    stage.place("n1")
    stage.checks.nodes.machines["n1"].disk.append(['["end",["1",0,1,"exited",0]]\n'])
    stage.write(reported(STATUSES, [0], AttemptState.LOST))


def a_result_is_acknowledged_before_it_is_durable() -> None:
    stage = CheckStage()
    stage.place("n1")
    stage.checks.forgotten([("1", 0, 1)])


def more_is_reserved_than_the_capacity() -> None:
    stage = CheckStage()
    stage.write(node_status("n1", {"cpu": 1000}))
    server = stage.server()
    block = placed(ATTEMPTS, [0, 1], "n1")
    server.mirror.apply(block)
    stage.write(block, writer=server)


def a_mirror_counts_unfinished_jobs_wrongly() -> None:
    stage = CheckStage()
    server = stage.server()
    server.mirror.unfinished += 1
    stage.checks.check_mirror(server)


def a_mirror_reserves_wrongly() -> None:
    stage = CheckStage()
    stage.write(NodeSpec(NodeId("n1"), "n1"), node_status("n1", {"cpu": 1000}))
    server = stage.server()
    server.mirror.node_table.reserved[0, server.mirror.node_table.slot[NodeId("n1")]] = 500
    stage.checks.check_mirror(server)


def a_task_is_quarantined_too_early() -> None:
    stage = CheckStage()
    stage.place("n1", "n2")
    stage.write(decided(TASKS, [0], state=TaskState.HELD))


def a_quarantined_task_is_placed() -> None:
    stage = CheckStage()
    block = stage.place("n1", "n2", "n3", "n1")
    status = reported(STATUSES, [0], AttemptState.LOST, number=4)
    stage.write(status, decided(TASKS, [0], state=TaskState.HELD))
    stage.write(placed(block, [0], "n2"))


def a_node_is_lost_while_the_brake_holds() -> None:
    stage = CheckStage()
    names = ("n1", "n2", "n3")
    silent = [node_status(name, state=NodeState.SUSPECT, silent_at_ms=7) for name in names]
    stage.write(*silent, node_status("n4"))
    stage.world.run(A_MINUTE_MS)
    stage.write(node_status("n1", state=NodeState.LOST, silent_at_ms=7))


def an_active_job_expires() -> None:
    CheckStage().write(JobTombstone(ONE, 0, 0, "active"), deletes=("job/1/spec", "job/1/status"))


FORGED: dict[Callable[[], None], str] = {
    a_task_is_quarantined_too_early: "task 0 of job 1 is held, and was lost on ['n1'] only",
    a_quarantined_task_is_placed: "task 0 of job 1 is held, and was placed",
    a_node_is_lost_while_the_brake_holds: "n1 was declared lost while 3 of 4 nodes were silent at once",
    a_success_without_a_process: "attempt 1 of task 0 of job 1 is recorded as succeeded and ended with None",
    a_success_is_recorded_as_a_failure: "attempt 1 of task 0 of job 1 is recorded as failed and ended with 0",
    more_failures_than_retries: "task 0 of job 1 failed 2 times, with 0 retries",
    a_task_fails_with_retries_left: "task 0 of job 1 has failed after 1 of 2 tries",
    an_attempt_times_out_too_early: (
        "attempt 1 of task 0 of job 1 is recorded as timed out after 4999 of 5000 ms"
    ),
    an_attempt_outlives_its_time_limit: "attempt 1 of task 0 of job 1 is over its time and lives on for",
    a_canceled_task_lives_on: "attempt 1 of task 0 of job 1 must stop and lives on for",
    an_evicted_attempt_lives_on: "attempt 1 of task 0 of job 1 must stop and lives on for",
    more_tasks_are_placed_than_parallel_allows: "2 tasks of job 1 are placed, and at most 1 may run at once",
    an_active_job_expires: "job 1 has expired and had not ended",
    one_name_makes_two_jobs: "one submit made job 1 and job 2",
    one_key_is_written_twice: "submit key made job 1 and job 2",
    a_healthy_node_is_declared_lost: "n1 was declared lost 0 ms after it was healthy",
    an_attempt_is_lost_whose_result_is_on_disk: "task 0 of job 1 was lost on n1, whose disk has its result",
    a_result_is_acknowledged_before_it_is_durable: (
        "attempt 1 of task 0 of job 1 is acknowledged and not durable"
    ),
    more_is_reserved_than_the_capacity: "server-1 has reserved 2000 of 1000 cpu on n1",
    a_mirror_counts_unfinished_jobs_wrongly: "server-1 believes of unfinished jobs: 2, and the disk says 1",
    a_mirror_reserves_wrongly: "server-1 believes of node n1: {'assigned': {}, 'capacity': ",
}
