"""`rota run`: submit a job, follow it, pass its output through, and exit with its exit code."""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from rota.cli.main import print_error
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.exit_codes import (
    CLUSTER_FAULT,
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
# How long to wait for remaining output once the job has ended.
LAST_OUTPUT_SECONDS = 10.0


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@spec_options
@click.option("--key", help="Idempotency key: submitting twice with the same key creates one job.")
@click.option("-d", "--detach", is_flag=True, help="Do not wait; print the id of the job.")
@click.option("--logs/--no-logs", default=None, help="Pass output through. [default: yes, except for arrays]")
@click.option(
    "--cancel-on-interrupt", is_flag=True, help="Ctrl-C cancels the job instead of leaving it to run."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the output of the job and errors.")
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
    # A service ends only when it is canceled: following it would never return.
    if flags["detach"] or is_service:
        job = cluster.submit_spec(spec, flags["key"])
        _warn(job, quiet=flags["quiet"])
        return _print_submitted(job, output, quiet=flags["quiet"])
    statuses = cluster.follow_spec(spec, flags["key"])
    job = Job(cluster.transport, next(statuses))
    _warn(job, quiet=flags["quiet"])
    if flags["cancel_on_interrupt"]:
        # Build systems stop their children with SIGTERM, and start them with SIGINT ignored.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    as_data = output not in ("table", "wide")
    logs = not as_data and (flags["logs"] if flags["logs"] is not None else job.status.count == 1)
    options = FollowOptions(flags["quiet"], logs, flags["cancel_on_interrupt"])
    code = _follow(Follower(cluster, job, statuses, options), job, options)
    if as_data:
        emit_one(output, job.refresh(), job.id, list)
    return code


@dataclass(frozen=True)
class FollowOptions:
    """How to follow a job."""

    quiet: bool = False
    logs: bool = True
    cancel_on_interrupt: bool = False


def _warn(job: Job, *, quiet: bool) -> None:
    """Print the warnings of a submit: conditions that no node satisfies at present."""
    for warning in () if quiet else job.warnings:
        print_note(f"warning: {clean(f'{warning.field}: {warning.text}')}")


def _print_submitted(job: Job, output: str, *, quiet: bool) -> int:
    if not quiet and job.status.kind == "service":
        print_note(f"service {job.id} “{clean(job.status.name)}” runs until it is canceled; {hints(job.id)}")
    elif not quiet:
        print_note(f"job {job.id} “{clean(job.status.name)}” submitted; follow it: rota logs -f {job.id}")
    emit_one(output, job.status, job.id, lambda: [job.id])
    return 0


def _follow(follower: "Follower", job: Job, options: FollowOptions) -> int:
    try:
        return exit_code(follower.follow())
    except KeyboardInterrupt:
        if not options.cancel_on_interrupt:
            return _detach(follower, job)
        print_note(f"canceling job {job.id}; Ctrl-C again detaches from it")
        return _cancel(follower, job)
    except Unavailable as problem:
        print_error(
            problem.code,
            str(problem),
            f"job {job.id} keeps running; continue waiting with: rota wait {job.id}",
        )
        return CLUSTER_FAULT


def _detach(follower: "Follower", job: Job) -> int:
    follower.close()
    print_note(
        f"\ndetached; job {job.id} keeps running: "
        f"rota wait {job.id} · rota logs -f {job.id} · rota cancel {job.id}"
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
    """Follows one job until it has ended and prints its output, progress and result."""

    def __init__(
        self, cluster: Cluster, job: Job, statuses: Iterator[JobStatus], options: FollowOptions
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._options = options
        self._feed = JobFeed(cluster, job, statuses, logs=options.logs)
        self._progress: ProgressView | None = None
        self._introduced = False
        self._attempts: dict[int, int] = {}
        self._printer = Printer(LinePrefix(index=job.status.count > 1))
        self._logs_open = True
        self._why = ""
        self._why_at = time.monotonic() + WHY_AFTER_SECONDS
        self._why_interval = WHY_AFTER_SECONDS

    def follow(self) -> JobStatus:
        """Follow the job until it is final and its output is complete."""
        # Two streams end independently: the final status may arrive before the last output, or after it.
        while not (self._job.status.is_final and not self._logs_open):
            match self._feed.next(self._timeout_seconds()):
                case None:
                    self._on_silence()
                case LogStreamEnded(problem):
                    self._logs_open = False
                    if problem is not None:
                        print_note(f"cannot read the output: {problem}")
                case Chunk() as chunk:
                    self._on_output(chunk)
                case JobStatus() as status:
                    self._on_status(status)
                case error:
                    raise error
        self.close()
        self._printer.close()
        if not self._options.quiet:
            self._conclude()
        return self._job.status

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def _timeout_seconds(self) -> float | None:
        # Bounded: the node with the rest of the output may be gone, and the exit code is known.
        if self._job.status.is_final:
            return LAST_OUTPUT_SECONDS
        if self._is_waiting() and not self._options.quiet:
            return max(0.0, self._why_at - time.monotonic())
        return None

    def _on_silence(self) -> None:
        if self._job.status.is_final:
            self._logs_open = False
            print_note(f"some output has not arrived yet: rota logs {self._job.id}")
            return
        # With a backoff: computing the reason examines every node, and a job may wait for hours.
        self._why_interval = min(LONGEST_WHY_SECONDS, self._why_interval * 2)
        self._why_at = time.monotonic() + self._why_interval
        try:
            why = self._job.why()
        except RotaError:
            return  # the server may be restarting; the feed reports a lasting failure
        if why.waits and why.sentence != self._why:
            self._why = why.sentence
            # Without changes a node is created automatically, and the user has nothing to do.
            more = " · add a node: rota node token" if why.changes else ""
            print_note(f"{about_job(self._job.id, why.sentence)}     rota why {self._job.id}{more}")

    def _on_output(self, chunk: Chunk) -> None:
        self._introduce()
        # Output of a retry follows that of the failed attempt; without a note the two would read as one.
        earlier = self._attempts.setdefault(chunk.index, chunk.attempt)
        if chunk.attempt > earlier and not self._options.quiet:
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
            self._progress = progress_for(status, quiet=self._options.quiet, logs=self._options.logs)
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
        """Print the line before the first output: the job, its node and its waiting time."""
        if self._introduced or self._options.quiet or self._job.status.count != 1:
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
            print_note(f"cannot list the failed tasks: {error}")

    def _task(self) -> Task | None:
        """The task, for messages only: a failed request must not change the exit code."""
        try:
            return self._job.task(0)
        except RotaError:
            return None
