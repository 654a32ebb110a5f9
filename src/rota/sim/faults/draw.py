"""Everything that can go wrong, as a list of faults drawn from a seed: when, what, to whom, for how long."""

from random import Random

from rota.sim.faults import (
    machines,
    network,
    operators,
    providers,
    rollouts,
    subscribers,
    user_actions,
    users,
)
from rota.sim.faults import (
    servers as server_faults,
)
from rota.sim.faults.fault import Befall, SimFault
from rota.sim.faults.operators import LIMITED, TAINTED
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act

KINDS: dict[str, Befall] = {
    **machines.KINDS,
    **network.KINDS,
    **server_faults.KINDS,
    **users.KINDS,
    **subscribers.KINDS,
    **operators.KINDS,
    **user_actions.KINDS,
    **rollouts.KINDS,
    **providers.KINDS,
}
LENGTHS_MS = ((1, 300), (1, 3_000), (1, 12_000), (1, 45_000), (35_000, 90_000))  # the last: a node is lost
OF_DEMANDS = (LIMITED, TAINTED)  # where somebody asks for it
DRAWN_ELSEWHERE = (*OF_DEMANDS, *user_actions.KINDS, *rollouts.KINDS, *providers.KINDS)
OF_SEVERAL_SERVERS = ("cut off from the leader", "two servers lead")


def draw(luck: Random, length_ms: int, *, servers: int) -> list[SimFault]:
    """A mix of its own for every seed: a few kinds, each more or less often."""
    kinds = [kind for kind in KINDS if servers > 1 or kind not in OF_SEVERAL_SERVERS]
    kinds = [kind for kind in kinds if kind not in DRAWN_ELSEWHERE]
    chosen = luck.sample(kinds, luck.randint(1, min(8, len(kinds))))
    faults = []
    for kind in chosen:
        for _ in range(luck.choice((1, 1, 2, 3, 6))):
            shortest_ms, longest_ms = luck.choice(LENGTHS_MS)
            faults.append(
                SimFault(
                    luck.randrange(length_ms),
                    kind,
                    luck.randrange(1000),
                    luck.randint(shortest_ms, longest_ms),
                    luck.random(),
                )
            )
    return sorted(faults)


def befall(cluster: SimCluster, faults: list[SimFault], until_ms: int) -> None:
    """Each begins and ends in its time; by `until_ms` all have ended."""
    for fault in faults:
        cluster.world.after(fault.at_ms, _happens(cluster, fault, until_ms))


def _happens(cluster: SimCluster, fault: SimFault, until_ms: int) -> Act:
    def happen() -> None:
        world = cluster.world
        world.count(f"fault: {fault.kind}")
        world.record("fault", f"{fault.kind} begins, {fault.who} {fault.how:.2f}")
        undo = KINDS[fault.kind](cluster, fault)

        def end() -> None:
            world.record("fault", f"{fault.kind} ends")
            undo()

        world.after(min(fault.for_ms, max(0, until_ms - world.now_ms)), end)

    return happen
