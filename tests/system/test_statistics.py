"""What nodes report about themselves, and how often, by real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program called nvidia-smi, which first answers."""
    program = tmp_path_factory.mktemp("gpus") / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.touch(0o755)
    program.write_text("#!/bin/sh\necho 'NVIDIA A100, 37, 40960, 1024'\n")
    return program


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, gpus: Path) -> Iterator[LocalCluster]:
    """The driver that hangs comes last: it takes the device away."""
    settings = {
        "PATH": f"{gpus.parent}:/usr/bin:/bin",
        "ROTA_REPORT_SECONDS_LEAST": "1",
        "ROTA_REPORT_SECONDS_MOST": "36",
    }
    with LocalCluster(tmp_path_factory.mktemp("node"), nodes=1, cpu=2, settings=settings) as running:
        yield running


def test_a_node_shows_its_machine_and_its_gpus(node: LocalCluster) -> None:
    until(lambda: bool((node.node(1)["statistics"] or {}).get("gpus")), "the driver was asked")

    shown = node.node(1)
    statistics = shown["statistics"]
    assert shown["capacity"]["gpu"] == 1
    assert (shown["used"]["gpu"], shown["labels"]["gpu_model"]) == (0.37, "NVIDIA-A100")
    assert statistics["gpus"][0]["memory_total"] == 40960 * 1024**2
    assert statistics["cores"] >= 1
    assert statistics["memory"]["total"] >= statistics["memory"]["free"] > 0
    printed = node.rota("node", "show", "node-1").out
    for text in ("report", "load", "gpu 0", "NVIDIA A100", "37 %"):
        assert text in printed


def test_the_interval_follows_the_queue(node: LocalCluster, gate: Gate) -> None:
    until(lambda: node.node(1)["report_interval_ms"] == 36_000, "idle it is long")

    job = node.submit("sh", "-c", gate.wait, count=2)
    until(lambda: node.node(1)["report_interval_ms"] == 6_000, "at work it is shorter")
    more = node.submit("true")
    until(lambda: node.node(1)["report_interval_ms"] == 1_000, "while work waits it is shortest")
    gate.open()

    assert node.rota("wait", job, more).code == 0
    until(lambda: node.node(1)["report_interval_ms"] == 36_000, "idle it is long again")


def test_a_driver_that_hangs_delays_nothing(node: LocalCluster, gpus: Path) -> None:
    gpus.write_text("#!/bin/sh\nexec sleep 1000\n")
    node.kill_agent(1)

    node.start_agent(1)
    node.wait_for_nodes()

    assert node.rota("run", "-q", "--", "echo", "hello").out == "hello\n"
    assert node.node(1)["capacity"]["gpu"] == 0
