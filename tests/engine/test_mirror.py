"""Mirror: state derived from records, and observations."""

from typing import Any

import pytest

from rota.engine.state.mirror import Mirror
from rota.model.attempt import LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import Draft
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import Counters, JobStatus, SubmitKey
from rota.model.lifecycle import AttemptState, JobState, NodeState, TaskState
from rota.model.limits import BLOCK_TASKS, REFUSAL_MS
from rota.model.node import Connection, Eligibility, NodeIntent, NodeLoad, NodeSpec
from rota.model.plan import Record
from rota.model.task import TaskBlock
from rota.testing.builders import job_spec
from rota.testing.records import decided, job, node, placed, reported

JOB, N1, N2 = JobId("1"), NodeId("n1"), NodeId("n2")
NEW = AttemptBlock.new(JOB, 0, 4)
SILENT = StatusBlock.new(JOB, 0, 4)
UNDECIDED = TaskBlock.new(JOB, 0, 4)


def mirror_of(*records: Record) -> Mirror:
    mirror = Mirror()
    mirror.load(records)
    return mirror


@pytest.fixture
def mirror() -> Mirror:
    """Two nodes and an active job of four tasks."""
    return mirror_of(
        node("n1"), node("n2"), job(count=4, needs={"cpu": 1000}), JobStatus(JOB, JobState.ACTIVE)
    )


# ---- jobs


def test_a_job_without_task_records_is_all_pending(mirror: Mirror) -> None:
    entry = mirror.jobs[JOB]

    assert (entry.task_counts.pending, entry.task_counts.live, entry.task_counts.ended) == (4, 0, 0)
    assert entry.task_counts.as_dict()["pending"] == 4
    assert entry.ready(0, 10) == [0, 1, 2, 3]
    assert entry.ready(0, 2) == [0, 1]


def test_queues_are_in_the_order_of_ranks() -> None:
    needs = {"cpu": 1000}
    jobs = [job(n, needs=needs, priority=p) for n, p in ((1, 50), (2, 90), (3, 50), (10, 90))]
    other = job(4, needs={"cpu": 2000})
    mirror = mirror_of(*jobs, other, *(JobStatus(spec.id, JobState.ACTIVE) for spec in (*jobs, other)))

    assert dict(mirror.pending_queues()) == {
        jobs[0].queue_key: [jobs[1].queue_rank, jobs[3].queue_rank, jobs[0].queue_rank, jobs[2].queue_rank],
        other.queue_key: [other.queue_rank],
    }


def test_a_job_is_queued_while_a_task_of_it_is_pending(mirror: Mirror) -> None:
    mirror.apply(placed(NEW, range(4), "n1"))
    all_placed = list(mirror.pending_queues())
    mirror.apply(reported(SILENT, [2], AttemptState.REFUSED))

    assert all_placed == []
    assert list(mirror.pending_queues()) == [
        (mirror.jobs[JOB].spec.queue_key, [mirror.jobs[JOB].spec.queue_rank])
    ]
    assert mirror.jobs[JOB].ready(0, 10) == [2]


def test_a_canceled_job_leaves_the_queue(mirror: Mirror) -> None:
    mirror.apply(JobStatus(JOB, JobState.CANCELING))

    assert list(mirror.pending_queues()) == []


def test_a_retry_is_ready_when_its_backoff_is_over(mirror: Mirror) -> None:
    mirror.apply(placed(NEW, range(4), "n1"))
    mirror.apply(reported(SILENT, [1, 3], AttemptState.FAILED))
    mirror.apply(decided(decided(UNDECIDED, [1], wanted=1, not_before=700), [3], wanted=1, not_before=500))
    entry = mirror.jobs[JOB]

    assert (entry.ready_ms(), entry.all_ready_ms()) == (500, 700)
    assert [entry.ready(ms, 10) for ms in (499, 500, 700)] == [[], [3], [1, 3]]


def test_the_second_block_of_a_job_has_indices_of_its_own() -> None:
    count = BLOCK_TASKS + 3
    mirror = mirror_of(node("n1"), job(count=count), JobStatus(JOB, JobState.ACTIVE))
    mirror.apply(placed(AttemptBlock.new(JOB, 0, BLOCK_TASKS), range(BLOCK_TASKS), "n1"))
    mirror.apply(placed(AttemptBlock.new(JOB, 1, 3), [0, 1], "n1"))
    mirror.apply(reported(StatusBlock.new(JOB, 1, 3), [1], AttemptState.WITHDRAWN))

    assert mirror.jobs[JOB].ready(0, 10) == [BLOCK_TASKS + 1, BLOCK_TASKS + 2]
    assert max(mirror.nodes[N1].assigned) == (JOB, BLOCK_TASKS)


def test_unfinished_jobs_are_counted(mirror: Mirror) -> None:
    counts = [mirror.unfinished]
    for record in (job(2), JobStatus(JOB, JobState.SUCCEEDED), JobStatus(JOB, JobState.SUCCEEDED)):
        mirror.apply(record)
        counts.append(mirror.unfinished)
    mirror.forget(job().key)

    assert counts == [1, 2, 1, 1]
    assert mirror.unfinished == 1


