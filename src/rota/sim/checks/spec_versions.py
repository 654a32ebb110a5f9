"""Spec versions of processes: durable before the start, and never older than one the node has run."""

from rota.sim.cluster.machine_os import SimChild
from rota.sim.world.invariant import InvariantBroken


class SpecVersionChecks:
    """Remembers the version of each attempt and the newest one of each job on each machine."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}  # by machine and job
        self._began: dict[tuple[str, int, int], int] = {}  # by attempt: later steps run the same version

    def process_started(self, machine: str, child: SimChild, on_disk: int) -> None:
        job, index, attempt = child.key
        name = f"attempt {attempt} of task {index} of job {job}"
        if child.version > on_disk:
            raise InvariantBroken(f"{name} runs version {child.version}, and version {on_disk} is on disk")
        if self._began.setdefault(child.key, child.version) != child.version:
            raise InvariantBroken(
                f"{name} started as version {self._began[child.key]} and continues as {child.version}"
            )
        if child.step > 1 or child.restart:
            return
        newest = self._newest.get((machine, job), 0)
        if child.version < newest:
            raise InvariantBroken(f"{name} runs version {child.version} on {machine}, which has run {newest}")
        self._newest[machine, job] = child.version
