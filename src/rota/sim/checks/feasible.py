"""Whether a job can certainly run on the remaining machines; the scenario waits for those that can."""

from collections.abc import Iterable

from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.job import JobSpec
from rota.sim.checks.affinity import holds
from rota.sim.cluster.machine import SimMachine


def can_run(spec: JobSpec, machines: Iterable[SimMachine]) -> bool:
    """Return False for jobs that depend on where others run: whether they fit is not known."""
    if spec.near or spec.spread or (spec.gang and spec.apart):
        return False
    copies = sum(_copies(spec, machine) for machine in machines if machine.on)
    return copies >= (spec.count if spec.gang else 1)


def _copies(spec: JobSpec, machine: SimMachine) -> int:
    """Number of its tasks that fit on the empty machine."""
    labels = {**machine.labels, "node": machine.node}
    if not all(holds(constraint, labels) for constraint in spec.where):
        return 0
    has = machine.capacity
    copies = min(has.get(name, 0) // amount for name, amount in spec.needs.items() if name != GPU)
    part = spec.needs.get(GPU, 0)
    if part >= WHOLE_GPU:
        return min(copies, has.get(GPU, 0) // part)
    return min(copies, has.get(GPU, 0) // WHOLE_GPU * (WHOLE_GPU // part)) if part else copies
