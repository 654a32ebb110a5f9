"""The supervisor of a node's attempts: orders in, processes started and reaped, events out.

An attempt goes through these objects, which are one state machine in several files:

    order `start` -> AdmissionQueue.accept   queued for resources, refused, or its known end sent again
                  -> AdmissionQueue.admit    resources reserved, `start` journaled, output segment allocated
                  -> Supervisor._launch      process spawned, without the lock
                  -> on_child_exit           leader reaped, its tree killed
                  -> advance_termination     until nothing of the tree is left (stop signal, grace, SIGKILL)
                  -> Supervisor._finish      next step or restart queued, or the end journaled and sent

Threads
-------
Each thread ends the whole process on an uncaught exception (`run._crash`): the next keeper finds the journal,
kills what is left and reports it as lost. A keeper that lacked one thread would look alive and hang.

| thread              | code                    | does                              | may touch            |
|---------------------|-------------------------|-----------------------------------|----------------------|
| main                | `run.run_keeper`        | recovers, starts the others, waits| nothing after start-up|
| server (1)          | `threads/server`        | reads orders, sends events        | socket, supervisor   |
| starters (4 or more)| `run.Reaper`            | one reaps, the others spawn       | supervisor, spawner  |
| sweeper (1)         | `threads/sweeper`       | timers, signals, orphans, limits  | supervisor, cgroups  |
| checker (1)         | `threads/checker`       | runs health checks of services    | supervisor, spawner  |
| trimmer (1)         | `threads/trimmer`       | output caps, retention, free disk | output, supervisor   |
| per container (0-2) | `containers`            | waits for its creation, removes it| callbacks lock       |
| deletion (any)      | `threads/server._delete`| deletes discarded directories     | `trash/` only        |

`start_admitted` is called by the server (new orders), a starter (a process has ended) and the sweeper (a tree
has ended). All of them spawn, so every thread that calls it drops its privileges once (`Spawner._start`).

Locks
-----
`Supervisor.lock` guards everything that belongs to attempts: `running`, `by_pid`, the journal and its state,
reservations, timers, services, leases, the outbox and the segment store. `has_children`, `sweeper_wakeup` and
`_spawn_done` are conditions on it. The classes AdmissionQueue, AttemptLedger, AttemptTimers, Leases, Outbox,
Reservations, SegmentStore and ServiceSupervisor have no lock of their own: call them only with it held.

Lock order, outermost first. Never acquire one to the left while one to the right is held:

    Reaper._reap_lock > KeeperServer._lock > Supervisor.lock > the locks of TaskDirs, JobUsers,
                                                               PidNamespace and Cgroups

The last four are leaves: no two of them are held together, and no callback runs under them. A starter
holds `_reap_lock` when it wants `KeeperServer._lock`, so it only tries (`try_send`): blocking there would let
a slow agent delay the reaping of all processes.

The lock is NOT held while a process is spawned, which takes longer than everything else together. Two races
follow from that, and each has its guard:

* A process may exit before its spawner has recorded its pid. `on_child_exit` waits on `_spawn_done` while
  `_spawns_pending` is above 0 and the pid is unknown. For health checks `services` keeps such exits
  (`_early_exits`) until the pid is recorded.
* An attempt may be stopped while it is being spawned. `stop` sets a timer; `advance_termination` sees that
  `pid` is 0 and polls until there is a process to signal.

Invariants
----------
* Journal first: `start` is journaled before the process exists, and `end` before the agent is sent it (if the
  disk takes it). After a crash at any point an attempt is therefore unknown, started or ended, and never
  forgotten while it runs. One that is started and not ended is reported as lost by the next keeper, after
  everything that carries this directory's marker has been killed.
* A pid is signalled only while it cannot have been reused: before its zombie is reaped, or after a check of
  the marker in its environment, its cgroup or its pid namespace.
* An attempt is in `running` from its admission until `_finish`; its resources and its segment are released in
  the same critical section that removes it.
* Attempt numbers of a task only grow: an order with a number that is not above `JournalState.highest` starts
  nothing.
"""

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
    """All attempts of this node; see the module's header for its threads, locks and invariants."""

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
        self._spawn_awaited = False  # `on_child_exit` waits for a pid that is not recorded yet
        self._restarts_queued: list[RunningAttempt] = []  # whose next step or process is to be started
        self._kernel = kernel
        self._ledger = AttemptLedger(state, journal, self.outbox, self._is_idle, kernel)
        self.timers = AttemptTimers(self.running, kernel.now_ns)
        self.services = ServiceSupervisor(self.running, self._ledger, kernel)
        # Set after construction: timers and the start queue belong to this class, which needs `services`
        # itself.
        self.services.set_timer, self.services.queue_start = self._set_timer, self._queue_start
        self._leases = Leases()
        self._admission = AdmissionQueue(state, outputs, self._ledger, self._leases, kernel)
        self._reservations = self._admission.reservations
        self.sweeper_idle = False
        self.sweep_needed = False  # something was started since the sweeper last began to wait

    # Orders of the agent, from the server thread.

    def configure(self, order: wire.ConfigureOrder) -> None:
        with self.lock:
            self._spawner.configure(order)
            self._outputs.retention = order.retention
            self._admission.configure(order)
        # Without the lock: spawning takes milliseconds, and the reaper must not wait for it.
        self.start_admitted()

    def start(self, order: wire.StartOrder) -> None:
        with self.lock:
            # The spec first: an attempt that is accepted must find it.
            reason = (
                "the keeper is stopping" if self.quitting else self._ledger.add_spec(order.job, order.spec)
            )
            if order.spec and order.spec.version > 1:
                self._apply_live_update(order.job)
            for task in order.tasks:
                key = (order.job, task.index, task.attempt)
                # Fencing is in `accept`; a repeated order for a running attempt changes nothing.
                if refusal := reason or (key not in self.running and self._admission.accept(key, task)):
                    self.outbox.add_refused(key, refusal)
        self.start_admitted()

    def refuse(self, keys: Sequence[AttemptKey], reason: str) -> None:
        """Refuse attempts whose order failed on this node; another node may take them."""
        with self.lock:
            for key in self._unknown_keys(keys):
                self.outbox.add_refused(key, reason)

    def fail(self, keys: Sequence[AttemptKey], reason: str) -> None:
        """Fail attempts whose order is malformed: no keeper could start them."""
        with self.lock:
            for key in self._unknown_keys(keys):
                self.journal_state.raise_highest(key)
                self._ledger.record_end(key, "exited", ExitStatus(CANNOT_EXECUTE, reason=reason), None)

    def _unknown_keys(self, keys: Sequence[AttemptKey]) -> list[AttemptKey]:
        """Return the attempts that are neither queued, running nor ended; resend the ends of the ended."""
        ended = self.journal_state.ended
        for key in keys:
            # Sent again: the agent repeats an order only if it has not seen the end.
            if row := ended.get(key):
                self._ledger.emit_end(key, row)
        return [
            key
            for key in keys
            if not (key in self.running or key in ended or self._reservations.is_waiting(key))
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
        """Drop jobs with all their records; return those that are kept because they have live attempts."""
        with self.lock:
            # A live attempt still writes its output and needs its spec, so its job is kept.
            live = {key[0] for key in self.running} | {key[0] for key in self._reservations.waiting_keys()}
            forgotten = [job for job in jobs if job not in live]
            self._ledger.forget(forgotten)
            for job in forgotten:
                self._spawner.forget(job)
                self._outputs.forget(job)
            return [job for job in jobs if job in live]

    def renew(self, sent_ns: int) -> None:
        """Extend run leases: the server has received what this node sent at `sent_ns`."""
        with self.lock:
            self._leases.renew(sent_ns, self.running.values(), self._kernel.now_ns())

    def quit(self) -> None:
        """Stop all attempts; `run.Shutdown` ends the process when none is left."""
        with self.lock:
            self.quitting = True
            # Ordering: before `_stop_attempt`, which sets `stop_requested`. An attempt that the server had
            # already ordered to stop is not lost with the node.
            for attempt in self.running.values():
                attempt.node_leaves = not attempt.stop_requested
            for key in [*self._reservations.waiting_keys(), *self.running]:
                self._stop_attempt(key)
            # Withdrawn attempts end at once. Their ends are journaled before the process can exit.
            self._flush()

    def state_message(self) -> bytes:
        """The answer to a hello: all live attempts and unacknowledged results. Opens the outbox.

        Both are one critical section: an event between them would reach the agent twice or never.
        """
        with self.lock:
            # Flushed first: what the agent gets must survive a
            # crash of the keeper, since the agent passes it on.
            self._flush()
            self.outbox.open()
            running = self.running.items()
            leases = {key[0]: attempt.spec.lease_ms for key, attempt in running if attempt.spec.lease_ms}
            gpus = [[*key, mask] for key, mask in self._reservations.gpu_masks().items()]
            machine = {"shortage": self._outputs.shortage, "labels": self._spawner.labels()}
            node_fields = {**machine, "leases": leases, "gpus": gpus}
            return self._ledger.state_message(
                node_fields, launch.live_rows(self._reservations.waiting_keys(), self.running.values())
            )

    def drain_events(self) -> bytes:
        """Pop the pending events as one message. They are journaled first, if the disk takes it."""
        with self.lock:
            # Ordering: journal before message. A result that
            # the server has seen must not be lost by a crash.
            self._flush()
            return self.outbox.drain()

    # Calls of the starters and the sweeper.

    def on_child_exit(self, pid: int) -> bool:
        """Reap a child that has ended; return True if that released resources of an attempt."""
        with self.lock:
            while pid not in self.by_pid and self._spawns_pending:
                self._spawn_awaited = True
                # Race: the child may have ended before the thread that spawned it recorded its pid.
                self._spawn_done.wait()
            attempt = self.by_pid.pop(pid, None)
            if attempt is None:
                self.services.on_stray_exit(pid)
                return False
            # The zombie still holds the pid, so this signal cannot hit another process group.
            if attempt.end_state is None:
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
                # The usual case: finish here, so that the end does not wait for the sweeper.
                if written := launch.final_output(attempt, self._outputs, self._kernel):
                    self._finish(attempt, written)
                    return True
                attempt.stop_signalled = True  # its group has been killed and is about to end
            self._set_timer(attempt, self._kernel.now_ns())
            return False

    def start_admitted(self) -> None:
        """Start everything that fits; repeat while a failed start has released resources for another."""
        failed = True
        while failed:
            # Two phases: decide under the lock, spawn without it. Several threads may be in here at once,
            # each with the attempts that it has admitted itself.
            with self.lock:
                attempts = self._admit()
                # Taken under the lock, so that no two threads start the same process again.
                restarts, self._restarts_queued = self._restarts_queued, []
            started = [self._launch(attempt) for attempt in [*restarts, *(attempts or ())]]
            failed = attempts is None or not all(started)

    def signal_leaders(self, keys: Iterable[AttemptKey]) -> None:
        """Signal the leaders' process groups first: finding the rest of a forking tree takes long."""
        with self.lock:
            now = self._kernel.now_ns()
            for attempt in filter(None, map(self.running.get, keys)):
                if signum := self.timers.early_signal(attempt, now):
                    self._kernel.signal_group(attempt.pid, signum)

    def advance_termination(
        self, key: AttemptKey, *, leader_exited: bool, tree: Sequence[tuple[int, int]]
    ) -> tuple[int, list[int]]:
        """Advance the end of an attempt by one step.

        `tree` has the (pid, process group) pairs of its processes. Returns the signal to send now (0: none)
        and the pids to send it to.
        """
        with self.lock:
            attempt, now = self.running.get(key), self._kernel.now_ns()
            if attempt is None or self._retry_start(attempt, now):
                return 0, []
            if attempt.is_backing_off:
                return self.services.advance_backoff(attempt, tree, now)
            return self._advance_termination(attempt, now, leader_exited=leader_exited, tree=tree)

    def maintain_journal(self) -> str | None:
        """Write what is pending, compact an overgrown journal; return why it cannot be written, or None."""
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
                return 0, []  # it ended in time and is not reaped yet, or it is already at its next step
            attempt.start_termination(attempt.deadline_end_state(now), now)
        if not attempt.pid:
            self._set_timer(attempt, now + FIRST_POLL_NS)
            return 0, []
        remaining = attempt.remaining_pids(tree)
        if (
            leader_exited
            and not remaining
            and (written := launch.final_output(attempt, self._outputs, self._kernel))
        ):
            self._finish(attempt, written)
            return 0, []
        signum = self.timers.next_signal(attempt, now)
        if leader and signum not in (0, attempt.early_signal) and not attempt.spares_leader(signum):
            self._kernel.signal_group(attempt.pid, signum)
        return signum, remaining

    def _admit(self) -> list[RunningAttempt] | None:
        attempts = self._admission.admit()
        for attempt in attempts or ():
            self.running[attempt.key] = attempt
        self._spawns_pending += len(attempts or ())
        return attempts

    def _launch(self, attempt: RunningAttempt) -> bool:
        """Spawn it, without the lock; False if it did not start."""
        try:
            # The lease may have expired in the queue: started
            # now, the attempt could run twice in the cluster.
            check_lease(attempt, self._kernel.now_ns)
            attempt_pid = launch.spawn_attempt(self._spawner, attempt)
        except (NodeResourceExhausted, CannotRun) as error:
            with self.lock:
                self._on_start_failed(attempt, error)
            return False
        except Exception as error:  # fails this attempt only: the thread also starts and reaps all others
            traceback.print_exc()
            reason = f"cannot be started: {type(error).__name__}: {error}"
            with self.lock:
                self._on_start_failed(attempt, CannotRun(CANNOT_EXECUTE, reason))
            return False
        with self.lock:
            # `on_child_exit` may wait for exactly this pid: record it in the same critical section that
            # wakes it.
            self._on_spawn_done()
            attempt.pid = attempt_pid
            self.by_pid[attempt_pid] = attempt
            self.services.on_process_started(attempt)
            launch.emit_start(attempt, self.lock, self._ledger)
            # Only the first: the reaper waits for this condition only while there are no children.
            if len(self.by_pid) == 1:
                self.has_children.notify_all()
            self.sweep_needed = True
            if self.timers.schedule_deadline(attempt) or self.sweeper_idle or attempt.spec.limits:
                self.sweeper_wakeup.notify()  # it may wait without a timeout while nothing runs
        return True

    def _on_spawn_done(self) -> None:
        self._spawns_pending -= 1
        if self._spawn_awaited:
            self._spawn_awaited = False
            self._spawn_done.notify_all()

    def _on_start_failed(self, attempt: RunningAttempt, error: NodeResourceExhausted | CannotRun) -> None:
        key = attempt.key
        # In every case: `on_child_exit` would wait forever for a spawn that failed.
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
                # Its directory may have been removed from outside, which also looks like exhaustion.
                self._outputs.recreate_directory(key[0])
                self._admission.release_and_refuse(key, str(error))
                self._ledger.unrecord(key)

    def _on_restart_failed(self, attempt: RunningAttempt, error: NodeResourceExhausted | CannotRun) -> None:
        """Handle a later step or a restart that could not be started: retry, or end the attempt.

        It has run here, so it cannot be refused: no other node could continue it.
        """
        now, is_exhausted = self._kernel.now_ns(), isinstance(error, NodeResourceExhausted)
        if is_exhausted and attempt.service is None and (when_ns := attempt.schedule_retry(now)):
            self._set_timer(attempt, when_ns)
            return
        code, ran_us = getattr(error, "exit_code", None), (now - attempt.started_ns) // 1000
        attempt.exit_status = ExitStatus(code, ran_us=ran_us, reason=str(error))
        if is_exhausted and attempt.service is None:  # a service is restarted after its backoff
            attempt.end_state = attempt.end_state or "lost"
        self._finish(attempt, self._outputs.measure(attempt.segment))

    def _retry_start(self, attempt: RunningAttempt, now: int) -> bool:
        """Start a step again whose start had failed; return False if the attempt does not wait for that."""
        if not attempt.awaits_retry:
            return False
        if attempt.end_retry_wait(now):
            self._queue_start(attempt)
        else:
            # Balances the decrement in `_on_spawn_done`: nothing was spawned for this retry.
            self._spawns_pending += 1
            self._on_start_failed(attempt, NO_PROCESS_AVAILABLE)
        return True

    def _apply_live_update(self, job: str) -> None:
        """Apply to running attempts those parts of a newer spec that can change while they run."""
        live_update.apply_update(
            self.running.values(), job, self.journal_state.specs[job], self._spawner, self._set_timer
        )
        self.sweeper_wakeup.notify()  # it enforces limits where cgroups do not

    def _stop_attempt(self, key: AttemptKey, mode: KeeperStopMode = KeeperStopMode.GRACEFUL) -> None:
        attempt = self.running.get(key)
        if attempt and attempt.is_backing_off:
            self.services.cancel_restart(attempt)
            self._finish(attempt, self._outputs.measure(attempt.segment))
        elif attempt:
            has_ended = attempt.exit_status is not None or self._kernel.has_ended(attempt.pid)
            attempt.stop_requested, now = True, self._kernel.now_ns()
            if not has_ended or (mode is KeeperStopMode.IMMEDIATE and attempt.end_state is not None):
                attempt.stop(mode, now)
                self._set_timer(attempt, now)
        elif self._reservations.withdraw(key):
            self._ledger.record_end(key, "withdrawn", ExitStatus(), None)
        elif row := self.journal_state.ended.get(key):
            self._ledger.emit_end(key, row)
        else:
            self._ledger.emit_end(key, result_row(key, "unknown", ExitStatus(), None, self._kernel.now_ms()))

    def _set_timer(self, attempt: RunningAttempt, when_ns: int) -> None:
        self.timers.schedule(attempt, when_ns)
        self.sweeper_wakeup.notify()

    def _finish(self, attempt: RunningAttempt, written: MeasuredExtent) -> None:
        """Handle the end of a process tree: start the next step, restart, refuse, or end the attempt."""
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
        # Invariant: everything that the attempt holds is released in this critical section. The journal gets
        # its end last; a crash before that makes the next keeper report it as lost.
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
        if attempt.container is not None:
            # The runtime's command line ends before the container is removed: count until the removal.
            attempt.exit_status.ran_us = (self._kernel.now_ns() - attempt.started_ns) // 1000
        self._ledger.record_end(
            attempt.key, attempt.end_state or "exited", attempt.exit_status, attempt.started_ms
        )

    def _queue_start(self, attempt: RunningAttempt) -> None:
        self._spawns_pending += 1
        self._restarts_queued.append(attempt)  # the next `start_admitted` starts it

    def _is_idle(self) -> bool:
        return not (self.running or self._reservations.has_waiting())

    def _flush(self) -> bool:
        self._outputs.flush()
        return self._journal.flush()
