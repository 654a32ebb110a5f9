"""Users who update a service, also to a version that fails."""

from rota.sim.faults.fault import Inject, SimFault, nothing
from rota.sim.simulation import SimCluster
from rota.sim.workloads.model import BAD, VERSION
from rota.sim.world.virtual_time import Act

ROLLOUT_JOBS = "rolled"  # prefix of the names of the services that are updated


def _rolls(cluster: SimCluster, fault: SimFault) -> Act:
    """Update a service to a version that fails soon after each start, or to a good one."""
    known, users = cluster.checks.known, cluster.users
    specs = [known.get(f"job/{job}/spec") for job in users.acknowledged.values()]
    ours = [spec for spec in specs if spec is not None and spec.name.startswith(ROLLOUT_JOBS)]
    if ours:
        spec = ours[fault.target % len(ours)]
        version = BAD if fault.degree < 0.6 else f"good-{fault.at_ms}"
        cluster.world.count(f"user: rolled out a {version.partition('-')[0]} version")
        users.update(spec.id, {"env": {VERSION: version}}, replace=True, max_parallel=None)
    return nothing


ROLLS = "user rolls out"
KINDS: dict[str, Inject] = {ROLLS: _rolls}
