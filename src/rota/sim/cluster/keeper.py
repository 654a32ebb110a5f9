"""Drives the real keeper's work in virtual time: no threads, one thing after the other."""

import math
from collections.abc import Callable

from rota.keeper import journal
from rota.keeper.run import mark_running_lost
from rota.keeper.supervisor import Supervisor
from rota.sim.cluster.host import SimHost
from rota.sim.cluster.machine_os import SimChild, SimJournal, SimKernel, SimOutputs, SimSpawner
from rota.sim.world.virtual_time import SimProcess


class SimKeeper(SimProcess):
    def __init__(self, machine: SimHost) -> None:
        super().__init__(machine.world, f"{machine.name} keeper", machine.clock)
        self.machine = machine
        self.work: Supervisor | None = None
        self.hears: Callable[[bytes], None] | None = None  # the agent that is attached
        self._looks = self._mails = 0  # of several timers the last counts
        self.mourned: Callable[[], None] = lambda: None
        self.thawed_at_ms: int | None = None

    def start(self) -> bool:
        """False: it cannot write its journal."""
        machine = self.machine
        if machine.disk.full:
            self.world.count("keeper: cannot start on a full disk")
            return False
        self.start_life()
        for pid, child in list(machine.processes.children.items()):
            if child.status is None:  # of an earlier keeper
                self.world.count("keeper: killed what an earlier one had started")
                machine.died(machine.name, child)
            del machine.processes.children[pid]
        memory = journal.replay(machine.disk.journal.encode())
        mark_running_lost(memory, machine.boot_id, machine.clock.wall_ms())
        spawner = SimSpawner(
            machine.processes, machine.habits, machine.clock, self._born, lambda: machine.short
        )
        kernel = SimKernel(machine.processes, machine.clock, self._end_soon)
        records = SimJournal(machine.disk, journal.compact_lines(memory))
        self.work = Supervisor(memory, records, spawner, SimOutputs(), self._pump, kernel=kernel)
        self.hears = None
        return True

    def end(self) -> None:
        if self.alive:
            super().end()
            self.work = None
            self.hears = None
            self._end_leased()
            self.mourned()

    def resume(self) -> None:
        self.thawed_at_ms = self.world.now_ms
        super().resume()

    def has_slept_within(self, ms: int) -> bool:
        woke_ms = self.thawed_at_ms
        return self.frozen or (woke_ms is not None and self.world.now_ms - woke_ms <= ms)

    def _end_leased(self) -> None:
        """What runs under a lease dies with its keeper."""
        children = self.machine.processes.children
        for pid, child in list(children.items()):
            if child.leased and child.status is None:
                self.machine.died(self.machine.name, child)
                del children[pid]

    def apply_order(self, act: Callable[[Supervisor], object]) -> None:
        """An order of the agent, over the socket."""
        if self.alive:
            self.after(0, lambda: self._apply_order(act))

    def _apply_order(self, act: Callable[[Supervisor], object]) -> None:
        assert self.work is not None
        act(self.work)
        self._schedule_timers()

    def _pump(self) -> None:
        """Something is to be told, or may be soon."""
        due_ns = math.inf if self.work is None else self.work.outbox.due_in_ns()
        if due_ns < math.inf:
            self._mails += 1
            mail = self._mails
            self.after(
                max(0, math.ceil(due_ns / 1e6)), lambda: self._deliver() if mail == self._mails else None
            )

    def _deliver(self) -> None:
        assert self.work is not None
        if self.hears is not None and self.work.outbox.due_in_ns() <= 0:
            message = self.work.drain_events()
            if message:
                self.hears(message)
        self._pump()

    def _born(self, pid: int, child: SimChild) -> None:
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
        if pid in self.machine.processes.children and self.work.on_child_exit(pid):
            self.work.start_admitted()
        self._schedule_timers()

    def _schedule_timers(self) -> None:
        """When the warden would look next."""
        due_ns = None if self.work is None else self.work.timers.due_in_ns()
        if due_ns is not None:
            self._looks += 1
            look = self._looks
            self.after(
                max(0, math.ceil(due_ns / 1e6)), lambda: self._run_timers() if look == self._looks else None
            )

    def _run_timers(self) -> None:
        assert self.work is not None
        for key, was_gone in self.work.timers.pop_due().items():
            self.work.advance_termination(key, leader_exited=was_gone, tree=[])
        self.work.start_admitted()
        self.work.maintain_journal()
        self._schedule_timers()
