"""What this machine has, and how busy it is. [I/O]"""

import os
import platform
import secrets
from pathlib import Path
from typing import NamedTuple

import psutil

from rota.model.amounts import WHOLE_GPU
from rota.model.limits import GPUS_MAX
from rota.model.node import Load

_NVIDIA = Path("/proc/driver/nvidia/gpus")  # a directory for each device


class Machine(NamedTuple):
    machine_id: str
    boot_id: str
    capacity: dict[str, int]
    gpus: tuple[str, ...]
    labels: dict[str, str]


def look(directory: Path, declared: dict[str, int]) -> Machine:
    """What was declared replaces what is found."""
    models = gpu_models(_NVIDIA)
    capacity = {
        "cpu": len(os.sched_getaffinity(0)) * 1000,
        "memory": psutil.virtual_memory().total,
        "disk": psutil.disk_usage(str(directory)).total,
        "gpu": len(models) * WHOLE_GPU,
        **declared,
    }
    gpus = tuple(str(number) for number in range(capacity["gpu"] // WHOLE_GPU))
    labels = {
        "arch": platform.machine(),
        "os": platform.system().lower(),
        "kernel": platform.release(),
        "hostname": platform.node(),
        **_model_label(models if gpus else []),
    }
    return Machine(_machine_id(directory), _boot_id(), capacity, gpus, labels)


def measure(directory: Path, shortage: str | None = None) -> Load:
    """Since the last call, of the whole machine."""
    return Load(
        cpu_milli=round(psutil.cpu_percent() / 100 * len(os.sched_getaffinity(0)) * 1000),
        memory_free=psutil.virtual_memory().available,
        disk_free=psutil.disk_usage(str(directory)).free,
        shortage=shortage,
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


def gpu_models(directory: Path) -> list[str]:
    """Of each device, as its driver names it, in one word: NVIDIA-A100-SXM4-40GB; empty where it does not."""
    devices = sorted(directory.iterdir()) if directory.is_dir() else []
    return [_gpu_model(device / "information") for device in devices[:GPUS_MAX]]


def _gpu_model(information: Path) -> str:
    try:
        lines = information.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    named = [line.partition(":")[2] for line in lines if line.startswith("Model:")]
    return "-".join(named[0].split()) if named else ""


def _model_label(models: list[str]) -> dict[str, str]:
    """A label is true of the whole node: devices of several models have none in common."""
    one = models[0] if len(set(models)) == 1 else ""
    return {"gpu_model": one} if one else {}
