"""What the work itself has seen, held against what is written of it."""

from collections import Counter
from typing import NamedTuple

from rota.keeper.rules import Key
from rota.model.job import JobSpec, Kind
from rota.model.lifecycle import AttemptState
from rota.sim.broken import Broken
from rota.sim.keeping import Child
from rota.sim.machine import Machine

MISSING = "missing"  # a command that exists on no machine


class Seen(NamedTuple):
    """The last process of an attempt, of several where it has steps."""

    code: int | None  # exit code, or minus the number of a signal
    step: int
    is_last: bool
    ran_ms: int  # since its first start, by the clock of its machine
    step_ran_ms: int


NOTHING = Seen(None, 0, is_last=False, ran_ms=0, step_ran_ms=0)


class Witness:
    """How each attempt that was started has ended: by itself, or by a signal."""

    def __init__(self) -> None:
        self.failures: Counter[tuple[str, int]] = Counter()  # by task: attempts that are written as failed
        self._began_ms: dict[Key, int] = {}
        self._seen: dict[Key, Seen] = {}

    def died(self, machine: Machine, child: Child) -> None:
        if child.status is not None:
            now_ms, key = machine.clock.boot_ms(), child.key
            ran_ms = now_ms - self._began_ms.setdefault(key, child.started_ms)
            self._seen[key] = Seen(child.status, child.step, child.is_last, ran_ms, now_ms - child.started_ms)

    def succeeded(self, key: Key) -> bool:
        seen = self._seen.get(key, NOTHING)
        return seen.is_last and seen.code == 0

    def compare(self, spec: JobSpec, key: Key, state: AttemptState) -> None:
        """An attempt is written to have ended so."""
        name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
        seen = self._seen.get(key, NOTHING)
        if spec.stays and state in (AttemptState.SUCCEEDED, AttemptState.TIMED_OUT):
            raise Broken(f"{name}, of a service, is said to be {state.name}")
        if spec.stays:
            return
        match state:
            case AttemptState.SUCCEEDED if not self.succeeded(key):
                where = f" in step {seen.step} of {len(spec.steps)}" if spec.steps else ""
                raise Broken(f"{name} is said to have succeeded and ended with {seen.code}{where}")
            case AttemptState.FAILED if (seen.code or 0) <= 0 and not _cannot_go_on(spec, seen):
                raise Broken(f"{name} is said to have failed and ended with {seen.code}")
            case AttemptState.FAILED:
                self._count_failure(spec, key)
            case AttemptState.TIMED_OUT:
                whole = spec.timeout_seconds
                step = spec.steps[seen.step - 1].timeout_seconds if seen.step else None
                if not _is_over(seen.ran_ms, whole) and not _is_over(seen.step_ran_ms, step):
                    limit_ms = round(1000 * (whole or step or 0))
                    raise Broken(f"{name} is said to be over its time after {seen.ran_ms} of {limit_ms} ms")
            case _:
                pass

    def _count_failure(self, spec: JobSpec, key: Key) -> None:
        task = key[:2]
        self.failures[task] += 1
        if self.failures[task] > 1 + spec.retries and spec.kind is not Kind.SYSTEM:
            times = f"{self.failures[task]} times, with {spec.retries} retries"
            raise Broken(f"task {key[1]} of job {key[0]} failed {times}")


def _cannot_go_on(spec: JobSpec, seen: Seen) -> bool:
    """What it was to start next, or at first, exists nowhere."""
    if not spec.steps:
        return spec.command[0] == MISSING
    return not seen.code and not seen.is_last and spec.steps[seen.step].command[0] == MISSING


def _is_over(ran_ms: int, limit_seconds: float | None) -> bool:
    return limit_seconds is not None and ran_ms >= round(1000 * limit_seconds)
