"""Records as bytes: msgpack with field names, so that fields can be added; the key determines the type."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from rota.model.adoption import JobAdoption, Restored
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.cron import CronRecord, CronStatus
from rota.model.job import (
    Counters,
    JobCluster,
    JobIntent,
    JobSpec,
    JobStatus,
    JobTombstone,
    SchedulerVerdict,
    SubmitKey,
    Unplaceable,
)
from rota.model.namespace import NamespaceRecord
from rota.model.node import NodeIntent, NodeSpec, NodeStatus, ReportInterval
from rota.model.plan import EventRecord, Record
from rota.model.recovery import RecoveryAnswers
from rota.model.result import ResultRecord
from rota.model.rollout import JobPreviousVersion, JobRollout
from rota.model.subscriber import Subscriber
from rota.model.task import PinBlock, TaskBlock

_KINDS: dict[tuple[str, str], type] = {
    ("job", "spec"): JobSpec,
    ("job", "wish"): JobIntent,
    ("job", "cluster"): JobCluster,
    ("job", "status"): JobStatus,
    ("job", "verdict"): SchedulerVerdict,
    ("job", "unplaceable"): Unplaceable,
    ("job", "answers"): RecoveryAnswers,
    ("job", "former"): JobPreviousVersion,
    ("job", "rollout"): JobRollout,
    ("job", "adoption"): JobAdoption,
    ("node", "spec"): NodeSpec,
    ("node", "wish"): NodeIntent,
    ("node", "status"): NodeStatus,
    ("task", ""): TaskBlock,
    ("attempt", ""): AttemptBlock,
    ("status", ""): StatusBlock,
    ("pin", ""): PinBlock,
    ("submit", ""): SubmitKey,
    ("gone", ""): JobTombstone,
    ("cluster", ""): ClusterRecord,
    ("cluster_wish", ""): ClusterIntent,
    ("machine", ""): Machine,
    ("namespace", ""): NamespaceRecord,
    ("subscriber", ""): Subscriber,
    ("cron", ""): CronRecord,
    ("cron_status", ""): CronStatus,
    ("meta", ""): Counters,
    ("pace", ""): ReportInterval,
    ("restored", ""): Restored,
    ("result", ""): ResultRecord,
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in _KINDS.values()
}
_EVENTS = msgspec.msgpack.Decoder(tuple[int, tuple[EventRecord, ...]])


class Decoded(NamedTuple):
    records: list[Record]
    failed: dict[str, Exception]  # by key


def encode(record: Record) -> bytes:
    return _ENCODER.encode(record)


def decode(key: str, value: bytes) -> Record:
    head, _, rest = key.partition("/")
    part = rest.rpartition("/")[2] if head in ("job", "node") else ""
    kind = _KINDS.get((head, part))
    if kind is None:
        raise ValueError("this version of Rota knows no such record: a newer one may have written it")
    record: Record = _DECODERS[kind].decode(value)
    return record


def decode_all(written: Iterable[tuple[str, bytes]]) -> Decoded:
    """Decode all records that can be decoded; others may come from a newer version of Rota, or from a bug."""
    records: list[Record] = []
    failed: dict[str, Exception] = {}
    for key, value in written:
        try:
            record = decode(key, value)
            # A value stored under another record's key would replace that record in the mirror.
            if record.key != key:
                raise ValueError(f"it holds the record {record.key}")
            records.append(record)
        except Exception as error:
            failed[key] = error
    return Decoded(records, failed)


def encode_events(wall_ms: int, events: tuple[EventRecord, ...]) -> bytes:
    return _ENCODER.encode((wall_ms, events))


def decode_events(row: bytes) -> tuple[int, tuple[EventRecord, ...]]:
    return _EVENTS.decode(row)
