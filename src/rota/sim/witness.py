"""What the work itself has seen, held against what is written of it."""

from collections import Counter

from rota.keeper.rules import Key
from rota.model.job import JobSpec
from rota.model.lifecycle import AttemptState
from rota.sim.broken import Broken
from rota.sim.keeping import Child
from rota.sim.machine import Machine

MISSING = "missing"  # a command that exists on no machine


class Witness:
    """How each attempt that was started has ended: by itself, or by a signal."""

    def __init__(self) -> None:
        self.failures: Counter[tuple[str, int]] = Counter()  # by task: attempts that are written as failed
        self._codes: dict[Key, int] = {}  # exit code, or minus the number of a signal
        self._ran_ms: dict[Key, int] = {}  # by the clock of its machine

    def died(self, machine: Machine, child: Child) -> None:
        if child.status is not None:
            self._codes[child.key] = child.status
            self._ran_ms[child.key] = machine.clock.boot_ms() - child.started_ms

    def succeeded(self, key: Key) -> bool:
        return self._codes.get(key) == 0

    def compare(self, spec: JobSpec, key: Key, state: AttemptState) -> None:
        """An attempt is written to have ended so."""
        name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
        code = 127 if spec.command[0] == MISSING else self._codes.get(key)
        match state:
            case AttemptState.SUCCEEDED if code != 0:
                raise Broken(f"{name} is said to have succeeded and ended with {code}")
            case AttemptState.FAILED if code is None or code <= 0:
                raise Broken(f"{name} is said to have failed and ended with {code}")
            case AttemptState.FAILED:
                self._count_failure(spec, key)
            case AttemptState.TIMED_OUT:
                limit_ms = round(1000 * (spec.timeout_seconds or 0))
                ran_ms = self._ran_ms.get(key, 0)
                if not limit_ms or ran_ms < limit_ms:
                    raise Broken(f"{name} is said to be over its time after {ran_ms} of {limit_ms} ms")
            case _:
                pass

    def _count_failure(self, spec: JobSpec, key: Key) -> None:
        task = key[:2]
        self.failures[task] += 1
        if self.failures[task] > 1 + spec.retries:
            times = f"{self.failures[task]} times, with {spec.retries} retries"
            raise Broken(f"task {key[1]} of job {key[0]} failed {times}")
