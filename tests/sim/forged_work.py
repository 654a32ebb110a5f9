"""Forged: work that fails too often, lives too long or is lost, and leaders that believe what is not so."""

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
from tests.sim.stage import ATTEMPTS, ONE, STATUSES, TASKS, Stage

A_MINUTE_MS = 60_000


def a_success_that_nobody_saw() -> None:
    Stage().write(reported(STATUSES, [0], AttemptState.SUCCEEDED))


def a_failure_that_was_none() -> None:
    stage = Stage()
    stage.place("n1")
    stage.died("n1", stage.born("n1"), 0)
    stage.write(reported(STATUSES, [0], AttemptState.FAILED))


def more_failures_than_retries() -> None:
    stage = Stage()
    block, status = ATTEMPTS, STATUSES
    for attempt in (1, 2):
        block = placed(block, [0], "n1")
        stage.write(block)
        stage.died("n1", stage.born("n1", attempt=attempt), 1)
        status = reported(status, [0], AttemptState.FAILED, number=attempt)
        stage.write(status)


def given_up_too_soon() -> None:
    stage = Stage(job_spec(1, count=1, retries=1))
    stage.place("n1")
    stage.died("n1", stage.born("n1"), 1)
    stage.write(reported(STATUSES, [0], AttemptState.FAILED), decided(TASKS, [0], state=TaskState.FAILED))
    stage.write(JobStatus(ONE, JobState.FAILED))
    stage.end()


def ended_before_its_time() -> None:
    stage = Stage(job_spec(1, count=2, timeout_seconds=5))
    stage.place("n1")
    child = stage.born("n1")
    stage.world.run(4_999)
    stage.died("n1", child, -15)
    stage.write(reported(STATUSES, [0], AttemptState.TIMED_OUT))


