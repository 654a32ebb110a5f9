"""How processes really ended, compared with the attempt states that are written."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from rota.keeper.resources.reservations import AttemptKey
from rota.model.job import JobKind, JobSpec
from rota.model.lifecycle import AttemptState
from rota.model.recovery import Failure
from rota.model.shape import RunMode
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.machine_os import MISSING, SimChild
from rota.sim.world.invariant import InvariantBroken


class LastProcess(NamedTuple):
    """The last process of an attempt; with steps there are several."""

    code: int | None  # exit code, or the negated signal number
    step: int
    is_last: bool
    ran_ms: int  # since the attempt started, by its machine's clock
    step_ran_ms: int


NOTHING = LastProcess(None, 0, is_last=False, ran_ms=0, step_ran_ms=0)


class ProcessLog:
    """The exit of the last process of each attempt."""

    def __init__(self) -> None:
        self.failures: Counter[tuple[str, int]] = Counter()  # by task: attempts that are recorded as failed
        self.reported_failures: Mapping[AttemptKey, str] = {}  # attempts that have reported a failure
        self._began_ms: dict[AttemptKey, int] = {}
        self._seen: dict[AttemptKey, LastProcess] = {}

    def process_ended(self, machine: SimMachine, child: SimChild) -> None:
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
        """An attempt is recorded with this final state."""
        name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
        seen = self._seen.get(key, NOTHING)
        match state:
            case AttemptState.SUCCEEDED | AttemptState.TIMED_OUT if spec.is_service:
                raise InvariantBroken(f"{name}, of a service, is recorded as {state.name}")
            case _ if spec.is_service:
                pass
            case AttemptState.SUCCEEDED:
                self._check_success(spec, key, name)
            case AttemptState.FAILED if not self._may_have_failed(spec, key):
                raise InvariantBroken(f"{name} is recorded as failed and ended with {seen.code}")
            case AttemptState.FAILED:
                self._count_failure(spec, key)
            case AttemptState.TIMED_OUT:
                _check_time(spec, seen, name)
                if Failure.TIMEOUT in spec.retry.on:
                    self._count_failure(spec, key)
            case _:
                pass

    def _check_success(self, spec: JobSpec, key: AttemptKey, name: str) -> None:
        seen = self._seen.get(key, NOTHING)
        if not self.succeeded(key):
            where = f" in step {seen.step} of {len(spec.steps)}" if spec.steps else ""
            raise InvariantBroken(f"{name} is recorded as succeeded and ended with {seen.code}{where}")
        if key in self.reported_failures:
            raise InvariantBroken(
                f"{name} is recorded as succeeded and reported: {self.reported_failures[key]}"
            )

    def _may_have_failed(self, spec: JobSpec, key: AttemptKey) -> bool:
        """Whether its exit code, a missing command of its next step, or its own report explains a failure."""
        seen = self._seen.get(key, NOTHING)
        reported = key in self.reported_failures and self.succeeded(key)
        return (seen.code or 0) > 0 or _cannot_continue(spec, seen) or reported

    def _count_failure(self, spec: JobSpec, key: AttemptKey) -> None:
        task = key[:2]
        self.failures[task] += 1
        if self.failures[task] > 1 + spec.retries and spec.kind is not JobKind.SYSTEM:
            times = f"{self.failures[task]} times, with {spec.retries} retries"
            raise InvariantBroken(f"task {key[1]} of job {key[0]} failed {times}")


def tries(spec: JobSpec) -> int:
    """Attempts of a task before it has failed; simulated commands exit with 1 or do not exist."""
    is_missing = not spec.steps and spec.command[0] == MISSING
    code = 127 if is_missing else 1
    named = code in spec.retry.codes or not (spec.retry.codes or spec.retry.on)
    is_retried = named and code not in spec.retry.fail_on and spec.run is not RunMode.AT_MOST_ONCE
    return 1 + (spec.retries if is_retried else 0)


def _check_time(spec: JobSpec, seen: LastProcess, name: str) -> None:
    timeout_seconds = spec.timeout_seconds
    step = spec.steps[seen.step - 1].timeout_seconds if seen.step else None
    if not _is_over(seen.ran_ms, timeout_seconds) and not _is_over(seen.step_ran_ms, step):
        limit_ms = round(1000 * (timeout_seconds or step or 0))
        raise InvariantBroken(f"{name} is recorded as timed out after {seen.ran_ms} of {limit_ms} ms")


def _cannot_continue(spec: JobSpec, seen: LastProcess) -> bool:
    """Whether its first command, or that of its next step, does not exist."""
    if not spec.steps:
        return spec.command[0] == MISSING
    return not seen.code and not seen.is_last and spec.steps[seen.step].command[0] == MISSING


def _is_over(ran_ms: int, limit_seconds: float | None) -> bool:
    return limit_seconds is not None and ran_ms >= round(1000 * limit_seconds)
