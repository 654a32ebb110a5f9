"""The process runtime: a client of the keeper, which it starts if there is none. [I/O]

One message is one line of JSON, over a unix socket in the keeper's directory. The first answer of a keeper is
its `state`; from then on it sends `events`. Messages to a keeper that has died are dropped: the next attach
reports everything.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rota.model.container import ContainerSpec, SandboxSpec
from rota.model.errors import Unavailable
from rota.model.ids import JobId
from rota.model.limits import REASON_LENGTH_MAX
from rota.model.messages import (
    AttemptReport,
    JobReports,
    ReportedState,
    Signal,
    Start,
    StopMode,
    TaskTemplate,
)
from rota.model.result import ResultEndpoint
from rota.model.service import HealthCheck, RestartPolicy, ServiceStatus
from rota.model.steps import Step, StepMark
from rota.runtimes.protocol import AttemptName, NodeResources

SELF, OWN = "self", "own"  # tasks run as the agent's user; as a separate user for each job
_PROTOCOL = 1  # equal to rota.keeper.protocol.wire.PROTOCOL of the same release
_OUTDATED = "its keeper is of another release of Rota, and is replaced when its work has ended"
_START_SECONDS = 15.0
_LINE_BYTES = 1 << 30  # the state of a node with very many attempts is one line
_REPORTED = {
    "queued": ReportedState.QUEUED,
    "running": ReportedState.RUNNING,
    "stopping": ReportedState.STOPPING,
    "exited": ReportedState.EXITED,
    "stopped": ReportedState.STOPPED,
    "timed_out": ReportedState.TIMED_OUT,
    "withdrawn": ReportedState.WITHDRAWN,
    "lost": ReportedState.LOST,
    "unknown": ReportedState.UNKNOWN,
}


class RunLimits(NamedTuple):
    """The user that tasks run as, and limits that hold for all of them together."""

    run_as: str = SELF
    pids_max: int | None = None  # processes of all tasks together
    no_new_privs: bool = True


class ProcessRuntime:
    """The runtime of one keeper's directory; see `rota.runtimes.protocol.Runtime`."""

    def __init__(self, directory: Path, bounds: RunLimits | None = None) -> None:
        self._directory = directory
        self._bounds = bounds or RunLimits()
        self._labels: dict[str, str] = {}
        self._keeper: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._keeper_protocol = _PROTOCOL
        self._shortage: str | None = None
        self.leases: dict[JobId, int] = {}
        self.result_endpoints: dict[JobId, ResultEndpoint] = {}
        self.records: dict[JobId, bytes] = {}

    @property
    def is_outdated(self) -> bool:
        return self._keeper_protocol != _PROTOCOL

    @property
    def shortage(self) -> str | None:
        return _OUTDATED if self.is_outdated else self._shortage

    @property
    def labels(self) -> dict[str, str]:
        return self._labels

    async def attach(self, resources: NodeResources) -> list[JobReports]:
        # Private before the keeper puts its socket and its journal there.
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = await self._handshake()
        self._keeper_protocol = state["protocol"]
        self._labels = state.get("labels", {})
        if self._bounds.run_as == SELF:
            self._labels["isolation"] = "none"  # the keeper's label holds for tasks of other users only
        self.leases = {JobId(job): lease_ms for job, lease_ms in state.get("leases", {}).items()}
        self.result_endpoints = _result_endpoints(state)
        self.records = {JobId(job): b64decode(text) for job, text in state.get("records", {}).items()}
        self._shortage = state.get("shortage")
        size = {"node": resources.node, "amounts": resources.amounts, "gpus": list(resources.gpus)}
        bounds = {**self._bounds._asdict(), "keeping": dict(resources.keeping)}
        engine = None if resources.engine is None else resources.engine._asdict()
        self._send({"op": "configure", **size, **bounds, "engine": engine})
        return reports_from_state(state)

    async def events(self) -> AsyncIterator[list[JobReports]]:
        while (message := await self._next()) is not None:
            match message.get("op"):
                case "events":
                    # Not skipped: a lost event would leave an
                    # attempt in a wrong state until the next attach.
                    try:
                        reports = reports_from_events(message)
                    except (LookupError, TypeError, ValueError):  # malformed: attach again for the state
                        self._writer.close()
                        return
                    yield reports
                case "space":
                    self._shortage = message.get("shortage")
                case _:
                    pass

    async def start(self, job: JobId, work: TaskTemplate | None, tasks: list[Start]) -> None:
        spec = None if work is None else keeper_spec(work)
        rows = [start_row(task) for task in tasks]
        self._send({"op": "start", "job": job, "spec": spec, "tasks": rows})
        # A keeper that is gone is noticed by `events`; the start is repeated from the next hello.
        with contextlib.suppress(ConnectionError):
            # Backpressure: orders for many thousand tasks must not pile up in memory.
            await self._writer.drain()

    async def stop(self, attempts: list[AttemptName], mode: StopMode = StopMode.GRACEFUL) -> None:
        self._send({"op": "stop", "attempts": attempts, "how": int(mode)})

    async def signal(self, job: JobId, signals: Iterable[Signal]) -> None:
        rows = [[job, signal.index, signal.attempt, signal.signal, signal.n] for signal in signals]
        self._send({"op": "signal", "signals": rows})

    async def acknowledge(self, attempts: list[AttemptName]) -> None:
        self._send({"op": "ack", "attempts": attempts})

    async def forget(self, jobs: list[JobId]) -> None:
        self._send({"op": "forget", "jobs": jobs})

    async def renew(self, sent_ns: int) -> None:
        self._send({"op": "renew", "said_ns": sent_ns})

    async def quit(self) -> None:
        self._send({"op": "quit"})

    async def _handshake(self) -> dict[str, Any]:
        """Connect to the running keeper, or start one; return its state.

        Race: a keeper that is ending may still accept the connection and close it. So it is tried again until
        the timeout.
        """
        try:
            async with asyncio.timeout(_START_SECONDS):
                while (state := await self._first_message()) is None:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            log = self._directory / "keeper.log"
            raise Unavailable(f"the keeper of {self._directory} does not answer; see {log}") from None
        if state.get("op") != "state":
            raise Unavailable(f"the keeper of {self._directory} answered {state!r:.200}")
        return state

    async def _first_message(self) -> dict[str, Any] | None:
        if await self._reach():
            self._send({"op": "hello", "protocol": _PROTOCOL})
            return await self._next()
        # Race: another agent may start a keeper at the same time. The directory's lock lets one of them live.
        # At most one child at a time: a keeper that is still starting would be joined by a second one.
        if self._keeper is None or self._keeper.poll() is not None:
            self._keeper = self._spawn()
        return None

    async def _reach(self) -> bool:
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        try:  # by the directory's descriptor, because a unix socket's address holds only 107 bytes
            path = f"/proc/self/fd/{directory}/keeper.sock"
            self._reader, self._writer = await asyncio.open_unix_connection(path, limit=_LINE_BYTES)
        except OSError:
            return False
        finally:
            os.close(directory)
        return True

    def _spawn(self) -> subprocess.Popen[bytes]:
        with (self._directory / "keeper.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "rota.keeper", str(self._directory)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def _send(self, message: dict[str, Any]) -> None:
        """Send a message; dropped if the keeper is gone, as the next attach starts from its state."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def _next(self) -> dict[str, Any] | None:
        try:
            line = await self._reader.readline()
        except ConnectionError:
            line = b""
        # A line without its newline was cut off by the end of the connection.
        if not line.endswith(b"\n"):
            self._writer.close()
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self._writer.close()
            return None
        return message


def reports_from_state(state: dict[str, Any]) -> list[JobReports]:
    rows = [*map(_live, state["live"]), *map(_ended, state["ended"])]
    return _grouped(rows, state)


def reports_from_events(message: dict[str, Any]) -> list[JobReports]:
    return _grouped(
        [
            *map(_started, message.get("started", ())),
            *map(_ended, message.get("ended", ())),
            *map(_refused, message.get("refused", ())),
        ],
        message,
    )


def keeper_spec(work: TaskTemplate) -> dict[str, Any]:
    """A task template as the spec of the keeper's protocol; empty optional fields are left out."""
    return {
        "name": work.name,
        "argv": work.argv,
        "env": work.env,
        "workdir": work.workdir,
        "needs": work.needs,
        "count": work.count,
        "grace_ms": work.grace_ms,
        "timeout_ms": work.timeout_ms,
        "log_bytes": work.log_bytes,
        "run": work.run.value,
        "limits": work.limits,
        "version": work.version,
        **({"steps": [_step_of(step) for step in work.steps]} if work.steps else {}),
        **({"files": _files_of(work)} if work.files else {}),
        **({} if work.lease_ms is None else {"lease_ms": work.lease_ms}),
        **({} if work.container is None else {"container": _container(work.container)}),
        **({} if work.sandbox is None else {"sandbox": _sandbox(work.sandbox)}),
        "stop_signal": work.stop_signal,
        **({} if work.reports is None else {"reports": _reports_of(work.reports)}),
        **({"record": b64encode(work.record).decode()} if work.record else {}),
        **({} if work.restart is None else {"restart": _restart_of(work.restart)}),
        **({} if work.check is None else {"check": _check_of(work.check)}),
    }


def _reports_of(endpoint: ResultEndpoint) -> dict[str, Any]:
    return {
        "url": endpoint.url,
        "key": endpoint.key,
        "node": endpoint.node,
        "ca": endpoint.ca,
        "others": list(endpoint.others),
        **({"by_agent": True} if endpoint.by_agent else {}),
    }


def _result_endpoints(state: dict[str, Any]) -> dict[JobId, ResultEndpoint]:
    """Where the agent reports results, for jobs with live attempts or unacknowledged results."""
    return {
        JobId(job): ResultEndpoint(**{**fields, "others": tuple(fields["others"])})
        for job, fields in state.get("reports", {}).items()
    }


def _restart_of(restart: RestartPolicy) -> dict[str, int]:
    return {
        "attempts": restart.attempts,
        "within_ms": round(restart.within_seconds * 1000),
        "delay_ms": round(restart.delay_seconds * 1000),
        "delay_max_ms": round(restart.delay_max_seconds * 1000),
    }


def _check_of(check: HealthCheck) -> dict[str, Any]:
    what: dict[str, Any] = {"argv": check.command} if check.command else {"port": check.port}
    if check.http is not None:
        what |= {"path": check.http, "codes": check.codes}
    return what | {
        "interval_ms": round(check.interval_seconds * 1000),
        "timeout_ms": round(check.timeout_seconds * 1000),
        "after_ms": round(check.after_seconds * 1000),
        "failures": check.failures,
        "successes": check.successes,
    }


def _sandbox(sandbox: SandboxSpec) -> dict[str, Any]:
    return {"network": sandbox.network, "writable": sandbox.writable}


def _container(container: ContainerSpec) -> dict[str, Any]:
    """The container's fields that are set."""
    fields = {
        "image": container.image,
        "user": container.user,
        "network": container.network.value,
        "mounts": [[mount.source, mount.target, mount.read_only] for mount in container.mounts],
        "workdir": container.workdir,
        "pull": container.pull.value,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _files_of(work: TaskTemplate) -> dict[str, str]:
    return {path: b64encode(content).decode() for path, content in work.files.items()}


def _step_of(step: Step) -> dict[str, Any]:
    timeout_ms = None if step.timeout_seconds is None else round(step.timeout_seconds * 1000)
    return {"name": step.name, "argv": step.command, "env": step.env, "timeout_ms": timeout_ms}


def start_row(task: Start) -> list[int]:
    """A start as a row of the keeper's protocol; the GPU mask is left out if it is 0."""
    row = [task.index, task.attempt, int(task.firm)]
    return [*row, task.gpus] if task.gpus else row


def _live(row: list[Any]) -> tuple[str, AttemptReport]:
    job, index, attempt, state, started_ms = row
    return job, AttemptReport(index, attempt, _REPORTED[state], started_at_ms=started_ms or 0)


def _started(row: list[Any]) -> tuple[str, AttemptReport]:
    job, index, attempt, started_ms = row
    return job, AttemptReport(index, attempt, ReportedState.RUNNING, started_at_ms=started_ms)


def _refused(row: list[Any]) -> tuple[str, AttemptReport]:
    job, index, attempt, reason = row
    return job, AttemptReport(index, attempt, ReportedState.REFUSED, reason=_brief(reason))


def _ended(row: list[Any]) -> tuple[str, AttemptReport]:
    job, index, attempt, state, code, signal, started_ms, ended_ms, *more = row
    ran_us, cpu_us, peak_kib, reason, *cause = more
    report = AttemptReport(
        index,
        attempt,
        _REPORTED[state],
        -1 if code is None else code,
        signal or 0,
        started_ms or 0,
        ended_ms,
        ran_us,
        cpu_us,
        peak_kib,
        reason=_brief(reason),
        cause=cause[0] if cause else None,  # sent only where there is one
    )
    return job, report


def _brief(reason: str | None) -> str | None:
    """A reason cut and made encodable: it may quote a command or a path of any length and any bytes."""
    return reason if reason is None else reason[:REASON_LENGTH_MAX].encode(errors="replace").decode()


def _mark(row: list[Any]) -> StepMark:
    started_ms, ended_ms, code, signal, out_offset, err_offset = row
    return StepMark(started_ms, ended_ms, -1 if code is None else code, signal or 0, out_offset, err_offset)


def _service_status(row: list[Any]) -> ServiceStatus:
    restarts, code, signal, ended_ms, health, why = row
    return ServiceStatus(restarts, -1 if code is None else code, signal or 0, ended_ms, health, _brief(why))


def _grouped(rows: list[tuple[str, AttemptReport]], details: Mapping[str, Any]) -> list[JobReports]:
    """Reports by job; `details` has the steps, service states, spec versions and GPUs of some attempts."""
    jobs: dict[str, list[AttemptReport]] = {}
    steps = {(job, at, n): tuple(map(_mark, found)) for job, at, n, found in details.get("steps", ())}
    services = {(job, at, n): _service_status(found) for job, at, n, found in details.get("lives", ())}
    versions = {(job, at, n): version for job, at, n, version in details.get("versions", ())}
    gpus = {(job, at, n): held for job, at, n, held in details.get("gpus", ())}
    for job, report in rows:
        name = (job, report.index, report.attempt)
        full = report.with_steps(steps[name]) if name in steps else report
        full = full.with_version(versions[name]) if name in versions else full
        full = full.with_gpus(gpus[name]) if name in gpus else full
        jobs.setdefault(job, []).append(full.with_life(services[name]) if name in services else full)
    return [JobReports(JobId(job), reports) for job, reports in jobs.items()]
