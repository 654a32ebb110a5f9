"""The honest tenants of `bench/tenants.py`: their jobs, and the checks that these were not harmed. [I/O]

Each round of a tenant is a timed short job, a job of another kind, and a short job again. Every value that
another tenant must not see is a canary: the marker of the run, the tenant, where it is stored, and a random
number.
"""

import hashlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rota.client.cluster import Cluster
from rota.client.errors import RotaError
from rota.client.job import Job

JOB_SECONDS = 120.0  # in which any of these jobs must end
HOLD_SECONDS = 3
ARRAY = 4
# Holds a secret in its environment, a file and its arguments. A signal that can be caught is reported;
# another one ends `sleep` early, or keeps the task from ending.
HOLDER = """\
for name in TERM INT HUP QUIT USR1 USR2 CONT ALRM; do trap "echo signalled by $name; exit 90" $name; done
umask 077; echo "$1" > ours.txt
sleep "$2" || exit 91
[ "$(printf %s "$SECRET$(cat secret.txt)$(cat ours.txt)" | sha256sum)" = "$3  -" ] || exit 92
[ -s "$ROTA_TOKEN_FILE" ] || exit 93
[ "$(ls -A | sort | tr '\\n' ' ')" = "ours.txt secret.txt " ] || { ls -A; exit 94; }
"""
WRITER = 'echo "$LINE" > "$ROTA_OUTPUT_DIR/result.txt"; echo "$LINE"; echo "$LINE" >&2'
SERVICE = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"


@dataclass(frozen=True)
class Sample:
    """One timed job: its submit time, and the time until its end was known."""

    began: float
    seconds: float


@dataclass
class Tenant:
    """One honest tenant with its token, its jobs and the harm that it has found."""

    name: str
    cluster: Cluster
    marker: str
    scratch: Path
    kept: Callable[[str, str, str], None]  # called with id, name and namespace of each job
    samples: list[Sample] = field(default_factory=list)
    jobs: int = 0
    harm: list[str] = field(default_factory=list)
    canaries: dict[str, str] = field(default_factory=dict)  # value -> where it is stored
    service: Job | None = None
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def run(self, stopped: threading.Event, period_seconds: float, delay_seconds: float) -> None:
        """Run rounds of jobs until stopped."""
        kinds = itertools.cycle((self.hold_secrets, self.write_output, self.run_array))
        stopped.wait(delay_seconds)
        for kind in kinds:
            if stopped.is_set():
                return
            next_at = time.monotonic() + period_seconds
            for run in (self.run_short, kind, self.run_short):
                try:
                    run()
                except (RotaError, OSError) as error:
                    self.harm.append(f"{kind.__name__}: {type(error).__name__} {error}")
            stopped.wait(max(0.0, next_at - time.monotonic()))

    def canary(self, where: str) -> str:
        value = f"{self.marker}-{self.name}-{where}-{secrets.token_hex(8)}"
        self.canaries[value] = where
        return value

    # ---- kinds of jobs

    def run_short(self) -> None:
        began = time.monotonic()
        job = self._submit("true", cpu=0.5)
        job.wait(JOB_SECONDS)
        self.samples.append(Sample(began, time.monotonic() - began))
        self._close(job)

    def run_array(self) -> None:
        job = self._submit("sh", "-c", "echo $ROTA_INDEX", count=ARRAY, cpu=0.25)
        job.wait(JOB_SECONDS)
        logs = [job.logs(index, "stdout") for index in range(ARRAY)]
        self._expect(job, "logs", logs, [f"{index}\n" for index in range(ARRAY)])
        self._close(job)

    def hold_secrets(self) -> None:
        variable, file, argument = self.canary("env"), self.canary("file"), self.canary("argv")
        digest = hashlib.sha256(f"{variable}{file}{argument}".encode()).hexdigest()
        command = ("sh", "-c", HOLDER, "sh", argument, str(HOLD_SECONDS), digest)
        job = self._submit(
            *command, env={"SECRET": variable}, files={"secret.txt": file}, results=True, cpu=0.25
        )
        job.wait(JOB_SECONDS)
        self._expect(job, "output", job.logs(0), "")
        self._close(job)

    def write_output(self) -> None:
        line = self.canary("output")
        job = self._submit("sh", "-c", WRITER, env={"LINE": line}, cpu=0.25)
        job.wait(JOB_SECONDS)
        for stream in ("stdout", "stderr"):
            self._expect(job, stream, job.logs(0, stream), f"{line}\n")
        got = job.get(into=self.scratch / f"{self.name}-{job.id}")
        self._expect(job, "outputs", [path.read_text() for path in got], [f"{line}\n"])
        self._close(job)

    def start_service(self) -> None:
        """Start one service with a secret for the whole run; it must never be restarted."""
        spec = {"env": {"SECRET": self.canary("env")}, "files": {"secret.txt": self.canary("file")}}
        self.service = self._submit("sh", "-c", SERVICE, kind="service", cpu=0.1, **spec)

    def check_service(self) -> None:
        assert self.service is not None
        status, task = self.service.refresh(), self.service.task(0)
        self._expect(self.service, "service", (status.counts.get("running"), status.restarts), (1, 0))
        self._expect(self.service, "service's attempt", (task.attempt, task.evicted), (1, False))

    def contend(self, tasks: int, seconds: int, cpu: float) -> Job:
        """Submit more tasks than its share; they reserve cores and use none."""
        return self._submit("sleep", str(seconds), count=tasks, cpu=cpu)

    # ---- shared steps

    def _submit(self, *command: str, **spec: Any) -> Job:
        """Submit under a name and a key that an attacker can guess."""
        name = f"{self.name}-{next(self._numbers)}"
        job = self.cluster.submit_spec(
            {"command": command, "namespace": self.name, "name": name, **spec}, key=name
        )
        self.jobs += 1
        self.kept(job.id, name, self.name)
        return job

    def _close(self, job: Job) -> None:
        """Check end, attempts and name of a job, then delete it."""
        self._expect(job, "state", job.state, "succeeded")
        tasks = list(job.tasks())
        self._expect(
            job, "attempts", [(task.attempt, task.signal) for task in tasks], [(1, None)] * job.status.count
        )
        self._expect(job, "job of its name", self.cluster.job(job.status.name).id, job.id)
        if job.status.is_final:
            job.delete()

    def _expect(self, job: Job, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            self.harm.append(
                f"job {job.id} {job.status.name}: {what} {found!r:.200} instead of {expected!r:.200}"
                f" ({job.status.state}: {job.status.sentence})"
            )
