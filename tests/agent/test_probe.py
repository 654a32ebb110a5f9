"""Detection of the host's capacity and GPUs."""

from pathlib import Path

import pytest

from rota.agent.host import gpus, probe

A100 = "NVIDIA A100-SXM4-40GB"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which a driver lists its devices."""
    directory = tmp_path / "gpus"
    monkeypatch.setattr(gpus, "_NVIDIA", directory)
    return directory


def plug_in(driver: Path, slot: str, model: str) -> None:
    device = driver / slot
    device.mkdir(parents=True)
    (device / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 33\nGPU UUID: \t GPU-1\n")


def test_each_device_counts_a_thousand_and_is_numbered(tmp_path: Path, driver: Path) -> None:
    plug_in(driver, "0000:3b:00.0", A100)
    plug_in(driver, "0000:af:00.0", A100)
    machine = probe.probe_host(tmp_path, {})

    assert (machine.capacity["gpu"], machine.gpus) == (2000, ("0", "1"))
    assert machine.labels["gpu_model"] == "NVIDIA-A100-SXM4-40GB"


def test_devices_of_several_models_have_no_label_in_common(tmp_path: Path, driver: Path) -> None:
    plug_in(driver, "0000:3b:00.0", A100)
    plug_in(driver, "0000:af:00.0", "Tesla T4")
    machine = probe.probe_host(tmp_path, {})

    assert machine.capacity["gpu"] == 2000
    assert "gpu_model" not in machine.labels


def test_a_device_without_a_model_counts(tmp_path: Path, driver: Path) -> None:
    (driver / "0000:3b:00.0").mkdir(parents=True)
    machine = probe.probe_host(tmp_path, {})

    assert machine.gpus == ("0",)
    assert "gpu_model" not in machine.labels


def test_a_machine_without_a_driver_has_no_gpu(tmp_path: Path, driver: Path) -> None:
    machine = probe.probe_host(tmp_path, {})

    assert (machine.capacity["gpu"], machine.gpus) == (0, ())
    assert "gpu_model" not in machine.labels


def test_declared_amounts_replace_detected_ones(tmp_path: Path, driver: Path) -> None:
    plug_in(driver, "0000:3b:00.0", A100)

    assert probe.probe_host(tmp_path, {"gpu": 3000}).gpus == ("0", "1", "2")
    hidden = probe.probe_host(tmp_path, {"gpu": 0})
    assert hidden.gpus == ()
    assert "gpu_model" not in hidden.labels
