"""controller.proto <-> model: states and output of a job, events, the state of the cluster, refusals."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rota.model.errors import RotaError
from rota.model.ids import NodeId
from rota.model.node import NodeLoad
from rota.model.plan import EventRecord
from rota.wire.generated import controller_pb2 as pb

AGE_MS_MAX = 2**32 - 1  # the maximum of the field: 49 days


class OutputChunk(Protocol):
    """A chunk of one stream of one attempt, or the reason why there is none."""

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


def output_to_wire(job: str, chunk: OutputChunk) -> pb.Stage:
    part = pb.LogPart(
        index=chunk.index,
        attempt=chunk.attempt,
        stream=chunk.stream,
        offset=chunk.offset,
        data=chunk.data,
        missing=chunk.missing,
        reason=chunk.reason or "",
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
    """From a node as the API shows it, and its load report, if it has one."""
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
    disks = [pb.DiskStatistics(path=disk.path, total=disk.total, free=disk.free) for disk in load.disks]
    gpus = [
        pb.GpuStatistics(
            name=gpu.name, busy=gpu.busy, memory_total=gpu.memory_total, memory_used=gpu.memory_used
        )
        for gpu in load.gpus
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


def plan_to_wire(plan: Mapping[str, Any], plan_json: str) -> pb.PlanReply:
    """From a plan as the API shows it, and the same as JSON text."""
    places = [pb.PlannedPlace(node=place.node, tasks=place.tasks, new=place.new) for place in plan["places"]]
    return pb.PlanReply(
        **{name: plan[name] for name in ("outcome", "sentence", "count", "starts")},
        places=places,
        plan_json=plan_json,
    )


def refusal_to_wire(error: RotaError) -> pb.Refusal:
    return pb.Refusal(
        code=error.code,
        detail=str(error),
        field=getattr(error, "field", None) or "",
        hint=getattr(error, "hint", None) or "",
    )


def indices_from_wire(first: Sequence[int], last: Sequence[int], most: int) -> tuple[int, ...]:
    """Indices of ranges, at most `most` and one more, by which the caller sees that there are too many."""
    found: list[int] = []
    for low, high in zip(first, last, strict=False):
        found += range(low, min(high + 1, low + most + 1 - len(found)))
    return tuple(found)
