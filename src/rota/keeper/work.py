"""All this node was asked to run and not told to forget: orders in, processes started, events out."""

import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence

from rota.keeper import boxed, revise, wire
from rota.keeper import journal as lines
from rota.keeper.attempt import FIRST_LOOK_NS, Kernel, Outcome, Running, row
from rota.keeper.book import Book
from rota.keeper.journal import Journal, Memory
from rota.keeper.leases import Leases, check
from rota.keeper.line import Line
from rota.keeper.lives import Lives
from rota.keeper.looks import Looks
from rota.keeper.outbox import Outbox
from rota.keeper.output.segments import Measure, Outputs
from rota.keeper.patrol import judged
from rota.keeper.process.commands import CANNOT_EXECUTE, CannotRun
from rota.keeper.rules import Key
from rota.keeper.spawn import NO_PROCESS, Short, Spawner
from rota.keeper.stops import How, Signal

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
        self.running: dict[Key, Running] = {}
        self.by_pid: dict[int, Running] = {}
        self._spawned = threading.Condition(self.lock)
        self._spawning = 0
        self._is_awaited = False  # somebody waits for one that is being spawned
        self._onward: list[Running] = []  # whose next step is to be started
        self._kernel = kernel
        self._book = Book(memory, journal, self.outbox, self._is_idle, kernel)
        self.looks = Looks(self.running, kernel.now_ns)
        self.lives = Lives(self.running, self._book, kernel)
        self.lives.look, self.lives.go_on = self._look, self._go_on
        self._leases = Leases()
        self._line = Line(memory, outputs, self._book, self._leases, kernel)
        self._room = self._line.room
        self.warden_idles = False
        self.is_unswept = False  # something was started since the warden last went to wait

    # Orders of the agent.

    def configure(self, order: wire.Configure) -> None:
        with self.lock:
            self._spawner.configure(order)
            self._outputs.keeping = order.keeping
            self._line.configure(order)
        self.fill()

    def start(self, order: wire.Start) -> None:
        with self.lock:
            reason = "the keeper is stopping" if self.quitting else self._book.learn(order.job, order.spec)
            if order.spec and order.spec.version > 1:
                self._revise(order.job)
            for wanted in order.tasks:
                key = (order.job, wanted.index, wanted.attempt)
                if refusal := reason or (key not in self.running and self._line.accept(key, wanted)):
                    self.outbox.refused(key, refusal)
        self.fill()

    def refuse(self, keys: Sequence[Key], reason: str) -> None:
        """Their order cannot be obeyed here."""
        with self.lock:
            for key in self._unknown(keys):
                self.outbox.refused(key, reason)

    def fail(self, keys: Sequence[Key], reason: str) -> None:
        """Their order says what cannot be: no keeper could start them."""
        with self.lock:
            for key in self._unknown(keys):
                self.memory.raise_highest(key)
                self._book.close(key, "exited", Outcome(CANNOT_EXECUTE, reason=reason), None)

    def _unknown(self, keys: Sequence[Key]) -> list[Key]:
        """The attempts among them that neither wait nor run nor have ended; an end is told once more."""
        for key in keys:
            if told := self.memory.ended.get(key):
                self._book.tell(key, told)
        gone = self.memory.ended
        return [key for key in keys if not (key in self.running or key in gone or self._room.waits(key))]

    def stop(self, keys: Sequence[Key], how: How = How.GRACEFULLY) -> None:
        with self.lock:
            for key in (key for key in keys if how is not How.IF_IT_WAITS or key not in self.running):
                self._stop(key, how)
        self.fill()

    def signal(self, orders: Sequence[Signal]) -> None:
        with self.lock:
            for order in orders:
                revise.deliver(self.running.get(order.key), order, self._kernel)

    def ack(self, keys: Sequence[Key]) -> None:
        with self.lock:
            self._book.ack(keys)

    def forget(self, jobs: Sequence[str]) -> list[str]:
        """Drop these jobs; those of which something lives are kept and returned."""
        with self.lock:
            live = {key[0] for key in self.running} | {key[0] for key in self._room.waiting()}
            gone = [job for job in jobs if job not in live]
            self._book.forget(gone)
            for job in gone:
                self._spawner.forget(job)
                self._outputs.forget(job)
            return [job for job in jobs if job in live]

    def renew(self, said_ns: int) -> None:
        """What was said then has been heard by the control plane."""
        with self.lock:
            self._leases.renew(said_ns, self.running.values(), self._kernel.now_ns())

    def quit(self) -> None:
        with self.lock:
            self.quitting = True
            for attempt in self.running.values():
                attempt.node_leaves = not attempt.halted
            for key in [*self._room.waiting(), *self.running]:
                self._stop(key)
            self._flush()

    def state(self) -> bytes:
        """Everything live and every result not acknowledged; from here on events are for whoever asked."""
        with self.lock:
            self._flush()
            self.outbox.open()
            leases = {key[0]: one.spec.lease_ms for key, one in self.running.items() if one.spec.lease_ms}
            gpus = [[*key, mask] for key, mask in self._room.masks().items()]
            machine = {"shortage": self._outputs.shortage, "labels": self._spawner.labels()}
            here = {**machine, "leases": leases, "gpus": gpus}
            return self._book.state(here, boxed.live(self._room.waiting(), self.running.values()))

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
                self._is_awaited = True
                self._spawned.wait()  # it may have ended before its spawner could write it down
            attempt = self.by_pid.pop(pid, None)
            if attempt is None:
                self.lives.bury(pid)
                return False
            if attempt.ending is None:  # the zombie still holds the pid: this can hit no other group
                self._kernel.signal_group(pid, SIGKILL)
                if not attempt.may_go_on:
                    attempt.kill_all()
            attempt.outcome = judged(attempt, self._kernel.bury(pid, attempt.started_ns))
            boxed.look_inside(attempt)
            if attempt.box:
                boxed.clear(attempt, self.lock, lambda: self._look(attempt, self._kernel.now_ns()))
            if attempt.ending is None:
                if written := boxed.written(attempt, self._outputs, self._kernel):
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
                onward, self._onward = self._onward, []
            started = [self._launch(attempt) for attempt in [*onward, *(attempts or ())]]
            failed = attempts is None or not all(started)

    def strike(self, keys: Iterable[Key]) -> None:
        """Signal the leaders' groups: in a crowd that forks all the time, to find the rest takes long."""
        with self.lock:
            now = self._kernel.now_ns()
            for attempt in filter(None, map(self.running.get, keys)):
                if signum := self.looks.strike(attempt, now):
                    self._kernel.signal_group(attempt.pid, signum)

    def tend(self, key: Key, *, was_gone: bool, tree: Sequence[tuple[int, int]]) -> tuple[int, list[int]]:
        """Carry on with the end of an attempt: its marked (pid, group)s -> a signal, and for whom of them."""
        with self.lock:
            attempt, now = self.running.get(key), self._kernel.now_ns()
            if attempt is None or self._resume(attempt, now):
                return 0, []
            if attempt.is_resting:
                return self.lives.tend(attempt, tree, now)
            return self._tend(attempt, now, was_gone=was_gone, tree=tree)

    def keep_up(self) -> str | None:
        """Once a second: what the disk did not take before, and a journal too long; what it still lacks."""
        with self.lock:
            if self._flush():
                self._journal.shorten(lines.compact(self.memory))
            return self._journal.problem

    # Steps, all under the lock.

    def _tend(
        self, attempt: Running, now: int, *, was_gone: bool, tree: Sequence[tuple[int, int]]
    ) -> tuple[int, list[int]]:
        leader = attempt.outcome is None
        if leader and attempt.ending is None:
            if self._kernel.has_ended(attempt.pid) or not attempt.is_late(now):
                self._leases.watch(attempt, self.looks)
                return 0, []  # in time; the reaper has only not come to it yet, or it is at its next step
            attempt.begin_end(attempt.too_late(now), now)
        if not attempt.pid:
            self._look(attempt, now + FIRST_LOOK_NS)
            return 0, []
        rest = attempt.rest_of(tree)
        if was_gone and not rest and (written := boxed.written(attempt, self._outputs, self._kernel)):
            self._finish(attempt, written)
            return 0, []
        signum = self.looks.next_signal(attempt, now)
        if leader and signum not in (0, attempt.struck) and not attempt.spares_leader(signum):
            self._kernel.signal_group(attempt.pid, signum)
        return signum, rest

    def _reserve(self) -> list[Running] | None:
        attempts = self._line.reserve()
        for attempt in attempts or ():
            self.running[attempt.key] = attempt
        self._spawning += len(attempts or ())
        return attempts

    def _launch(self, attempt: Running) -> bool:
        """Spawn it, without the lock; False if it did not start."""
        try:
            check(attempt, self._kernel.now_ns)
            attempt_pid = boxed.spawn(self._spawner, attempt)
        except (Short, CannotRun) as error:
            with self.lock:
                self._fail(attempt, error)
            return False
        except Exception as error:  # of this attempt alone: the thread starts, and buries, everybody's work
            traceback.print_exc()
            reason = f"cannot be started: {type(error).__name__}: {error}"
            with self.lock:
                self._fail(attempt, CannotRun(CANNOT_EXECUTE, reason))
            return False
        with self.lock:
            self._end_spawning()
            attempt.pid = attempt_pid
            self.by_pid[attempt_pid] = attempt
            self.lives.begin(attempt)
            boxed.tell_start(attempt, self.lock, self._book)
            if len(self.by_pid) == 1:
                self.has_children.notify_all()
            self.is_unswept = True
            if self.looks.begin(attempt) or self.warden_idles or attempt.spec.limits:
                self.something_due.notify()  # it sweeps while there is work, and watches limits
        return True

    def _end_spawning(self) -> None:
        self._spawning -= 1
        if self._is_awaited:
            self._is_awaited = False
            self._spawned.notify_all()

    def _fail(self, attempt: Running, error: Short | CannotRun) -> None:
        key = attempt.key
        self._end_spawning()
        if attempt.is_under_way:
            self._fail_under_way(attempt, error)
            return
        del self.running[key]
        self._spawner.release(attempt.key, attempt.spec, attempt.group, attempt.cell)
        self._outputs.give_back(key, attempt.segment, Measure(attempt.segment.at, is_final=True))
        match error:
            case CannotRun(exit_code=exit_code, reason=reason):
                self._room.release(key)
                attempt.outcome = Outcome(exit_code=exit_code, reason=reason)
                if attempt.marks:
                    self._book.end_step(attempt)
                self._book.close(key, "exited", attempt.outcome, attempt.started_ms)
            case Short():
                self._outputs.mend(key[0])
                self._line.drop(key, str(error))
                self._book.strike(key)

    def _fail_under_way(self, attempt: Running, error: Short | CannotRun) -> None:
        """It cannot go on: its own fault, or its node's, which nobody else can make up for."""
        now, is_short = self._kernel.now_ns(), isinstance(error, Short)
        if is_short and attempt.life is None and (when_ns := attempt.wait_for_node(now)):
            self._look(attempt, when_ns)
            return
        code, ran_us = getattr(error, "exit_code", None), (now - attempt.started_ns) // 1000
        attempt.outcome = Outcome(code, ran_us=ran_us, reason=str(error))
        if is_short and attempt.life is None:  # a service may yet find what it needs
            attempt.ending = attempt.ending or "lost"
        self._finish(attempt, self._outputs.measure(attempt.segment))

    def _resume(self, attempt: Running, now: int) -> bool:
        """Try to start a step again; False: it has not been waiting for that."""
        if not attempt.waits:
            return False
        if attempt.resumes(now):
            self._go_on(attempt)
        else:
            self._spawning += 1
            self._fail(attempt, NO_PROCESS)
        return True

    def _revise(self, job: str) -> None:
        """What runs of it gets what can be changed while it does."""
        revise.apply(self.running.values(), job, self.memory.specs[job], self._spawner, self._look)
        self.something_due.notify()  # the warden watches limits

    def _stop(self, key: Key, how: How = How.GRACEFULLY) -> None:
        attempt = self.running.get(key)
        if attempt and attempt.is_resting:
            self.lives.stop_resting(attempt)
            self._finish(attempt, self._outputs.measure(attempt.segment))
        elif attempt:
            over = attempt.outcome is not None or self._kernel.has_ended(attempt.pid)
            attempt.halted, now = True, self._kernel.now_ns()
            if not over or (how is How.AT_ONCE and attempt.ending is not None):
                attempt.stop(how, now)
                self._look(attempt, now)
        elif self._room.withdraw(key):
            self._book.close(key, "withdrawn", Outcome(), None)
        elif told := self.memory.ended.get(key):
            self._book.tell(key, told)
        else:
            self._book.tell(key, row(key, "unknown", Outcome(), None, self._kernel.now_ms()))

    def _look(self, attempt: Running, when_ns: int) -> None:
        self.looks.at(attempt, when_ns)
        self.something_due.notify()

    def _finish(self, attempt: Running, written: Measure) -> None:
        assert attempt.outcome is not None
        reason = boxed.refusal(attempt)
        if reason and len(attempt.marks) > 1:
            self._fail_under_way(attempt, Short(reason))
            return
        if attempt.marks and not reason and self._book.end_step(attempt):
            self._book.begin_step(attempt, written.at)
            self._go_on(attempt)
            return
        if reason is None and self.lives.rests(attempt):
            return
        del self.running[attempt.key]
        self._spawner.release(attempt.key, attempt.spec, attempt.group, attempt.cell)
        self._outputs.give_back(attempt.key, attempt.segment, written)
        if reason:
            self._line.drop(attempt.key, reason)
            self._book.strike(attempt.key)
            return
        self._room.release(attempt.key)
        self._leases.explain(attempt)
        attempt.explain_leave()
        if attempt.box is not None:  # it was there until now: its command line ends before it is removed
            attempt.outcome.ran_us = (self._kernel.now_ns() - attempt.started_ns) // 1000
        self._book.close(attempt.key, attempt.ending or "exited", attempt.outcome, attempt.started_ms)

    def _go_on(self, attempt: Running) -> None:
        self._spawning += 1
        self._onward.append(attempt)  # whoever fills starts it

    def _is_idle(self) -> bool:
        return not (self.running or self._room.has_waiting())

    def _flush(self) -> bool:
        self._outputs.flush()
        return self._journal.flush()
