"""Records as bytes: msgpack with field names, so that fields can be added; the kind is told by the key."""

from collections.abc import Iterable
from typing import Any

import msgspec

from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import Cluster, ClusterWish, Machine
from rota.model.cron import Cron, CronStatus
from rota.model.errors import Damaged
from rota.model.job import Counters, JobCluster, JobGone, JobSpec, JobStatus, JobVerdict, JobWish, SubmitKey
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
    ("job", "answers"): JobAnswers,
    ("job", "former"): JobFormer,
    ("job", "rollout"): JobRollout,
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


def encode(record: Record) -> bytes:
    return _ENCODER.encode(record)


def decode(key: str, value: bytes) -> Record:
    head, _, rest = key.partition("/")
    part = rest.rpartition("/")[2] if head in ("job", "node") else ""
    record: Record = _DECODERS[_KINDS[head, part]].decode(value)
    return record


def decode_heard(written: Iterable[tuple[str, bytes]]) -> list[Record]:
    """Of a leader that may be newer. Raises Damaged."""
    records: list[Record] = []
    for key, value in written:
        try:
            records.append(decode(key, value))
        except (KeyError, msgspec.MsgspecError) as error:
            raise Damaged(
                f"the record {key} cannot be read, perhaps a newer version wrote it: {error}"
            ) from None
    return records


def encode_events(wall_ms: int, events: tuple[Event, ...]) -> bytes:
    return _ENCODER.encode((wall_ms, events))


def decode_events(row: bytes) -> tuple[int, tuple[Event, ...]]:
    return _EVENTS.decode(row)
