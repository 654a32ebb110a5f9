"""What the API shows of jobs, tasks and nodes."""

import msgspec

from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views import job_spec, jobs
from rota.apiserver.views.events import event_json
from rota.apiserver.views.nodes import node_json
from rota.apiserver.views.tasks import TaskFilter, task_json, tasks_page
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.attempt import EVICTED, Choice, OldAttempt, OldStatus
from rota.model.ids import JobId, NodeId
from rota.model.job import JobCluster, JobStatus
from rota.model.lifecycle import AttemptState, JobState, TaskState
from rota.model.node import Connection, Eligibility, NodeIntent, NodeLoad
from rota.model.plan import EventRecord, Record
from tests.apiserver.builders import (
    ADA,
    FAILED,
    RUNNING,
    SUCCEEDED,
    attempts,
    node,
    node_status,
    spec,
    statuses,
    tasks,
)


def mirror_of(*records: Record) -> Mirror:
    mirror = Mirror()
    mirror.load((node(1), node_status(1), *records))
    return mirror


def entry_of(*records: Record) -> JobEntry:
    return mirror_of(*records).jobs[JobId("1")]


def sentence_of(entry: JobEntry) -> str:
    return jobs.status_sentence(entry)


def test_counts_add_up_and_phases_without_a_state_are_folded() -> None:
    states = [
        AttemptState.OFFERED,
        AttemptState.QUEUED,
        AttemptState.ACCEPTED,
        RUNNING,
        AttemptState.STOPPING,
    ]
    entry = entry_of(
        spec(1, count=300),
        attempts("1", 256, number=[1] * 5),
        statuses("1", 256, number=[1] * 5, state=states),
    )

    counts = jobs.task_counts(entry)
    assert sum(counts.values()) == 300
    assert (counts["offered"], counts["queued"], counts["running"], counts["pending"]) == (1, 2, 2, 295)


def test_tasks_that_never_started_in_an_ended_job_are_canceled() -> None:
    mirror = mirror_of(spec(1, count=300), JobStatus(JobId("1"), JobState.FAILED))
    entry = mirror.jobs[JobId("1")]

    assert jobs.task_counts(entry)["canceled"] == 300
    assert tasks_page(mirror, entry, TaskFilter(after=298), 10)["tasks"][0]["state"] == "canceled"
    assert len(tasks_page(mirror, entry, TaskFilter({"canceled"}), 1000)["tasks"]) == 300
    assert tasks_page(mirror, entry, TaskFilter({"pending"}), 1000)["tasks"] == []


def test_a_job_shows_its_spec_in_units_that_can_be_submitted() -> None:
    mirror = mirror_of(
        spec(1, needs={"cpu": 500, "memory": 7, "licence": 2}), JobCluster(JobId("1"), "default")
    )
    shown = jobs.job_json(mirror, mirror.jobs[JobId("1")], ADA)

    assert (shown["state"], shown["cluster"], shown["started_at_ms"]) == ("submitted", "default", None)
    assert (shown["spec"]["cpu"], shown["spec"]["memory"], shown["spec"]["gpu"]) == (0.5, 7, 0)
    assert shown["spec"]["resources"] == {"licence": 2}


def test_a_job_has_a_status_sentence() -> None:
    running = (attempts("1", 3, number=[1]), statuses("1", 3, number=[1], state=[RUNNING]))
    active, job = JobStatus(JobId("1"), JobState.ACTIVE), JobId("1")
    done = JobStatus(job, JobState.SUCCEEDED, started_at_ms=1_000, ended_at_ms=1_100)

    assert sentence_of(entry_of(spec(1))) == "waits to be started."
    assert sentence_of(entry_of(spec(1, count=3), active, *running)) == "of 3 tasks 1 run, 2 wait."
    assert sentence_of(entry_of(spec(1), done)) == "succeeded in 0.1 s."
    ended = (tasks("1", 3, state=[TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELED]),)
    failed = JobStatus(job, JobState.FAILED, "exit code 2.")
    assert sentence_of(entry_of(spec(1, count=3), failed, *ended)) == (
        "failed: of 3 tasks 1 succeeded, 1 failed, 1 canceled (exit code 2)."
    )


