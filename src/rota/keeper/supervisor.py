"""All this node was asked to run and not told to forget: orders in, processes started, events out."""

import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence

from rota.keeper import journal as lines
from rota.keeper import launch, live_update
from rota.keeper.admission import AdmissionQueue
from rota.keeper.attempt import FIRST_POLL_NS, ExitStatus, Kernel, RunningAttempt, result_row
from rota.keeper.journal import Journal, JournalState
from rota.keeper.leases import Leases, check_lease
from rota.keeper.ledger import AttemptLedger
from rota.keeper.limit_checks import apply_violation
from rota.keeper.outbox import Outbox
from rota.keeper.output.segments import MeasuredExtent, SegmentStore
from rota.keeper.process.commands import CANNOT_EXECUTE, CannotRun
from rota.keeper.protocol import wire
from rota.keeper.protocol.stop_modes import AttemptSignal, KeeperStopMode
from rota.keeper.resources.reservations import AttemptKey
from rota.keeper.services import ServiceSupervisor
from rota.keeper.spawn import NO_PROCESS_AVAILABLE, NodeResourceExhausted, Spawner
from rota.keeper.timers import AttemptTimers

SIGKILL = int(signal.SIGKILL)


class Supervisor:
    """One lock guards it all. It is not held while a process is spawned: that takes longer than the rest."""

    def __init__(
        self,
        state: JournalState,
        journal: Journal,
        spawner: Spawner,
        outputs: SegmentStore,
        wake: Callable[[], None],
        *,
        kernel: Kernel,
    ) -> None:
        self.lock = threading.Lock()
        self.has_children = threading.Condition(self.lock)
        self.sweeper_wakeup = threading.Condition(self.lock)
        self.outbox = Outbox(wake, kernel.now_ns)
        self.journal_state = state
        self.quitting = False
        self._journal = journal
        self._spawner = spawner
        self._outputs = outputs
        self.running: dict[AttemptKey, RunningAttempt] = {}
        self.by_pid: dict[int, RunningAttempt] = {}
        self._spawn_done = threading.Condition(self.lock)
        self._spawns_pending = 0
        self._spawn_awaited = False  # somebody waits for one that is being spawned
        self._restarts_queued: list[RunningAttempt] = []  # whose next step is to be started
        self._kernel = kernel
        self._ledger = AttemptLedger(state, journal, self.outbox, self._is_idle, kernel)
        self.timers = AttemptTimers(self.running, kernel.now_ns)
        self.services = ServiceSupervisor(self.running, self._ledger, kernel)
        self.services.set_timer, self.services.queue_start = self._set_timer, self._queue_start
        self._leases = Leases()
        self._admission = AdmissionQueue(state, outputs, self._ledger, self._leases, kernel)
        self._reservations = self._admission.reservations
        self.sweeper_idle = False
        self.sweep_needed = False  # something was started since the warden last went to wait

    # Orders of the agent.

    def configure(self, order: wire.ConfigureOrder) -> None:
        with self.lock:
            self._spawner.configure(order)
            self._outputs.retention = order.retention
            self._admission.configure(order)
        self.start_admitted()

    def start(self, order: wire.StartOrder) -> None:
        with self.lock:
            reason = (
                "the keeper is stopping" if self.quitting else self._ledger.add_spec(order.job, order.spec)
            )
            if order.spec and order.spec.version > 1:
                self._apply_live_update(order.job)
            for wanted in order.tasks:
                key = (order.job, wanted.index, wanted.attempt)
                if refusal := reason or (key not in self.running and self._admission.accept(key, wanted)):
                    self.outbox.add_refused(key, refusal)
        self.start_admitted()

    def refuse(self, keys: Sequence[AttemptKey], reason: str) -> None:
        """Their order cannot be obeyed here."""
        with self.lock:
            for key in self._unknown_keys(keys):
                self.outbox.add_refused(key, reason)

    def fail(self, keys: Sequence[AttemptKey], reason: str) -> None:
        """Their order says what cannot be: no keeper could start them."""
        with self.lock:
            for key in self._unknown_keys(keys):
                self.journal_state.raise_highest(key)
                self._ledger.record_end(key, "exited", ExitStatus(CANNOT_EXECUTE, reason=reason), None)

    def _unknown_keys(self, keys: Sequence[AttemptKey]) -> list[AttemptKey]:
        """The attempts among them that neither wait nor run nor have ended; an end is told once more."""
        for key in keys:
            if told := self.journal_state.ended.get(key):
                self._ledger.emit_end(key, told)
        gone = self.journal_state.ended
        return [
            key
            for key in keys
            if not (key in self.running or key in gone or self._reservations.is_waiting(key))
        ]

    def stop(self, keys: Sequence[AttemptKey], mode: KeeperStopMode = KeeperStopMode.GRACEFUL) -> None:
        with self.lock:
            for key in (
                key for key in keys if mode is not KeeperStopMode.IF_QUEUED or key not in self.running
            ):
                self._stop_attempt(key, mode)
        self.start_admitted()

    def signal(self, orders: Sequence[AttemptSignal]) -> None:
        with self.lock:
            for order in orders:
                live_update.deliver_signal(self.running.get(order.key), order, self._kernel)

    def ack(self, keys: Sequence[AttemptKey]) -> None:
        with self.lock:
            self._ledger.ack(keys)

    def forget(self, jobs: Sequence[str]) -> list[str]:
        """Drop these jobs; those of which something lives are kept and returned."""
        with self.lock:
            live = {key[0] for key in self.running} | {key[0] for key in self._reservations.waiting_keys()}
            gone = [job for job in jobs if job not in live]
            self._ledger.forget(gone)
            for job in gone:
                self._spawner.forget(job)
                self._outputs.forget(job)
            return [job for job in jobs if job in live]

    def renew(self, sent_ns: int) -> None:
        """What was said then has been heard by the control plane."""
        with self.lock:
            self._leases.renew(sent_ns, self.running.values(), self._kernel.now_ns())

    def quit(self) -> None:
        with self.lock:
            self.quitting = True
            for attempt in self.running.values():
                attempt.node_leaves = not attempt.stop_requested
            for key in [*self._reservations.waiting_keys(), *self.running]:
                self._stop_attempt(key)
            self._flush()

    def state_message(self) -> bytes:
        """Everything live and every result not acknowledged; from here on events are for whoever asked."""
        with self.lock:
            self._flush()
            self.outbox.open()
            leases = {key[0]: one.spec.lease_ms for key, one in self.running.items() if one.spec.lease_ms}
            gpus = [[*key, mask] for key, mask in self._reservations.gpu_masks().items()]
            machine = {"shortage": self._outputs.shortage, "labels": self._spawner.labels()}
            here = {**machine, "leases": leases, "gpus": gpus}
            return self._ledger.state_message(
                here, launch.live_rows(self._reservations.waiting_keys(), self.running.values())
            )

    def drain_events(self) -> bytes:
        """The events for the agent. What it is told is on record before, if the disk takes it."""
        with self.lock:
            self._flush()
            return self.outbox.drain()

    # What the reaper and the warden find.

    def on_child_exit(self, pid: int) -> bool:
        """Bury a child that has ended; True if this left room for something else."""
        with self.lock:
            while pid not in self.by_pid and self._spawns_pending:
                self._spawn_awaited = True
                self._spawn_done.wait()  # it may have ended before its spawner could write it down
            attempt = self.by_pid.pop(pid, None)
            if attempt is None:
                self.services.on_stray_exit(pid)
                return False
            if attempt.end_state is None:  # the zombie still holds the pid: this can hit no other group
                self._kernel.signal_group(pid, SIGKILL)
                if not attempt.has_next_step:
                    attempt.kill_all()
            attempt.exit_status = apply_violation(attempt, self._kernel.reap(pid, attempt.started_ns))
            launch.read_sandbox_report(attempt)
            if attempt.container:
                launch.remove_container(
                    attempt, self.lock, lambda: self._set_timer(attempt, self._kernel.now_ns())
                )
            if attempt.end_state is None:
                if written := launch.final_output(attempt, self._outputs, self._kernel):
                    self._finish(attempt, written)
                    return True
                attempt.stop_signalled = True  # its group has been killed and is about to go
            self._set_timer(attempt, self._kernel.now_ns())
            return False

    def start_admitted(self) -> None:
        """Start what fits; once more if some could not be, and left their room to others."""
        failed = True
        while failed:
            with self.lock:
                attempts = self._admit()
                onward, self._restarts_queued = self._restarts_queued, []
            started = [self._launch(attempt) for attempt in [*onward, *(attempts or ())]]
            failed = attempts is None or not all(started)

    def signal_leaders(self, keys: Iterable[AttemptKey]) -> None:
        """Signal the leaders' groups: in a crowd that forks all the time, to find the rest takes long."""
        with self.lock:
            now = self._kernel.now_ns()
            for attempt in filter(None, map(self.running.get, keys)):
                if signum := self.timers.early_signal(attempt, now):
                    self._kernel.signal_group(attempt.pid, signum)

    def advance_termination(
        self, key: AttemptKey, *, leader_exited: bool, tree: Sequence[tuple[int, int]]
    ) -> tuple[int, list[int]]:
        """Carry on with the end of an attempt: its marked (pid, group)s -> a signal, and for whom of them."""
        with self.lock:
            attempt, now = self.running.get(key), self._kernel.now_ns()
            if attempt is None or self._retry_start(attempt, now):
                return 0, []
            if attempt.is_backing_off:
                return self.services.advance_backoff(attempt, tree, now)
            return self._advance_termination(attempt, now, leader_exited=leader_exited, tree=tree)

    def maintain_journal(self) -> str | None:
        """Once a second: what the disk did not take before, and a journal too long; what it still lacks."""
        with self.lock:
            if self._flush():
                self._journal.compact_if_overgrown(lines.compact_lines(self.journal_state))
            return self._journal.problem

    # Steps, all under the lock.

    def _advance_termination(
        self, attempt: RunningAttempt, now: int, *, leader_exited: bool, tree: Sequence[tuple[int, int]]
    ) -> tuple[int, list[int]]:
        leader = attempt.exit_status is None
        if leader and attempt.end_state is None:
            if self._kernel.has_ended(attempt.pid) or not attempt.is_past_deadline(now):
                self._leases.schedule_expiry(attempt, self.timers)
                return 0, []  # in time; the reaper has only not come to it yet, or it is at its next step
            attempt.start_termination(attempt.deadline_end_state(now), now)
        if not attempt.pid:
            self._set_timer(attempt, now + FIRST_POLL_NS)
            return 0, []
        rest = attempt.remaining_pids(tree)
        if (
            leader_exited
            and not rest
            and (written := launch.final_output(attempt, self._outputs, self._kernel))
        ):
            self._finish(attempt, written)
            return 0, []
        signum = self.timers.next_signal(attempt, now)
        if leader and signum not in (0, attempt.early_signal) and not attempt.spares_leader(signum):
            self._kernel.signal_group(attempt.pid, signum)
        return signum, rest

    def _admit(self) -> list[RunningAttempt] | None:
        attempts = self._admission.admit()
        for attempt in attempts or ():
            self.running[attempt.key] = attempt
        self._spawns_pending += len(attempts or ())
        return attempts

    def _launch(self, attempt: RunningAttempt) -> bool:
        """Spawn it, without the lock; False if it did not start."""
        try:
            check_lease(attempt, self._kernel.now_ns)
            attempt_pid = launch.spawn_attempt(self._spawner, attempt)
        except (NodeResourceExhausted, CannotRun) as error:
            with self.lock:
                self._on_start_failed(attempt, error)
            return False
        except Exception as error:  # of this attempt alone: the thread starts, and buries, everybody's work
            traceback.print_exc()
            reason = f"cannot be started: {type(error).__name__}: {error}"
            with self.lock:
                self._on_start_failed(attempt, CannotRun(CANNOT_EXECUTE, reason))
            return False
        with self.lock:
            self._on_spawn_done()
            attempt.pid = attempt_pid
            self.by_pid[attempt_pid] = attempt
            self.services.on_process_started(attempt)
            launch.emit_start(attempt, self.lock, self._ledger)
            if len(self.by_pid) == 1:
                self.has_children.notify_all()
            self.sweep_needed = True
            if self.timers.schedule_deadline(attempt) or self.sweeper_idle or attempt.spec.limits:
                self.sweeper_wakeup.notify()  # it sweeps while there is work, and watches limits
        return True

    def _on_spawn_done(self) -> None:
        self._spawns_pending -= 1
        if self._spawn_awaited:
            self._spawn_awaited = False
            self._spawn_done.notify_all()

    def _on_start_failed(self, attempt: RunningAttempt, error: NodeResourceExhausted | CannotRun) -> None:
        key = attempt.key
        self._on_spawn_done()
        if attempt.has_run_before:
            self._on_restart_failed(attempt, error)
            return
        del self.running[key]
        self._spawner.release(attempt.key, attempt.spec, attempt.cgroup, attempt.pid_namespace)
        self._outputs.release(key, attempt.segment, MeasuredExtent(attempt.segment.at, is_final=True))
        match error:
            case CannotRun(exit_code=exit_code, reason=reason):
                self._reservations.release(key)
                attempt.exit_status = ExitStatus(exit_code=exit_code, reason=reason)
                if attempt.step_starts:
                    self._ledger.end_step(attempt)
                self._ledger.record_end(key, "exited", attempt.exit_status, attempt.started_ms)
            case NodeResourceExhausted():
                self._outputs.recreate_directory(key[0])
                self._admission.release_and_refuse(key, str(error))
                self._ledger.unrecord(key)

    def _on_restart_failed(self, attempt: RunningAttempt, error: NodeResourceExhausted | CannotRun) -> None:
        """It cannot go on: its own fault, or its node's, which nobody else can make up for."""
        now, is_short = self._kernel.now_ns(), isinstance(error, NodeResourceExhausted)
        if is_short and attempt.service is None and (when_ns := attempt.schedule_retry(now)):
            self._set_timer(attempt, when_ns)
            return
        code, ran_us = getattr(error, "exit_code", None), (now - attempt.started_ns) // 1000
        attempt.exit_status = ExitStatus(code, ran_us=ran_us, reason=str(error))
        if is_short and attempt.service is None:  # a service may yet find what it needs
            attempt.end_state = attempt.end_state or "lost"
        self._finish(attempt, self._outputs.measure(attempt.segment))

    def _retry_start(self, attempt: RunningAttempt, now: int) -> bool:
        """Try to start a step again; False: it has not been waiting for that."""
        if not attempt.awaits_retry:
            return False
        if attempt.end_retry_wait(now):
            self._queue_start(attempt)
        else:
            self._spawns_pending += 1
            self._on_start_failed(attempt, NO_PROCESS_AVAILABLE)
        return True

    def _apply_live_update(self, job: str) -> None:
        """What runs of it gets what can be changed while it does."""
        live_update.apply_update(
            self.running.values(), job, self.journal_state.specs[job], self._spawner, self._set_timer
        )
        self.sweeper_wakeup.notify()  # the warden watches limits

    def _stop_attempt(self, key: AttemptKey, mode: KeeperStopMode = KeeperStopMode.GRACEFUL) -> None:
        attempt = self.running.get(key)
        if attempt and attempt.is_backing_off:
            self.services.cancel_restart(attempt)
            self._finish(attempt, self._outputs.measure(attempt.segment))
        elif attempt:
            over = attempt.exit_status is not None or self._kernel.has_ended(attempt.pid)
            attempt.stop_requested, now = True, self._kernel.now_ns()
            if not over or (mode is KeeperStopMode.IMMEDIATE and attempt.end_state is not None):
                attempt.stop(mode, now)
                self._set_timer(attempt, now)
        elif self._reservations.withdraw(key):
            self._ledger.record_end(key, "withdrawn", ExitStatus(), None)
        elif told := self.journal_state.ended.get(key):
            self._ledger.emit_end(key, told)
        else:
            self._ledger.emit_end(key, result_row(key, "unknown", ExitStatus(), None, self._kernel.now_ms()))

    def _set_timer(self, attempt: RunningAttempt, when_ns: int) -> None:
        self.timers.schedule(attempt, when_ns)
        self.sweeper_wakeup.notify()

    def _finish(self, attempt: RunningAttempt, written: MeasuredExtent) -> None:
        assert attempt.exit_status is not None
        reason = launch.apply_container_exit(attempt)
        if reason and len(attempt.step_starts) > 1:
            self._on_restart_failed(attempt, NodeResourceExhausted(reason))
            return
        if attempt.step_starts and not reason and self._ledger.end_step(attempt):
            self._ledger.start_step(attempt, written.at)
            self._queue_start(attempt)
            return
        if reason is None and self.services.on_process_ended(attempt):
            return
        del self.running[attempt.key]
        self._spawner.release(attempt.key, attempt.spec, attempt.cgroup, attempt.pid_namespace)
        self._outputs.release(attempt.key, attempt.segment, written)
        if reason:
            self._admission.release_and_refuse(attempt.key, reason)
            self._ledger.unrecord(attempt.key)
            return
        self._reservations.release(attempt.key)
        self._leases.explain_expiry(attempt)
        attempt.explain_leave()
        if (
            attempt.container is not None
        ):  # it was there until now: its command line ends before it is removed
            attempt.exit_status.ran_us = (self._kernel.now_ns() - attempt.started_ns) // 1000
        self._ledger.record_end(
            attempt.key, attempt.end_state or "exited", attempt.exit_status, attempt.started_ms
        )

    def _queue_start(self, attempt: RunningAttempt) -> None:
        self._spawns_pending += 1
        self._restarts_queued.append(attempt)  # whoever fills starts it

    def _is_idle(self) -> bool:
        return not (self.running or self._reservations.has_waiting())

    def _flush(self) -> bool:
        self._outputs.flush()
        return self._journal.flush()
