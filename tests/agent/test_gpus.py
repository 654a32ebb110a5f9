"""GPU utilisation from drivers, also from ones that hang."""

from pathlib import Path

import pytest

from rota.agent.host import gpus
from rota.model.node import GpuUsage
from rota.testing import processes

MIB = 1024 * 1024


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called nvidia-smi, to be written."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(gpus, "_NVIDIA", tmp_path / "none")
    monkeypatch.setattr(gpus, "_DRM", tmp_path / "drm")
    monkeypatch.setattr(gpus, "_SMI_SECONDS", 60.0)
    program = tmp_path / "nvidia-smi"
    program.touch(0o755)
    return program


def test_the_utilisation_of_each_device_is_reported(smi: Path) -> None:
    smi.write_text("#!/bin/sh\necho 'NVIDIA A100, 37, 40960, 1024'\necho 'Tesla T4, [N/A], 15360, [N/A]'\n")

    assert gpus.busy() == (
        GpuUsage("NVIDIA A100", 37, 40960 * MIB, 1024 * MIB),
        GpuUsage("Tesla T4", None, 15360 * MIB, None),
    )
    assert gpus.models() == ["NVIDIA-A100", "Tesla-T4"]


@pytest.mark.parametrize(
    "script",
    [
        "exit 9",
        "echo 'NVIDIA A100, 37, 40960, 1024'; exit 9",
        "echo no devices were found",
        "sleep 1000",
        "sleep 1000 & exec >&-; sleep 1000",
        "exec yes",
        "printf '\\377\\376, 1, 2\\n'",
    ],
)
def test_a_program_that_fails_hangs_or_floods_reports_nothing_and_is_killed(
    smi: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_SMI_SECONDS", 0.5)
    smi.write_text(f"#!/bin/sh\nexport ROTA_TEST={smi}\n{script}\n")

    assert gpus.busy() == ()
    processes.until(lambda: not processes.with_variable("ROTA_TEST", str(smi)), "the end of all it started")


def test_other_cards_are_read_from_sysfs(smi: Path, tmp_path: Path) -> None:
    smi.unlink()
    device = tmp_path / "drm" / "card1" / "device"
    device.mkdir(parents=True)
    for name, text in {
        "gpu_busy_percent": "12",
        "mem_info_vram_total": "17163091968",
        "vendor": "0x1002",
    }.items():
        (device / name).write_text(text + "\n")

    assert gpus.busy() == (GpuUsage("0x1002:", 12, 17163091968, None),)
    assert gpus.models() == [], "they are shown, and given to nobody unless declared"
