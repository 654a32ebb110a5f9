"""controller.proto <-> model: stages and output of a job, events, the cluster's state, refusals."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rota.model.errors import RotaError
from rota.model.ids import NodeId
from rota.model.node import NodeLoad
from rota.model.plan import EventRecord
from rota.wire.generated import controller_pb2 as pb

AGE_MS_MAX = 2**32 - 1  # what the field holds: 49 days


class OutputChunk(Protocol):
    """A piece of one stream of one attempt, or why there is none."""

    @property
    def index(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def stream(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def missing(self) -> int: ...
    @property
    def reason(self) -> str | None: ...


def stage_to_wire(job: Mapping[str, Any], *, final: bool, sequence: str = "") -> pb.Stage:
    """From a job as the API shows it."""
    stage = pb.JobStage(
        state=job["state"],
        reason=job["reason"] or "",
        counts=job["counts"],
        exit_code=job["exit_code"],
        signal=job["signal"],
        final=final,
        sequence=sequence,
    )
    return pb.Stage(job=job["id"], stage=stage)


def output_to_wire(job: str, piece: OutputChunk) -> pb.Stage:
    part = pb.LogPart(
        index=piece.index,
        attempt=piece.attempt,
        stream=piece.stream,
        offset=piece.offset,
        data=piece.data,
        missing=piece.missing,
        reason=piece.reason or "",
    )
    return pb.Stage(job=job, log=part)


def event_to_wire(sequence: str, at_ms: int, event: EventRecord) -> pb.Event:
    return pb.Event(
        sequence=sequence,
        at_ms=at_ms,
        kind=event.kind,
        job=event.job or "",
        node=event.node or "",
        first_index=[first for first, _ in event.indices],
        last_index=[last for _, last in event.indices],
        attempt=event.attempt,
        exit_code=event.exit_code,
        state=event.state or "",
        why=event.why,
        step=event.step,
        result_json=event.result or "",
        namespace=event.namespace or "",
        counts=event.counts,
    )


def node_to_wire(node: Mapping[str, Any], statistics: pb.NodeStatistics | None) -> pb.NodeLine:
    """From a node as the API shows it, and what it measured, if anything."""
    return pb.NodeLine(
        **{name: node[name] for name in ("id", "name", "state", "eligibility", "cluster", "labels")},
        capacity=node["capacity"],
        reserved=node["reserved"],
        running=node["running"],
        queued=node["queued"],
        report_interval_ms=node["report_interval_ms"] or 0,
        statistics=statistics,
    )


def statistics_to_wire(
    node: NodeId, load: NodeLoad, *, age_ms: int, running: int, queued: int
) -> pb.NodeStatistics:
    disks = [pb.DiskStatistics(path=one.path, total=one.total, free=one.free) for one in load.disks]
    gpus = [
        pb.GpuStatistics(
            name=one.name, busy=one.busy, memory_total=one.memory_total, memory_used=one.memory_used
        )
        for one in load.gpus
    ]
    return pb.NodeStatistics(
        node=node,
        age_ms=min(age_ms, AGE_MS_MAX),
        cores=load.cores,
        cpu_milli=load.cpu_milli,
        load_milli=load.waiting_milli,
        memory_total=load.memory_total,
        memory_free=load.memory_free,
        swap_total=load.swap_total,
        swap_free=load.swap_free,
        disk_free=load.disk_free,
        disks=disks,
        gpus=gpus,
        running=running,
        queued=queued,
    )


def job_to_wire(job: Mapping[str, Any]) -> pb.JobLine:
    """From a job as the API shows it."""
    return pb.JobLine(
        **{name: job[name] for name in ("id", "name", "namespace", "state", "counts")}, user=job["user"] or ""
    )


def plan_to_wire(plan: Mapping[str, Any], whole: str) -> pb.PlanReply:
    """From a plan as the API shows it, and the same as JSON."""
    places = [pb.PlannedPlace(node=one.node, tasks=one.tasks, new=one.new) for one in plan["places"]]
    return pb.PlanReply(
        **{name: plan[name] for name in ("outcome", "sentence", "count", "starts")},
        places=places,
        plan_json=whole,
    )


def refusal_to_wire(error: RotaError) -> pb.Refusal:
    return pb.Refusal(
        code=error.code,
        detail=str(error),
        field=getattr(error, "field", None) or "",
        hint=getattr(error, "hint", None) or "",
    )


def indices_from_wire(first: Sequence[int], last: Sequence[int], most: int) -> tuple[int, ...]:
    """Of ranges, at most so many and one more: whoever asks for more is refused by their number."""
    found: list[int] = []
    for low, high in zip(first, last, strict=False):
        found += range(low, min(high + 1, low + most + 1 - len(found)))
    return tuple(found)
