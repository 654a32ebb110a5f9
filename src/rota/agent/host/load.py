"""Load of this machine: sampled each second, reported when due or when it changed by some points. [I/O]"""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import psutil

from rota.agent.host import gpus
from rota.model.limits import DISKS_MAX, REPORT_POINTS
from rota.model.node import DiskUsage, GpuUsage, NodeLoad

SAMPLE_SECONDS = 1.0
_BACKGROUND_SECONDS = 10.0
T = TypeVar("T")


class BackgroundProbe(Generic[T]):
    """Caches the latest result of a call that may hang, made in a daemon thread."""

    def __init__(self, call: Callable[[], T], first: T) -> None:
        self.latest = first
        self._call = call
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.latest = self._call()
            self._stopped.wait(_BACKGROUND_SECONDS)


class LoadSampler:
    """Samples the load, and decides when the server gets a report of it."""

    def __init__(self, directory: Path, shortage: Callable[[], str | None] = lambda: None) -> None:
        self._directory = directory
        self._shortage = shortage  # why this node accepts no new tasks
        self._disks: BackgroundProbe[tuple[DiskUsage, ...]] = BackgroundProbe(disks, ())
        self._gpus: BackgroundProbe[tuple[GpuUsage, ...]] = BackgroundProbe(gpus.busy, ())
        self._sent: NodeLoad | None = None
        self._sent_at = 0.0
        self._due: NodeLoad | None = None
        self.report_seconds = SAMPLE_SECONDS

    async def watch(self, due: Callable[[], None]) -> None:
        """Sample until cancelled; call `due` when there is a report to send."""
        self._disks.start()
        self._gpus.start()
        try:
            while True:
                if self._sample(asyncio.get_running_loop().time()):
                    due()
                await asyncio.sleep(SAMPLE_SECONDS)
        finally:
            self._disks.stop()
            self._gpus.stop()

    def reset(self, report_seconds: float) -> None:
        """Start over with a new server: it gets a report at the next sample."""
        self.report_seconds = report_seconds
        self._sent = None

    def pop_report(self) -> NodeLoad | None:
        """Pop the pending load report, if any."""
        due, self._due = self._due, None
        return due

    def _sample(self, now: float) -> bool:
        load = measure(self._directory, self._disks.latest, self._gpus.latest, self._shortage())
        # Half a sample early rather than a whole one late.
        is_due = now - self._sent_at >= self.report_seconds - SAMPLE_SECONDS / 2
        if self._sent is not None and not is_due and not has_changed(self._sent, load):
            return False
        self._sent, self._sent_at, self._due = load, now, load
        return True


def has_changed(before: NodeLoad, now: NodeLoad) -> bool:
    """Whether the load changed so much that the scheduler should get it before the next report is due."""
    cpu = abs(now.cpu_milli - before.cpu_milli) * 100 >= REPORT_POINTS * max(1, now.cores) * 1000
    freed = abs((now.memory_free or 0) - (before.memory_free or 0))
    memory = freed * 100 >= REPORT_POINTS * max(1, now.memory_total)
    return cpu or memory or now.shortage != before.shortage


def measure(
    directory: Path,
    disks: tuple[DiskUsage, ...] = (),
    busy: tuple[GpuUsage, ...] = (),
    shortage: str | None = None,
) -> NodeLoad:
    """The load of the whole machine; CPU use is counted since the last call."""
    cores = len(os.sched_getaffinity(0))
    memory, swap, own = psutil.virtual_memory(), psutil.swap_memory(), os.statvfs(directory)
    return NodeLoad(
        cpu_milli=round(psutil.cpu_percent() / 100 * cores * 1000),
        memory_free=memory.available,
        disk_free=own.f_bavail * own.f_frsize,
        cores=cores,
        waiting_milli=round(os.getloadavg()[0] * 1000),
        memory_total=memory.total,
        swap_total=swap.total,
        swap_free=swap.free,
        disks=disks,
        gpus=busy,
        shortage=shortage,
    )


def disks() -> tuple[DiskUsage, ...]:
    """Local file systems, each once, the largest first. May hang on a file system that does."""
    found: dict[str, DiskUsage] = {}
    for part in psutil.disk_partitions(all=False):
        try:
            usage = psutil.disk_usage(part.mountpoint)
        except OSError:
            continue
        if usage.total and part.device not in found:
            found[part.device] = DiskUsage(part.mountpoint, usage.total, usage.free)
    return tuple(sorted(found.values(), key=lambda disk: (-disk.total, disk.path))[:DISKS_MAX])
