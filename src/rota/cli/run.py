"""`rota run`: submit, follow, pass both streams through, return the job's own exit code."""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from rota.cli.main import tell_error
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.exit_codes import (
    CLUSTERS_FAULT,
    INTERRUPTED,
    describe_array,
    describe_single,
    exit_code,
    failures,
)
from rota.cli.ui.formats import about_job, clean, format_duration
from rota.cli.ui.job_feed import JobFeed, LogStreamEnded
from rota.cli.ui.output import emit_one, output_option, print_note
from rota.cli.ui.printer import LinePrefix, Printer
from rota.cli.ui.progress import ProgressView, progress_for
from rota.cli.ui.service_format import hints
from rota.cli.ui.spec_options import job_spec, spec_options
from rota.client.cluster import Cluster
from rota.client.errors import RotaError, Unavailable
from rota.client.job import Job
from rota.client.views import Chunk, JobStatus, Task

WHY_AFTER_SECONDS = 1.0
LONGEST_WHY_SECONDS = 10.0
# Once the job has ended its output is at most this long on its way.
LAST_OUTPUT_SECONDS = 10.0


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@spec_options
@click.option("--key", help="Submitting twice with the same key gives one job.")
@click.option("-d", "--detach", is_flag=True, help="Do not wait; print the job's id.")
@click.option("--logs/--no-logs", default=None, help="Pass output through. [default: unless an array]")
@click.option(
    "--cancel-on-interrupt", is_flag=True, help="Ctrl-C cancels the job instead of leaving it to run."
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the job's output and errors.")
@output_option
@with_cluster(WORKING_SECONDS)
def command(cluster: Cluster, command: tuple[str, ...], output: str, **flags: Any) -> int:
    """Submit a job, follow it and return its exit code.

    \b
    rota run -- python train.py
    rota run -c 2 -m 4g --array 0-99%8 -- ./simulate
    rota run -f job.toml
    """
    spec = job_spec(flags, command)
    is_service = spec.get("kind") == "service"
    if flags["detach"] or is_service:
        job = cluster.submit_spec(spec, flags["key"])
        _warn(job, quiet=flags["quiet"])
        return _leave(job, output, quiet=flags["quiet"])
    statuses = cluster.follow_spec(spec, flags["key"])
    job = Job(cluster.transport, next(statuses))
    _warn(job, quiet=flags["quiet"])
    if flags["cancel_on_interrupt"]:
        # Build systems end what they started with SIGTERM, and start it with SIGINT ignored.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    wants_data = output not in ("table", "wide")
    logs = not wants_data and (flags["logs"] if flags["logs"] is not None else job.status.count == 1)
    manner = FollowOptions(flags["quiet"], logs, flags["cancel_on_interrupt"])
    code = _attend(Follower(cluster, job, statuses, manner), job, manner)
    if wants_data:
        emit_one(output, job.refresh(), job.id, list)
    return code


@dataclass(frozen=True)
class FollowOptions:
    """How a job is followed."""

    quiet: bool = False
    logs: bool = True
    cancel_on_interrupt: bool = False


def _warn(job: Job, *, quiet: bool) -> None:
    """What nobody could give it now; it waits for that to change."""
    for warning in () if quiet else job.warnings:
        print_note(f"warning: {clean(f'{warning.field}: {warning.text}')}")


def _leave(job: Job, output: str, *, quiet: bool) -> int:
    if not quiet and job.status.kind == "service":
        print_note(f"service {job.id} “{clean(job.status.name)}” runs until it is canceled; {hints(job.id)}")
    elif not quiet:
        print_note(f"job {job.id} “{clean(job.status.name)}” submitted; follow it: rota logs -f {job.id}")
    emit_one(output, job.status, job.id, lambda: [job.id])
    return 0


def _attend(follower: "Follower", job: Job, manner: FollowOptions) -> int:
    try:
        return exit_code(follower.follow())
    except KeyboardInterrupt:
        if not manner.cancel_on_interrupt:
            return _detach(follower, job)
        print_note(f"canceling job {job.id}; once more Ctrl-C leaves it")
        return _cancel(follower, job)
    except Unavailable as problem:
        tell_error(
            problem.code, str(problem), f"job {job.id} goes on; take it up again with: rota wait {job.id}"
        )
        return CLUSTERS_FAULT


def _detach(follower: "Follower", job: Job) -> int:
    follower.close()
    print_note(
        f"\ndetached; job {job.id} goes on: rota wait {job.id} · rota logs -f {job.id} · rota cancel {job.id}"
    )
    return INTERRUPTED


def _cancel(follower: "Follower", job: Job) -> int:
    try:
        job.cancel("interrupted")
        follower.follow()
    except KeyboardInterrupt:
        return _detach(follower, job)
    return INTERRUPTED


class Follower:
    """Listens to one job until it has ended and says what a person would want to know."""

    def __init__(
        self, cluster: Cluster, job: Job, statuses: Iterator[JobStatus], manner: FollowOptions
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._manner = manner
        self._feed = JobFeed(cluster, job, statuses, logs=manner.logs)
        self._progress: ProgressView | None = None
        self._introduced = False
        self._attempts: dict[int, int] = {}
        self._printer = Printer(LinePrefix(index=job.status.count > 1))
        self._logs_open = True
        self._why = ""
        self._why_at = time.monotonic() + WHY_AFTER_SECONDS
        self._why_pause = WHY_AFTER_SECONDS

    def follow(self) -> JobStatus:
        """Until the job is final and its output complete."""
        while not (self._job.status.is_final and not self._logs_open):
            match self._feed.next(self._patience_seconds()):
                case None:
                    self._on_silence()
                case LogStreamEnded(problem):
                    self._logs_open = False
                    if problem is not None:
                        print_note(f"the output cannot be read: {problem}")
                case Chunk() as chunk:
                    self._on_output(chunk)
                case JobStatus() as status:
                    self._on_status(status)
                case error:
                    raise error
        self.close()
        self._printer.close()
        if not self._manner.quiet:
            self._conclude()
        return self._job.status

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def _patience_seconds(self) -> float | None:
        if self._job.status.is_final:
            return LAST_OUTPUT_SECONDS
        if self._is_waiting() and not self._manner.quiet:
            return max(0.0, self._why_at - time.monotonic())
        return None

    def _on_silence(self) -> None:
        if self._job.status.is_final:
            self._logs_open = False
            print_note(f"some output is still on its way: rota logs {self._job.id}")
            return
        self._why_pause = min(LONGEST_WHY_SECONDS, self._why_pause * 2)
        self._why_at = time.monotonic() + self._why_pause
        try:
            why = self._job.why()
        except RotaError:
            return  # the server may be restarting; the feed finds out
        if why.waits and why.sentence != self._why:
            self._why = why.sentence
            more = " · add a node: rota node token" if why.changes else ""  # else one comes by itself
            print_note(f"{about_job(self._job.id, why.sentence)}     rota why {self._job.id}{more}")

    def _on_output(self, chunk: Chunk) -> None:
        self._introduce()
        earlier = self._attempts.setdefault(chunk.index, chunk.attempt)
        if chunk.attempt > earlier and not self._manner.quiet:
            print_note(f"attempt {chunk.attempt} of task {chunk.index}:")
        self._attempts[chunk.index] = max(earlier, chunk.attempt)
        self._printer.write(chunk)

    def _on_status(self, status: JobStatus) -> None:
        self._job.status = status
        if status.count == 1:
            if status.counts.get("running") or status.is_final:
                self._introduce()
            return
        if self._progress is None:
            self._progress = progress_for(status, quiet=self._manner.quiet, logs=self._manner.logs)
        self._progress.update(status)

    def _is_waiting(self) -> bool:
        counts = self._job.status.counts
        return (
            not self._attempts
            and counts.get("pending", 0) > 0
            and not self._job.status.tasks_ended
            and not any(
                counts.get(state) for state in ("offered", "queued", "accepted", "running", "stopping")
            )
        )

    def _introduce(self) -> None:
        """The line before the first output: which job, where, how soon."""
        if self._introduced or self._manner.quiet or self._job.status.count != 1:
            return
        self._introduced = True
        status, task = self._job.status, self._task()
        line = f"job {status.id} “{clean(status.name)}”"
        if task and task.node:
            line += f" placed on {clean(task.node)}"
        if task and task.started_at_ms is not None and status.submitted_at_ms is not None:
            line += f", started after {format_duration((task.started_at_ms - status.submitted_at_ms) / 1000)}"
        print_note(line)

    def _conclude(self) -> None:
        if self._job.status.count == 1:
            print_note(describe_single(self._job.status, self._task()))
            return
        print_note(describe_array(self._job.status))
        try:
            for line in failures(self._cluster, self._job):
                print_note(line)
        except RotaError as error:
            print_note(f"more is not known now: {error}")

    def _task(self) -> Task | None:
        """Only for the words: that it cannot be had must not change how the command ends."""
        try:
            return self._job.task(0)
        except RotaError:
            return None
