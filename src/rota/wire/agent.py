"""agent.proto <-> model: hello and reports up, orders down, log requests and chunks."""

from typing import Any

import msgspec

from rota.model.container import ContainerNetwork, ContainerSpec, MountSpec, PullPolicy, SandboxSpec
from rota.model.ids import JobId
from rota.model.limits import (
    AMOUNT_MAX,
    CPU_MILLI_MAX,
    DISKS_MAX,
    GPUS_MAX,
    LABEL_VALUE_MAX,
    REASON_LENGTH_MAX,
)
from rota.model.messages import (
    AttemptReport,
    DrainRequest,
    Hello,
    JobOrders,
    JobReports,
    LogPiece,
    LogRequest,
    NodeReport,
    OutputsRequest,
    Signal,
    Start,
    Stop,
    StopMode,
    TailPiece,
    TaskTemplate,
)
from rota.model.node import DiskUsage, GpuUsage, NodeLoad
from rota.model.result import ResultEndpoint
from rota.model.service import SIGTERM
from rota.model.shape import RunMode
from rota.model.steps import Step, StepMark
from rota.wire.generated import agent_pb2 as pb
from rota.wire.health_checks import (
    check_from_wire,
    check_to_wire,
    restart_from_wire,
    restart_to_wire,
    service_status_from_wire,
    service_status_to_wire,
)

PROTOCOL = 2  # 1 had no Resubmit
PROTOCOL_RESUBMITS = 2
BEGUN, DONE = "begun", "done"  # codes of the first and the last chunk: a stream without the last was cut off
WITHHELD = "withheld"  # code of an error that a retry does not change
_MARK = StepMark.__struct_fields__
_BUSY_MAX = 100  # of a device, in hundredths
_PEAK_KIB_MAX = 2**32 - 1  # the maximum of the field: 4 TiB


def reports_to_wire(jobs: list[JobReports]) -> list[pb.JobClaims]:
    return [_reports_to_wire(job) for job in jobs]


def _reports_to_wire(job: JobReports) -> pb.JobClaims:
    reports = job.reports
    return pb.JobClaims(
        job=job.job,
        index=[report.index for report in reports],
        attempt=[report.attempt for report in reports],
        said=[report.state for report in reports],
        exit_code=[report.exit_code for report in reports],
        signal=[report.signal for report in reports],
        started_at_ms=[report.started_at_ms for report in reports],
        ended_at_ms=[report.ended_at_ms for report in reports],
        ran_us=[report.ran_us for report in reports],
        cpu_us=[report.cpu_us for report in reports],
        peak_kib=[min(report.peak_kib, _PEAK_KIB_MAX) for report in reports],
        reasons={position: report.reason for position, report in enumerate(reports) if report.reason},
        causes={position: report.cause for position, report in enumerate(reports) if report.cause},
        steps={
            position: _marks_to_wire(report.steps) for position, report in enumerate(reports) if report.steps
        },
        handles={position: report.handle for position, report in enumerate(reports) if report.handle},
        versions={position: report.version for position, report in enumerate(reports) if report.version > 1},
        lives={
            position: service_status_to_wire(report.life)
            for position, report in enumerate(reports)
            if report.life
        },
        gpus={position: report.gpus for position, report in enumerate(reports) if report.gpus},
    )


def _marks_to_wire(marks: tuple[StepMark, ...]) -> pb.StepMarks:
    return pb.StepMarks(**{name: [getattr(mark, name) for mark in marks] for name in _MARK})


def _marks_from_wire(marks: pb.StepMarks) -> tuple[StepMark, ...]:
    columns = [getattr(marks, name) for name in _MARK]
    return tuple(StepMark(*row) for row in zip(*columns, strict=True))


def reports_from_wire(jobs: list[pb.JobClaims]) -> list[JobReports]:
    return [_reports_from_wire(job) for job in jobs]


