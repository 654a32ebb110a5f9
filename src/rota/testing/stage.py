"""A whole control plane without a world: the real loop, records as bytes, and machines that do as ordered."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rota.apiserver.access import Caller
from rota.apiserver.admission import recovery, restart, update
from rota.apiserver.admission.node_actions import release_brake
from rota.clusters import assign, cluster_groups, lifecycle, scale
from rota.controllers import batch, cron, dependencies, expire, system
from rota.controllers.rollout import rollback, rollout
from rota.engine.loop import Decided, Loop, Request, Tainted
from rota.engine.parking import Parking
from rota.engine.reconciler import Command, Reconciler
from rota.engine.state.loading import load_mirror
from rota.engine.state.mirror import Mirror
from rota.engine.time_zones import zone
from rota.identity.tokens import Role
from rota.model.cluster import DEFAULT
from rota.model.errors import RotaError
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import JobIntent, JobSpec
from rota.model.limits import STALE_ORDER_MS, TICK_MS
from rota.model.messages import (
    AttemptReport,
    DrainRequest,
    Hello,
    JobOrders,
    JobReports,
    NodeReport,
    ReportedState,
    TaskTemplate,
)
from rota.model.node import Connection, Eligibility, NodeIntent, NodeSpec
from rota.model.plan import ADOPTION, Instant, Plan, Record
from rota.model.service import ServiceStatus
from rota.scheduler import plan as place
from rota.scheduler import unplaceable
from rota.scheduler.cluster_fit import FitCalculator
from rota.scheduler.plan import Scheduler
from rota.scheduler.policy import deadline, drain
from rota.scheduler.round import SchedulerSettings
from rota.scheduler.scale_estimate import estimate_scale
from rota.store import codec
from rota.store.memory import is_durable
from rota.testing.builders import WALL_MS
from rota.watcher import adoption, brake, leave_notices, liveness, node_messages, revocations, stuck_attempts
from rota.watcher.dispatch import DispatchState

_ROUNDS_MAX = 1000  # words exchanged before we call it a conversation that never rests


class StageAttempt(NamedTuple):
    """What a machine holds of one task."""

    attempt: int
    said: ReportedState
    needs: Mapping[str, int]
    version: int = 1  # of its job's spec
    lease_ms: int | None = None


class StageMachine:
    """A machine that starts and stops what it is told to, and ends tasks when the story says so."""

    def __init__(self, name: str, capacity: dict[str, int], labels: dict[str, str]) -> None:
        self.name = name
        self.capacity = capacity
        self.labels = labels
        self.boot = 1
        self.refuses: str | None = None
        self.held: dict[tuple[JobId, int], StageAttempt] = {}
        self.unsaid: list[tuple[JobId, AttemptReport]] = []
        self.told: DispatchState | None = None  # None: not connected
        self.silent = False  # connected, and nothing gets through
        self.deaf = False  # it is heard, and does nothing that it is told
        self.heard_ms = 0  # when its last word was heard: its leases are counted from then
        self.inbox: list[JobOrders] = []
        self._works: dict[JobId, TaskTemplate] = {}

    def hello(self) -> Hello:
        """Everything it holds, and every end it could not tell yet."""
        said, self.unsaid = self.unsaid, []
        live = [
            (job, AttemptReport(index, held.attempt, held.said, version=held.version))
            for (job, index), held in self.held.items()
        ]
        ends = [(job, claim) for job, claim in said if claim.said >= ReportedState.EXITED]
        return Hello(
            machine_id=f"machine-{self.name}",
            boot_id=f"boot-{self.boot}",
            version="1",
            capacity=self.capacity,
            labels=self.labels,
            epoch_seen=0,
            inventory=_by_job(live + ends),
        )

    def messages(self) -> list[JobReports]:
        said, self.unsaid = self.unsaid, []
        return _by_job(said)

    def record_of(self, job: JobId) -> bytes:
        """What it was given along with a job."""
        return self._works[job].record

    def receive_orders(self, orders: list[JobOrders]) -> None:
        """Orders reach a silent machine when it is heard again."""
        self.inbox += orders
        if not self.silent and not self.deaf:
            self._apply_orders()

    def _apply_orders(self) -> None:
        orders, self.inbox = self.inbox, []
        for one in orders:
            if one.work is not None:
                self._works[one.job] = one.work
            for stop in one.stop:
                self._stop((one.job, stop.index), stop.attempt)
        # Firm attempts go before lookahead, as in the keeper's line: the server has reserved room for them.
        starts = [(one.job, start) for one in orders for start in one.start]
        for job, start in sorted(starts, key=lambda given: not given[1].firm):
            self._start((job, start.index), start.attempt, firm=start.firm)
        self._use_room()

    def end(self, task: tuple[JobId, int], code: int | None, ran_ms: int) -> None:
        """By itself; without a code: at its time limit, by SIGTERM."""
        said, how = (
            (ReportedState.EXITED, {"exit_code": code})
            if code is not None
            else (ReportedState.TIMED_OUT, {"signal": 15})
        )
        self._report(task, self.held[task].attempt, said, ran_us=ran_ms * 1000, **how)
        del self.held[task]
        self._use_room()

    def report_service_status(self, task: tuple[JobId, int], life: ServiceStatus) -> None:
        if held := self.held.get(task):
            self._report(task, held.attempt, held.said, life=life)

    def lapse(self, now_ms: int) -> None:
        """What runs under a lease is killed a second before that ends."""
        for task, held in list(self.held.items()):
            if held.lease_ms is not None and now_ms - self.heard_ms >= held.lease_ms - 1_000:
                self._report(task, held.attempt, ReportedState.LOST)
                del self.held[task]

    def lose_keeper(self, wall_ms: int) -> None:
        """Its keeper dies, and the next one tells of everything that ran."""
        for task, held in list(self.held.items()):
            cause, said = (
                ("keeper_died", ReportedState.LOST)
                if held.said is ReportedState.RUNNING
                else (None, ReportedState.WITHDRAWN)
            )
            self._report(task, held.attempt, said, cause=cause, reason="the keeper died", ended_at_ms=wall_ms)
        self.held.clear()

    def quit(self) -> None:
        """Its keeper stops everything, because the node leaves."""
        for task, held in list(self.held.items()):
            cause, said = (
                ("node_left", ReportedState.STOPPED)
                if held.said is ReportedState.RUNNING
                else (None, ReportedState.WITHDRAWN)
            )
            self._report(task, held.attempt, said, cause=cause, reason="its node leaves")
        self.held.clear()

    def crash(self) -> None:
        """All it held is gone with its boot."""
        self.boot += 1
        self.held.clear()
        self.unsaid.clear()

    def _start(self, task: tuple[JobId, int], attempt: int, *, firm: bool) -> None:
        """Like a keeper it passes over what it holds already: after a new connection some is told twice."""
        held = self.held.get(task)
        if held is not None and held.attempt == attempt:
            return
        if self.refuses is not None:
            self._report(task, attempt, ReportedState.REFUSED, reason=self.refuses)
            return
        work = self._works[task[0]]
        runs = firm or self._fits(work.needs)
        said = ReportedState.RUNNING if runs else ReportedState.QUEUED
        self.held[task] = StageAttempt(attempt, said, work.needs, work.version, work.lease_ms)
        self._report(task, attempt, self.held[task].said)

    def _stop(self, task: tuple[JobId, int], attempt: int) -> None:
        held = self.held.get(task)
        if held is None or held.attempt != attempt:
            self._report(task, attempt, ReportedState.UNKNOWN)
            return
        self._report(
            task,
            attempt,
            ReportedState.WITHDRAWN if held.said is ReportedState.QUEUED else ReportedState.STOPPED,
        )
        del self.held[task]

    def _use_room(self) -> None:
        for task, held in list(self.held.items()):
            if held.said is ReportedState.QUEUED and self._fits(held.needs):
                self.held[task] = held._replace(said=ReportedState.RUNNING)
                self._report(task, held.attempt, ReportedState.RUNNING)

    def _fits(self, needs: Mapping[str, int]) -> bool:
        running = [held.needs for held in self.held.values() if held.said is ReportedState.RUNNING]
        used = {name: sum(one.get(name, 0) for one in running) for name in needs}
        return all(used[name] + amount <= self.capacity.get(name, 0) for name, amount in needs.items())

    def _report(self, task: tuple[JobId, int], attempt: int, said: ReportedState, **more: object) -> None:
        version = self.held[task].version if task in self.held else 1
        claim = AttemptReport(task[1], attempt, said, version=version, **more)  # type: ignore[arg-type]
        self.unsaid.append((task[0], claim))


class Stage:
    """What happens is told to `heard`, one sentence an event, when it is on disk.

    A fault of our own code is raised, so that no test passes over it. With `contains` it is contained as the
    server does it.
    """

    def __init__(self, heard: Callable[[str], object] = lambda _: None, *, contains: bool = False) -> None:
        self.contains = contains
        self.parking = Parking()
        self.now_ms = 0
        self.epoch = 1
        self.wall_shift_ms = 0  # somebody has set the wall clock
        self.machines: dict[str, StageMachine] = {}
        self.records: dict[Key, bytes] = {}
        self.revision = 0
        self._heard = heard
        self._n = 0
        self.loop = self._opened()

    @property
    def mirror(self) -> Mirror:
        return self.loop.mirror

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, WALL_MS + self.wall_shift_ms + self.now_ms)

    # ---- users

    def submit(self, spec: JobSpec) -> None:
        self.put(spec)

    def cancel(self, job: JobId, reason: str | None = None) -> None:
        self.put(JobIntent(job, cancel=True, reason=reason, at_ms=self.now.wall_ms))

    def update(
        self, job: JobId, changes: dict[str, object], max_parallel: int | None = None, *, replace: bool = True
    ) -> None:
        """With `replace` what runs an older version makes way."""
        wanted = update.UpdateRequest(changes, None, replace, max_parallel)
        caller = Caller("user", Role.ADMIN, ("*",))
        self.ask("apiserver", lambda view, now: update.update_job(view, job, wanted, caller, now))
        self.run_to_quiescence()

    def release(self, job: JobId) -> None:
        """All that is held of it."""
        caller = Caller("operator", Role.ADMIN, ("*",))
        self.ask("apiserver", lambda view, now: restart.release_tasks(view, job, {}, caller, now))
        self.run_to_quiescence()

    def release_brake(self) -> None:
        """All that are silent are gone."""
        caller = Caller("operator", Role.ADMIN, ("*",))
        self.ask("apiserver", lambda view, now: release_brake(view, {}, caller, now))
        self.run_to_quiescence()

    def answer(self, job: JobId, index: int, attempt: int, word: str) -> None:
        """The controller of a job says what becomes of a lost task; refused with what is raised."""
        spec = self.mirror.jobs[job].spec
        caller = Caller(spec.user, Role.SUBMITTER, (spec.namespace,))
        said = recovery.LossResolution(spec.controller, job, (index,), attempt, word)
        self.ask("apiserver", lambda view, _: recovery.resolve_losses(view, said, caller))
        self.run_to_quiescence()

    def watch(self, owner: str) -> None:
        """A controller connects."""
        self.mirror.presence.connected_one(owner)

    def disconnect(self, owner: str) -> None:
        self.mirror.presence.disconnected_one(owner, self.now_ms)

    def set_eligibility(self, name: str, eligibility: Eligibility) -> None:
        self.put(NodeIntent(NodeId(name), eligibility))

    def drain(self, name: str, within_ms: int | None, *, everything: bool = False) -> None:
        by_ms = None if within_ms is None else self.now_ms + within_ms
        self.put(NodeIntent(NodeId(name), Eligibility.DRAINING, (), by_ms, everything))

    def put(self, record: Record) -> None:
        self.ask("apiserver", lambda *_: Plan((record,)))
        self.run_to_quiescence()

    # ---- nodes

    def join(
        self, machine: StageMachine, cluster: str = DEFAULT, labels: Mapping[str, str] | None = None
    ) -> None:
        self.machines[machine.name] = machine
        self.put(NodeSpec(NodeId(machine.name), machine.name, cluster, dict(labels or {})))
        self.call(machine)

    def call(self, machine: StageMachine) -> None:
        """It dials in and says hello: it is heard before anybody judges its silence."""
        node, word = NodeId(machine.name), machine.hello()
        machine.silent = False
        machine.told = DispatchState(word.inventory, sealed=codec.encode)
        self.mirror.connect(node, Connection.UP)
        self._receive(machine)
        self.loop.wake("place", place.ROUND_KEY)
        self._adopt(machine, word)
        self.ask("watcher", lambda view, now: node_messages.on_hello(view, node, word, now))
        self._order(machine)
        self.run_to_quiescence()

    def speak(self, machine: StageMachine) -> None:
        """The silence is over, on the same stream. Where orders have waited for too long, it calls again."""
        machine.silent = False
        if machine.inbox and self.now_ms - machine.heard_ms > STALE_ORDER_MS:
            self.cut(machine)
            self.call(machine)
        machine.receive_orders([])
        self.wait(1)

    def cut(self, machine: StageMachine) -> None:
        """Its stream breaks; it goes on by itself."""
        machine.told = None
        machine.inbox.clear()
        self.mirror.connect(NodeId(machine.name), Connection.DOWN)
        self.loop.wake(liveness.NAME, machine.name)
        self.run_to_quiescence()

    def leave(self, machine: StageMachine, reason: str) -> None:
        """As its agent does: it says so, ends its work, reports that, and goes."""
        node, drain = NodeId(machine.name), DrainRequest(reason, 0)
        self.ask("watcher", lambda view, now: node_messages.on_drain(view, node, drain, now))
        machine.quit()
        self.run_to_quiescence()
        machine.told = None
        self.ask("watcher", lambda view, now: node_messages.on_leave(view, node, reason, now))
        self.run_to_quiescence()

    def forget(self, machine: StageMachine) -> None:
        """It is deleted; whatever the machine does, it is nobody's any more."""
        name = NodeId(machine.name)
        keys = tuple(Key(f"node/{name}/{part}") for part in ("spec", "wish", "status"))
        self.ask("apiserver", lambda *_: Plan((NodeIntent(name),), deletes=keys))
        del self.machines[machine.name]
        self.run_to_quiescence()

    # ---- the control plane

    def restart(self) -> None:
        """It dies and reads everything again; every stream is broken, no node has called yet."""
        for machine in self.machines.values():
            machine.told = None
        self.parking = Parking()
        self.loop = self._opened()
        self.run_to_quiescence()

    def restart_without_jobs(self) -> None:
        """As a server whose store keeps no job: its nodes bring back what they run when they call."""
        self.records = {key: value for key, value in self.records.items() if is_durable(key)}
        self.epoch += 1
        self.restart()

    def stall(self, ms: int) -> None:
        """It sleeps, hears nothing and decides nothing."""
        self.now_ms += ms
        for machine in self.machines.values():
            machine.lapse(self.now_ms)
        self.run_to_quiescence()

    def wait(self, ms: int) -> None:
        """Time passes, and whoever is connected and not silent is heard."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + TICK_MS)
            for machine in self.machines.values():
                if machine.told is not None and not machine.silent:
                    self._receive(machine)
                    self.loop.wake(liveness.NAME, machine.name)
                machine.lapse(self.now_ms)
            self.run_to_quiescence()

    def run_to_quiescence(self) -> None:
        """Decide, commit, order and hear until nothing more is said."""
        for _ in range(_ROUNDS_MAX):
            decided = self._decide()
            spoken = [self._report(machine) for machine in list(self.machines.values())]
            if decided is None and not any(spoken):
                return
        raise AssertionError("the conversation between nodes and control plane never rests")

    def ask(self, owner: str, command: Command) -> Decided:
        """Serve one command; what it is refused with is raised."""
        refused: list[RotaError] = []
        request = Request(owner, command, lambda _: None, refused.append, may_split=owner == "watcher")
        self.loop.ask(request)
        decided = self._decide()
        for refusal in refused:
            raise refusal
        assert decided is not None
        for _, refusal in decided.refusals:
            raise refusal
        return decided

    def _adopt(self, machine: StageMachine, word: Hello) -> None:
        if self.epoch == 1:  # all that it knows was submitted here, or is on disk
            return
        for one in adoption.unknown(self.mirror, NodeId(machine.name), word.inventory, self.epoch):
            spec = codec.decode(f"job/{one.job}/spec", machine.record_of(one.job))
            assert isinstance(spec, JobSpec)
            brought = adoption.BroughtJob(NodeId(machine.name), spec, one.reports, self.epoch)
            self.ask(ADOPTION, brought.adopt)

    def _receive(self, machine: StageMachine) -> None:
        """Any word of its own renews its leases, and tells that it lives."""
        self.mirror.now_ms = machine.heard_ms = self.now_ms
        self.mirror.mark_seen(NodeId(machine.name))

    def _report(self, machine: StageMachine) -> bool:
        claims = [] if machine.told is None or machine.silent else machine.messages()
        if not claims:
            return False
        assert machine.told is not None
        machine.told.on_reports(claims)
        self._n += 1
        node, word = NodeId(machine.name), NodeReport(self._n, claims)
        self._receive(machine)
        self.ask("watcher", lambda view, now: node_messages.on_report(view, node, word, now))
        return True

    def _decide(self) -> Decided | None:
        decided = None
        try:
            decided = self.loop.decide(self.now)
            written = {} if decided is None else decided.encode(_encoded)
        except Tainted as tainted:
            if not self.contains:
                raise tainted.error from tainted
            if decided is not None:
                self.loop.requeue(decided.requests)
            self._rebuild(tainted)
            return self._decide()
        for fault in self.parking.faults if not self.contains else ():
            raise fault.error
        if decided is not None:
            self._commit(decided, written)
        return decided

    def _rebuild(self, tainted: Tainted) -> None:
        before, waiting = self.mirror, self.loop.drain_requests()
        self.loop = self._opened()
        self.mirror.resume(before)
        self.loop.requeue(waiting)
        self.loop.condemn(tainted, self.now)
        self.parking.rebuilt(self.now_ms, 1)

    def _commit(self, decided: Decided, written: dict[Key, bytes]) -> None:
        """Persist, then speak."""
        self.records |= written
        for key in decided.deletes:
            self.records.pop(key, None)
        self.revision += 1
        for event in decided.events:
            self._heard(event.why)
        for node, index in leave_notices.leave_events(decided.events):
            self.mirror.nodes[node].left_at = (self.revision, index)
            self.loop.wake(leave_notices.NAME, node)
        touched = list(self.mirror.touched)
        self.mirror.touched.clear()
        for node in touched:
            machine = self.machines.get(node)
            if machine is not None and machine.told is not None:
                self._order(machine)

    def _order(self, machine: StageMachine) -> None:
        assert machine.told is not None
        machine.receive_orders(machine.told.orders(self.mirror, NodeId(machine.name)))

    def _loaded(self) -> Mirror:
        if self.contains:
            loaded = load_mirror(self.records.items(), self.now_ms)
            self.parking.loaded(loaded.aside, self.now)
            return loaded.mirror
        mirror = Mirror()
        mirror.now_ms = self.now_ms
        mirror.load(codec.decode(key, value) for key, value in self.records.items())
        return mirror

    def _opened(self) -> Loop:
        self.scheduler = Scheduler(SchedulerSettings())
        loop = Loop(self._loaded(), reconcilers(self.scheduler), self.parking)
        loop.enqueue_all()
        return loop


def _encoded(decided: Decided) -> dict[Key, bytes]:
    return {key: codec.encode(record) for key, record in decided.puts.items()}


def reconcilers(scheduler: Scheduler | None = None) -> list[Reconciler]:
    """Every reconciler of a control plane."""
    return [
        assign.reconciler(FitCalculator().cluster_fit),
        lifecycle.RECONCILER,
        cluster_groups.reconciler(),
        scale.reconciler(estimate_scale),
        batch.RECONCILER,
        rollout.RECONCILER,
        rollback.RECONCILER,
        expire.reconciler(),
        dependencies.RECONCILER,
        system.RECONCILER,
        cron.reconciler(zone),
        place.reconciler(scheduler=scheduler),
        unplaceable.reconciler(),
        drain.RECONCILER,
        deadline.RECONCILER,
        liveness.reconciler(),
        brake.reconciler(),
        stuck_attempts.reconciler(),
        leave_notices.RECONCILER,
        revocations.RECONCILER,
    ]


def _by_job(said: list[tuple[JobId, AttemptReport]]) -> list[JobReports]:
    jobs: dict[JobId, list[AttemptReport]] = {}
    for job, claim in said:
        jobs.setdefault(job, []).append(claim)
    return [JobReports(job, claims) for job, claims in jobs.items()]
