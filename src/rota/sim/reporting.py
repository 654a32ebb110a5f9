"""Tasks of some seeds that say what came of them: once, again, otherwise, late, of nobody; by any server."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from rota.apiserver.access import Caller
from rota.apiserver.admission import results
from rota.apiserver.admission.results import AttemptRef, ResultReported
from rota.identity.task_tokens import TaskName
from rota.identity.tokens import Role
from rota.keeper.resources.reservations import AttemptKey
from rota.model.errors import Rejected, RotaError
from rota.model.plan import Instant, Plan
from rota.model.view import View
from rota.sim.keeping import SimChild
from rota.sim.load import Arrival, Behaviour
from rota.sim.machine import SimMachine
from rota.sim.network import SimNetwork
from rota.sim.reported import ResultCall, ResultChecks
from rota.sim.server import SimServer
from rota.sim.world import SimProcess

CHANCE = "of what results"  # its stream's name
SHARE = 1 / 20  # of seeds
PATIENCE_MS = 2_000
LATE_MS = (1, 1_000, 60_000)  # after the end, when another attempt may have begun


def reporting(seed: int, length_ms: int) -> list[Arrival]:
    """From a chance of its own: all else of the seed stays as it was drawn."""
    luck = Random(f"{seed}/{CHANCE}")
    if luck.random() >= SHARE:
        return []
    return [_job(luck, number, length_ms) for number in range(luck.randint(1, 4))]


def _job(luck: Random, number: int, length_ms: int) -> Arrival:
    spec: dict[str, Any] = {"name": f"reporter-{number}", "command": ["work"], "results": True, "grace": "1s"}
    spec |= {"count": luck.choice((1, 2, 5, 20)), "cpu": 0.5, "retries": luck.choice((0, 1, 3))}
    spec["run"] = luck.choice(("at_least_once", "at_least_once", "at_most_once"))
    lasts_ms = luck.choice((50, 3_000, 20_000, 60_000))
    behaviour = Behaviour(lasts_ms, 0.5, luck.choice((0.0, 0.3)), luck.choice((0.0, 1.0)))
    return Arrival(luck.randrange(length_ms), spec, behaviour)


class ScriptedResult(NamedTuple):
    """What an attempt says, and how long after its start."""

    at_ms: float
    said: ResultCall


def words(luck: Random, key: AttemptKey, run_ms: int) -> list[ScriptedResult]:
    """Often one; at times the same again, something else, or not before its end."""
    first = ResultCall(key, luck.randrange(3), luck.choice((None, None, "it diverged")))
    if luck.random() < 0.15:
        return []
    is_late = luck.random() < 0.15
    began_ms = run_ms + luck.choice(LATE_MS) if is_late else luck.uniform(0, run_ms)
    spoken = [ScriptedResult(began_ms, first)]
    if luck.random() < 0.4:
        spoken.append(ScriptedResult(began_ms + luck.choice((0, 5, 5_000)), first))
    if luck.random() < 0.4:
        other = (
            first._replace(loss=first.loss + 1) if luck.random() < 0.5 else first._replace(failure="other")
        )
        spoken.append(ScriptedResult(began_ms + luck.choice((0, 5, 5_000)), other))
    if luck.random() < 0.3:
        spoken.append(ScriptedResult(run_ms + luck.choice(LATE_MS), first))
    if luck.random() < 0.1:
        spoken.append(
            ScriptedResult(began_ms, first._replace(key=(*key[:2], key[2] + 1)))
        )  # which there is not yet
    return spoken


class ResultReporters:
    """Whatever runs, of a job that asks for results."""

    def __init__(self, network: SimNetwork, servers: list[SimServer], reported: ResultChecks) -> None:
        self._network = network
        self._servers = servers
        self._reported = reported
        self._calls = 0

    def born(self, machine: SimMachine, child: SimChild) -> None:
        world = self._network.world
        voice = SimProcess(world, machine.name, machine.clock)
        voice.start_life()
        boot = machine.boot
        luck = Random(f"{world.seed}/{CHANCE}/{child.key}")
        for word in words(luck, child.key, child.habit.run_ms):
            command = _command(word.said, machine)
            voice.after(
                word.at_ms, partial(self._insist, voice, lambda: machine.boot == boot, word.said, command)
            )

    def _insist(
        self,
        voice: SimProcess,
        lives: Callable[[], bool],
        said: ResultCall,
        command: Callable[[View, Instant], Plan[ResultReported]],
    ) -> None:
        """Until somebody answers with more than that it cannot now, or the machine is gone."""
        over = False

        def hear(answer: Any) -> None:
            nonlocal over
            if not isinstance(answer, RotaError) or isinstance(answer, Rejected):
                over = True

        def ask() -> None:
            if not over and lives():
                self._call(voice, said, command, hear)
                voice.after(PATIENCE_MS, ask)

        voice.world.count("task: reports what came of it")
        ask()

    def _call(
        self,
        voice: SimProcess,
        said: ResultCall,
        command: Callable[[View, Instant], Plan[ResultReported]],
        hear: Callable[[Any], None],
    ) -> None:
        self._calls += 1
        server = self._servers[self._calls % len(self._servers)]

        def answer(what: Any) -> None:
            self._reported.answered(said, what)
            self._network.call(server.name, voice, lambda: hear(what))

        self._network.call(voice.name, server, lambda: server.ask("apiserver", command, answer, answer))


def _command(said: ResultCall, machine: SimMachine) -> Callable[[View, Instant], Plan[ResultReported]]:
    job, index, attempt = said.key
    name = TaskName(job, index, attempt, machine.node)
    caller = Caller(f"attempt {attempt} of task {index} of job {job}", Role.VIEWER, (), name)
    address = AttemptRef(job, str(index), str(attempt))
    return lambda view, now: results.report_result(view, address, said.body, caller, now)
