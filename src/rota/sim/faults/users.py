"""What people do who change their mind, err, or give up."""

from rota.model.ids import JobId
from rota.model.lifecycle import NodeState
from rota.model.limits import BRAKE_NODES
from rota.sim.checks.feasible import can_run
from rota.sim.cluster.machine import SimMachine
from rota.sim.faults.fault import Befall, SimFault, nothing
from rota.sim.simulation import SimCluster
from rota.sim.workloads.model import Arrival, Behaviour
from rota.sim.world.virtual_time import Act

HASTY_MS = 2_500  # after which at the latest a user regrets
SOON_MS = 1_500  # in which a node was told to stop what was canceled


def _cancels(cluster: SimCluster, fault: SimFault) -> Act:
    """As a rule what has not ended."""
    jobs = _not_deleted(cluster)
    chosen = (_live(cluster, jobs) if fault.how < 0.9 else []) or jobs
    if chosen:
        cluster.users.cancel(chosen[fault.who % len(chosen)])
    return nothing


def _cancels_and_the_agent_dies(cluster: SimCluster, fault: SimFault) -> Act:
    """The agents of those that run the job are back before it has stopped; some machines die after that."""
    running = {JobId(child.key[0]): None for one in cluster.machines for child in one.processes.live()}
    jobs = _live(cluster, [job for job in _not_deleted(cluster) if job in running])
    if not jobs:
        return nothing
    job = jobs[fault.who % len(jobs)]
    cluster.users.cancel(job)

    def harm() -> None:
        for machine in cluster.machines:
            if machine.on and any(child.key[0] == job for child in machine.processes.live()):
                machine.agent.kill()
                cluster.world.after(300, _starts_again(machine))
                if fault.how > 0.8:
                    cluster.disturb(machine)
                    cluster.world.after(1_500, lambda machine=machine: _power_lost(machine))  # type: ignore[misc]

    cluster.world.after(fault.how * SOON_MS, harm)
    return nothing


def _starts_again(machine: SimMachine) -> Act:
    return lambda: None if machine.agent.alive or not machine.on else machine.agent.start()


def _power_lost(machine: SimMachine) -> None:
    if machine.on:
        machine.lose_power(1.0)
        machine.world.after(2_000, lambda: None if machine.on else machine.switch_on())


def _regrets(cluster: SimCluster, fault: SimFault) -> Act:
    """Many short tasks, canceled while some run and others wait on their nodes."""
    name = f"regretted-{fault.at_ms}-{fault.who}"
    spec = {"name": name, "command": ["work"], "count": 300, "cpu": 0.5, "grace": "1s"}
    cluster.users.submit(Arrival(fault.at_ms, spec, Behaviour(15)), name)

    def cancel() -> None:
        job = cluster.users.acknowledged.get(name)
        if job is not None:
            cluster.users.cancel(job)

    cluster.world.after(fault.how * HASTY_MS, cancel)
    return nothing


def _errs(cluster: SimCluster, fault: SimFault) -> Act:
    """Asks for something else under a key that has been used, or for what there is not."""
    keys = list(cluster.users.acknowledged)
    if keys:
        key = keys[fault.who % len(keys)]
        other = {"name": "other", "command": ["work"], "count": 0 if fault.how < 0.2 else 7}
        cluster.users.submit_wrongly(other | {"namespace": cluster.users.namespaces[key]}, key)
    return nothing


def _deletes(cluster: SimCluster, fault: SimFault) -> Act:
    jobs = list(cluster.users.acknowledged.values())
    if jobs:
        cluster.users.delete(jobs[fault.who % len(jobs)])
    return nothing


def look_after(cluster: SimCluster) -> None:
    """What somebody does now and then who is responsible for it."""
    _release(cluster)
    _say_gone(cluster)


def _release(cluster: SimCluster) -> None:
    """Whoever looks after the cluster believes that nobody's work is to blame, or ends it."""
    for job in cluster.checks.held:
        if int(job) % 4 == 0:
            cluster.users.cancel(job)
        else:
            cluster.users.release(job)


def _say_gone(cluster: SimCluster) -> None:
    """Somebody has looked at machines that are off, while so many are silent that nothing is replaced."""
    known = cluster.checks.known
    known_ones = (
        *cluster.machines,
        *cluster.checks.nodes.machines.values(),
    )  # also what a provider took back
    off = [machine.node for machine in known_ones if not machine.on]
    statuses = [known.get(f"node/{node}/status") for node in dict.fromkeys(off)]
    silent = [status.id for status in statuses if status is not None and status.state is NodeState.SUSPECT]
    if len(silent) >= BRAKE_NODES:
        cluster.users.confirm_gone(silent)


def give_up(cluster: SimCluster) -> None:
    """Nobody waits for ever for what cannot be had, or not surely."""
    users, known = cluster.users, cluster.checks.known
    for job in _live(cluster, [job for job in users.acknowledged.values() if f"job/{job}/spec" in known]):
        spec, wish = known[f"job/{job}/spec"], known.get(f"job/{job}/wish")
        was_canceled = wish is not None and wish.cancel  # the whole of it, not some of its tasks
        if not was_canceled and not can_run(spec, cluster.hosts(spec)):
            cluster.world.count("user: gave up waiting")
            users.cancel(job)


def _not_deleted(cluster: SimCluster) -> list[JobId]:
    users = cluster.users
    return [job for job in users.acknowledged.values() if job not in users.deleted]


def _live(cluster: SimCluster, jobs: list[JobId]) -> list[JobId]:
    statuses = {job: cluster.checks.known.get(f"job/{job}/status") for job in jobs}
    return [job for job, status in statuses.items() if status is None or not status.ended]


KINDS: dict[str, Befall] = {
    "user cancels": _cancels,
    "user cancels and the agent dies": _cancels_and_the_agent_dies,
    "user regrets": _regrets,
    "user errs": _errs,
    "user deletes": _deletes,
}
