"""What this machine has, and how busy it is. [I/O]"""

import os
import platform
import secrets
from pathlib import Path
from typing import NamedTuple

import psutil

from rota.model.node import Load


class Machine(NamedTuple):
    machine_id: str
    boot_id: str
    capacity: dict[str, int]
    gpus: tuple[str, ...]
    labels: dict[str, str]


def look(directory: Path, declared: dict[str, int]) -> Machine:
    """What was declared replaces what is found."""
    capacity = {
        "cpu": len(os.sched_getaffinity(0)) * 1000,
        "memory": psutil.virtual_memory().total,
        "disk": psutil.disk_usage(str(directory)).total,
        "gpu": _gpus(),
        **declared,
    }
    gpus = tuple(str(number) for number in range(capacity["gpu"]))
    labels = {
        "arch": platform.machine(),
        "os": platform.system().lower(),
        "kernel": platform.release(),
        "hostname": platform.node(),
    }
    return Machine(_machine_id(directory), _boot_id(), capacity, gpus, labels)


def measure(directory: Path) -> Load:
    """Since the last call, of the whole machine."""
    return Load(
        cpu_milli=round(psutil.cpu_percent() / 100 * len(os.sched_getaffinity(0)) * 1000),
        memory_free=psutil.virtual_memory().available,
        disk_free=psutil.disk_usage(str(directory)).free,
    )


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _machine_id(directory: Path) -> str:
    """The operating system's; where it has none, one of our own, made once."""
    for path in (Path("/etc/machine-id"), directory / "machine-id"):
        try:
            found = path.read_text().strip()
        except FileNotFoundError:
            continue
        if found:
            return found
    made = secrets.token_hex(16)
    (directory / "machine-id").write_text(made + "\n")
    return made


def _gpus() -> int:
    devices = Path("/proc/driver/nvidia/gpus")
    return len(list(devices.iterdir())) if devices.is_dir() else 0