def test_run_times_of_ended_attempts_are_averaged(mirror: Mirror) -> None:
    mirror.apply(placed(NEW, range(4), "n1"))
    before = mirror.jobs[JOB].run_us
    first = reported(SILENT, [0, 1], AttemptState.SUCCEEDED, ran_us=1000)
    mirror.apply(first)
    learned = mirror.jobs[JOB].run_us
    mirror.apply(reported(first, [2], AttemptState.LOST, ran_us=10**9))

    assert (before, learned, mirror.jobs[JOB].run_us) == (None, 1000, 1000)


# ---- nodes and their resources


def test_resources_of_an_attempt_are_reserved_until_it_has_ended(mirror: Mirror) -> None:
    mirror.apply(placed(placed(NEW, [0, 1], "n1"), [2], "n2"))
    offered = (reserved(mirror, N1), reserved(mirror, N2))
    mirror.apply(reported(SILENT, [0], AttemptState.SUCCEEDED))

    assert offered == (2000, 1000)
    assert (reserved(mirror, N1), reserved(mirror, N2)) == (1000, 1000)
    assert mirror.nodes[N1].assigned == {(JOB, 1): 1}
    assert mirror.nodes[N2].assigned == {(JOB, 2): 1}


def test_released_resources_raise_the_capacity_version(mirror: Mirror) -> None:
    grown = [mirror.node_table.capacity_version]
    for record in (placed(NEW, [0], "n1"), reported(SILENT, [0], AttemptState.SUCCEEDED)):
        mirror.apply(record)
        grown.append(mirror.node_table.capacity_version)

    assert grown[0] == grown[1] < grown[2]


def test_lookahead_reserves_nothing_until_it_is_accepted(mirror: Mirror) -> None:
    mirror.apply(placed(NEW, [0, 1], "n1", flags=LOOKAHEAD))
    waiting = (reserved(mirror, N1), int(mirror.node_table.queued[0]))
    mirror.apply(reported(SILENT, [0], AttemptState.ACCEPTED))

    assert waiting == (0, 2)
    assert (reserved(mirror, N1), int(mirror.node_table.queued[0])) == (1000, 1)
    assert mirror.nodes[N1].assigned == {(JOB, 0): 1, (JOB, 1): 1}


def test_a_task_placed_again_is_held_by_its_new_node_only(mirror: Mirror) -> None:
    first = placed(NEW, [0], "n1")
    mirror.apply(first)
    mirror.apply(reported(SILENT, [0], AttemptState.REFUSED))
    mirror.apply(placed(first, [0], "n2"))

    assert mirror.nodes[N1].assigned == {}
    assert mirror.nodes[N2].assigned == {(JOB, 0): 2}
    assert (reserved(mirror, N1), reserved(mirror, N2)) == (0, 1000)


def test_the_mirror_can_be_reloaded_after_a_node_lost_a_resource() -> None:
    """The resource stays reserved, because the attempt has not ended."""
    mirror = mirror_of(
        node("n1", capacity={"cpu": 4000}), job(count=4, needs={"gpu": 1}), placed(NEW, [0, 1], "n1")
    )

    assert mirror.node_table.reserved[mirror.node_table.rows["gpu"], 0] == 2


@pytest.mark.parametrize(
    ("link", "state", "wish", "is_open"),
    [
        (Connection.UP, NodeState.READY, Eligibility.OPEN, True),
        (Connection.UNKNOWN, NodeState.READY, Eligibility.OPEN, False),
        (Connection.DOWN, NodeState.READY, Eligibility.OPEN, False),
        (Connection.UP, NodeState.SUSPECT, Eligibility.OPEN, False),
        (Connection.UP, NodeState.LOST, Eligibility.OPEN, False),
        (Connection.UP, NodeState.READY, Eligibility.CORDONED, False),
        (Connection.UP, NodeState.READY, Eligibility.DRAINING, False),
    ],
)
def test_a_node_is_open_when_it_is_eligible_ready_and_connected(
    link: Connection, state: NodeState, wish: Eligibility, is_open: bool
) -> None:
    mirror = mirror_of(node("n1", state=state), NodeIntent(N1, wish))
    mirror.connect(N1, link)

    assert bool(mirror.node_table.open[mirror.node_table.slot[N1]]) is is_open


def test_a_node_cannot_give_itself_the_labels_of_its_join_record() -> None:
    mirror = mirror_of(
        node("n1", labels={"zone": "self-declared", "node": "other", "arch": "arm"}),
        NodeSpec(N1, "rack-1", cluster="big", labels={"zone": "a"}),
    )

    granted = {"zone": "a", "node": "rack-1", "cluster": "big"}
    marked = {f"granted.{key}": value for key, value in granted.items()}
    assert mirror.node_table.labels[0] == {"arch": "arm", **granted, **marked}