def _reports_from_wire(job: pb.JobClaims) -> JobReports:
    reasons = job.reasons
    rows = zip(
        job.index,
        job.attempt,
        job.said,
        job.exit_code,
        job.signal,
        job.started_at_ms,
        job.ended_at_ms,
        job.ran_us,
        job.cpu_us,
        job.peak_kib,
        strict=True,
    )
    reports = [AttemptReport(*row) for row in rows]
    for position, reason in reasons.items():
        reports[position] = msgspec.structs.replace(reports[position], reason=brief(reason))
    for position, cause in job.causes.items():
        reports[position] = msgspec.structs.replace(reports[position], cause=cause)
    for position, marks in job.steps.items():
        reports[position] = reports[position].with_steps(_marks_from_wire(marks))
    for position, handle in job.handles.items():
        reports[position] = msgspec.structs.replace(reports[position], handle=handle)
    for position, version in job.versions.items():
        reports[position] = reports[position].with_version(version)
    for position, life in job.lives.items():
        reports[position] = reports[position].with_life(service_status_from_wire(life))
    for position, gpus in job.gpus.items():
        reports[position] = reports[position].with_gpus(gpus)
    return JobReports(JobId(job.job), reports)


def brief(text: str) -> str:
    """A text to be stored and shown, truncated, since it may quote anything."""
    return text[:REASON_LENGTH_MAX]


def hello_to_wire(hello: Hello) -> pb.Hello:
    return pb.Hello(
        machine_id=hello.machine_id,
        boot_id=hello.boot_id,
        version=hello.version,
        protocol=PROTOCOL,
        capacity=hello.capacity,
        labels=hello.labels,
        epoch_seen=hello.epoch_seen,
        inventory=reports_to_wire(hello.inventory),
        drain=None if hello.drain is None else drain_to_wire(hello.drain),
        session=hello.session,
    )


def hello_from_wire(hello: pb.Hello) -> Hello:
    return Hello(
        machine_id=hello.machine_id,
        boot_id=hello.boot_id,
        version=hello.version,
        capacity=dict(hello.capacity),
        labels=dict(hello.labels),
        epoch_seen=hello.epoch_seen,
        inventory=reports_from_wire(list(hello.inventory)),
        drain=drain_from_wire(hello.drain) if hello.HasField("drain") else None,
        session=hello.session,
    )


def drain_to_wire(drain: DrainRequest) -> pb.Drain:
    return pb.Drain(reason=drain.reason, within_ms=drain.within_ms, moves=drain.moves, over=drain.over)


def drain_from_wire(drain: pb.Drain) -> DrainRequest:
    return DrainRequest(brief(drain.reason), drain.within_ms, drain.moves, drain.over)


def report_from_wire(n: int, report: pb.Report) -> NodeReport:
    load = load_from_wire(report.load) if report.HasField("load") else None
    return NodeReport(n, reports_from_wire(list(report.jobs)), load)


def load_to_wire(load: NodeLoad) -> pb.Load:
    return pb.Load(
        cpu_milli=min(load.cpu_milli, CPU_MILLI_MAX),
        memory_free=load.memory_free,
        disk_free=None if load.disk_free is None else min(load.disk_free, AMOUNT_MAX),
        cores=load.cores,
        waiting_milli=load.waiting_milli,
        memory_total=load.memory_total,
        swap_total=load.swap_total,
        swap_free=load.swap_free,
        disks=[_disk_to_wire(disk) for disk in load.disks],
        gpus=[_gpu_to_wire(gpu) for gpu in load.gpus],
        shortage=load.shortage or "",
    )


def _disk_to_wire(disk: DiskUsage) -> pb.Disk:
    """Bounded: some file systems report impossible sizes, and a mount point may not be valid UTF-8."""
    path = disk.path.encode(errors="replace").decode()
    return pb.Disk(path=path, total=min(disk.total, AMOUNT_MAX), free=min(disk.free, AMOUNT_MAX))


def _gpu_to_wire(gpu: GpuUsage) -> pb.Gpu:
    """Bounded: drivers may report impossible values."""
    busy = None if gpu.busy is None else min(gpu.busy, _BUSY_MAX)
    name = gpu.name[:LABEL_VALUE_MAX]
    return pb.Gpu(name=name, busy=busy, memory_total=gpu.memory_total, memory_used=gpu.memory_used)


