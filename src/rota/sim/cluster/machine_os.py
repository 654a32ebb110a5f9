"""What a simulated machine offers to its keeper: disk, journal, processes, signals and clocks."""

import errno
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rota.keeper.attempt import ExitStatus, Kernel
from rota.keeper.journal import Journal
from rota.keeper.limits.cgroups import Cgroup
from rota.keeper.output.index import Extent
from rota.keeper.output.segments import MeasuredExtent, Segment, SegmentStore
from rota.keeper.process.commands import CannotRun
from rota.keeper.process.pid_namespace import PidNamespace
from rota.keeper.protocol.wire import ConfigureOrder, KeeperJobSpec
from rota.keeper.resources.reservations import AttemptKey
from rota.keeper.spawn import NO_ISOLATION, Isolation, NodeResourceExhausted, Spawner
from rota.sim.world.virtual_time import SimClock

MISSING = "missing"  # a command that exists on no machine
TERM_MS = 40  # from SIGTERM to the exit of a program that handles it


@dataclass
class SimDisk:
    """The disk of a machine; it survives the keeper, but what is not synced may not survive a power loss."""

    journal: str = ""
    synced: int = 0  # length of the synced prefix
    full: bool = False
    # Unacknowledged results -> end of their line in the journal.
    results: dict[AttemptKey, int] = field(default_factory=dict)

    def append(self, lines: Sequence[str]) -> None:
        end = len(self.journal)
        for line in lines:
            end += len(line)
            self._track_result(line, end)
        self.journal += "".join(lines)

    def replace(self, lines: Iterator[str]) -> None:
        """Write a compacted journal, which is synced; results in it stay on disk."""
        self.journal = "".join(lines)
        self.synced = len(self.journal)
        # Compaction syncs, so these results survive any later power loss.
        self.results = dict.fromkeys(self.results, 0)

    def crash(self, keep: float) -> None:
        """Lose power: of the unsynced tail a share `keep` survives, possibly cut within a line."""
        self.journal = self.journal[: self.synced + int((len(self.journal) - self.synced) * keep)]
        self.results = {key: end for key, end in self.results.items() if end <= len(self.journal)}

    def copy(self) -> "SimDisk":
        return replace(self, results=dict(self.results))

    def _track_result(self, line: str, end: int) -> None:
        if line.startswith('["end",'):
            job, index, attempt, state, *_ = json.loads(line)[1]
            # A lost attempt has no result that could be lost again.
            if state != "lost":
                self.results[job, index, attempt] = end
        elif line.startswith('["ack",'):
            for job, index, attempt in json.loads(line)[1]:
                self.results.pop((job, index, attempt), None)


class SimJournal(Journal):
    """The keeper's journal, on a SimDisk."""

    def __init__(self, disk: SimDisk, lines: Iterator[str]) -> None:
        self._disk = disk
        self._pending: list[str] = []
        self.rewrite(lines)

    def write(self, lines: Sequence[str] = ()) -> None:
        if (self._pending or lines) and self._disk.full:
            raise OSError(errno.ENOSPC, "no space left")
        self._disk.append([*self._pending, *lines])
        self._pending.clear()

    def sync(self) -> None:
        self._disk.synced = len(self._disk.journal)

    def is_overgrown(self) -> bool:
        return len(self._disk.journal) > 1 << 20

    def rewrite(self, lines: Iterator[str]) -> None:
        self._disk.replace(lines)
        self._pending.clear()


class SimOutputs(SegmentStore):
    """Output segments that store nothing: the simulator reads no output."""

    def __init__(self) -> None:
        """Skip opening the directory."""

    def allocate(self, keys: Sequence[AttemptKey]) -> list[Segment]:
        return [Segment(0, b"", Extent(0, 0)) for _ in keys]

    def measure(self, segment: Segment) -> MeasuredExtent:
        return MeasuredExtent(segment.at, is_final=True)

    def release(self, key: AttemptKey, segment: Segment, measure: MeasuredExtent) -> None:
        """Do nothing: no segment was allocated."""

    def flush(self) -> None:
        """Do nothing: there is no index."""

    def recreate_directory(self, job: str) -> None:
        """Do nothing: there is no directory."""

    def forget(self, job: str) -> None:
        """Do nothing: no state is kept per job."""


class TaskBehaviour:
    """How the process of one attempt behaves: run time, exit code, reaction to SIGTERM."""

    def __init__(self, run_ms: int, exit_code: int = 0, *, deaf: bool = False, missing: bool = False) -> None:
        self.run_ms = run_ms
        self.exit_code = exit_code
        self.deaf = deaf  # ignores SIGTERM
        self.missing = missing  # its command does not exist


