"""What can befall servers and their store, and what people do who change their mind."""

from typing import Any

from rota.model.node import Eligibility
from rota.sim.cluster import Cluster
from rota.sim.fault import Befall, Fault, any_machine, cut, leader_of, nothing
from rota.sim.medium import NAME, Trouble
from rota.sim.world import Act

_HURRIED = 0.25  # of the wishes for a node: drains with a deadline


def _server_killed(cluster: Cluster, fault: Fault) -> Act:
    cluster.election.kill(leader_of(cluster, fault))
    return nothing


def _server_frozen(cluster: Cluster, fault: Fault) -> Act:
    server = leader_of(cluster, fault)
    if not server.runs or any(other.frozen for other in cluster.servers):  # one at a time: most are well
        return nothing
    server.freeze()
    cluster.network.look(server.name)

    def thaw() -> None:
        if server.alive:
            server.thaw()
            cluster.network.look(server.name)

    return thaw


def _store_cut_off(cluster: Cluster, fault: Fault) -> Act:
    server = leader_of(cluster, fault)
    ways = ((server.name, NAME), (NAME, server.name))
    pairs = ways if fault.how < 0.5 else ways[:1] if fault.how < 0.75 else ways[1:]
    return cut(cluster, pairs)


def _store_trouble(**trouble: Any) -> Befall:
    def begin(cluster: Cluster, fault: Fault) -> Act:
        del fault
        cluster.medium.trouble = cluster.medium.trouble._replace(**trouble)
        return lambda: _mend(cluster, list(trouble))

    return begin


def _mend(cluster: Cluster, names: list[str]) -> None:
    fresh = Trouble()
    cluster.medium.trouble = cluster.medium.trouble._replace(**{name: getattr(fresh, name) for name in names})


def _cancels(cluster: Cluster, fault: Fault) -> Act:
    jobs = [job for job in cluster.users.acknowledged.values() if job not in cluster.users.deleted]
    if jobs:
        cluster.users.cancel(jobs[fault.who % len(jobs)])
    return nothing


def _deletes(cluster: Cluster, fault: Fault) -> Act:
    jobs = list(cluster.users.acknowledged.values())
    if jobs:
        cluster.users.delete(jobs[fault.who % len(jobs)])
    return nothing


def _drains(cluster: Cluster, fault: Fault) -> Act:
    name = any_machine(cluster, fault).node
    wish = Eligibility.DRAINING if fault.how < 0.5 else Eligibility.CORDONED
    within_seconds = 10 * fault.how if fault.how < _HURRIED else None
    cluster.users.wish(name, wish, within_seconds)
    return lambda: cluster.users.wish(name, Eligibility.OPEN)


KINDS: dict[str, Befall] = {
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
