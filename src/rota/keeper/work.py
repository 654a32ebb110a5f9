"""All this node was asked to run and not told to forget: orders in, processes started, events out."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from rota.keeper import boxed, wire
from rota.keeper import journal as lines
from rota.keeper.attempt import FIRST_LOOK_NS, Kernel, Outcome, Running, row
from rota.keeper.journal import Journal, Memory
from rota.keeper.looks import LAST_LOOK_NS, Looks
from rota.keeper.outbox import Outbox
from rota.keeper.outputs import Measure, Outputs
from rota.keeper.rules import Ask, Grant, Key, Refusal, Room
from rota.keeper.spawn import CannotRun, Short, Spawner
from rota.keeper.wire import Run, Spec

SIGKILL = int(signal.SIGKILL)


class Work:
    """One lock guards it all. It is not held while a process is spawned: that takes longer than the rest."""

    def __init__(
        self,
        memory: Memory,
        journal: Journal,
        spawner: Spawner,
        outputs: Outputs,
        wake: Callable[[], None],
        *,
        kernel: Kernel,
    ) -> None:
        self.lock = threading.Lock()
        self.has_children = threading.Condition(self.lock)
        self.something_due = threading.Condition(self.lock)
        self.outbox = Outbox(wake, kernel.now_ns)
        self.memory = memory
        self.quitting = False
        self._journal = journal
        self._spawner = spawner
        self._outputs = outputs
        self._room = Room()
        self.running: dict[Key, Running] = {}
        self.by_pid: dict[int, Running] = {}
        self._spawned = threading.Condition(self.lock)
        self._spawning = 0
        self._kernel = kernel
        self._looks = Looks(self.running, kernel.now_ns)
        self._warden_idles = False
        self._unswept = False  # something was started since the warden last went to wait

    # Orders of the agent.

    def configure(self, order: wire.Configure) -> None:
        with self.lock:
            self._spawner.name_node(order.node)
            self._spawner.offer_containers(order.engine)
            for refusal in self._room.configure(order.amounts, order.gpus):
                self.outbox.refused(refusal.key, refusal.reason)
        self.fill()

    def start(self, order: wire.Start) -> None:
        with self.lock:
            reason = self._learn(order.job, order.spec)
            for wanted in order.tasks:
                key = (order.job, wanted.index, wanted.attempt)
                if refusal := reason or self._accept(key, wanted):
                    self.outbox.refused(key, refusal)
        self.fill()

    def stop(self, keys: Sequence[Key]) -> None:
        with self.lock:
            for key in keys:
                self._stop(key)
        self.fill()

    def ack(self, keys: Sequence[Key]) -> None:
        with self.lock:
            known = [key for key in keys if self.memory.ended.pop(key, None)]
            if known:
                self._journal.later(lines.ack_line(known))
                self._journal.flush()

    def forget(self, jobs: Sequence[str]) -> list[str]:
        """Drop these jobs; those of which something lives are kept and returned."""
        with self.lock:
            live = {key[0] for key in self.running} | {key[0] for key in self._room.waiting()}
            gone = [job for job in jobs if job not in live]
            for job in gone:
                self.memory.forget(job)
                self._spawner.forget(job)
                self._outputs.forget(job)
            if gone:
                self._journal.later(lines.forget_line(gone))
                self._journal.flush()
            return [job for job in jobs if job in live]

    def quit(self) -> None:
        with self.lock:
            self.quitting = True
            for key in [*self._room.waiting(), *self.running]:
                self._stop(key)
            self._flush()

    def state(self) -> bytes:
        """Everything live and every result not acknowledged; from here on events are for whoever asked."""
        with self.lock:
            self._flush()
            self.outbox.open()
            live: list[list[object]] = [[*key, "queued", None] for key in self._room.waiting()]
            for key, attempt in self.running.items():
                state = "stopping" if attempt.ending else "queued" if boxed.is_unsure(attempt) else "running"
                live.append([*key, state, attempt.started_ms])
            head = {"op": "state", "protocol": wire.PROTOCOL, "pid": os.getpid(), "boot": self.memory.boot}
            text = wire.encode({**head, "jobs": list(self.memory.specs), "live": live})
            return f'{text[:-1]},"ended":[{",".join(self.memory.ended.values())}]}}\n'.encode()

    def mail(self) -> bytes:
        """The events for the agent. What it is told is on record before, if the disk takes it."""
        with self.lock:
            self._flush()
            return self.outbox.take()

    # What the reaper and the warden find.

    def reap(self, pid: int) -> bool:
        """Bury a child that has ended; True if this left room for something else."""
        with self.lock:
            while pid not in self.by_pid and self._spawning:
                self._spawned.wait()  # it may have ended before its spawner could write it down
            attempt = self.by_pid.pop(pid, None)
            if attempt is None:
                self._kernel.bury_stray(pid)
                return False
            if attempt.ending is None:  # the zombie still holds the pid: this can hit no other group
                self._kernel.signal_group(pid, SIGKILL)
            attempt.outcome = self._kernel.bury(pid, attempt.started_ns)
            boxed.clear(attempt, self.lock, lambda: self._look(attempt, self._kernel.now_ns()))
            if attempt.ending is None:
                if written := self._written(attempt):
                    self._finish(attempt, written)
                    return True
                attempt.asked = True  # its group has been killed and is about to go
            self._look(attempt, self._kernel.now_ns())
            return False

    def fill(self) -> None:
        """Start what fits; once more if some could not be, and left their room to others."""
        failed = True
        while failed:
            with self.lock:
                attempts = self._reserve()
            started = [self._launch(attempt) for attempt in attempts or ()]
            failed = attempts is None or not all(started)

    def wait_for_children(self) -> None:
        """Wait until something was spawned, a second at most: orphans come without notice."""
        with self.lock:
            if not self.by_pid:
                self.has_children.wait(1.0)

    def wait_due(self, seconds: float | None) -> dict[Key, bool]:
        """The attempts to look at now, each with whether its leader is gone; none after so many seconds."""
        with self.lock:
            left_ns = self.due_in_ns()
            if left_ns is None or left_ns > 0:
                if left_ns is not None:  # a second at most: the wait's clock stands still in sleep
                    seconds = min(1.0, left_ns / 1e9)
                elif self._unswept:
                    seconds = 1.0
                self._warden_idles = seconds is None
                self.something_due.wait(seconds)
                self._warden_idles = self._unswept = False
            return self.take_due()

    def due_in_ns(self) -> int | None:
        """How long until an attempt must be looked at; None: none ever."""
        return self._looks.due_in_ns()

    def take_due(self) -> dict[Key, bool]:
        return self._looks.take()

    def tend(self, key: Key, *, was_gone: bool, tree: Sequence[tuple[int, int]]) -> tuple[int, list[int]]:
        """Carry on with the end of an attempt: its marked (pid, group)s -> a signal, and for whom of them."""
        with self.lock:
            attempt = self.running.get(key)
            if attempt is None:
                return 0, []
            now = self._kernel.now_ns()
            leader = attempt.outcome is None
            if leader and attempt.ending is None:
                if self._kernel.has_ended(attempt.pid):
                    return 0, []  # in time; the reaper has only not come to it yet
                self._begin_end(attempt, "timed_out", now)
            if not attempt.pid:
                self._look(attempt, now + FIRST_LOOK_NS)
                return 0, []
            if attempt.ending is None:  # it ended by itself: who has left its group is swept up later
                rest = [pid for pid, group in tree if group == attempt.pid]
            else:
                rest = [pid for pid, group in tree if not (leader and group == attempt.pid)]
            if was_gone and not rest and (written := self._written(attempt)):
                self._finish(attempt, written)
                return 0, []
            signum = self._looks.next_signal(attempt, now)
            if leader and signum:
                self._kernel.signal_group(attempt.pid, signum)
            return signum, rest

    def keep_up(self) -> None:
        """Once a second: what the disk did not take before, and a journal that has grown too long."""
        with self.lock:
            if self._flush() and self._journal.is_overgrown():
                try:
                    self._journal.rewrite(lines.compact(self.memory))
                except OSError as error:
                    print(f"journal: cannot be rewritten: {error}", file=sys.stderr)

    # Steps, all under the lock.

    def _learn(self, job: str, spec: Spec | None) -> str | None:
        """Remember a job's spec; why nothing of it can start, if so."""
        if self.quitting:
            return "the keeper is stopping"
        if spec and job not in self.memory.specs:
            self.memory.specs[job] = spec
            self._journal.later(lines.spec_line(job, spec))  # on disk before the first start, or that fails
        known = self.memory.specs.get(job)
        if known is None:
            return "unknown job"
        if known.run is Run.ONE_AT_A_TIME:
            return "this node cannot hold run leases yet"
        return None

    def _accept(self, key: Key, wanted: wire.Wanted) -> str | None:
        """Put it in line, or say why not. An order that came before is no new one."""
        if key in self.running:
            return None
        if told := self.memory.ended.get(key):
            self._tell(key, told)
            return None
        job, index, attempt = key
        highest = self.memory.highest.get(job, {}).get(index, -1)
        if attempt <= highest and not self._room.waits(key):
            return f"attempt {attempt} is not newer than {highest}"
        refusal = self._room.offer(key, Ask(self.memory.specs[job].needs, wanted.gpus), firm=wanted.firm)
        if refusal is None:
            self.memory.raise_highest(key)
        return refusal

    def _reserve(self) -> list[Running] | None:
        """Take room for what starts now, and write down what is pending and that these are about to start.

        None: they were refused, because it cannot be written; so must be those behind them in the line.
        """
        turns = list(iter(self._room.next, None))
        grants = [turn for turn in turns if isinstance(turn, Grant)]
        for refusal in (turn for turn in turns if isinstance(turn, Refusal)):
            self.outbox.refused(refusal.key, refusal.reason)
        started_ms, started_ns = self._kernel.now_ms(), self._kernel.now_ns()
        try:
            self._record(grants, started_ms)
            segments = self._outputs.take([grant.key for grant in grants])
        except OSError as error:
            for grant in grants:
                self._drop(grant.key, f"cannot write the journal: {os.strerror(error.errno or 0)}")
            if grants:  # they may be on record and have to be taken back
                self._journal.later(lines.ack_line([grant.key for grant in grants]))
            return None if grants else []
        attempts = []
        for grant, segment in zip(grants, segments, strict=True):
            spec = self.memory.specs[grant.key[0]]
            attempt = Running(grant.key, spec, grant.gpus, started_ms, started_ns, segment)
            attempts.append(attempt)
            self.running[grant.key] = attempt
            self.memory.started[grant.key] = started_ms
        self._spawning += len(attempts)
        return attempts

    def _record(self, grants: list[Grant], started_ms: int) -> None:
        self._journal.write([lines.start_line(grant.key, started_ms) for grant in grants])
        if any(self.memory.specs[grant.key[0]].run is Run.AT_MOST_ONCE for grant in grants):
            self._journal.sync()

    def _launch(self, attempt: Running) -> bool:
        """Spawn it, without the lock; False if it did not start."""
        try:
            attempt_pid = boxed.spawn(self._spawner, attempt)
        except (Short, CannotRun) as error:
            with self.lock:
                self._fail(attempt, error)
            return False
        with self.lock:
            self._spawning -= 1
            self._spawned.notify_all()
            attempt.pid = attempt_pid
            self.by_pid[attempt_pid] = attempt
            boxed.tell_start(attempt, self.lock, self.outbox)
            self.has_children.notify_all()
            self._unswept = True
            if attempt.spec.timeout_ms is not None and attempt.ending is None:
                self._look(attempt, attempt.started_ns + attempt.spec.timeout_ms * 1_000_000)
            elif self._warden_idles:
                self.something_due.notify()  # it sweeps while there is work
        return True

    def _fail(self, attempt: Running, error: Short | CannotRun) -> None:
        key = attempt.key
        self._spawning -= 1
        self._spawned.notify_all()
        del self.running[key]
        self._outputs.give_back(key, attempt.segment, Measure(attempt.segment.at, is_final=True))
        match error:
            case CannotRun(exit_code=exit_code, reason=reason):
                self._room.release(key)
                self._close(key, "exited", Outcome(exit_code=exit_code, reason=reason), attempt.started_ms)
            case Short():
                self._outputs.mend(key[0])
                self._turn_away(key, str(error))

    def _turn_away(self, key: Key, reason: str) -> None:
        """It is on record as started, and was not."""
        self._drop(key, reason)
        self.memory.started.pop(key, None)
        self._journal.later(lines.ack_line([key]))

    def _drop(self, key: Key, reason: str) -> None:
        self._room.release(key)
        self.outbox.refused(key, reason)

    def _stop(self, key: Key) -> None:
        attempt = self.running.get(key)
        if attempt:
            over = attempt.outcome is not None or self._kernel.has_ended(attempt.pid)
            if attempt.ending is None and not over:
                self._begin_end(attempt, "stopped", self._kernel.now_ns())
                self._look(attempt, self._kernel.now_ns())
        elif self._room.withdraw(key):
            self._close(key, "withdrawn", Outcome(), None)
        elif told := self.memory.ended.get(key):
            self._tell(key, told)
        else:
            self._tell(key, row(key, "unknown", Outcome(), None, self._kernel.now_ms()))

    def _begin_end(self, attempt: Running, ending: str, now: int) -> None:
        attempt.ending = ending
        attempt.kill_at_ns = now + attempt.spec.grace_ms * 1_000_000

    def _look(self, attempt: Running, when_ns: int) -> None:
        self._looks.at(attempt, when_ns)
        self.something_due.notify()

    def _written(self, attempt: Running) -> Measure | None:
        """How far its output reaches; None: not yet sure. Who has left its group is not waited for."""
        if boxed.may_be_there(attempt):
            return None
        is_patient = attempt.pause_ns < LAST_LOOK_NS
        return self._outputs.last(
            attempt.segment, lambda: is_patient and self._kernel.has_members(attempt.pid)
        )

    def _finish(self, attempt: Running, written: Measure) -> None:
        assert attempt.outcome is not None
        del self.running[attempt.key]
        self._outputs.give_back(attempt.key, attempt.segment, written)
        if reason := boxed.refusal(attempt):
            self._turn_away(attempt.key, reason)
            return
        self._room.release(attempt.key)
        self._close(attempt.key, attempt.ending or "exited", attempt.outcome, attempt.started_ms)

    def _close(self, key: Key, state: str, outcome: Outcome, started_ms: int | None) -> None:
        told = row(key, state, outcome, started_ms, self._kernel.now_ms())
        self.memory.started.pop(key, None)
        self.memory.ended[key] = told
        self._journal.later(lines.end_line(told))
        self._tell(key, told)

    def _tell(self, key: Key, told: str) -> None:
        self.outbox.ended(key, told, is_last=not (self.running or self._room.has_waiting()))

    def _flush(self) -> bool:
        self._outputs.flush()
        return self._journal.flush()
