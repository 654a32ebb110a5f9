"""Faults of machines, their processes, disks and clocks."""

from rota.sim.cluster.machine_os import SimChild
from rota.sim.faults.fault import Inject, SimFault, any_clock, any_machine, disturbed_machine, nothing
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act

REPORTED_MS = 12  # by then a server has the report of a start


def _agent_killed(cluster: SimCluster, fault: SimFault) -> Act:
    machine = any_machine(cluster, fault)
    if fault.for_ms > cluster.lost_ms // 3:  # a shorter absence costs no work
        cluster.disturb(machine)
    if not machine.on:
        return nothing
    machine.agent.kill()
    return lambda: None if machine.agent.alive or not machine.on else machine.agent.start()


def _keeper_killed(cluster: SimCluster, fault: SimFault) -> Act:
    disturbed_machine(cluster, fault).keeper.end()
    return nothing


def _both_killed(cluster: SimCluster, fault: SimFault) -> Act:
    machine = disturbed_machine(cluster, fault)
    if machine.on:
        machine.agent.kill()
        machine.keeper.end()
    return lambda: None if machine.agent.alive or not machine.on else machine.agent.start()


def _power_lost(cluster: SimCluster, fault: SimFault) -> Act:
    machine = disturbed_machine(cluster, fault)
    if machine.on:
        machine.lose_power(fault.degree)
    return lambda: None if machine.on else machine.switch_on()


def _power_lost_as_it_starts(cluster: SimCluster, fault: SimFault) -> Act:
    """Lose power and all unsynced data before the next start on this machine is reported."""
    machine = disturbed_machine(cluster, fault)
    started = machine.process_started

    def starts(name: str, child: SimChild) -> None:
        machine.process_started = started
        started(name, child)
        cluster.world.after(
            fault.degree * REPORTED_MS, lambda: machine.lose_power(0.0) if machine.on else None
        )

    def restore() -> None:
        machine.process_started = started
        if not machine.on:
            machine.switch_on()

    machine.process_started = starts
    return restore


def _never_returns(cluster: SimCluster, fault: SimFault) -> Act:
    """Lose power permanently, unless a third of the machines is off already."""
    off = [machine for machine in cluster.machines if not machine.on]
    if len(off) * 3 < len(cluster.machines):
        machine = disturbed_machine(cluster, fault)
        if machine.on:
            machine.lose_power(fault.degree)
    return nothing


def _zone_gone(cluster: SimCluster, fault: SimFault) -> Act:
    zone = cluster.machines[fault.target % 2 :: 2]
    for machine in zone:
        cluster.disturb(machine)
        if machine.on:
            machine.lose_power(fault.degree)

    def restore() -> None:
        for machine in zone:
            if not machine.on:
                machine.switch_on()

    return restore


def _frozen(cluster: SimCluster, fault: SimFault) -> Act:
    machine = disturbed_machine(cluster, fault)
    machine.freeze()
    return machine.resume


def _agent_frozen(cluster: SimCluster, fault: SimFault) -> Act:
    machine = disturbed_machine(cluster, fault)
    machine.agent.freeze()
    cluster.network.check_streams(machine.name)

    def resume() -> None:
        if machine.agent.alive:
            machine.agent.resume()
            cluster.network.check_streams(machine.name)

    return resume


def _frozen_as_it_dials(cluster: SimCluster, fault: SimFault) -> Act:
    """Break the stream and freeze the agent before its next handshake completes."""
    machine = disturbed_machine(cluster, fault)
    agent, was_frozen = machine.agent, False

    def freeze() -> None:
        nonlocal was_frozen
        agent.called = nothing
        if not agent.frozen:
            was_frozen = True
            agent.freeze()
            cluster.network.check_streams(machine.name)

    def resume() -> None:
        agent.called = nothing
        if was_frozen and agent.alive:
            agent.resume()
            cluster.network.check_streams(machine.name)

    if agent.runs and agent.stream is not None:
        agent.called = freeze
        agent.disconnect("its connection broke")
    return resume


def _keeper_frozen(cluster: SimCluster, fault: SimFault) -> Act:
    machine = any_machine(cluster, fault)
    machine.keeper.freeze()
    return lambda: machine.keeper.resume() if machine.keeper.alive else None


def _cloned(cluster: SimCluster, fault: SimFault) -> Act:
    machine = disturbed_machine(cluster, fault)
    twin = machine.clone()
    cluster.add(twin)
    twin.switch_on()

    def unplug() -> None:
        twin.scrapped = True
        if twin.on:
            twin.lose_power(1.0)
        cluster.machines.remove(twin)

    return unplug


def _leaves(cluster: SimCluster, fault: SimFault) -> Act:
    machine = disturbed_machine(cluster, fault)
    if machine.on and machine.agent.runs and machine.agent.welcomed:
        machine.agent.leave()

    def restore() -> None:
        if not machine.on:
            machine.switch_on()
        elif machine.agent.leaving:  # its attempts end first
            cluster.world.after(1000, restore)

    return restore


def _disk_full(cluster: SimCluster, fault: SimFault) -> Act:
    machine = disturbed_machine(cluster, fault)
    machine.disk.full = True

    def clear() -> None:
        machine.disk.full = False

    return clear


def _refuses(cluster: SimCluster, fault: SimFault) -> Act:
    """The working directory is missing on one machine, or on all of them."""
    machines = [any_machine(cluster, fault)] if fault.degree < 0.7 else list(cluster.machines)
    for machine in machines:
        machine.refuses = frozenset({"/data"})

    def heal() -> None:
        for machine in machines:
            machine.refuses = frozenset()

    return heal


def _no_process_to_spare(cluster: SimCluster, fault: SimFault) -> Act:
    machine = any_machine(cluster, fault)
    machine.short = True

    def heal() -> None:
        machine.short = False

    return heal


def _wall_clock_jumps(cluster: SimCluster, fault: SimFault) -> Act:
    any_clock(cluster, fault).jump(round((fault.degree - 0.5) * 2 * 365 * 24 * 3_600_000))
    return nothing


def _clock_runs_wrong(cluster: SimCluster, fault: SimFault) -> Act:
    clock = any_clock(cluster, fault)
    clock.run_at(0.95 + fault.degree / 10)
    return lambda: clock.run_at(1.0)


KINDS: dict[str, Inject] = {
    "agent killed": _agent_killed,
    "keeper killed": _keeper_killed,
    "agent and keeper killed": _both_killed,
    "power lost": _power_lost,
    "power lost at a start": _power_lost_as_it_starts,
    "power lost permanently": _never_returns,
    "zone lost": _zone_gone,
    "machine frozen": _frozen,
    "agent frozen": _agent_frozen,
    "agent frozen at a handshake": _frozen_as_it_dials,
    "keeper frozen": _keeper_frozen,
    "machine cloned": _cloned,
    "node leaves": _leaves,
    "node's disk full": _disk_full,
    "working directory missing": _refuses,
    "no process to spare": _no_process_to_spare,
    "wall clock jumps": _wall_clock_jumps,
    "clock runs wrong": _clock_runs_wrong,
}
