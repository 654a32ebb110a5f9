"""Every field of every message has a bound, and a value beyond it is refused with its field."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from rota.gateway.generated import jobscheduler_pb2
from rota.model.errors import BadField
from rota.wire.bounds import RULES, TEXT_LENGTH_MAX, Number, Numbers, ShortText, Text, Texts, check
from rota.wire.generated import agent_pb2, controller_pb2, watcher_pb2

SENT_BY_SERVER = (
    *("Stage", "JobStage", "LogPart", "BulkReply", "BulkAccepted", "Refusal", "StopReply", "UpdateReply"),
    *("DeleteReply", "EventBatch", "Event", "AcknowledgeReply", "ResolveReply", "StatePage", "QueueState"),
    *("NodeLine", "JobLine", "UnresolvedTask", "PaceReply", "OrderReply", "DrainReply", "PlanReply"),
    *("PlannedPlace", "Summary", "NodeStatistics", "DiskStatistics", "GpuStatistics"),
    *("RegisterWorkerResponse", "DeregisterWorkerResponse", "StartJobRequest", "StopJobRequest"),
    *("QueryJobRequest", "StreamJobRequest"),
)  # read only by controllers and workers
LIMITS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
}


def messages(file: FileDescriptor) -> Iterator[Descriptor]:
    for message in file.message_types_by_name.values():
        if message.name not in SENT_BY_SERVER:
            yield message


MODULES = {
    module.DESCRIPTOR.name: module for module in (agent_pb2, controller_pb2, watcher_pb2, jobscheduler_pb2)
}
ALL = [message for module in MODULES.values() for message in messages(module.DESCRIPTOR)]
FIELDS = [
    (message, field) for message in ALL for field in message.fields if field.type != FieldDescriptor.TYPE_BOOL
]


def ruled(*kinds: type) -> list[Any]:
    """Fields with a rule of one of these kinds, or all fields."""
    return [
        pytest.param(message, field, id=f"{message.name}.{field.name}")
        for message, field in FIELDS
        if not kinds or isinstance(RULES[message.full_name].get(field.name), kinds)
    ]


def build(message: Descriptor, **fields: Any) -> Any:
    return getattr(MODULES[message.file.name], message.name)(**fields)


@pytest.mark.parametrize(("message", "field"), ruled())
def test_every_field_has_a_bound(message: Descriptor, field: FieldDescriptor) -> None:
    assert field.name in RULES[message.full_name]


def test_every_bound_belongs_to_a_field() -> None:
    known = {message.full_name: {field.name for field in message.fields} for message in ALL}

    assert {name: set(rules) - known[name] for name, rules in RULES.items() if set(rules) - known[name]} == {}


@pytest.mark.parametrize(("message", "field"), ruled(Number, Numbers))
def test_a_number_out_of_range_is_refused_with_its_field(message: Descriptor, field: FieldDescriptor) -> None:
    rule = RULES[message.full_name][field.name]
    assert isinstance(rule, Number | Numbers)
    low, high = LIMITS[field.type]
    beyond = [value for value in (low, high) if not rule.least <= value <= rule.most]
    for value in beyond:
        invalid = build(message, **{field.name: [value] if isinstance(rule, Numbers) else value})
        with pytest.raises(BadField) as refused:
            check(invalid)
        assert refused.value.field == field.name
        assert str(value) in str(refused.value)
        assert refused.value.hint is not None


@pytest.mark.parametrize(("message", "field"), ruled(Text, ShortText, Texts))
def test_a_text_that_is_too_long_is_refused_with_its_field(
    message: Descriptor, field: FieldDescriptor
) -> None:
    rule = RULES[message.full_name][field.name]
    assert isinstance(rule, Text | ShortText | Texts)
    long: str | bytes = "x" * (rule.longest + 1)
    if field.type == FieldDescriptor.TYPE_BYTES:
        long = str(long).encode()
    invalid = build(message, **{field.name: [long] if isinstance(rule, Texts) else long})
    with pytest.raises(BadField) as refused:
        check(invalid)

    assert refused.value.field == field.name


@pytest.mark.parametrize(
    ("invalid", "field"),
    [
        (agent_pb2.FromNode(drain=agent_pb2.Drain(within_ms=2**64 - 1)), "drain.within_ms"),
        (agent_pb2.Hello(drain=agent_pb2.Drain(within_ms=2**64 - 1)), "drain.within_ms"),
        (agent_pb2.Hello(capacity={"tasks": 5}), "capacity"),
        (agent_pb2.Hello(capacity={"": 5}), "capacity"),
        (agent_pb2.Hello(capacity={"a\u202eb": 5}), "capacity"),
        (agent_pb2.Hello(capacity={"cpu": -1}), "capacity.cpu"),
        (agent_pb2.Hello(capacity={"cpu": 2**60}), "capacity.cpu"),
        (agent_pb2.Hello(capacity={"gpu": 65_000}), "capacity.gpu"),
        (agent_pb2.Hello(capacity={"memory": 2**62}), "capacity.memory"),
        (agent_pb2.Hello(capacity={f"r{n}": 1 for n in range(37)}), "capacity"),
        (agent_pb2.Hello(labels={"a b": "x"}), "labels"),
        (agent_pb2.Hello(labels={"a": "x" * 257}), "labels.a"),
        (agent_pb2.Hello(labels={f"l{n}": "" for n in range(97)}), "labels"),
        (agent_pb2.Hello(machine_id="a\nb"), "machine_id"),
        (agent_pb2.Hello(epoch_seen=2**64 - 2), "epoch_seen"),
        (agent_pb2.JobClaims(index=[1, 2], attempt=[1]), "attempt"),
        (agent_pb2.JobClaims(reasons={0: "x"}), "reasons"),
        (agent_pb2.JobClaims(handles={7: "x"}), "handles"),
        (agent_pb2.Report(jobs=[agent_pb2.JobClaims(index=[2**32 - 1])]), "jobs[0].index"),
        (agent_pb2.StepMarks(started_at_ms=[1]), "ended_at_ms"),
        (agent_pb2.Welcome(name="a"), "heartbeat_ms"),
        (agent_pb2.JobOrders(start_index=[1]), "start_attempt"),
        (agent_pb2.Work(steps=[agent_pb2.Step()] * 101), "steps"),
        (controller_pb2.ResolveRequest(first_index=[1]), "last_index"),
        (controller_pb2.WatchRequest(statistics_interval_ms=999), "statistics_interval_ms"),
    ],
)
def test_an_invalid_message_is_refused_by_field(invalid: Any, field: str) -> None:
    with pytest.raises(BadField) as refused:
        check(invalid)

    assert refused.value.field == field


def test_a_reason_may_quote_the_longest_command() -> None:
    reason = "command not found: " + "x" * 131_071
    assert len(reason) < TEXT_LENGTH_MAX

    check(agent_pb2.Leave(reason=reason))
