"""A control plane without I/O: the real loop, encoded records, and machines that carry out their orders."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rota.apiserver.access import Caller
from rota.apiserver.admission import recovery, restart, update
from rota.apiserver.admission.node_actions import release_brake
from rota.engine.loop import Decided, Loop, Request, Tainted
from rota.engine.parking import Parking
from rota.engine.reconciler import Command
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
from rota.reconcilers import ReconcilerSettings, reconcilers
from rota.rules.reconciler_names import ROUND_KEY, ReconcilerName
from rota.scheduler.plan import Scheduler
from rota.scheduler.queue_length import QUEUE_CHANGED
from rota.scheduler.round import SchedulerSettings
from rota.store import codec
from rota.store.memory import is_durable
from rota.testing.builders import WALL_MS
from rota.watcher import adoption, leave_notices, liveness, node_messages
from rota.watcher.dispatch import DispatchState

_ROUNDS_MAX = 1000  # of decisions and reports before this counts as a livelock


class StageAttempt(NamedTuple):
    """The attempt of one task on a machine."""

    attempt: int
    state: ReportedState
    needs: Mapping[str, int]
    version: int = 1  # of its job's spec
    lease_ms: int | None = None


class StageMachine:
    """A node that carries out its orders; its tasks end when the test says so."""

    def __init__(self, name: str, capacity: dict[str, int], labels: dict[str, str]) -> None:
        self.name = name
        self.capacity = capacity
        self.labels = labels
        self.boot = 1
        self.refuses: str | None = None
        self.held: dict[tuple[JobId, int], StageAttempt] = {}
        self.unreported: list[tuple[JobId, AttemptReport]] = []
        self.dispatch: DispatchState | None = None  # orders already sent; None: not connected
        self.silent = False  # connected, but no message gets through
        self.deaf = False  # its reports arrive, but it ignores orders
        self.last_seen_ms = 0  # time of its last message, from which its leases count
        self.inbox: list[JobOrders] = []
        self._templates: dict[JobId, TaskTemplate] = {}

    def hello(self) -> Hello:
        """Its inventory: all attempts it holds, and all ends not yet reported."""
        unreported, self.unreported = self.unreported, []
        live = [
            (job, AttemptReport(index, held.attempt, held.state, version=held.version))
            for (job, index), held in self.held.items()
        ]
        # Only ends: live states are in the inventory already, and a second report of them would be older.
        ends = [(job, report) for job, report in unreported if report.state >= ReportedState.EXITED]
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
        unreported, self.unreported = self.unreported, []
        return _by_job(unreported)

    def record_of(self, job: JobId) -> bytes:
        """The sealed spec that came with the job."""
        return self._templates[job].record

    def receive_orders(self, orders: list[JobOrders]) -> None:
        """Apply orders; those for a silent machine wait until it is connected again."""
        self.inbox += orders
        if not self.silent and not self.deaf:
            self._apply_orders()

    def _apply_orders(self) -> None:
        orders, self.inbox = self.inbox, []
        for job_orders in orders:
            if job_orders.work is not None:
                self._templates[job_orders.job] = job_orders.work
            for stop in job_orders.stop:
                self._stop((job_orders.job, stop.index), stop.attempt)
        # Ordering as in the keeper's admission queue: reserved attempts go before lookahead.
        starts = [(job_orders.job, start) for job_orders in orders for start in job_orders.start]
        for job, start in sorted(starts, key=lambda given: not given[1].firm):
            self._start((job, start.index), start.attempt, firm=start.firm)
        self._start_queued()

    def end(self, task: tuple[JobId, int], code: int | None, ran_ms: int) -> None:
        """End a task by itself; without a code, at its time limit by SIGTERM."""
        state, details = (
            (ReportedState.EXITED, {"exit_code": code})
            if code is not None
            else (ReportedState.TIMED_OUT, {"signal": 15})
        )
        self._report(task, self.held[task].attempt, state, ran_us=ran_ms * 1000, **details)
        del self.held[task]
        self._start_queued()

    def report_service_status(self, task: tuple[JobId, int], status: ServiceStatus) -> None:
        if held := self.held.get(task):
            self._report(task, held.attempt, held.state, life=status)

    def lapse(self, now_ms: int) -> None:
        """Kill attempts one second before their lease expires."""
        for task, held in list(self.held.items()):
            if held.lease_ms is not None and now_ms - self.last_seen_ms >= held.lease_ms - 1_000:
                self._report(task, held.attempt, ReportedState.LOST)
                del self.held[task]

    def lose_keeper(self, wall_ms: int) -> None:
        """The keeper dies, and the next one reports all attempts as lost."""
        for task, held in list(self.held.items()):
            cause, state = (
                ("keeper_died", ReportedState.LOST)
                if held.state is ReportedState.RUNNING
                else (None, ReportedState.WITHDRAWN)
            )
            self._report(
                task, held.attempt, state, cause=cause, reason="the keeper died", ended_at_ms=wall_ms
            )
        self.held.clear()

    def quit(self) -> None:
        """The keeper stops all attempts because the node leaves."""
        for task, held in list(self.held.items()):
            cause, state = (
                ("node_left", ReportedState.STOPPED)
                if held.state is ReportedState.RUNNING
                else (None, ReportedState.WITHDRAWN)
            )
            self._report(task, held.attempt, state, cause=cause, reason="its node leaves")
        self.held.clear()

    def crash(self) -> None:
        """Reboot: all attempts and unsent reports are gone."""
        self.boot += 1
        self.held.clear()
        self.unreported.clear()

    def _start(self, task: tuple[JobId, int], attempt: int, *, firm: bool) -> None:
        """Start an attempt; one that is held already is skipped, since a new stream repeats orders."""
        held = self.held.get(task)
        if held is not None and held.attempt == attempt:
            return
        if self.refuses is not None:
            self._report(task, attempt, ReportedState.REFUSED, reason=self.refuses)
            return
        work = self._templates[task[0]]
        runs = firm or self._fits(work.needs)
        state = ReportedState.RUNNING if runs else ReportedState.QUEUED
        self.held[task] = StageAttempt(attempt, state, work.needs, work.version, work.lease_ms)
        self._report(task, attempt, self.held[task].state)

    def _stop(self, task: tuple[JobId, int], attempt: int) -> None:
        held = self.held.get(task)
        # A stop names its attempt. For another one the machine reports that it does
        # not know it, as a keeper does.
        if held is None or held.attempt != attempt:
            self._report(task, attempt, ReportedState.UNKNOWN)
            return
        self._report(
            task,
            attempt,
            ReportedState.WITHDRAWN if held.state is ReportedState.QUEUED else ReportedState.STOPPED,
        )
        del self.held[task]

    def _start_queued(self) -> None:
        for task, held in list(self.held.items()):
            if held.state is ReportedState.QUEUED and self._fits(held.needs):
                self.held[task] = held._replace(state=ReportedState.RUNNING)
                self._report(task, held.attempt, ReportedState.RUNNING)

    def _fits(self, needs: Mapping[str, int]) -> bool:
        running = [held.needs for held in self.held.values() if held.state is ReportedState.RUNNING]
        used = {name: sum(amounts.get(name, 0) for amounts in running) for name in needs}
        return all(used[name] + amount <= self.capacity.get(name, 0) for name, amount in needs.items())

    def _report(self, task: tuple[JobId, int], attempt: int, state: ReportedState, **more: object) -> None:
        version = self.held[task].version if task in self.held else 1
        report = AttemptReport(task[1], attempt, state, version=version, **more)  # type: ignore[arg-type]
        self.unreported.append((task[0], report))


class Stage:
    """A control plane that is driven by calls; `on_event` gets the sentence of each committed event.

    An error of the product's own code is raised, so that no test hides it; with `contains` it is contained as
    the server does.
    """

    def __init__(self, on_event: Callable[[str], object] = lambda _: None, *, contains: bool = False) -> None:
        self.contains = contains
        self.parking = Parking()
        self.now_ms = 0
        self.epoch = 1
        self.wall_shift_ms = 0  # how far the wall clock was set
        self.machines: dict[str, StageMachine] = {}
        self.records: dict[Key, bytes] = {}
        self.revision = 0
        self._on_event = on_event
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
        """Update a job; with `replace`, running tasks of an older version are replaced."""
        request = update.UpdateRequest(changes, None, replace, max_parallel)
        caller = Caller("user", Role.ADMIN, ("*",))
        self.ask("apiserver", lambda view, now: update.update_job(view, job, request, caller, now))
        self.run_to_quiescence()

    def release(self, job: JobId) -> None:
        """Release all quarantined tasks of the job."""
        caller = Caller("operator", Role.ADMIN, ("*",))
        self.ask("apiserver", lambda view, now: restart.release_tasks(view, job, {}, caller, now))
        self.run_to_quiescence()

    def release_brake(self) -> None:
        """Confirm that all silent nodes are gone."""
        caller = Caller("operator", Role.ADMIN, ("*",))
        self.ask("apiserver", lambda view, now: release_brake(view, {}, caller, now))
        self.run_to_quiescence()

    def answer(self, job: JobId, index: int, attempt: int, decision: str) -> None:
        """The recovery controller decides on a lost task; raises what refuses it."""
        spec = self.mirror.jobs[job].spec
        caller = Caller(spec.user, Role.SUBMITTER, (spec.namespace,))
        resolution = recovery.LossResolution(spec.controller, job, (index,), attempt, decision)
        self.ask("apiserver", lambda view, _: recovery.resolve_losses(view, resolution, caller))
        self.run_to_quiescence()

    def watch(self, owner: str) -> None:
        """A recovery controller connects."""
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
        """Connect and handshake; the node is marked as seen before liveness is decided."""
        node, hello = NodeId(machine.name), machine.hello()
        machine.silent = False
        machine.dispatch = DispatchState(hello.inventory, sealed=codec.encode)
        self.mirror.connect(node, Connection.UP)
        self._receive(machine)
        self.loop.wake(ReconcilerName.PLACE, ROUND_KEY)
        self._adopt(machine, hello)
        self.ask("watcher", lambda view, now: node_messages.on_hello(view, node, hello, now))
        self._order(machine)
        self.run_to_quiescence()

    def end_silence(self, machine: StageMachine) -> None:
        """End the silence on the same stream; if orders have waited too long, the node reconnects."""
        machine.silent = False
        if machine.inbox and self.now_ms - machine.last_seen_ms > STALE_ORDER_MS:
            self.cut(machine)
            self.call(machine)
        machine.receive_orders([])
        self.wait(1)

    def cut(self, machine: StageMachine) -> None:
        """Break the stream; the machine continues without it."""
        machine.dispatch = None
        machine.inbox.clear()
        self.mirror.connect(NodeId(machine.name), Connection.DOWN)
        self.loop.wake(liveness.NAME, machine.name)
        self.run_to_quiescence()

    def leave(self, machine: StageMachine, reason: str) -> None:
        """Leave as an agent does: announce it, stop all attempts, report, deregister."""
        node, drain = NodeId(machine.name), DrainRequest(reason, 0)
        self.ask("watcher", lambda view, now: node_messages.on_drain(view, node, drain, now))
        machine.quit()
        self.run_to_quiescence()
        machine.dispatch = None
        self.ask("watcher", lambda view, now: node_messages.on_leave(view, node, reason, now))
        self.run_to_quiescence()

    def forget(self, machine: StageMachine) -> None:
        """Delete the node, whatever its machine does."""
        name = NodeId(machine.name)
        keys = tuple(Key(f"node/{name}/{part}") for part in ("spec", "wish", "status"))
        self.ask("apiserver", lambda *_: Plan((NodeIntent(name),), deletes=keys))
        del self.machines[machine.name]
        self.run_to_quiescence()

    # ---- the control plane

    def restart(self) -> None:
        """Crash and reload: every stream is broken, and no node has reconnected yet."""
        for machine in self.machines.values():
            machine.dispatch = None
        # Parked keys are in memory only: after a restart every key is tried again.
        self.parking = Parking()
        self.loop = self._opened()
        self.run_to_quiescence()

    def restart_without_jobs(self) -> None:
        """Restart with a memory store that has lost every job; nodes bring them back when they reconnect."""
        self.records = {key: value for key, value in self.records.items() if is_durable(key)}
        self.epoch += 1
        self.restart()

    def stall(self, ms: int) -> None:
        """Let time pass while the server neither receives nor decides."""
        self.now_ms += ms
        for machine in self.machines.values():
            machine.lapse(self.now_ms)
        self.run_to_quiescence()

    def wait(self, ms: int) -> None:
        """Let time pass; heartbeats of connected nodes that are not silent arrive."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + TICK_MS)
            for machine in self.machines.values():
                if machine.dispatch is not None and not machine.silent:
                    self._receive(machine)
                    self.loop.wake(liveness.NAME, machine.name)
                machine.lapse(self.now_ms)
            self.run_to_quiescence()

    def run_to_quiescence(self) -> None:
        """Decide, commit, send orders and receive reports until nothing is left to do."""
        for _ in range(_ROUNDS_MAX):
            decided = self._decide()
            reported = [self._report(machine) for machine in list(self.machines.values())]
            # Both in the same round: a report may cause a decision, and a decision may cause a report.
            if decided is None and not any(reported):
                return
        raise AssertionError("nodes and control plane do not reach quiescence")

    def ask(self, owner: str, command: Command[object]) -> Decided:
        """Decide one command; raise its refusal."""
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

    def _adopt(self, machine: StageMachine, hello: Hello) -> None:
        if self.epoch == 1:  # no job was ever lost
            return
        for unknown in adoption.unknown(self.mirror, NodeId(machine.name), hello.inventory, self.epoch):
            spec = codec.decode(f"job/{unknown.job}/spec", machine.record_of(unknown.job))
            assert isinstance(spec, JobSpec)
            brought = adoption.BroughtJob(NodeId(machine.name), spec, unknown.reports, self.epoch)
            self.ask(ADOPTION, brought.adopt)

    def _receive(self, machine: StageMachine) -> None:
        """Record a message of the node: it renews leases and liveness."""
        self.mirror.now_ms = machine.last_seen_ms = self.now_ms
        self.mirror.mark_seen(NodeId(machine.name))

    def _report(self, machine: StageMachine) -> bool:
        reports = [] if machine.dispatch is None or machine.silent else machine.messages()
        if not reports:
            return False
        assert machine.dispatch is not None
        machine.dispatch.on_reports(reports)
        self._n += 1
        node, message = NodeId(machine.name), NodeReport(self._n, reports)
        self._receive(machine)
        self.ask("watcher", lambda view, now: node_messages.on_report(view, node, message, now))
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
        """Persist, then publish events and send orders."""
        # Invariant: nothing is published or ordered that is not in the records.
        self.records |= written
        for key in decided.deletes:
            self.records.pop(key, None)
        self.revision += 1
        for event in decided.events:
            # A timer decides when the queue's length is reported: no scenario could expect that line.
            if event.kind != QUEUE_CHANGED:
                self._on_event(event.why)
        for node, index in leave_notices.leave_events(decided.events):
            self.mirror.nodes[node].left_at = (self.revision, index)
            self.loop.wake(leave_notices.NAME, node)
        touched = list(self.mirror.touched)
        self.mirror.touched.clear()
        for node in touched:
            machine = self.machines.get(node)
            if machine is not None and machine.dispatch is not None:
                self._order(machine)

    def _order(self, machine: StageMachine) -> None:
        assert machine.dispatch is not None
        machine.receive_orders(machine.dispatch.orders(self.mirror, NodeId(machine.name)))

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
        loop = Loop(
            self._loaded(),
            reconcilers(ReconcilerSettings(zones=zone, scheduler=self.scheduler)),
            self.parking,
        )
        loop.enqueue_all()
        return loop


def _encoded(decided: Decided) -> dict[Key, bytes]:
    return {key: codec.encode(record) for key, record in decided.puts.items()}


def _by_job(reports: list[tuple[JobId, AttemptReport]]) -> list[JobReports]:
    jobs: dict[JobId, list[AttemptReport]] = {}
    for job, report in reports:
        jobs.setdefault(job, []).append(report)
    return [JobReports(job, of_job) for job, of_job in jobs.items()]
