"""GPUs as their drivers report them: nvidia-smi, /proc/driver/nvidia, /sys/class/drm. [I/O]"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

from rota.model.limits import GPUS_MAX
from rota.model.node import GpuUsage

_NVIDIA = Path("/proc/driver/nvidia/gpus")  # a directory for each device
_DRM = Path("/sys/class/drm")
_SMI_SECONDS = 3.0  # a driver in trouble answers late or never
_SMI_BYTES_MAX = 64 * 1024
_SMI_QUERY = "--query-gpu=name,utilization.gpu,memory.total,memory.used"
_MIB = 1024 * 1024


def models() -> list[str]:
    """The model of each device that tasks can be given, as NVIDIA-A100-SXM4-40GB; empty where unknown."""
    devices = sorted(_NVIDIA.iterdir()) if _NVIDIA.is_dir() else []
    if devices:
        return [_model(device / "information") for device in devices[:GPUS_MAX]]
    return ["-".join(gpu.name.split()) for gpu in _nvidia_smi()]


def busy() -> tuple[GpuUsage, ...]:
    """The utilisation of each device. May take seconds if a driver hangs: call it in a background thread."""
    return tuple(_nvidia_smi()) or tuple(_drm())


def _model(information: Path) -> str:
    try:
        lines = information.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    named = [line.partition(":")[2] for line in lines if line.startswith("Model:")]
    return "-".join(named[0].split()) if named else ""


def _nvidia_smi() -> list[GpuUsage]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    output = _output([program, _SMI_QUERY, "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    return [_gpu(*row) for row in rows if len(row) == 4][:GPUS_MAX]


def _gpu(name: str, utilisation: str, total: str, used: str) -> GpuUsage:
    """One row of nvidia-smi; a value that the device does not support is "[N/A]"."""
    total_mib, used_mib = _number(total), _number(used)
    return GpuUsage(
        name[:100],
        _number(utilisation),
        None if total_mib is None else total_mib * _MIB,
        None if used_mib is None else used_mib * _MIB,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 12 else None


def _output(command: list[str]) -> str:
    """The output of a command; empty if it fails, prints too much or takes too long. Its group is killed."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return ""
    assert process.stdout is not None
    with process.stdout:
        output = _read(process.stdout.fileno(), time.monotonic() + _SMI_SECONDS)
    with contextlib.suppress(subprocess.TimeoutExpired):
        if output is not None and process.wait(_SMI_SECONDS) == 0:
            return output.decode(errors="replace")
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep: leave it
            process.wait(_SMI_SECONDS)
    return ""


def _read(descriptor: int, until: float) -> bytes | None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    data = b""
    while len(data) <= _SMI_BYTES_MAX:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            return None
        chunk = os.read(descriptor, _SMI_BYTES_MAX)
        if not chunk:
            return data
        data += chunk
    return None


def _drm() -> list[GpuUsage]:
    """Cards whose driver reports their utilisation in sysfs, as that of AMD does."""
    cards = sorted(_DRM.glob("card[0-9]*/device/gpu_busy_percent"))
    return [_card(found.parent) for found in cards][:GPUS_MAX]


def _card(device: Path) -> GpuUsage:
    def read(name: str) -> str:
        try:
            return (device / name).read_text(errors="replace").strip()
        except OSError:
            return ""

    name = read("product_name") or f"{read('vendor')}:{read('device')}"
    return GpuUsage(
        name[:100],
        _number(read("gpu_busy_percent")),
        _number_of_bytes(read("mem_info_vram_total")),
        _number_of_bytes(read("mem_info_vram_used")),
    )


def _number_of_bytes(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 19 else None
