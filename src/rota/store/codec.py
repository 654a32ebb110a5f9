"""Records as bytes: msgpack with field names, so that fields can be added; the kind is told by the key."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from rota.model.adoption import JobAdoption
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import Cluster, ClusterWish, Machine
from rota.model.cron import Cron, CronStatus
from rota.model.job import (
    Counters,
    JobCluster,
    JobGone,
    JobSpec,
    JobStatus,
    JobVerdict,
    JobWish,
    SubmitKey,
    Unplaceable,
)
from rota.model.namespace import Namespace
from rota.model.node import NodeSpec, NodeStatus, NodeWish
from rota.model.pace import ReportPace
from rota.model.pins import PinBlock
from rota.model.plan import Event, Record
from rota.model.recovery import JobAnswers
from rota.model.restored import Restored
from rota.model.result import Result
from rota.model.rollout import JobFormer, JobRollout
from rota.model.subscriber import Subscriber
from rota.model.task import TaskBlock

_KINDS: dict[tuple[str, str], type] = {
    ("job", "spec"): JobSpec,
    ("job", "wish"): JobWish,
    ("job", "cluster"): JobCluster,
    ("job", "status"): JobStatus,
    ("job", "verdict"): JobVerdict,
    ("job", "unplaceable"): Unplaceable,
    ("job", "answers"): JobAnswers,
    ("job", "former"): JobFormer,
    ("job", "rollout"): JobRollout,
    ("job", "adoption"): JobAdoption,
    ("node", "spec"): NodeSpec,
    ("node", "wish"): NodeWish,
    ("node", "status"): NodeStatus,
    ("task", ""): TaskBlock,
    ("attempt", ""): AttemptBlock,
    ("status", ""): StatusBlock,
    ("pin", ""): PinBlock,
    ("submit", ""): SubmitKey,
    ("gone", ""): JobGone,
    ("cluster", ""): Cluster,
    ("cluster_wish", ""): ClusterWish,
    ("machine", ""): Machine,
    ("namespace", ""): Namespace,
    ("subscriber", ""): Subscriber,
    ("cron", ""): Cron,
    ("cron_status", ""): CronStatus,
    ("meta", ""): Counters,
    ("pace", ""): ReportPace,
    ("restored", ""): Restored,
    ("result", ""): Result,
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in _KINDS.values()
}
_EVENTS = msgspec.msgpack.Decoder(tuple[int, tuple[Event, ...]])


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
    """Decode what can be decoded; a newer version of Rota may have written the rest, or a bug of ours."""
    records: list[Record] = []
    failed: dict[str, Exception] = {}
    for key, value in written:
        try:
            record = decode(key, value)
            if record.key != key:
                raise ValueError(f"it holds the record {record.key}")
            records.append(record)
        except Exception as error:
            failed[key] = error
    return Decoded(records, failed)


def encode_events(wall_ms: int, events: tuple[Event, ...]) -> bytes:
    return _ENCODER.encode((wall_ms, events))


def decode_events(row: bytes) -> tuple[int, tuple[Event, ...]]:
    return _EVENTS.decode(row)
