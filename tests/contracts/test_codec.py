"""The codec: every record survives, and fields that a later release added are ignored."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.adoption import JobAdoption, Restored
from rota.model.attempt import AttemptBlock, OldAttempt, OldStatus, StatusBlock
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.cron import CronRecord, CronRun, CronStatus, MissedRuns, Overlap
from rota.model.ids import JobId, NodeId
from rota.model.job import (
    Counters,
    JobCluster,
    JobIntent,
    JobSpec,
    JobStatus,
    JobTombstone,
    Recovery,
    SchedulerVerdict,
    SubmitKey,
    Unplaceable,
    UnplaceableCause,
    Unschedulable,
)
from rota.model.lifecycle import AttemptState, ClusterState, JobState, MachineState, NodeState, TaskState
from rota.model.namespace import NamespaceRecord
from rota.model.node import Eligibility, NodeIntent, NodeSpec, NodeStatus, ReportInterval
from rota.model.plan import WRITERS, EventRecord, Record
from rota.model.recovery import Loss, RecoveryAnswer, RecoveryAnswers, RecoveryDecision
from rota.model.result import ResultRecord
from rota.model.rollout import JobPreviousVersion, JobRollout, RolloutState
from rota.model.shape import AffinityTerm, Constraint, Op, Policy, Preference, RunMode, SpreadTerm
from rota.model.subscriber import Subscriber
from rota.model.task import PinBlock, TaskBlock
from rota.store import codec
from rota.testing.records import decided, placed, reported

JOB, NODE = JobId("12"), NodeId("n3")
PLAIN = JobSpec(JobId(""), "nightly", ("true",), 0)
FULL: list[Record] = [  # one record of each kind, each field with a non-default value
    JobSpec(
        id=JOB,
        name="render",
        command=("blender", "-b", "näme\n"),
        submitted_at_ms=1,
        user="ann",
        namespace="films",
        env={"FRAME": "1"},
        workdir="/srv/films",
        count=300,
        parallel=5,
        needs={"cpu": 1500, "memory": 2**40, "gpu": 1},
        where=(Constraint("zone", Op.NOT_IN, ("a", "b")), Constraint("ssd", Op.EXISTS)),
        priority=99,
        retries=3,
        timeout_seconds=1.5,
        grace_seconds=0.25,
        run=RunMode.AT_MOST_ONCE,
        recovery=Recovery.CANCEL,
        when_unschedulable=Unschedulable.REJECT,
        labels={"team": "x"},
        tolerate=("spot",),
        prefer=(Preference(Constraint("ssd", Op.EXISTS), 20),),
        near=(AffinityTerm(Constraint("job", Op.EQUAL, ("db",)), "rack"),),
        apart=(AffinityTerm(Constraint("job", Op.EQUAL, ("web",)), "node", 5),),
        spread=(SpreadTerm("region", 2, 7),),
        gang=True,
        policy=Policy.PACK,
        noise="disk",
        preemptible=False,
        evict_at_most=1,
        expect_seconds=9.0,
        deadline_at_ms=77,
    ),
    JobIntent(JOB, cancel=True, reason="not needed", at_ms=5),
    JobCluster(JOB, "default"),
    JobStatus(JOB, JobState.FAILED, "exit code 2", started_at_ms=1, ended_at_ms=2, exit_code=2, signal=9),
    SchedulerVerdict(JOB, "no node fits", late=True),
    Unplaceable(JOB, UnplaceableCause.REFUSED, "2 of 2 nodes refused it lately", begun=1),
    RecoveryAnswers(JOB, {3: RecoveryAnswer(2, RecoveryDecision.RETRY)}),
    JobPreviousVersion(JOB, JobSpec(JOB, "name", ("true",), 1, version=3), ((1, 2), (3, 3))),
    JobRollout(JOB, 4, RolloutState.FAILED, 1000, 3, "task 0 failed: exit 1"),
    NamespaceRecord("films", {"cpu": 5000}, weight=2),
    SubmitKey("films", "monday", JOB, "digest"),
    Counters(jobs=12, nodes=3),
    ReportInterval(2_000, 30_000),
    ResultRecord(JOB, 3, 2, b'{"loss":0.5}', "it diverged", 1_700_000_000_000),
    Restored(1_700_000_000_000, 1_700_000_100_000, accepted=True, open_at_ms=5),
    msgspec.structs.replace(
        decided(TaskBlock.new(JOB, 1, 44), [3], state=TaskState.FAILED, wanted=2, failures=2, not_before=9),
        reasons={3: "exit code 2"},
        losses={4: Loss(2, 7, 9, 3)},
    ),
    msgspec.structs.replace(
        placed(AttemptBlock.new(JOB, 1, 44), [3], "n3", tries=2, flags=1, at_ms=8),
        older=(OldAttempt(3, 1, NODE, 7),),
        older_dropped=4,
    ),
    msgspec.structs.replace(
        reported(StatusBlock.new(JOB, 1, 44), [3], AttemptState.FAILED, exit_code=2, ran_us=2**40),
        reasons={3: "exit code 2"},
        older=(OldStatus(3, 1, AttemptState.LOST, -1, 9, 1, 2, 3, 4, 5, "node lost"),),
        older_dropped=4,
    ),
    NodeSpec(NODE, "rack-3", cluster="big", labels={"zone": "a"}, joined_at_ms=1),
    NodeIntent(NODE, Eligibility.DRAINING),
    NodeStatus(
        NODE, NodeState.SUSPECT, "machine", "boot", "1.2", {"cpu": 8000}, {"arch": "arm"}, "silent", 5
    ),
    ClusterRecord("build", ClusterState.RESIZING, "why", 7, 3, 1, 99),
    ClusterIntent("build", "ci", "eu", {"a": "b"}, "local", {"c": "d"}, {"cpu": 1000}, 1, 8, 2, drain=True),
    Machine("build-1", "build", MachineState.JOINED, 5, 3, NodeId("n1"), "why"),
    PinBlock(JOB, 1, (NODE,)),
    JobTombstone(JOB, 7, 8, "succeeded", "films"),
    JobAdoption(JOB, 7, 8, 100_000, closed=True),
    CronRecord(
        "films",
        "nightly",
        "5 4 * * *",
        PLAIN,
        "Europe/Zurich",
        Overlap.ALLOW,
        MissedRuns.ALL,
        3,
        "ann",
        9,
        paused=True,
    ),
    CronStatus("films", "nightly", 60_000, (CronRun(60_000, JOB),), 2, "it was still running"),
    Subscriber("billing", revision=2**40, index=3),
]
EVERY_RECORD = pytest.mark.parametrize("record", FULL, ids=lambda record: type(record).__name__)


def test_the_table_has_every_kind_of_record() -> None:
    kinds = [type(record) for record in FULL]

    assert len(kinds) == len(set(kinds))
    assert set(kinds) == set(get_args(Record)) == set(WRITERS)


@EVERY_RECORD
def test_a_record_survives_the_codec(record: Record) -> None:
    back = codec.decode(record.key, codec.encode(record))

    assert type(back) is type(record)
    assert back == record


@EVERY_RECORD
def test_a_field_added_by_a_later_release_is_ignored(record: Record) -> None:
    stored = msgspec.msgpack.decode(codec.encode(record), strict=False) | {"added_later": {"deep": [1, None]}}

    assert codec.decode(record.key, msgspec.msgpack.encode(stored)) == record


@EVERY_RECORD
def test_a_field_missing_in_an_earlier_release_has_its_default(record: Record) -> None:
    kind: Any = type(record)
    needed = {f.encode_name: f.name for f in msgspec.structs.fields(kind) if f.required}
    stored = msgspec.msgpack.decode(codec.encode(record))
    bare = kind(**{name: getattr(record, name) for name in needed.values()})

    read = codec.decode(record.key, msgspec.msgpack.encode({k: v for k, v in stored.items() if k in needed}))

    assert read == bare


def test_cells_added_to_a_superseded_attempt_are_ignored() -> None:
    block = AttemptBlock.new(JOB, 0, 1)
    stored = msgspec.msgpack.decode(codec.encode(block)) | {"older": [[3, 1, "n3", 7, 0, "added later"]]}

    read = codec.decode(block.key, msgspec.msgpack.encode(stored))

    assert isinstance(read, AttemptBlock)
    assert read.older == (OldAttempt(3, 1, NODE, 7),)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(names, names)
def test_a_name_given_by_a_user_does_not_change_the_kind(namespace: str, name: str) -> None:
    for record in (SubmitKey(namespace, name, JOB, ""), Subscriber(name, 1, 0), ClusterRecord(name)):
        assert codec.decode(record.key, codec.encode(record)) == record


@pytest.mark.parametrize("name", ["job/1/spec", "node/n1/status", "", "/", "spec"])
def test_a_name_that_looks_like_a_key_does_not_change_the_kind(name: str) -> None:
    for record in (SubmitKey("default", name, JOB, ""), Subscriber(name, 1, 0)):
        assert codec.decode(record.key, codec.encode(record)) == record


@given(
    st.builds(
        JobSpec,
        id=st.integers(1).map(lambda number: JobId(str(number))),
        name=names,
        command=st.lists(names).map(tuple),
        submitted_at_ms=st.integers(0, 2**62),
        env=st.dictionaries(names, names),
        needs=st.dictionaries(names, st.integers(0, 2**60)),
        count=st.integers(1, 10**7),
        timeout_seconds=st.none() | st.floats(0, 1e9),
    )
)
def test_any_job_survives_the_codec(spec: JobSpec) -> None:
    _ = (spec.shape, spec.queue_rank)  # cached beside the fields, never stored

    assert codec.decode(spec.key, codec.encode(spec)) == spec


def test_events_survive_the_codec() -> None:
    events = (
        EventRecord(
            "task",
            "exit code 2",
            job=JOB,
            indices=((0, 99), (103, 103)),
            attempt=2,
            exit_code=2,
            state="failed",
        ),
        EventRecord("node", "silent for 30 s", node=NODE),
    )

    assert codec.decode_events(codec.encode_events(5, events)) == (5, events)


def test_a_field_added_to_an_event_is_ignored() -> None:
    row = msgspec.msgpack.encode((5, [{"kind": "task", "why": "done", "added_later": 1}]))

    assert codec.decode_events(row) == (5, (EventRecord("task", "done"),))
