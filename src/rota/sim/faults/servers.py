"""Faults of servers and their store."""

from typing import Any

from rota.sim.faults.fault import Inject, SimFault, cut, leader_of, nothing
from rota.sim.simulation import SimCluster
from rota.sim.world.store import NAME, StoreTrouble
from rota.sim.world.virtual_time import Act

TAKEN_OVER_MS = (1_500, 2_000, 2_500, 3_500)  # while another leads and the deposed leader does not know it


def _server_killed(cluster: SimCluster, fault: SimFault) -> Act:
    cluster.election.kill(leader_of(cluster, fault))
    return nothing


def _server_frozen(cluster: SimCluster, fault: SimFault) -> Act:
    server = leader_of(cluster, fault)
    # At most one server is frozen at a time.
    if not server.runs or any(other.frozen for other in cluster.servers):
        return nothing
    server.freeze()
    cluster.network.check_streams(server.name)

    def resume() -> None:
        if server.alive:
            server.resume()
            cluster.network.check_streams(server.name)

    return resume


def _two_lead(cluster: SimCluster, fault: SimFault) -> Act:
    """Another server takes over while the leader still believes to lead; nodes alternate between them."""
    leader = leader_of(cluster, fault)
    heal = cut(cluster, [(leader.name, NAME), (NAME, leader.name)] if fault.degree < 0.5 else [])
    cluster.election.revoke()

    def scatter() -> None:
        for machine in cluster.machines:
            if machine.agent.runs and machine.agent.stream is not None:
                machine.agent.disconnect("its connection broke")

    for delay_ms in TAKEN_OVER_MS:
        cluster.world.after(delay_ms, scatter)
    return heal


def _store_cut_off(cluster: SimCluster, fault: SimFault) -> Act:
    server = leader_of(cluster, fault)
    ways = ((server.name, NAME), (NAME, server.name))
    pairs = ways if fault.degree < 0.5 else ways[:1] if fault.degree < 0.75 else ways[1:]
    return cut(cluster, pairs)


def _store_trouble(**trouble: Any) -> Inject:
    def inject(cluster: SimCluster, fault: SimFault) -> Act:
        del fault
        cluster.store.trouble = cluster.store.trouble._replace(**trouble)
        return lambda: _heal(cluster, list(trouble))

    return inject


def _heal(cluster: SimCluster, names: list[str]) -> None:
    fresh = StoreTrouble()
    cluster.store.trouble = cluster.store.trouble._replace(**{name: getattr(fresh, name) for name in names})


KINDS: dict[str, Inject] = {
    "server killed": _server_killed,
    "server frozen": _server_frozen,
    "two servers lead": _two_lead,
    "server cut off from its store": _store_cut_off,
    "store refuses": _store_trouble(refuses=0.3),
    "store fails after a commit": _store_trouble(unknown=0.3),
    "server dies after a commit": _store_trouble(kills=0.2),
    "server dies during a commit": _store_trouble(tears=0.2),
    "store reads stale": _store_trouble(stale=0.7, refuses=0.1),
    "store full": _store_trouble(full=True),
    "store slow": _store_trouble(slow_ms=1500),
}
