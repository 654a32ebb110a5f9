"""Users and operators: submit with an idempotency key, cancel, drain, taint, delete; retry until answered."""

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
from rota.sim.cluster.machine_os import MISSING, TaskBehaviour
from rota.sim.cluster.server import SimServer
from rota.sim.workloads.model import BAD, VERSION, Arrival, Behaviour
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.network import SimNetwork
from rota.sim.world.virtual_time import SimClock, SimProcess, World

ADMIN = Caller("sim", Role.ADMIN, ("*",))
RETRY_MS = 2_000


class SimUsers(SimProcess):
    """All users as one process.

    Every request is retried, at any server, until it is answered. A request that sets a state (eligibility,
    taint, pause, quota) reads the latest intent when it is carried out, so that a late duplicate does not
    undo a newer one.
    """

    def __init__(self, world: World, network: SimNetwork, servers: list[SimServer]) -> None:
        super().__init__(world, "user", SimClock(world))
        self.network = network
        self.servers = servers
        self.behaviours: dict[str, Behaviour] = {}
        self.acknowledged: dict[str, JobId] = {}  # by submit key
        self.namespaces: dict[str, str] = {}  # by submit key, which is unique per namespace
        self.submitted_ms: dict[JobId, int] = {}
        self.canceled: dict[JobId, None] = {}
        self.deleted: dict[JobId, None] = {}
        self.eligibility: dict[str, Eligibility] = {}  # by node
        self._taints: dict[str, str | None] = {}  # by node
        self._paused: dict[JobId, bool] = {}  # whether running tasks are stopped, too
        self._quotas: dict[str, dict[str, Any]] = {}  # by namespace
        self.deadlines: dict[str, float | None] = {}  # of a drain, by node
        self.answered: Callable[[str, JobId], None] = lambda *_: None
        self.waiting = 0
        self._rng = world.rng("users")
        self._calls = 0
        self.start_life()

    def submit(self, arrival: Arrival, key: str) -> None:
        """Submit with one key and body until acknowledged, by whichever server."""
        self.waiting += 1
        self.behaviours[arrival.spec["name"]] = arrival.behaviour
        self.namespaces[key] = arrival.spec.get("namespace", "default")
        submitted_at_ms = self.world.now_ms

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
            self.submitted_ms.setdefault(answer.job, submitted_at_ms)

        self.insist(
            lambda view, now: submission.submit_job(view, arrival.spec, ADMIN, key, now),
            done,
        )

    def submit_conflicting(self, body: dict[str, Any], key: str) -> None:
        """Submit another body under a used key, which must be refused."""

        def done(answer: Any) -> None:
            if not isinstance(answer, Rejected):
                raise InvariantBroken(f"submit {key} with another body was answered with {answer}")
            self.world.count("user: a conflicting submit was refused")

        self.insist(lambda view, now: submission.submit_job(view, body, ADMIN, key, now), done)

    def cancel(self, job: JobId) -> None:
        self.canceled[job] = None
        self.insist(lambda view, now: actions.cancel(view, job, {}, ADMIN, now), lambda _: None)

    def kill(self, job: JobId, indices: list[int] | None, signal: str | None, *, ends: bool) -> None:
        """Kill the job or some of its tasks, or send a harmless signal; `ends`: the job ends by that."""
        body = {"indices": indices, "signal": signal, "key": f"{self.world.now_ms}"}
        if signal is None and ends:
            self.canceled[job] = None
        self.insist(lambda view, now: actions.kill(view, job, body, ADMIN, now), lambda _: None)

    def move(self, job: JobId, index: int, to: str | None) -> None:
        """Move one task to a node or away from its own; the request has an idempotency key."""
        body = {"indices": [index], "to": to}
        admit = idempotent(move_admission(why_not_moved), f"move-{self.world.now_ms}")
        self.insist(lambda view, now: admit(view, job, body, ADMIN, now), self._on_moved)

    def _on_moved(self, answer: Any) -> None:
        refused = isinstance(answer, RotaError)
        self.world.count("user: a move was refused" if refused else "user: moved a task")

    def pause_job(self, job: JobId, *, stop: bool) -> None:
        """Pause a job; `stop`: its running tasks, too."""
        self._paused[job] = stop
        self._send_pause(job)

    def resume_job(self, job: JobId) -> None:
        self._paused.pop(job, None)
        self._send_pause(job)

    def _send_pause(self, job: JobId) -> None:
        def command(view: View, now: Instant) -> Plan[object]:
            stop = self._paused.get(job)
            if stop is None:
                return actions.resume(view, job, {}, ADMIN, now)
            once = job in view.jobs and view.jobs[job].spec.run is RunMode.AT_MOST_ONCE
            return actions.pause(view, job, {"stop": stop and not once}, ADMIN, now)

        self.insist(command, lambda _: None)

    def update(self, job: JobId, body: dict[str, Any], *, replace: bool, max_parallel: int | None) -> None:
        def command(view: View, now: Instant) -> Plan[object]:
            once = job in view.jobs and view.jobs[job].spec.run is RunMode.AT_MOST_ONCE
            request = UpdateRequest(body, None, replace and not once, max_parallel)
            return update.update_job(view, job, request, ADMIN, now)

        self.insist(command, lambda _: None)

    def release(self, job: JobId) -> None:
        """Release all quarantined tasks of the job."""
        self.world.count("user: released quarantined tasks")
        self.insist(lambda view, now: restart.release_tasks(view, job, {}, ADMIN, now), lambda _: None)

    def delete(self, job: JobId) -> None:
        """Delete a job; it may be gone from now on, whatever the answer: a duplicate may have done it."""
        # Recorded before the answer: the request may be carried out although the answer is lost.
        self.deleted[job] = None
        self.insist(lambda view, now: submission.delete_job(view, job, ADMIN), lambda _: None)  # noqa: ARG005

    def set_eligibility(
        self, node: str, eligibility: Eligibility, within_seconds: float | None = None
    ) -> None:
        """Open, cordon or drain a node; a late duplicate carries out the latest intent."""
        self.eligibility[node] = eligibility
        self.deadlines[node] = within_seconds

        def command(view: View, now: Instant) -> Plan[object]:
            if self.eligibility[node] is Eligibility.DRAINING:
                body = {"deadline_seconds": self.deadlines[node]}
                return drain_node(view, node, body, ADMIN, now)
            return set_node_eligibility(view, node, self.eligibility[node], ADMIN)

        self.insist(command, lambda _: None)

    def confirm_gone(self, nodes: list[str]) -> None:
        """Confirm that these nodes are gone; it applies to those that are silent when it is carried out."""
        self.world.count("operator: confirmed that nodes are gone")
        self.insist(lambda view, now: release_brake(view, {"nodes": nodes}, ADMIN, now), lambda _: None)

    def taint(self, node: str, taint: str | None) -> None:
        """Set the node's taint, or remove it if None; a late duplicate carries out the latest intent."""
        self._taints[node] = taint

        def command(view: Any, _: Instant) -> Plan[object]:
            latest = self._taints[node]
            body = {"untaint": ["kept"]} if latest is None else {"taint": [latest]}
            return taint_node(view, node, body, ADMIN)

        self.insist(command, lambda _: None)

    def limit(self, namespace: str, quota: dict[str, Any]) -> None:
        """Set the quota of a namespace; an empty one removes it."""
        self._quotas[namespace] = quota

        def command(view: Any, _: Instant) -> Plan[object]:
            body = {"quota": self._quotas[namespace]}
            return namespaces.set_namespace(view, namespace, body, ADMIN)

        self.insist(command, lambda _: None)

    def insist(self, command: Command[object], done: Callable[[Any], None]) -> None:
        """Send the command until a server answers it or rejects it; unavailability is retried."""
        answered = False
        round_ = 0

        def on_answer(answer: Any) -> None:
            nonlocal answered
            if answered:
                self.world.count("user: an answer was late or duplicate")
            elif isinstance(answer, RotaError) and not isinstance(answer, Rejected):
                self.after(self._rng.uniform(200, 1_000), partial(retry, round_))
            else:
                answered = True
                done(answer)

        def ask() -> None:
            nonlocal round_
            round_ += 1
            self._call(command, on_answer)
            self.after(RETRY_MS, partial(retry, round_))

        def retry(after_round: int) -> None:
            # A refusal and a timeout may both lead here: only the first one starts a new round.
            if not answered and after_round == round_:
                self.world.count("user: retried")
                ask()

        ask()

    def _call(self, command: Command[object], on_answer: Callable[[Any], None]) -> None:
        self._calls += 1
        server = self.servers[self._calls % len(self.servers)]

        def answer(result: Any) -> None:
            self.network.call(server.name, self, lambda: on_answer(result))

        self.network.call(self.name, server, lambda: server.ask("apiserver", command, answer, answer))

    # ---- behaviour of their tasks

    def behaviour_of(self, key: AttemptKey, spec: KeeperJobSpec) -> TaskBehaviour:
        behaviour = self.behaviours[spec.name.partition("@")[0]]  # all runs of a cron share one behaviour
        part = f"/{key[2]}.{spec.restarts}" if spec.restart else f"/{spec.step}" if spec.step else ""
        rng = Random(f"{self.world.seed}/{spec.name}/{key[1]}{part}")
        if spec.env.get(VERSION) == BAD:
            return TaskBehaviour(rng.randint(100, 3_000), 1)
        run_ms = behaviour.run_ms(rng)
        still_fails = spec.restart is not None or key[2] <= behaviour.fail_attempts
        fails = rng.random() < behaviour.fail_share and still_fails
        deaf = rng.random() < behaviour.deaf_share
        return TaskBehaviour(run_ms, 1 if fails else 0, deaf=deaf, missing=spec.argv[0] == MISSING)
