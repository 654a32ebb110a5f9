"""Users who cancel, submit wrongly, delete, or stop waiting; and operators who look after the cluster."""

from rota.model.ids import JobId
from rota.model.lifecycle import NodeState
from rota.model.limits import BRAKE_NODES
from rota.sim.checks.feasible import can_run
from rota.sim.cluster.machine import SimMachine
from rota.sim.faults.fault import Inject, SimFault, nothing
from rota.sim.simulation import SimCluster
from rota.sim.workloads.model import Arrival, Behaviour
from rota.sim.world.virtual_time import Act

HASTY_MS = 2_500  # latest cancel after the submit
SOON_MS = 1_500  # by then nodes have the order to stop a canceled job


def _cancels(cluster: SimCluster, fault: SimFault) -> Act:
    """Cancel a job, in most cases a live one."""
    jobs = _not_deleted(cluster)
    chosen = (_live(cluster, jobs) if fault.degree < 0.9 else []) or jobs
    if chosen:
        cluster.users.cancel(chosen[fault.target % len(chosen)])
    return nothing


def _cancels_and_the_agent_dies(cluster: SimCluster, fault: SimFault) -> Act:
    """Cancel a job and kill the agents that run it before it has stopped; some machines die then."""
    running = {
        JobId(child.key[0]): None for machine in cluster.machines for child in machine.processes.live()
    }
    jobs = _live(cluster, [job for job in _not_deleted(cluster) if job in running])
    if not jobs:
        return nothing
    job = jobs[fault.target % len(jobs)]
    cluster.users.cancel(job)

    def kill_agents() -> None:
        for machine in cluster.machines:
            if machine.on and any(child.key[0] == job for child in machine.processes.live()):
                machine.agent.kill()
                cluster.world.after(300, _restart(machine))
                if fault.degree > 0.8:
                    cluster.disturb(machine)
                    cluster.world.after(1_500, lambda machine=machine: _power_lost(machine))  # type: ignore[misc]

    cluster.world.after(fault.degree * SOON_MS, kill_agents)
    return nothing


def _restart(machine: SimMachine) -> Act:
    return lambda: None if machine.agent.alive or not machine.on else machine.agent.start()


def _power_lost(machine: SimMachine) -> None:
    if machine.on:
        machine.lose_power(1.0)
        machine.world.after(2_000, lambda: None if machine.on else machine.switch_on())


def _regrets(cluster: SimCluster, fault: SimFault) -> Act:
    """Submit many short tasks and cancel them while some run and others are queued on nodes."""
    name = f"regretted-{fault.at_ms}-{fault.target}"
    spec = {"name": name, "command": ["work"], "count": 300, "cpu": 0.5, "grace": "1s"}
    cluster.users.submit(Arrival(fault.at_ms, spec, Behaviour(15)), name)

    def cancel() -> None:
        job = cluster.users.acknowledged.get(name)
        if job is not None:
            cluster.users.cancel(job)

    cluster.world.after(fault.degree * HASTY_MS, cancel)
    return nothing


def _errs(cluster: SimCluster, fault: SimFault) -> Act:
    """Submit another body, sometimes an invalid one, under a used key."""
    keys = list(cluster.users.acknowledged)
    if keys:
        key = keys[fault.target % len(keys)]
        other = {"name": "other", "command": ["work"], "count": 0 if fault.degree < 0.2 else 7}
        cluster.users.submit_conflicting(other | {"namespace": cluster.users.namespaces[key]}, key)
    return nothing


def _deletes(cluster: SimCluster, fault: SimFault) -> Act:
    jobs = list(cluster.users.acknowledged.values())
    if jobs:
        cluster.users.delete(jobs[fault.target % len(jobs)])
    return nothing


def operate(cluster: SimCluster) -> None:
    """What the operators do every now and then: release quarantined tasks, confirm nodes that are gone."""
    _release(cluster)
    _confirm_gone(cluster)


def _release(cluster: SimCluster) -> None:
    """Release quarantined tasks; cancel the jobs of every fourth."""
    for job in cluster.checks.held:
        if int(job) % 4 == 0:
            cluster.users.cancel(job)
        else:
            cluster.users.release(job)


def _confirm_gone(cluster: SimCluster) -> None:
    """Confirm that machines which are off are gone, while the brake keeps their nodes from being lost."""
    known = cluster.checks.known
    # Also machines that a provider removed.
    all_machines = (
        *cluster.machines,
        *cluster.checks.nodes.machines.values(),
    )
    off = [machine.node for machine in all_machines if not machine.on]
    statuses = [known.get(f"node/{node}/status") for node in dict.fromkeys(off)]
    silent = [status.id for status in statuses if status is not None and status.state is NodeState.SUSPECT]
    if len(silent) >= BRAKE_NODES:
        cluster.users.confirm_gone(silent)


def cancel_infeasible(cluster: SimCluster) -> None:
    """Cancel live jobs that cannot run, or not certainly."""
    users, known = cluster.users, cluster.checks.known
    for job in _live(cluster, [job for job in users.acknowledged.values() if f"job/{job}/spec" in known]):
        spec, intent = known[f"job/{job}/spec"], known.get(f"job/{job}/wish")
        was_canceled = intent is not None and intent.cancel  # the whole job, not only some tasks
        if not was_canceled and not can_run(spec, cluster.hosts(spec)):
            cluster.world.count("user: canceled an infeasible job")
            users.cancel(job)


def _not_deleted(cluster: SimCluster) -> list[JobId]:
    users = cluster.users
    return [job for job in users.acknowledged.values() if job not in users.deleted]


def _live(cluster: SimCluster, jobs: list[JobId]) -> list[JobId]:
    statuses = {job: cluster.checks.known.get(f"job/{job}/status") for job in jobs}
    return [job for job, status in statuses.items() if status is None or not status.ended]


KINDS: dict[str, Inject] = {
    "user cancels": _cancels,
    "user cancels and the agent dies": _cancels_and_the_agent_dies,
    "user cancels soon": _regrets,
    "user submits wrongly": _errs,
    "user deletes": _deletes,
}
