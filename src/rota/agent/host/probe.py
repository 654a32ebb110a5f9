"""Detection of this machine's capacity, GPUs and labels. [I/O]"""

import errno
import os
import platform
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

import psutil

from rota.agent.host import gpus as drivers
from rota.model.amounts import WHOLE_GPU
from rota.model.limits import AMOUNT_MAX


class HostProfile(NamedTuple):
    machine_id: str
    boot_id: str
    capacity: dict[str, int]
    gpus: tuple[str, ...]
    labels: dict[str, str]


def probe_host(directory: Path, declared: dict[str, int]) -> HostProfile:
    """Detect the host's profile; `declared` amounts replace detected ones."""
    models = drivers.models()
    capacity = {
        "cpu": len(os.sched_getaffinity(0)) * 1000,
        "memory": psutil.virtual_memory().total,
        "disk": min(psutil.disk_usage(str(directory)).total, AMOUNT_MAX),  # some file systems report 16 EiB
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
    return HostProfile(_machine_id(directory), _boot_id(), capacity, gpus, labels)


def is_missing(path: str) -> bool:
    """Whether this host lacks the directory. A path that is invalid on every host is not missing."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    except ValueError:  # a NUL in it
        return False


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _machine_id(directory: Path) -> str:
    """The operating system's machine id; if it has none, one of our own, created once."""
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


def _model_label(models: list[str]) -> dict[str, str]:
    """The label of the GPU model, if all devices of the node have the same."""
    model = models[0] if len(set(models)) == 1 else ""
    return {"gpu_model": model} if model else {}
