"""With which version of its job's spec a process starts: on disk before, and never an older one on a node."""

from rota.sim.cluster.machine_os import SimChild
from rota.sim.world.invariant import InvariantBroken


class SpecVersionChecks:
    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}  # by machine and job
        self._began: dict[tuple[str, int, int], int] = {}  # by attempt: its later steps are of the same

    def born(self, machine: str, child: SimChild, on_disk: int) -> None:
        job, index, attempt = child.key
        name = f"attempt {attempt} of task {index} of job {job}"
        if child.version > on_disk:
            raise InvariantBroken(f"{name} runs version {child.version}, and on disk is {on_disk}")
        if self._began.setdefault(child.key, child.version) != child.version:
            raise InvariantBroken(
                f"{name} began as version {self._began[child.key]} and goes on as {child.version}"
            )
        if child.step > 1 or child.restart:
            return
        newest = self._newest.get((machine, job), 0)
        if child.version < newest:
            raise InvariantBroken(f"{name} runs version {child.version} on {machine}, which knew {newest}")
        self._newest[machine, job] = child.version
