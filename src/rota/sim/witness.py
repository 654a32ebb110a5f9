"""What the work itself has seen, held against what is written of it."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from rota.keeper.resources.reservations import AttemptKey
from rota.model.job import JobKind, JobSpec
from rota.model.lifecycle import AttemptState
from rota.model.recovery import Failure
from rota.model.shape import RunMode
from rota.sim.broken import InvariantBroken
from rota.sim.keeping import SimChild
from rota.sim.machine import SimMachine

MISSING = "missing"  # a command that exists on no machine


class LastProcess(NamedTuple):
    """The last process of an attempt, of several where it has steps."""

    code: int | None  # exit code, or minus the number of a signal
    step: int
    is_last: bool
    ran_ms: int  # since its first start, by the clock of its machine
    step_ran_ms: int


NOTHING = LastProcess(None, 0, is_last=False, ran_ms=0, step_ran_ms=0)


class ProcessLog:
    """How each attempt that was started has ended: by itself, or by a signal."""

    def __init__(self) -> None:
        self.failures: Counter[tuple[str, int]] = Counter()  # by task: attempts that are written as failed
        self.said_failed: Mapping[AttemptKey, str] = {}  # attempts that have reported a failure
        self._began_ms: dict[AttemptKey, int] = {}
        self._seen: dict[AttemptKey, LastProcess] = {}

    def died(self, machine: SimMachine, child: SimChild) -> None:
        if child.status is not None:
            now_ms, key = machine.clock.boot_ms(), child.key
            ran_ms = now_ms - self._began_ms.setdefault(key, child.started_ms)
            self._seen[key] = LastProcess(
                child.status, child.step, child.is_last, ran_ms, now_ms - child.started_ms
            )

    def succeeded(self, key: AttemptKey) -> bool:
        seen = self._seen.get(key, NOTHING)
        return seen.is_last and seen.code == 0

    def compare(self, spec: JobSpec, key: AttemptKey, state: AttemptState) -> None:
        """An attempt is written to have ended so."""
        name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
        seen = self._seen.get(key, NOTHING)
        match state:
            case AttemptState.SUCCEEDED | AttemptState.TIMED_OUT if spec.is_service:
                raise InvariantBroken(f"{name}, of a service, is said to be {state.name}")
            case _ if spec.is_service:
                pass
            case AttemptState.SUCCEEDED:
                self._check_success(spec, key, name)
            case AttemptState.FAILED if not self._may_have_failed(spec, key):
                raise InvariantBroken(f"{name} is said to have failed and ended with {seen.code}")
            case AttemptState.FAILED:
                self._count_failure(spec, key)
            case AttemptState.TIMED_OUT:
                _look_at_time(spec, seen, name)
                if Failure.TIMEOUT in spec.retry.on:
                    self._count_failure(spec, key)
            case _:
                pass

    def _check_success(self, spec: JobSpec, key: AttemptKey, name: str) -> None:
        seen = self._seen.get(key, NOTHING)
        if not self.succeeded(key):
            where = f" in step {seen.step} of {len(spec.steps)}" if spec.steps else ""
            raise InvariantBroken(f"{name} is said to have succeeded and ended with {seen.code}{where}")
        if key in self.said_failed:
            raise InvariantBroken(f"{name} is said to have succeeded and reported: {self.said_failed[key]}")

    def _may_have_failed(self, spec: JobSpec, key: AttemptKey) -> bool:
        """By its exit code, by what it was to start next, or by its own word where it ended well."""
        seen = self._seen.get(key, NOTHING)
        said_so = key in self.said_failed and self.succeeded(key)
        return (seen.code or 0) > 0 or _cannot_go_on(spec, seen) or said_so

    def _count_failure(self, spec: JobSpec, key: AttemptKey) -> None:
        task = key[:2]
        self.failures[task] += 1
        if self.failures[task] > 1 + spec.retries and spec.kind is not JobKind.SYSTEM:
            times = f"{self.failures[task]} times, with {spec.retries} retries"
            raise InvariantBroken(f"task {key[1]} of job {key[0]} failed {times}")


def tries(spec: JobSpec) -> int:
    """How often a task of it is started before it has failed: work fails with 1, or does not exist."""
    is_missing = not spec.steps and spec.command[0] == MISSING
    code = 127 if is_missing else 1
    named = code in spec.retry.codes or not (spec.retry.codes or spec.retry.on)
    worth = named and code not in spec.retry.fail_on and spec.run is not RunMode.AT_MOST_ONCE
    return 1 + (spec.retries if worth else 0)


def _look_at_time(spec: JobSpec, seen: LastProcess, name: str) -> None:
    whole = spec.timeout_seconds
    step = spec.steps[seen.step - 1].timeout_seconds if seen.step else None
    if not _is_over(seen.ran_ms, whole) and not _is_over(seen.step_ran_ms, step):
        limit_ms = round(1000 * (whole or step or 0))
        raise InvariantBroken(f"{name} is said to be over its time after {seen.ran_ms} of {limit_ms} ms")


def _cannot_go_on(spec: JobSpec, seen: LastProcess) -> bool:
    """What it was to start next, or at first, exists nowhere."""
    if not spec.steps:
        return spec.command[0] == MISSING
    return not seen.code and not seen.is_last and spec.steps[seen.step].command[0] == MISSING


def _is_over(ran_ms: int, limit_seconds: float | None) -> bool:
    return limit_seconds is not None and ran_ms >= round(1000 * limit_seconds)