def test_a_task_shows_its_newest_attempt() -> None:
    mirror = mirror_of(
        spec(1, count=3),
        attempts("1", 3, number=[2, 1, 0], tries=[1, 0, 0], placed_at_ms=[10, 11, 0]),
        statuses(
            "1",
            3,
            number=[2, 0],
            state=[FAILED],
            exit_code=[3],
            started_at_ms=[20],
            ended_at_ms=[30],
            ran_us=[9_500],
            cpu_us=[4_000],
            peak_kib=[2],
            reasons={0: "exit code 3"},
        ),
        tasks("1", 3, state=[TaskState.FAILED], wanted=[1]),
    )
    first, second, third = tasks_page(mirror, mirror.jobs[JobId("1")], TaskFilter(), 10)["tasks"]

    assert first == {
        "job": "1",
        "index": 0,
        "state": "failed",
        "tries": 2,
        "attempt": 2,
        "node": "laptop",
        "exit_code": 3,
        "signal": None,
        "evicted": False,
        "reason": "exit code 3",
        "placed_at_ms": 10,
        "started_at_ms": 20,
        "ended_at_ms": 30,
        "ran_ms": 9.5,
        "cpu_ms": 4.0,
        "peak_memory_bytes": 2048,
        "life": None,
    }
    assert (second["state"], second["attempt"], second["exit_code"]) == ("offered", 1, None)
    assert (third["state"], third["attempt"], third["node"], third["tries"]) == ("pending", None, None, 0)


def test_a_task_lists_all_its_attempts_oldest_first() -> None:
    old = OldStatus(0, 1, AttemptState.LOST, -1, 9, 5, 6, 7_000, 0, 0, "node n1 is lost")
    mirror = mirror_of(
        spec(1),
        attempts(
            "1", 1, number=[3], older=(OldAttempt(0, 1, NodeId("n1"), 4), OldAttempt(0, 2, NodeId("n9"), 8))
        ),
        statuses("1", 1, number=[3], state=[SUCCEEDED], started_at_ms=[9], older=(old,)),
    )
    past = task_json(mirror, mirror.jobs[JobId("1")], 0)["attempts"]

    assert [(attempt["attempt"], attempt["state"], attempt["node"]) for attempt in past] == [
        (1, "lost", "laptop"),
        (2, "offered", "n9"),
        (3, "succeeded", "laptop"),
    ]
    assert (past[0]["exit_code"], past[0]["signal"], past[0]["reason"]) == (None, 9, "node n1 is lost")
    assert past[2]["exit_code"] == 0


def test_pages_of_tasks_cross_blocks_without_gaps_or_repeats() -> None:
    mirror = mirror_of(spec(1, count=600), attempts("1", 256, block=1, number=[1] * 256))
    entry, after, seen = mirror.jobs[JobId("1")], -1, list[int]()
    while True:
        page = tasks_page(mirror, entry, TaskFilter(after=after), 100)
        seen += [task["index"] for task in page["tasks"]]
        if page["next"] is None:
            break
        after = page["next"]

    assert seen == list(range(600))


def test_a_node_shows_its_capacity_reservations_and_use() -> None:
    mirror = mirror_of(
        spec(1, needs={"cpu": 1500, "licence": 1}),
        attempts("1", 1, number=[1]),
        statuses("1", 1, number=[1], state=[RUNNING]),
        NodeIntent(NodeId("n1"), Eligibility.DRAINING),
    )
    mirror.measure(NodeId("n1"), NodeLoad(700, memory_free=2**32))
    unheard = node_json(mirror, mirror.nodes[NodeId("n1")], 120)
    mirror.connect(NodeId("n1"), Connection.UP)
    shown = node_json(mirror, mirror.nodes[NodeId("n1")], 120)

    assert unheard["heard_ms_ago"] is None
    assert shown["capacity"] == {"cpu": 8.0, "memory": 2**33, "disk": 0, "gpu": 0, "licence": 2}
    assert shown["reserved"] == {"cpu": 1.5, "memory": 0, "disk": 0, "gpu": 0, "licence": 1}
    assert shown["used"] == {"cpu": 0.7, "memory": 2**32, "disk": None}
    assert (shown["running"], shown["queued"], shown["eligibility"]) == (1, 0, "draining")
    assert (shown["state"], shown["heard_ms_ago"], shown["labels"]) == ("ready", 120, {"arch": "x86_64"})


