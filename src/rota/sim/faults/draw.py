"""The table of all faults, the draw of a list of them from a seed, and their injection."""

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
from rota.sim.faults.fault import Inject, SimFault
from rota.sim.faults.operators import LIMITED, TAINTED
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act

KINDS: dict[str, Inject] = {
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
# The last one is long enough to lose a node.
LENGTHS_MS = (
    (1, 300),
    (1, 3_000),
    (1, 12_000),
    (1, 45_000),
    (35_000, 90_000),
)
OF_DEMANDS = (LIMITED, TAINTED)  # drawn with the jobs that they concern
DRAWN_ELSEWHERE = (*OF_DEMANDS, *user_actions.KINDS, *rollouts.KINDS, *providers.KINDS)
OF_SEVERAL_SERVERS = ("cut off from the leader", "two servers lead")


def draw(rng: Random, length_ms: int, *, servers: int) -> list[SimFault]:
    """Draw one to eight kinds of faults, each of them one to six times."""
    kinds = [kind for kind in KINDS if servers > 1 or kind not in OF_SEVERAL_SERVERS]
    kinds = [kind for kind in kinds if kind not in DRAWN_ELSEWHERE]
    chosen = rng.sample(kinds, rng.randint(1, min(8, len(kinds))))
    faults = []
    for kind in chosen:
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            shortest_ms, longest_ms = rng.choice(LENGTHS_MS)
            faults.append(
                SimFault(
                    rng.randrange(length_ms),
                    kind,
                    rng.randrange(1000),
                    rng.randint(shortest_ms, longest_ms),
                    rng.random(),
                )
            )
    return sorted(faults)


def inject_faults(cluster: SimCluster, faults: list[SimFault], until_ms: int) -> None:
    """Schedule the start and the end of each fault; all have ended by `until_ms`."""
    for fault in faults:
        cluster.world.after(fault.at_ms, _injection(cluster, fault, until_ms))


def _injection(cluster: SimCluster, fault: SimFault, until_ms: int) -> Act:
    def inject() -> None:
        world = cluster.world
        world.count(f"fault: {fault.kind}")
        world.record("fault", f"{fault.kind} begins, {fault.target} {fault.degree:.2f}")
        undo = KINDS[fault.kind](cluster, fault)

        # Liveness: no fault outlasts `until_ms`, so that every job can end after it.

        def end() -> None:
            world.record("fault", f"{fault.kind} ends")
            undo()

        world.after(min(fault.for_ms, max(0, until_ms - world.now_ms)), end)

    return inject
