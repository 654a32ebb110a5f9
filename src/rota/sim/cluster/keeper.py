"""Drives the production keeper Supervisor in virtual time, without threads."""

import math
from collections.abc import Callable

from rota.keeper import journal
from rota.keeper.run import mark_running_lost
from rota.keeper.supervisor import Supervisor
from rota.sim.cluster.host import SimHost
from rota.sim.cluster.machine_os import SimChild, SimJournal, SimKernel, SimOutputs, SimSpawner
from rota.sim.world.virtual_time import SimProcess


class SimKeeper(SimProcess):
    """A keeper process: its orders, exits and timers run one after the other, where production has threads.

    A restart replays the journal from the simulated disk, so that only what was written survives.
    """

    def __init__(self, machine: SimHost) -> None:
        super().__init__(machine.world, f"{machine.name} keeper", machine.clock)
        self.machine = machine
        self.work: Supervisor | None = None
        self.send_to_agent: Callable[[bytes], None] | None = None  # set while an agent is attached
        self._timer_runs = self._deliveries = 0  # number of the latest timer; earlier ones are void
        self.on_end: Callable[[], None] = lambda: None
        self.resumed_at_ms: int | None = None

    def start(self) -> bool:
        """Start a new life; return False if the journal cannot be written."""
        machine = self.machine
        if machine.disk.full:
            self.world.count("keeper: cannot start on a full disk")
            return False
        self.start_life()
        for pid, child in list(machine.processes.children.items()):
            if child.status is None:  # started by an earlier keeper
                self.world.count("keeper: killed processes of an earlier keeper")
                machine.process_ended(machine.name, child)
            del machine.processes.children[pid]
        # Only the journal survives a keeper: what it did not write never happened for the next one.
        memory = journal.replay(machine.disk.journal.encode())
        mark_running_lost(memory, machine.boot_id, machine.clock.wall_ms())
        spawner = SimSpawner(
            machine.processes,
            machine.behaviour_of,
            machine.clock,
            self._process_started,
            lambda: machine.short,
        )
        kernel = SimKernel(machine.processes, machine.clock, self._end_soon)
        records = SimJournal(machine.disk, journal.compact_lines(memory))
        self.work = Supervisor(memory, records, spawner, SimOutputs(), self._pump, kernel=kernel)
        self.send_to_agent = None
        return True

    def end(self) -> None:
        if self.alive:
            super().end()
            self.work = None
            self.send_to_agent = None
            # Before the hook: when the agent learns of the death, leased processes have ended,
            # as a pid namespace guarantees.
            self._end_leased()
            self.on_end()

    def resume(self) -> None:
        self.resumed_at_ms = self.world.now_ms
        super().resume()

    def has_slept_within(self, ms: int) -> bool:
        woke_ms = self.resumed_at_ms
        return self.frozen or (woke_ms is not None and self.world.now_ms - woke_ms <= ms)

    def _end_leased(self) -> None:
        """End processes that hold a lease: their pid namespace dies with the keeper."""
        children = self.machine.processes.children
        for pid, child in list(children.items()):
            if child.leased and child.status is None:
                self.machine.process_ended(self.machine.name, child)
                del children[pid]

    def apply_order(self, act: Callable[[Supervisor], object]) -> None:
        """Apply an order that the agent sends over the socket."""
        if self.alive:
            self.after(0, lambda: self._apply_order(act))

    def _apply_order(self, act: Callable[[Supervisor], object]) -> None:
        assert self.work is not None
        act(self.work)
        self._schedule_timers()

    def _pump(self) -> None:
        """Schedule the delivery of the outbox; called whenever an event is added."""
        due_ns = math.inf if self.work is None else self.work.outbox.due_in_ns()
        if due_ns < math.inf:
            self._deliveries += 1
            # An earlier delivery is void once a later one is scheduled, as a condition
            # variable has one pending timeout.
            delivery = self._deliveries
            self.after(
                max(0, math.ceil(due_ns / 1e6)),
                lambda: self._deliver() if delivery == self._deliveries else None,
            )

    def _deliver(self) -> None:
        assert self.work is not None
        if self.send_to_agent is not None and self.work.outbox.due_in_ns() <= 0:
            message = self.work.drain_events()
            if message:
                self.send_to_agent(message)
        self._pump()

    def _process_started(self, pid: int, child: SimChild) -> None:
        self.machine.process_started(self.machine.name, child)
        self._end_soon(pid, child.behaviour.run_ms, child.behaviour.exit_code)

    def _end_soon(self, pid: int, delay_ms: int, code: int) -> None:
        self.world.after(self.clock.real_ms(delay_ms), lambda: self._child_ended(pid, code))

    def _child_ended(self, pid: int, code: int) -> None:
        child = self.machine.processes.children.get(pid)
        if child is None or child.status is not None:
            return
        child.status = code
        self.machine.process_ended(self.machine.name, child)
        if self.alive:
            self.do(self.life, lambda: self._reap(pid))
        else:
            del self.machine.processes.children[pid]

    def _reap(self, pid: int) -> None:
        assert self.work is not None
        # The supervisor may have reaped it meanwhile, while it advanced a termination.
        if pid in self.machine.processes.children and self.work.on_child_exit(pid):
            self.work.start_admitted()
        self._schedule_timers()

    def _schedule_timers(self) -> None:
        """Schedule the next run of the attempt timers."""
        due_ns = None if self.work is None else self.work.timers.due_in_ns()
        if due_ns is not None:
            self._timer_runs += 1
            run = self._timer_runs
            self.after(
                max(0, math.ceil(due_ns / 1e6)),
                lambda: self._run_timers() if run == self._timer_runs else None,
            )

    def _run_timers(self) -> None:
        assert self.work is not None
        for key, leader_exited in self.work.timers.pop_due().items():
            self.work.advance_termination(key, leader_exited=leader_exited, tree=[])
        self.work.start_admitted()
        self.work.maintain_journal()
        self._schedule_timers()
