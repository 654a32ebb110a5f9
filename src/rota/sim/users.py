"""People: they submit with a key and repeat until they are answered, cancel, drain, open and delete."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from rota.apiserver.access import Caller
from rota.apiserver.admission import actions, namespaces, restart, submission, update
from rota.apiserver.admission.idempotency import idempotent
from rota.apiserver.admission.move import move_admission
from rota.apiserver.admission.node_actions import drain_node, release_brake, set_node_eligibility, taint_node
from rota.apiserver.admission.update import UpdateRequest
from rota.engine.reconciler import Command
from rota.identity.tokens import Role
from rota.keeper.protocol.wire import KeeperJobSpec
from rota.keeper.resources.reservations import AttemptKey
from rota.model.errors import Rejected, RotaError
from rota.model.ids import JobId
from rota.model.node import Eligibility
from rota.model.plan import Instant, Plan
from rota.model.shape import RunMode
from rota.model.view import View
from rota.scheduler.explain.move_check import why_not_moved
from rota.sim.broken import InvariantBroken
from rota.sim.keeping import TaskBehaviour
from rota.sim.load import BAD, VERSION, Arrival, Behaviour
from rota.sim.network import SimNetwork
from rota.sim.server import SimServer
from rota.sim.witness import MISSING
from rota.sim.world import SimClock, SimProcess, World

ADMIN = Caller("sim", Role.ADMIN, ("*",))
PATIENCE_MS = 2_000


class SimUsers(SimProcess):
    def __init__(self, world: World, network: SimNetwork, servers: list[SimServer]) -> None:
        super().__init__(world, "user", SimClock(world))
        self.network = network
        self.servers = servers
        self.behaviours: dict[str, Behaviour] = {}
        self.acknowledged: dict[str, JobId] = {}  # by submit key
        self.namespaces: dict[str, str] = {}  # by submit key, which counts in one of them only
        self.submitted_ms: dict[JobId, int] = {}
        self.canceled: dict[JobId, None] = {}
        self.deleted: dict[JobId, None] = {}
        self.wishes: dict[str, Eligibility] = {}  # by node
        self._taints: dict[str, str | None] = {}  # by node
        self._paused: dict[JobId, bool] = {}  # whether what runs is stopped, too
        self._quotas: dict[str, dict[str, Any]] = {}  # by namespace
        self.deadlines: dict[str, float | None] = {}  # by node, of a drain
        self.answered: Callable[[str, JobId], None] = lambda *_: None
        self.waiting = 0
        self._luck = world.luck("users")
        self._calls = 0
        self.start_life()

    def submit(self, arrival: Arrival, key: str) -> None:
        """Until it is acknowledged: same key, same body, whichever server answers."""
        self.waiting += 1
        self.behaviours[arrival.spec["name"]] = arrival.behaviour
        self.namespaces[key] = arrival.spec.get("namespace", "default")
        asked_ms = self.world.now_ms

        def done(answer: Any) -> None:
            if isinstance(answer, Rejected):
                self.world.count("user: a submit was refused")
                self.waiting -= 1
                return
            assert isinstance(answer, submission.SubmitResult)
            if key not in self.acknowledged:
                self.waiting -= 1
            self.answered(key, answer.job)
            self.acknowledged[key] = answer.job
            self.submitted_ms.setdefault(answer.job, asked_ms)

        self.insist(
            lambda view, now: submission.submit_job(view, arrival.spec, ADMIN, key, now),
            done,
        )

    def submit_wrongly(self, body: dict[str, Any], key: str) -> None:
        """A submit that must be refused: the key has made something else."""

        def done(answer: Any) -> None:
            if not isinstance(answer, Rejected):
                raise InvariantBroken(f"submit {key} with another body was answered with {answer}")
            self.world.count("user: a wrong submit was refused")

        self.insist(lambda view, now: submission.submit_job(view, body, ADMIN, key, now), done)

    def cancel(self, job: JobId) -> None:
        self.canceled[job] = None
        self.insist(lambda view, now: actions.cancel(view, job, {}, ADMIN, now), lambda _: None)

    def kill(self, job: JobId, indices: list[int] | None, signal: str | None, *, ends: bool) -> None:
        """The job or a task of it; or send it a signal of which it does not die. `ends`: it ends by that."""
        body = {"indices": indices, "signal": signal, "key": f"{self.world.now_ms}"}
        if signal is None and ends:
            self.canceled[job] = None
        self.insist(lambda view, now: actions.kill(view, job, body, ADMIN, now), lambda _: None)

    def move(self, job: JobId, index: int, to: str | None) -> None:
        """One task, to a node or away from its own; a request that is repeated is carried out once."""
        body = {"indices": [index], "to": to}
        admit = idempotent(move_admission(why_not_moved), f"move-{self.world.now_ms}")
        self.insist(lambda view, now: admit(view, job, body, ADMIN, now), self._hear_move)

    def _hear_move(self, answer: Any) -> None:
        refused = isinstance(answer, RotaError)
        self.world.count("user: a move was refused" if refused else "user: moved a task")

    def pause_job(self, job: JobId, *, stop: bool) -> None:
        """As with nodes: whichever of his calls gets through says what he wishes by then."""
        self._paused[job] = stop
        self._say_pause(job)

    def resume_job(self, job: JobId) -> None:
        self._paused.pop(job, None)
        self._say_pause(job)

    def _say_pause(self, job: JobId) -> None:
        def say(view: View, now: Instant) -> Plan:
            stop = self._paused.get(job)
            if stop is None:
                return actions.resume(view, job, {}, ADMIN, now)
            once = job in view.jobs and view.jobs[job].spec.run is RunMode.AT_MOST_ONCE
            return actions.pause(view, job, {"stop": stop and not once}, ADMIN, now)

        self.insist(say, lambda _: None)

    def update(self, job: JobId, body: dict[str, Any], *, replace: bool, max_parallel: int | None) -> None:
        def say(view: View, now: Instant) -> Plan:
            once = job in view.jobs and view.jobs[job].spec.run is RunMode.AT_MOST_ONCE
            wanted = UpdateRequest(body, None, replace and not once, max_parallel)
            return update.update_job(view, job, wanted, ADMIN, now)

        self.insist(say, lambda _: None)

    def release(self, job: JobId) -> None:
        """All that is held of it, if there still is something."""
        self.world.count("user: released what was held")
        self.insist(lambda view, now: restart.release_tasks(view, job, {}, ADMIN, now), lambda _: None)

    def delete(self, job: JobId) -> None:
        """It may be gone from here on, whatever is answered: an earlier call may have done it."""
        self.deleted[job] = None
        self.insist(lambda view, now: submission.delete_job(view, job, ADMIN), lambda _: None)  # noqa: ARG005

    def set_eligibility(
        self, node: str, eligibility: Eligibility, within_seconds: float | None = None
    ) -> None:
        """Whichever of his calls gets through, and however late, says what he wishes by then."""
        self.wishes[node] = eligibility
        self.deadlines[node] = within_seconds

        def say(view: View, now: Instant) -> Plan:
            if self.wishes[node] is Eligibility.DRAINING:
                body = {"deadline_seconds": self.deadlines[node]}
                return drain_node(view, node, body, ADMIN, now)
            return set_node_eligibility(view, node, self.wishes[node], ADMIN)

        self.insist(say, lambda _: None)

    def confirm_gone(self, nodes: list[str]) -> None:
        """Of these, those that are silent when it is heard."""
        self.world.count("operator: said that nodes are gone")
        self.insist(lambda view, now: release_brake(view, {"nodes": nodes}, ADMIN, now), lambda _: None)

    def taint(self, node: str, taint: str | None) -> None:
        """None: no more. It says what he wishes by then, as above."""
        self._taints[node] = taint

        def command(view: Any, _: Instant) -> Plan:
            wished = self._taints[node]
            body = {"untaint": ["kept"]} if wished is None else {"taint": [wished]}
            return taint_node(view, node, body, ADMIN)

        self.insist(command, lambda _: None)

    def limit(self, namespace: str, quota: dict[str, Any]) -> None:
        """An empty quota: no more."""
        self._quotas[namespace] = quota

        def command(view: Any, _: Instant) -> Plan:
            body = {"quota": self._quotas[namespace]}
            return namespaces.set_namespace(view, namespace, body, ADMIN)

        self.insist(command, lambda _: None)

    def insist(self, command: Command, done: Callable[[Any], None]) -> None:
        """Ask until somebody answers with more than that it cannot now."""
        over = False
        asked = 0

        def hear(answer: Any) -> None:
            nonlocal over
            if over:
                self.world.count("user: an answer came twice or late")
            elif isinstance(answer, RotaError) and not isinstance(answer, Rejected):
                self.after(self._luck.uniform(200, 1_000), partial(again, asked))
            else:
                over = True
                done(answer)

        def ask() -> None:
            nonlocal asked
            asked += 1
            self._call(command, hear)
            self.after(PATIENCE_MS, partial(again, asked))

        def again(round_: int) -> None:
            """Unless another reason to ask again came first."""
            if not over and round_ == asked:
                self.world.count("user: asked again")
                ask()

        ask()

    def _call(self, command: Command, hear: Callable[[Any], None]) -> None:
        self._calls += 1
        server = self.servers[self._calls % len(self.servers)]

        def answer(what: Any) -> None:
            self.network.call(server.name, self, lambda: hear(what))

        self.network.call(self.name, server, lambda: server.ask("apiserver", command, answer, answer))

    # ---- how their work behaves

    def habit(self, key: AttemptKey, spec: KeeperJobSpec) -> TaskBehaviour:
        behaviour = self.behaviours[spec.name.partition("@")[0]]  # of a cron all runs alike
        which = f"/{key[2]}.{spec.restarts}" if spec.restart else f"/{spec.step}" if spec.step else ""
        luck = Random(f"{self.world.seed}/{spec.name}/{key[1]}{which}")
        if spec.env.get(VERSION) == BAD:
            return TaskBehaviour(luck.randint(100, 3_000), 1)
        run_ms = behaviour.run_ms(luck)
        still_fails = spec.restart is not None or key[2] <= behaviour.fail_attempts
        fails = luck.random() < behaviour.fail_share and still_fails
        deaf = luck.random() < behaviour.deaf_share
        return TaskBehaviour(run_ms, 1 if fails else 0, deaf=deaf, missing=spec.argv[0] == MISSING)
