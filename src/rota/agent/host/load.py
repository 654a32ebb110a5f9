"""How busy this machine is: looked at each second, told when due or changed by some points. [I/O]"""

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
    """The latest answer to a question that may never be answered: asked in a thread that nobody waits for."""

    def __init__(self, ask: Callable[[], T], first: T) -> None:
        self.latest = first
        self._ask = ask
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self.latest = self._ask()
            self._over.wait(_BACKGROUND_SECONDS)


class LoadSampler:
    """What was measured last, and whether the control plane should hear of it."""

    def __init__(self, directory: Path, shortage: Callable[[], str | None] = lambda: None) -> None:
        self._directory = directory
        self._shortage = shortage  # why this node takes nothing new
        self._disks: BackgroundProbe[tuple[DiskUsage, ...]] = BackgroundProbe(disks, ())
        self._gpus: BackgroundProbe[tuple[GpuUsage, ...]] = BackgroundProbe(gpus.busy, ())
        self._sent: NodeLoad | None = None
        self._sent_at = 0.0
        self._due: NodeLoad | None = None
        self.report_seconds = SAMPLE_SECONDS

    async def watch(self, due: Callable[[], None]) -> None:
        """For ever; calls `due` when there is something to tell."""
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
        """Somebody new listens."""
        self.report_seconds = report_seconds
        self._sent = None

    def pop_report(self) -> NodeLoad | None:
        """What is to be told, once."""
        due, self._due = self._due, None
        return due

    def _sample(self, now: float) -> bool:
        load = measure(self._directory, self._disks.latest, self._gpus.latest, self._shortage())
        # A little early rather than a whole look late.
        over = now - self._sent_at >= self.report_seconds - SAMPLE_SECONDS / 2
        if self._sent is not None and not over and not has_changed(self._sent, load):
            return False
        self._sent, self._sent_at, self._due = load, now, load
        return True


def has_changed(before: NodeLoad, now: NodeLoad) -> bool:
    """By so much that whoever decides should not wait for the next report."""
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
    """Since the last call, of the whole machine."""
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
    """Local file systems, each once, the largest first. One that hangs is why nobody waits for this."""
    found: dict[str, DiskUsage] = {}
    for part in psutil.disk_partitions(all=False):
        try:
            usage = psutil.disk_usage(part.mountpoint)
        except OSError:
            continue
        if usage.total and part.device not in found:
            found[part.device] = DiskUsage(part.mountpoint, usage.total, usage.free)
    return tuple(sorted(found.values(), key=lambda disk: (-disk.total, disk.path))[:DISKS_MAX])
