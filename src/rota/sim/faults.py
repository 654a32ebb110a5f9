"""Everything that can go wrong, as a list of faults drawn from a seed: when, what, to whom, for how long."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from rota.model.node import Eligibility
from rota.sim.cluster import Cluster
from rota.sim.machine import Machine
from rota.sim.medium import NAME, Trouble
from rota.sim.server import Server
from rota.sim.world import Act, Clock


class Fault(NamedTuple):
    at_ms: int
    kind: str
    who: int  # which machine or server, counted round
    for_ms: int
    how: float  # between 0 and 1; what it means depends on the kind

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:.1f} s: {self.kind} ({self.who}, for {self.for_ms / 1000:.1f} s)"


Befall = Callable[[Cluster, Fault], Act]  # what undoes it


def draw(luck: Random, length_ms: int, *, servers: int) -> list[Fault]:
    """A mix of its own for every seed: a few kinds, each more or less often."""
    kinds = [kind for kind in KINDS if servers > 1 or kind not in OF_SEVERAL_SERVERS]
    chosen = luck.sample(kinds, luck.randint(1, min(8, len(kinds))))
    faults = []
    for kind in chosen:
        for _ in range(luck.choice((1, 1, 2, 3, 6))):
            longest_ms = luck.choice((300, 3_000, 12_000, 45_000, 90_000))
            faults.append(
                Fault(
                    luck.randrange(length_ms),
                    kind,
                    luck.randrange(1000),
                    luck.randint(1, longest_ms),
                    luck.random(),
                )
            )
    return sorted(faults)


def befall(cluster: Cluster, faults: list[Fault], until_ms: int) -> None:
    """Each begins and ends in its time; by `until_ms` all have ended."""
    for fault in faults:
        cluster.world.after(fault.at_ms, _happens(cluster, fault, until_ms))


def _happens(cluster: Cluster, fault: Fault, until_ms: int) -> Act:
    def happen() -> None:
        world = cluster.world
        world.count(f"fault: {fault.kind}")
        world.say("fault", f"{fault.kind} begins, {fault.who} {fault.how:.2f}")
        undo = KINDS[fault.kind](cluster, fault)

        def end() -> None:
            world.say("fault", f"{fault.kind} ends")
            undo()

        world.after(min(fault.for_ms, max(0, until_ms - world.now_ms)), end)

    return happen


def _machine(cluster: Cluster, fault: Fault) -> Machine:
    machine = cluster.machines[fault.who % len(cluster.machines)]
    cluster.disturb(machine)
    return machine


def _server(cluster: Cluster, fault: Fault) -> Server:
    return cluster.servers[fault.who % len(cluster.servers)]


def _leader(cluster: Cluster, fault: Fault) -> Server:
    return cluster.election.leader or _server(cluster, fault)


def _clock(cluster: Cluster, fault: Fault) -> Clock:
    clocks = [machine.clock for machine in cluster.machines] + [server.clock for server in cluster.servers]
    return clocks[fault.who % len(clocks)]


def _nothing() -> None:
    """There is nothing to undo."""


# ---- machines


def _agent_killed(cluster: Cluster, fault: Fault) -> Act:
    machine = cluster.machines[fault.who % len(cluster.machines)]
    if fault.for_ms > cluster.lost_ms // 3:  # else it costs no work
        cluster.disturb(machine)
    if not machine.on:
        return _nothing
    machine.agent.kill()
    return lambda: None if machine.agent.alive or not machine.on else machine.agent.start()


def _keeper_killed(cluster: Cluster, fault: Fault) -> Act:
    _machine(cluster, fault).keeper.end()
    return _nothing


def _both_killed(cluster: Cluster, fault: Fault) -> Act:
    machine = _machine(cluster, fault)
    if machine.on:
        machine.agent.kill()
        machine.keeper.end()
    return lambda: None if machine.agent.alive or not machine.on else machine.agent.start()


def _power_lost(cluster: Cluster, fault: Fault) -> Act:
    machine = _machine(cluster, fault)
    if machine.on:
        machine.lose_power(fault.how)
    return lambda: None if machine.on else machine.switch_on()


def _never_returns(cluster: Cluster, fault: Fault) -> Act:
    """But a third of the machines is always left."""
    gone = [machine for machine in cluster.machines if not machine.on]
    if len(gone) * 3 < len(cluster.machines):
        machine = _machine(cluster, fault)
        if machine.on:
            machine.lose_power(fault.how)
    return _nothing


def _zone_gone(cluster: Cluster, fault: Fault) -> Act:
    zone = cluster.machines[fault.who % 2 :: 2]
    for machine in zone:
        cluster.disturb(machine)
        if machine.on:
            machine.lose_power(fault.how)

    def back() -> None:
        for machine in zone:
            if not machine.on:
                machine.switch_on()

    return back


def _frozen(cluster: Cluster, fault: Fault) -> Act:
    machine = _machine(cluster, fault)
    machine.freeze()
    return machine.thaw


def _agent_frozen(cluster: Cluster, fault: Fault) -> Act:
    machine = _machine(cluster, fault)
    machine.agent.freeze()
    cluster.network.look(machine.name)

    def thaw() -> None:
        if machine.agent.alive:
            machine.agent.thaw()
            cluster.network.look(machine.name)

    return thaw


def _keeper_frozen(cluster: Cluster, fault: Fault) -> Act:
    machine = cluster.machines[fault.who % len(cluster.machines)]
    machine.keeper.freeze()
    return lambda: machine.keeper.thaw() if machine.keeper.alive else None


def _cloned(cluster: Cluster, fault: Fault) -> Act:
    machine = _machine(cluster, fault)
    twin = machine.clone(f"{machine.name}-clone{len(cluster.machines)}")
    cluster.add(twin)
    twin.switch_on()

    def unplug() -> None:
        twin.scrapped = True
        if twin.on:
            twin.lose_power(1.0)
        cluster.machines.remove(twin)

    return unplug


def _leaves(cluster: Cluster, fault: Fault) -> Act:
    machine = _machine(cluster, fault)
    if machine.on and machine.agent.runs and machine.agent.welcomed:
        machine.agent.leave()
    return lambda: None if machine.on else machine.switch_on()


def _disk_full(cluster: Cluster, fault: Fault) -> Act:
    machine = _machine(cluster, fault)
    machine.disk.full = True

    def clear() -> None:
        machine.disk.full = False

    return clear


def _refuses(cluster: Cluster, fault: Fault) -> Act:
    machine = cluster.machines[fault.who % len(cluster.machines)]
    machine.refuses = frozenset({"/data"})

    def mend() -> None:
        machine.refuses = frozenset()

    return mend


def _no_process_to_spare(cluster: Cluster, fault: Fault) -> Act:
    machine = cluster.machines[fault.who % len(cluster.machines)]
    machine.short = True

    def mend() -> None:
        machine.short = False

    return mend


def _wall_clock_jumps(cluster: Cluster, fault: Fault) -> Act:
    _clock(cluster, fault).jump(round((fault.how - 0.5) * 2 * 365 * 24 * 3_600_000))
    return _nothing


def _clock_runs_wrong(cluster: Cluster, fault: Fault) -> Act:
    clock = _clock(cluster, fault)
    clock.run_at(0.95 + fault.how / 10)
    return lambda: clock.run_at(1.0)


# ---- the network


def _cut(cluster: Cluster, machine: Machine, *, up: bool, down: bool, server: Server | None = None) -> Act:
    cluster.disturb(machine)
    pairs = []
    for one in [server] if server is not None else cluster.servers:
        pairs += [(machine.name, one.name)] if up else []
        pairs += [(one.name, machine.name)] if down else []
    for pair in pairs:
        cluster.network.cut(*pair)

    def heal() -> None:
        for pair in pairs:
            cluster.network.heal(*pair)

    return heal


def _cut_off(cluster: Cluster, fault: Fault) -> Act:
    return _cut(cluster, _machine(cluster, fault), up=True, down=True)


def _cannot_speak(cluster: Cluster, fault: Fault) -> Act:
    return _cut(cluster, _machine(cluster, fault), up=True, down=False)


def _cannot_hear(cluster: Cluster, fault: Fault) -> Act:
    return _cut(cluster, _machine(cluster, fault), up=False, down=True)


def _partial_cut(cluster: Cluster, fault: Fault) -> Act:
    return _cut(cluster, _machine(cluster, fault), up=True, down=True, server=_leader(cluster, fault))


def _swizzle(cluster: Cluster, fault: Fault) -> Act:
    """Some are cut off one after the other, and come back in another order."""
    luck = Random(f"{cluster.world.seed}/swizzle/{fault}")
    machines = luck.sample(cluster.machines, max(1, len(cluster.machines) // 2))
    heals: list[Act] = []

    def cut(machine: Machine) -> None:
        heals.append(_cut(cluster, machine, up=True, down=True))

    for n, machine in enumerate(machines):
        cluster.disturb(machine)
        delay_ms = fault.for_ms * 0.8 * n / len(machines)
        cluster.world.after(delay_ms, lambda machine=machine: cut(machine))  # type: ignore[misc]

    def heal() -> None:
        luck.shuffle(heals)
        for n, one in enumerate(heals):
            cluster.world.after(n * 300, one)

    return heal


def _slow_network(cluster: Cluster, fault: Fault) -> Act:
    """Up to a second there and back: no node is lost for that."""
    network = cluster.network
    network.slowness = 1 + fault.how * 120

    def mend() -> None:
        network.slowness = 1.0

    return mend


def _lossy_calls(cluster: Cluster, fault: Fault) -> Act:
    network = cluster.network
    network.loss = network.doubling = fault.how / 2

    def mend() -> None:
        network.loss = network.doubling = 0.0

    return mend


# ---- servers and their store


def _server_killed(cluster: Cluster, fault: Fault) -> Act:
    cluster.election.kill(_leader(cluster, fault))
    return _nothing


def _server_frozen(cluster: Cluster, fault: Fault) -> Act:
    server = _leader(cluster, fault)
    if not server.runs or any(other.frozen for other in cluster.servers):  # one at a time: most are well
        return _nothing
    server.freeze()
    cluster.network.look(server.name)

    def thaw() -> None:
        if server.alive:
            server.thaw()
            cluster.network.look(server.name)

    return thaw


def _store_cut_off(cluster: Cluster, fault: Fault) -> Act:
    server = _leader(cluster, fault)
    ways = ((server.name, NAME), (NAME, server.name))
    pairs = ways if fault.how < 0.5 else ways[:1] if fault.how < 0.75 else ways[1:]
    for pair in pairs:
        cluster.network.cut(*pair)

    def heal() -> None:
        for pair in pairs:
            cluster.network.heal(*pair)

    return heal


def _store_trouble(**trouble: Any) -> Befall:
    def begin(cluster: Cluster, fault: Fault) -> Act:
        del fault
        cluster.medium.trouble = cluster.medium.trouble._replace(**trouble)
        return lambda: _mend(cluster, list(trouble))

    return begin


def _mend(cluster: Cluster, names: list[str]) -> None:
    fresh = Trouble()
    cluster.medium.trouble = cluster.medium.trouble._replace(**{name: getattr(fresh, name) for name in names})


# ---- people who change their mind


def _cancels(cluster: Cluster, fault: Fault) -> Act:
    jobs = [job for job in cluster.users.acknowledged.values() if job not in cluster.users.deleted]
    if jobs:
        cluster.users.cancel(jobs[fault.who % len(jobs)])
    return _nothing


def _deletes(cluster: Cluster, fault: Fault) -> Act:
    jobs = list(cluster.users.acknowledged.values())
    if jobs:
        cluster.users.delete(jobs[fault.who % len(jobs)])
    return _nothing


def _drains(cluster: Cluster, fault: Fault) -> Act:
    name = cluster.machines[fault.who % len(cluster.machines)].node
    wish = Eligibility.DRAINING if fault.how < 0.5 else Eligibility.CORDONED
    cluster.users.wish(name, wish)
    return lambda: cluster.users.wish(name, Eligibility.OPEN)


KINDS: dict[str, Befall] = {
    "agent killed": _agent_killed,
    "keeper killed": _keeper_killed,
    "agent and keeper killed": _both_killed,
    "power lost": _power_lost,
    "never returns": _never_returns,
    "zone gone": _zone_gone,
    "machine frozen": _frozen,
    "agent frozen": _agent_frozen,
    "keeper frozen": _keeper_frozen,
    "machine cloned": _cloned,
    "node leaves": _leaves,
    "node's disk full": _disk_full,
    "node refuses": _refuses,
    "no process to spare": _no_process_to_spare,
    "wall clock jumps": _wall_clock_jumps,
    "clock runs wrong": _clock_runs_wrong,
    "cut off": _cut_off,
    "cannot speak": _cannot_speak,
    "cannot hear": _cannot_hear,
    "cut off from the leader": _partial_cut,
    "swizzle": _swizzle,
    "slow network": _slow_network,
    "lossy calls": _lossy_calls,
    "server killed": _server_killed,
    "server frozen": _server_frozen,
    "server cut off from its store": _store_cut_off,
    "store refuses": _store_trouble(refuses=0.3),
    "store says no and did it": _store_trouble(unknown=0.3),
    "server dies after a commit": _store_trouble(kills=0.2),
    "server dies during a commit": _store_trouble(tears=0.2),
    "store reads stale": _store_trouble(stale=0.7, refuses=0.1),
    "store full": _store_trouble(full=True),
    "store slow": _store_trouble(slow_ms=1500),
    "user cancels": _cancels,
    "user deletes": _deletes,
    "operator drains": _drains,
}
OF_SEVERAL_SERVERS = ("cut off from the leader",)
