"""Tasks that report results: once, repeated, contradictory, late, or for an attempt that does not exist."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from rota.apiserver.access import Caller
from rota.apiserver.admission import results
from rota.apiserver.admission.results import AttemptRef
from rota.identity.task_tokens import TaskName
from rota.identity.tokens import Role
from rota.keeper.resources.reservations import AttemptKey
from rota.model.errors import Rejected, RotaError
from rota.model.ids import JobId
from rota.model.plan import Instant, Plan
from rota.model.result import ResultRecord
from rota.model.view import View
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.machine_os import SimChild
from rota.sim.cluster.server import SimServer
from rota.sim.world.network import SimNetwork
from rota.sim.world.virtual_time import SimProcess

CHANCE = "of what results"  # name of its random generator
RETRY_MS = 2_000
LATE_MS = (1, 1_000, 60_000)  # after the end, when another attempt may have started


class ResultCall(NamedTuple):
    """One call of an attempt's process: for itself, or for a later attempt whose token it does not have."""

    key: AttemptKey
    loss: int
    failure: str | None

    @property
    def body(self) -> dict[str, Any]:
        return {"results": {"loss": self.loss}, "failure": self.failure}

    @property
    def result(self) -> ResultRecord:
        job, index, attempt = self.key
        return ResultRecord(JobId(job), index, attempt, b'{"loss":%d}' % self.loss, self.failure)


class ScriptedResult(NamedTuple):
    """A call and when it is made, counted from the start of the attempt."""

    at_ms: float
    call: ResultCall


def scripted_calls(rng: Random, key: AttemptKey, run_ms: int) -> list[ScriptedResult]:
    """Draw the calls of an attempt: often one; sometimes repeated, contradictory or after its end."""
    first = ResultCall(key, rng.randrange(3), rng.choice((None, None, "it diverged")))
    if rng.random() < 0.15:
        return []
    is_late = rng.random() < 0.15
    first_ms = run_ms + rng.choice(LATE_MS) if is_late else rng.uniform(0, run_ms)
    calls = [ScriptedResult(first_ms, first)]
    if rng.random() < 0.4:
        calls.append(ScriptedResult(first_ms + rng.choice((0, 5, 5_000)), first))
    if rng.random() < 0.4:
        other = first._replace(loss=first.loss + 1) if rng.random() < 0.5 else first._replace(failure="other")
        calls.append(ScriptedResult(first_ms + rng.choice((0, 5, 5_000)), other))
    if rng.random() < 0.3:
        calls.append(ScriptedResult(run_ms + rng.choice(LATE_MS), first))
    if rng.random() < 0.1:
        # A report for an attempt that does not exist yet.
        calls.append(ScriptedResult(first_ms, first._replace(key=(*key[:2], key[2] + 1))))
    return calls


class ResultReporters:
    """Makes the result calls of every process whose job asks for results."""

    def __init__(
        self, network: SimNetwork, servers: list[SimServer], answered: Callable[[ResultCall, object], None]
    ) -> None:
        self._network = network
        self._servers = servers
        self._answered = answered
        self._calls = 0

    def process_started(self, machine: SimMachine, child: SimChild) -> None:
        world = self._network.world
        process = SimProcess(world, machine.name, machine.clock)
        process.start_life()
        boot = machine.boot
        # Seeded by the attempt: what one task reports does not depend on which other tasks ran before it.
        rng = Random(f"{world.seed}/{CHANCE}/{child.key}")
        for scripted in scripted_calls(rng, child.key, child.behaviour.run_ms):
            command = _command(scripted.call, machine)
            process.after(
                scripted.at_ms,
                partial(self._insist, process, lambda: machine.boot == boot, scripted.call, command),
            )

    def _insist(
        self,
        process: SimProcess,
        is_alive: Callable[[], bool],
        call: ResultCall,
        command: Callable[[View, Instant], Plan[object]],
    ) -> None:
        """Repeat the call until it is answered or rejected, or the machine is gone."""
        answered = False

        def on_answer(answer: Any) -> None:
            nonlocal answered
            if not isinstance(answer, RotaError) or isinstance(answer, Rejected):
                answered = True

        def ask() -> None:
            if not answered and is_alive():
                self._call(process, call, command, on_answer)
                process.after(RETRY_MS, ask)

        process.world.count("task: reported a result")
        ask()

    def _call(
        self,
        process: SimProcess,
        call: ResultCall,
        command: Callable[[View, Instant], Plan[object]],
        on_answer: Callable[[Any], None],
    ) -> None:
        self._calls += 1
        server = self._servers[self._calls % len(self._servers)]

        def answer(result: Any) -> None:
            self._answered(call, result)
            self._network.call(server.name, process, lambda: on_answer(result))

        self._network.call(process.name, server, lambda: server.ask("apiserver", command, answer, answer))


def _command(call: ResultCall, machine: SimMachine) -> Callable[[View, Instant], Plan[object]]:
    job, index, attempt = call.key
    name = TaskName(job, index, attempt, machine.node)
    caller = Caller(f"attempt {attempt} of task {index} of job {job}", Role.VIEWER, (), name)
    address = AttemptRef(job, str(index), str(attempt))
    return lambda view, now: results.report_result(view, address, call.body, caller, now)