def test_a_deleted_node_takes_no_more_tasks(mirror: Mirror) -> None:
    mirror.connect(N1, Connection.UP)
    was_open = bool(mirror.node_table.open[0])
    mirror.forget(node("n1").key)

    assert was_open
    assert list(mirror.nodes) == [N2]
    assert not mirror.node_table.open[0]


def test_a_refusal_counts_for_a_while_for_its_queue_and_node(mirror: Mirror) -> None:
    errand = mirror.jobs[JOB].spec.refusal_key
    mirror.now_ms = 1000
    mirror.apply(placed(NEW, [0], "n1"))
    mirror.apply(Draft(reported(SILENT, [0], AttemptState.REFUSED)).done(reasons={0: "no such directory"}))

    assert mirror.refused_by(errand) == {N1: (1000 + REFUSAL_MS, "no such directory")}
    assert mirror.refused_by(job(needs={"cpu": 1}).refusal_key) == {}


@pytest.mark.parametrize("change", [{"boot_id": "boot-2"}, {"capacity": {"cpu": 9000}}])
def test_a_node_that_changed_may_be_offered_tasks_again(mirror: Mirror, change: dict[str, Any]) -> None:
    mirror.apply(placed(NEW, [0], "n1"))
    mirror.apply(reported(SILENT, [0], AttemptState.REFUSED))
    refused = dict(mirror.refused_by(mirror.jobs[JOB].spec.refusal_key))
    mirror.apply(node("n1"))
    unchanged = dict(mirror.refused_by(mirror.jobs[JOB].spec.refusal_key))
    mirror.apply(node("n1", **change))

    assert list(refused) == list(unchanged) == [N1]
    assert mirror.refused_by(mirror.jobs[JOB].spec.refusal_key) == {}


def test_after_a_reload_a_refusal_is_not_attributed_to_the_next_node(mirror: Mirror) -> None:
    first = placed(NEW, [0], "n1")
    again = mirror_of(
        node("n1"),
        node("n2"),
        mirror.jobs[JOB].spec,
        placed(first, [0], "n2"),
        reported(SILENT, [0], AttemptState.REFUSED, number=1),
    )

    assert N2 not in again.refused_by(mirror.jobs[JOB].spec.refusal_key)


# ---- touched nodes


def test_a_node_is_touched_when_its_orders_may_have_changed(mirror: Mirror) -> None:
    mirror.touched.clear()
    mirror.apply(placed(NEW, [0], "n2"))
    by_placing = list(mirror.touched)
    mirror.touched.clear()
    mirror.apply(decided(UNDECIDED, [0], state=TaskState.UNWANTED))

    assert by_placing == list(mirror.touched) == [N2]


def test_a_deleted_node_is_not_touched_by_a_job_it_had_a_task_of(mirror: Mirror) -> None:
    mirror.apply(placed(NEW, [0], "n2"))
    mirror.apply(reported(SILENT, [0], AttemptState.LOST))
    mirror.forget(Key("node/n2/spec"))
    by_going = list(mirror.touched)
    mirror.apply(job(count=4, needs={"cpu": 1000}, version=2))

    assert by_going == list(mirror.touched) == []


# ---- observations


def test_a_node_counts_as_seen_when_it_is_first_known() -> None:
    mirror = Mirror()
    mirror.now_ms = 500
    mirror.apply(node("n1"))

    assert mirror.nodes[N1].last_seen_at_ms == 500


def test_observations_are_inherited_after_a_reload(mirror: Mirror) -> None:
    mirror.now_ms = 900
    mirror.connect(N1, Connection.UP)
    mirror.mark_seen(N1)
    mirror.measure(N1, NodeLoad(4000, memory_free=5))
    again = mirror_of(node("n1"))
    again.inherit(mirror)

    assert (again.nodes[N1].connection, again.nodes[N1].last_seen_at_ms) == (Connection.UP, 0)
    assert (bool(again.node_table.open[0]), float(again.node_table.load[0])) == (True, 0.5)
    assert again.node_table.free()[again.node_table.rows["memory"], 0] == 5
    assert list(again.nodes) == [N1]


# ---- the rest


def test_submit_keys_and_counters_are_stored() -> None:
    key = SubmitKey("films", "monday", JOB, "digest")
    mirror = mirror_of(key, Counters(7, 3))
    found = mirror.submitted("films", "monday")
    mirror.forget(key.key)

    assert (found, mirror.submitted("films", "monday")) == (key, None)
    assert mirror.counters == Counters(7, 3)


def reserved(mirror: Mirror, node: NodeId) -> int:
    table = mirror.node_table
    return int(table.reserved[table.rows["cpu"], table.slot[node]])


def test_refusals_of_a_deleted_node_do_not_count() -> None:
    mirror, node, errand = Mirror(), NodeId("n1"), job_spec(1).refusal_key
    mirror.apply(NodeSpec(node, "n1"))
    mirror.refusals.record(errand, node, "no such directory", 0)
    before = list(mirror.refused_by(errand))
    mirror.forget(Key("node/n1/spec"))

    assert (before, list(mirror.refused_by(errand))) == ([node], [])