def test_a_node_that_never_connected_says_so() -> None:
    mirror = Mirror()
    mirror.apply(node(2, "new"))
    shown = node_json(mirror, mirror.nodes[NodeId("n2")], 5)

    assert (shown["state"], shown["reason"], shown["used"]) == ("left", "has not connected yet", None)


def test_an_event_names_nodes_and_counts_exit_codes() -> None:
    happened = EventRecord(
        "task.ended", "3 tasks failed", JobId("1"), NodeId("n1"), ((0, 1), (5, 5)), exit_code=2
    )
    shown = event_json(mirror_of(), "7.1", 99, happened)

    assert (shown["seq"], shown["node"], shown["exit_codes"]) == ("7.1", "laptop", {"2": 3})


def test_only_placement_fields_that_are_set_are_shown_as_they_can_be_submitted() -> None:
    body = {
        "command": ["true"],
        "gpu": 0.5,
        "prefer": ["ssd exists weight 20"],
        "near": ["job == db over node"],
        "apart": ["app == web over rack weight 50"],
        "spread": ["region skew 2"],
        "tolerate": ["dedicated=ci"],
        "gang": True,
        "policy": "pack",
        "noise": "disk",
        "evict_at_most": 1,
        "expect": 600.0,
        "deadline": "2026-12-01T07:00:00.250Z",
    }
    plain, shown = (job_spec.spec_json(parse_spec(one)) for one in ({"command": ["true"]}, body))

    given = body.keys() - {"command", "gpu"}
    assert {name: shown[name] for name in given} == {name: body[name] for name in given}
    assert (shown["gpu"], plain["gpu"]) == (0.5, 0)
    assert not given & plain.keys()
    assert job_spec.spec_json(parse_spec({"command": ["true"], "preemptible": False}))["preemptible"] is False


def test_a_job_shows_its_last_placement_decision() -> None:
    first = Choice(
        "1 task of job 1 on the idlest of 2 fitting nodes", NodeId("n1"), 2, NodeId("n9"), -1.5, -9.0
    )
    mirror = mirror_of(
        spec(1, count=300),
        attempts("1", 256, number=[1], placed_at_ms=[20], choice=first),
        attempts("1", 44, block=1, number=[1], placed_at_ms=[10], choice=Choice("earlier", NodeId("n1"), 1)),
    )

    assert jobs.job_json(mirror, mirror.jobs[JobId("1")], ADA)["placement"] == {
        "why": "1 task of job 1 on the idlest of 2 fitting nodes",
        "node": "laptop",
        "points": -1.5,
        "fitting": 2,
        "runner_up": "n9",
        "runner_up_points": -9.0,
        "at_ms": 20,
    }
    unplaced = mirror_of(spec(1))
    assert jobs.job_json(unplaced, unplaced.jobs[JobId("1")], ADA)["placement"] is None


def test_an_evicted_attempt_is_shown_as_such() -> None:
    old = OldStatus(0, 1, AttemptState.STOPPED, -1, 15, 5, 6, 7_000, 0, 0, None)
    mirror = mirror_of(
        spec(1),
        attempts("1", 1, number=[2], flags=[EVICTED], older=(OldAttempt(0, 1, NodeId("n1"), 4, EVICTED),)),
        statuses("1", 1, number=[2], state=[RUNNING], started_at_ms=[9], older=(old,)),
    )
    shown = task_json(mirror, mirror.jobs[JobId("1")], 0)

    assert shown["evicted"]
    assert [(attempt["attempt"], attempt["state"], attempt["evicted"]) for attempt in shown["attempts"]] == [
        (1, "stopped", True),
        (2, "running", True),
    ]


def test_gpus_of_a_node_are_shown_as_devices() -> None:
    status = msgspec.structs.replace(node_status(1), capacity={"cpu": 8000, "gpu": 2000})
    mirror = mirror_of(status)

    shown = node_json(mirror, mirror.nodes[NodeId("n1")], 0)
    assert (shown["capacity"]["gpu"], shown["reserved"]["gpu"]) == (2, 0)