def load_from_wire(load: pb.Load) -> NodeLoad:
    return NodeLoad(
        load.cpu_milli,
        _optional(load, "memory_free"),
        _optional(load, "disk_free"),
        load.cores,
        load.waiting_milli,
        load.memory_total,
        load.swap_total,
        load.swap_free,
        tuple(DiskUsage(disk.path, disk.total, disk.free) for disk in load.disks[:DISKS_MAX]),
        tuple(_gpu_from_wire(gpu) for gpu in load.gpus[:GPUS_MAX]),
        brief(load.shortage) or None,
    )


def tails_from_wire(tails: pb.Tails) -> list[TailPiece]:
    return [
        TailPiece(
            JobId(tail.job), tail.index, tail.attempt, tail.stream, tail.offset, tail.data, tail.is_final
        )
        for tail in tails.tails
    ]


def tails_to_wire(pieces: list[TailPiece]) -> pb.Tails:
    return pb.Tails(
        tails=[
            pb.Tail(
                job=piece.job,
                index=piece.task,
                attempt=piece.attempt,
                stream=piece.stream,
                offset=piece.offset,
                data=piece.data,
                is_final=piece.is_final,
            )
            for piece in pieces
        ]
    )


def _gpu_from_wire(gpu: pb.Gpu) -> GpuUsage:
    return GpuUsage(
        gpu.name, _optional(gpu, "busy"), _optional(gpu, "memory_total"), _optional(gpu, "memory_used")
    )


def _optional(message: Any, field: str) -> int | None:
    return getattr(message, field) if message.HasField(field) else None


def orders_to_wire(orders: JobOrders) -> pb.JobOrders:
    return pb.JobOrders(
        job=orders.job,
        work=None if orders.work is None else _template_to_wire(orders.work),
        start_index=[start.index for start in orders.start],
        start_attempt=[start.attempt for start in orders.start],
        start_firm=[start.firm for start in orders.start],
        start_gpus=[start.gpus for start in orders.start] if any(s.gpus for s in orders.start) else (),
        stop_index=[stop.index for stop in orders.stop],
        stop_attempt=[stop.attempt for stop in orders.stop],
        stop_how=[stop.how for stop in orders.stop] if any(stop.how for stop in orders.stop) else (),
        signal_index=[signal.index for signal in orders.signals],
        signal_attempt=[signal.attempt for signal in orders.signals],
        signal_number=[signal.signal for signal in orders.signals],
        signal_n=[signal.n for signal in orders.signals],
    )


def orders_from_wire(orders: pb.JobOrders) -> JobOrders:
    gpus = orders.start_gpus or [0] * len(orders.start_index)
    starts = zip(orders.start_index, orders.start_attempt, orders.start_firm, gpus, strict=True)
    how = [StopMode(number) for number in orders.stop_how] or [StopMode.GRACEFUL] * len(orders.stop_index)
    stops = zip(orders.stop_index, orders.stop_attempt, how, strict=True)
    signals = zip(
        orders.signal_index, orders.signal_attempt, orders.signal_number, orders.signal_n, strict=True
    )
    return JobOrders(
        JobId(orders.job),
        _template_from_wire(orders.work) if orders.HasField("work") else None,
        [Start(*start) for start in starts],
        [Stop(*stop) for stop in stops],
        tuple(Signal(*signal) for signal in signals),
    )


def _template_to_wire(work: TaskTemplate) -> pb.Work:
    return pb.Work(
        name=work.name,
        argv=work.argv,
        env=work.env,
        workdir=work.workdir,
        needs=work.needs,
        count=work.count,
        grace_ms=work.grace_ms,
        timeout_ms=work.timeout_ms,
        run=work.run.value,
        lease_ms=work.lease_ms,
        log_bytes=work.log_bytes,
        limits=work.limits,
        steps=[_step_to_wire(step) for step in work.steps],
        files=work.files,
        container=None if work.container is None else _container_to_wire(work.container),
        version=work.version,
        stop_signal=work.stop_signal,
        restart=None if work.restart is None else restart_to_wire(work.restart),
        check=None if work.check is None else check_to_wire(work.check),
        sandbox=None if work.sandbox is None else pb.Sandbox(**msgspec.structs.asdict(work.sandbox)),
        reports=None if work.reports is None else pb.ReportDoor(**msgspec.structs.asdict(work.reports)),
        record=work.record,
    )