def over_its_time() -> None:
    stage = Stage(job_spec(1, count=2, timeout_seconds=5, grace_seconds=3))
    stage.place("n1")
    stage.checks.nodes.machines["n1"].keeper.start_life()
    stage.born("n1")
    for second in range(5, 5 + 3 + SLACK_MS // 1000 + 3):
        stage.world.run(1000 * second + 1)
        stage.checks.check()


def unwanted_and_alive() -> None:
    stage = Stage(job_spec(1, count=2, grace_seconds=3))
    stage.place("n1")
    stage.born("n1")
    stage.write(decided(TASKS, [0], state=TaskState.UNWANTED))
    stage.checks.check()
    stage.world.run(3_000 + SLACK_MS + 1)
    stage.checks.check()


def evicted_and_alive() -> None:
    stage = Stage(job_spec(1, count=2, grace_seconds=3))
    block = stage.place("n1")
    stage.write(Draft(block).done(flags=bytes([EVICTED, 0])))
    stage.born("n1")
    stage.checks.check()
    stage.world.run(3_000 + SLACK_MS + 1)
    stage.checks.check()


def more_at_once_than_may_be() -> None:
    stage = Stage(job_spec(1, count=2, parallel=1))
    stage.write(placed(ATTEMPTS, [0, 1], "n1"))


def one_name_makes_two_jobs() -> None:
    Stage().write(job_spec(2, name="job-1"))


def one_key_is_written_twice() -> None:
    stage = Stage()
    stage.write(SubmitKey("default", "key", ONE, ""))
    stage.write(SubmitKey("default", "key", JobId("2"), ""))


def a_node_is_given_up_at_once() -> None:
    stage = Stage()
    stage.world.run(A_MINUTE_MS)
    stage.checks.check()
    stage.write(node_status("n1", state=NodeState.LOST))


def a_result_that_the_disk_has_is_lost() -> None:
    stage = Stage()
    stage.place("n1")
    stage.checks.nodes.machines["n1"].disk.append(['["end",["1",0,1,"exited",0]]\n'])
    stage.write(reported(STATUSES, [0], AttemptState.LOST))


def a_result_is_forgotten_before_it_is_stored() -> None:
    stage = Stage()
    stage.place("n1")
    stage.checks.forgotten([("1", 0, 1)])


def more_is_reserved_than_there_is() -> None:
    stage = Stage()
    stage.write(node_status("n1", {"cpu": 1000}))
    server = stage.server()
    block = placed(ATTEMPTS, [0, 1], "n1")
    server.mirror.apply(block)
    stage.write(block, writer=server)


def a_line_is_not_what_the_disk_says() -> None:
    stage = Stage()
    server = stage.server()
    server.mirror.unfinished += 1
    stage.checks.believes_the_disk(server)


def room_is_not_what_the_disk_says() -> None:
    stage = Stage()
    stage.write(NodeSpec(NodeId("n1"), "n1"), node_status("n1", {"cpu": 1000}))
    server = stage.server()
    server.mirror.node_table.reserved[0, server.mirror.node_table.slot[NodeId("n1")]] = 500
    stage.checks.believes_the_disk(server)


def held_for_nothing() -> None:
    stage = Stage()
    stage.place("n1", "n2")
    stage.write(decided(TASKS, [0], state=TaskState.HELD))


def held_and_placed() -> None:
    stage = Stage()
    block = stage.place("n1", "n2", "n3", "n1")
    status = reported(STATUSES, [0], AttemptState.LOST, number=4)
    stage.write(status, decided(TASKS, [0], state=TaskState.HELD))
    stage.write(placed(block, [0], "n2"))


def half_of_them_are_given_up() -> None:
    stage = Stage()
    names = ("n1", "n2", "n3")
    silent = [node_status(name, state=NodeState.SUSPECT, silent_at_ms=7) for name in names]
    stage.write(*silent, node_status("n4"))
    stage.world.run(A_MINUTE_MS)
    stage.write(node_status("n1", state=NodeState.LOST, silent_at_ms=7))


def a_job_expires_that_still_runs() -> None:
    Stage().write(JobTombstone(ONE, 0, 0, "active"), deletes=("job/1/spec", "job/1/status"))


FORGED: dict[Callable[[], None], str] = {
    held_for_nothing: "task 0 of job 1 is held, and was lost on ['n1'] only",
    held_and_placed: "task 0 of job 1 is held, and was placed",
    half_of_them_are_given_up: "n1 was given up while 3 of 4 nodes were silent at once",
    a_success_that_nobody_saw: "attempt 1 of task 0 of job 1 is said to have succeeded and ended with None",
    a_failure_that_was_none: "attempt 1 of task 0 of job 1 is said to have failed and ended with 0",
    more_failures_than_retries: "task 0 of job 1 failed 2 times, with 0 retries",
    given_up_too_soon: "task 0 of job 1 was given up after 1 of 2 tries",
    ended_before_its_time: "attempt 1 of task 0 of job 1 is said to be over its time after 4999 of 5000 ms",
    over_its_time: "attempt 1 of task 0 of job 1 is over its time and lives on for",
    unwanted_and_alive: "attempt 1 of task 0 of job 1 has to go and lives on for",
    evicted_and_alive: "attempt 1 of task 0 of job 1 has to go and lives on for",
    more_at_once_than_may_be: "2 tasks of job 1 are placed, of which 1 may be at once",
    a_job_expires_that_still_runs: "job 1 has expired and had not come to an end",
    one_name_makes_two_jobs: "one submit made job 1 and job 2",
    one_key_is_written_twice: "submit key made job 1 and job 2",
    a_node_is_given_up_at_once: "n1 is said to be lost 0 ms after it was well",
    a_result_that_the_disk_has_is_lost: "task 0 of job 1 was lost on n1, whose disk has its result",
    a_result_is_forgotten_before_it_is_stored: "attempt 1 of task 0 of job 1 is said to be stored and is not",
    more_is_reserved_than_there_is: "server-1 has reserved 2000 of 1000 cpu on n1",
    a_line_is_not_what_the_disk_says: "server-1 believes of unfinished jobs: 2, and the disk says 1",
    room_is_not_what_the_disk_says: "server-1 believes of node n1: {'assigned': {}, 'capacity': ",
}
