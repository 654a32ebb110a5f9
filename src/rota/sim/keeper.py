"""Drives the real keeper's work in virtual time: no threads, one thing after the other."""

import math
from collections.abc import Callable

from rota.keeper import journal
from rota.keeper.run import settle
from rota.keeper.work import Work
from rota.sim.host import Host
from rota.sim.keeping import Child, SimJournal, SimKernel, SimOutputs, SimSpawner
from rota.sim.world import Process


class Keeper(Process):
    def __init__(self, machine: Host) -> None:
        super().__init__(machine.world, f"{machine.name} keeper", machine.clock)
        self.machine = machine
        self.work: Work | None = None
        self.hears: Callable[[bytes], None] | None = None  # the agent that is attached
        self._looks = self._mails = 0  # of several timers the last counts
        self.mourned: Callable[[], None] = lambda: None

    def start(self) -> bool:
        """False: it cannot write its journal."""
        machine = self.machine
        if machine.disk.full:
            self.world.count("keeper: cannot start on a full disk")
            return False
        self.begin()
        for pid, child in list(machine.processes.children.items()):
            if child.status is None:  # of an earlier keeper
                self.world.count("keeper: killed what an earlier one had started")
                machine.died(machine.name, child)
            del machine.processes.children[pid]
        memory = journal.remember(machine.disk.journal.encode())
        settle(memory, machine.boot_id, machine.clock.wall_ms())
        spawner = SimSpawner(
            machine.processes, machine.habits, machine.clock, self._born, lambda: machine.short
        )
        kernel = SimKernel(machine.processes, machine.clock, self._end_soon)
        records = SimJournal(machine.disk, journal.compact(memory))
        self.work = Work(memory, records, spawner, SimOutputs(), self._pump, kernel=kernel)
        self.hears = None
        return True

    def end(self) -> None:
        if self.alive:
            super().end()
            self.work = None
            self.hears = None
            self.mourned()

    def obey(self, act: Callable[[Work], object]) -> None:
        """An order of the agent, over the socket."""
        if self.alive:
            self.after(0, lambda: self._obey(act))

    def _obey(self, act: Callable[[Work], object]) -> None:
        assert self.work is not None
        act(self.work)
        self._look_later()

    def _pump(self) -> None:
        """Something is to be told, or may be soon."""
        due_ns = math.inf if self.work is None else self.work.outbox.due_in_ns()
        if due_ns < math.inf:
            self._mails += 1
            mail = self._mails
            self.after(max(0, math.ceil(due_ns / 1e6)), lambda: self._mail() if mail == self._mails else None)

    def _mail(self) -> None:
        assert self.work is not None
        if self.hears is not None and self.work.outbox.due_in_ns() <= 0:
            message = self.work.mail()
            if message:
                self.hears(message)
        self._pump()

    def _born(self, pid: int, child: Child) -> None:
        self.machine.born(self.machine.name, child)
        self._end_soon(pid, child.habit.run_ms, child.habit.exit_code)

    def _end_soon(self, pid: int, delay_ms: int, code: int) -> None:
        self.world.after(self.clock.real_ms(delay_ms), lambda: self._child_ended(pid, code))

    def _child_ended(self, pid: int, code: int) -> None:
        child = self.machine.processes.children.get(pid)
        if child is None or child.status is not None:
            return
        child.status = code
        self.machine.died(self.machine.name, child)
        if self.alive:
            self.do(self.life, lambda: self._reap(pid))
        else:
            del self.machine.processes.children[pid]

    def _reap(self, pid: int) -> None:
        assert self.work is not None
        if pid in self.machine.processes.children and self.work.reap(pid):
            self.work.fill()
        self._look_later()

    def _look_later(self) -> None:
        """When the warden would look next."""
        due_ns = None if self.work is None else self.work.looks.due_in_ns()
        if due_ns is not None:
            self._looks += 1
            look = self._looks
            self.after(max(0, math.ceil(due_ns / 1e6)), lambda: self._tend() if look == self._looks else None)

    def _tend(self) -> None:
        assert self.work is not None
        for key, was_gone in self.work.looks.take().items():
            self.work.tend(key, was_gone=was_gone, tree=[])
        self.work.fill()
        self.work.keep_up()
        self._look_later()