def _step_to_wire(step: Step) -> pb.Step:
    timeout_ms = None if step.timeout_seconds is None else round(step.timeout_seconds * 1000)
    return pb.Step(name=step.name, argv=step.command, env=step.env, timeout_ms=timeout_ms)


def _step_from_wire(step: pb.Step) -> Step:
    timeout_seconds = step.timeout_ms / 1000 if step.HasField("timeout_ms") else None
    return Step(step.name, tuple(step.argv), dict(step.env), timeout_seconds)


def _template_from_wire(work: pb.Work) -> TaskTemplate:
    return TaskTemplate(
        name=work.name,
        argv=tuple(work.argv),
        env=dict(work.env),
        workdir=work.workdir if work.HasField("workdir") else None,
        needs=dict(work.needs),
        count=work.count,
        grace_ms=work.grace_ms,
        timeout_ms=work.timeout_ms if work.HasField("timeout_ms") else None,
        run=RunMode(work.run),
        lease_ms=work.lease_ms if work.HasField("lease_ms") else None,
        log_bytes=work.log_bytes if work.HasField("log_bytes") else None,
        limits=dict(work.limits),
        steps=tuple(_step_from_wire(step) for step in work.steps),
        files=dict(work.files),
        container=_container_from_wire(work.container) if work.HasField("container") else None,
        version=work.version or 1,
        stop_signal=work.stop_signal or SIGTERM,
        restart=restart_from_wire(work.restart) if work.HasField("restart") else None,
        check=check_from_wire(work.check) if work.HasField("check") else None,
        sandbox=SandboxSpec(work.sandbox.network, tuple(work.sandbox.writable))
        if work.HasField("sandbox")
        else None,
        reports=_endpoint_from_wire(work.reports) if work.HasField("reports") else None,
        record=work.record,
    )


def _endpoint_from_wire(endpoint: pb.ReportDoor) -> ResultEndpoint:
    return ResultEndpoint(
        endpoint.url, endpoint.key, endpoint.node, endpoint.ca, tuple(endpoint.others), endpoint.by_agent
    )


def _container_to_wire(container: ContainerSpec) -> pb.Container:
    return pb.Container(
        image=container.image,
        user=container.user,
        network=container.network.value,
        mounts=[
            pb.Mount(source=mount.source, target=mount.target, read_only=mount.read_only)
            for mount in container.mounts
        ],
        workdir=container.workdir,
        pull=container.pull.value,
    )


def _container_from_wire(container: pb.Container) -> ContainerSpec:
    return ContainerSpec(
        image=container.image,
        user=container.user if container.HasField("user") else None,
        network=ContainerNetwork(container.network),
        mounts=tuple(MountSpec(mount.source, mount.target, mount.read_only) for mount in container.mounts),
        workdir=container.workdir if container.HasField("workdir") else None,
        pull=PullPolicy(container.pull),
    )


def outputs_request_to_wire(stream_id: int, request: OutputsRequest) -> pb.OpenOutputs:
    return pb.OpenOutputs(
        id=stream_id,
        job=request.job,
        index=request.task,
        paths=request.paths,
        list=request.names_only,
    )


def log_request_to_wire(stream_id: int, request: LogRequest) -> pb.OpenLog:
    window = request.window
    return pb.OpenLog(
        id=stream_id,
        job=request.job,
        index=request.task,
        attempt=request.attempt,
        stream=request.stream,
        offset=request.offset,
        follow=request.follow,
        since_ms=window.since_ms,
        until_ms=window.until_ms,
        tail_lines=window.tail_lines,
        tail_of_both=window.tail_of_both,
    )


def log_piece_from_wire(chunk: pb.LogChunk) -> LogPiece:
    marks = tuple(zip(chunk.mark_bytes, chunk.mark_ms, strict=False)) if chunk.mark_bytes else ()
    return LogPiece(chunk.offset, chunk.data, chunk.missing, at_ms=chunk.at_ms, marks=marks)