@dataclass
class SimChild:
    """One process, running or a zombie."""

    key: AttemptKey
    behaviour: TaskBehaviour
    started_ms: int
    gpus: tuple[str, ...] = ()
    step: int = 0  # number of the attempt's step, from 1; 0: no steps
    is_last: bool = True  # of the steps
    restart: int = 0  # number of earlier restarts of the attempt
    version: int = 1  # of its job's spec
    status: int | None = None  # once it has ended: exit code, or the negated signal number
    leased: bool = False  # holds a lease: dies with the keeper


Births = Callable[[int, SimChild], None]


@dataclass
class SimProcesses:
    """All processes of a machine; those without a lease outlive the keeper that started them."""

    children: dict[int, SimChild] = field(default_factory=dict)
    next_pid: int = 100

    def live(self) -> Iterator[SimChild]:
        return (child for child in self.children.values() if child.status is None)


class SimSpawner(Spawner):
    """Spawns SimChild processes; the simulator has no cgroups, pid namespaces or environments."""

    def __init__(
        self,
        processes: SimProcesses,
        behaviour: Callable[[AttemptKey, KeeperJobSpec], TaskBehaviour],
        clock: SimClock,
        born: Births,
        is_short: Callable[[], bool],
    ) -> None:
        self._processes = processes
        self._behaviour_of = behaviour
        self._clock = clock
        self._process_started = born
        self._is_short = is_short  # whether the machine is out of process ids

    def configure(self, order: ConfigureOrder) -> None:
        """Do nothing: simulated processes have no environment and no limits."""

    def labels(self) -> dict[str, str]:
        return {}

    def create_cgroup(self, key: AttemptKey, spec: KeeperJobSpec) -> Cgroup | None:
        """Do nothing: no simulated process exceeds a limit."""

    def update_limits(self, group: Cgroup | None, spec: KeeperJobSpec) -> None:
        """Do nothing: no simulated process exceeds a limit."""

    def forget(self, job: str) -> None:
        """Do nothing: no state is kept per job."""

    def create_pid_namespace(self, spec: KeeperJobSpec, before: PidNamespace | None) -> PidNamespace | None:
        """Do nothing: processes that die with the keeper are known by the lease in their spec."""

    def release(
        self, key: AttemptKey, spec: KeeperJobSpec, group: Cgroup | None, namespace: PidNamespace | None
    ) -> None:
        """Do nothing: no state is kept per job."""

    def spawn(
        self,
        key: AttemptKey,
        spec: KeeperJobSpec,
        gpus: Sequence[str],
        output: bytes,
        isolation: Isolation = NO_ISOLATION,
    ) -> int:
        del output, isolation
        if self._is_short():
            raise NodeResourceExhausted("no process to spare on this node")
        behaviour = self._behaviour_of(key, spec)
        if behaviour.missing:
            raise CannotRun(127, "command not found")
        pid = self._processes.next_pid
        self._processes.next_pid += 1
        is_last = spec.step == len(spec.steps)
        child = SimChild(
            key, behaviour, self._clock.boot_ms(), tuple(gpus), spec.step, is_last, spec.restarts
        )
        child.leased = spec.lease_ms is not None
        child.version = spec.version
        self._processes.children[pid] = child
        self._process_started(pid, child)
        return pid


class SimKernel(Kernel):
    """The clocks and signals of a simulated machine."""

    def __init__(
        self, processes: SimProcesses, clock: SimClock, ended: Callable[[int, int, int], None]
    ) -> None:
        self._processes = processes
        self._clock = clock
        self._ended = ended  # called with a pid, the delay until its exit, and the status

    def now_ns(self) -> int:
        return self._clock.boot_ms() * 1_000_000

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def signal_group(self, group: int, signum: int) -> None:
        child = self._processes.children.get(group)
        if child is None or child.status is not None:
            return
        if signum == signal.SIGKILL:
            self._ended(group, 1, -signum)
        elif signum == signal.SIGTERM and not child.behaviour.deaf:
            self._ended(group, TERM_MS, -signum)

    def has_members(self, group: int) -> bool:
        del group
        return False

    def has_ended(self, pid: int) -> bool:
        return pid != 0 and self._processes.children[pid].status is not None

    def reap_stray(self, pid: int) -> int | None:
        child = self._processes.children.pop(pid, None)
        return None if child is None else child.status

    def reap(self, pid: int, started_ns: int) -> ExitStatus:
        status = self._processes.children.pop(pid).status
        assert status is not None
        ran_us = (self.now_ns() - started_ns) // 1000
        return ExitStatus(status if status >= 0 else None, -status if status < 0 else None, ran_us)
