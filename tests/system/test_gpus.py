"""GPUs by the thousandth, down to the process: which devices it sees, and never too much on one."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system

GPUS = {"ROTA_RESOURCES": "gpu=2", "ROTA_GPU_MODEL": "A100"}
OUTDATED = (
    "import sys; from rota.keeper import run; from rota.keeper.protocol import wire;"
    " wire.PROTOCOL = 0; run.run_keeper(sys.argv[1])"
)


class Seen(NamedTuple):
    """What one task was told of its devices."""

    job: str
    gpus: tuple[str, ...]
    cuda: str
    share: str

    @property
    def part(self) -> int:
        return 1000 if self.share == "whole" else round(float(self.share) * 1000)


class Diary:
    """Each task writes down its devices when it begins, and goes on when the gate is opened."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "devices"
        self.gate = Gate(directory / "gate")

    @property
    def script(self) -> str:
        say = 'echo "$ROTA_JOB_ID $ROTA_GPUS $CUDA_VISIBLE_DEVICES ${ROTA_GPU_SHARE-whole}"'
        return f"{say} >> {self.path}; {self.gate.wait}"

    def seen(self) -> list[Seen]:
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        rows = [line.split() for line in lines if "\n" in line]
        return [Seen(job, tuple(gpus.split(",")), cuda, share) for job, gpus, cuda, share in rows]

    def wait_for(self, count: int) -> list[Seen]:
        until(lambda: len(self.seen()) >= count, f"{count} tasks have begun")
        return self.seen()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One machine with two devices; each test waits for the end of its jobs."""
    with LocalCluster(tmp_path_factory.mktemp("node"), nodes=1, settings=GPUS) as running:
        yield running


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


def taken(seen: list[Seen]) -> dict[str, int]:
    """Thousandths of each device, over everything that runs at once."""
    total: Counter[str] = Counter()
    for entry in seen:
        total.update(dict.fromkeys(entry.gpus, entry.part))
    return dict(total)


def submit(cluster: LocalCluster, diary: Diary, gpu: float, count: int = 1) -> str:
    return cluster.submit("sh", "-c", diary.script, gpu=gpu, count=count, cpu=0.1)


def test_half_gpus_fill_two_devices_and_a_whole_one_waits(node: LocalCluster, diary: Diary) -> None:
    halves = submit(node, diary, 0.5, count=4)
    seen = diary.wait_for(4)
    whole_device = submit(node, diary, 1)
    until(lambda: node.call("GET", f"/v1/jobs/{whole_device}/why").body["waits"], "the whole one waits")

    assert taken(seen) == {"0": 1000, "1": 1000}
    assert {start.share for start in seen} == {"0.5"}
    assert all(start.cuda == ",".join(start.gpus) for start in seen)
    assert len(diary.seen()) == 4
    diary.gate.open()
    assert node.rota("wait", halves, whole_device).code == 0
    last = diary.seen()[4:]
    assert [(start.job, start.share, len(start.gpus)) for start in last] == [(whole_device, "whole", 1)]


def test_parts_and_a_whole_device_run_side_by_side(node: LocalCluster, diary: Diary) -> None:
    jobs = [submit(node, diary, 0.5), submit(node, diary, 1), submit(node, diary, 0.3)]
    jobs.append(submit(node, diary, 0.2))
    seen = {start.job: start for start in diary.wait_for(4)}

    assert taken(list(seen.values())) == {"0": 1000, "1": 1000}
    shared = {seen[job].gpus for job in (jobs[0], jobs[2], jobs[3])}
    assert len(shared) == 1
    assert seen[jobs[1]].gpus not in shared
    diary.gate.open()
    assert node.rota("wait", *jobs).code == 0


def test_two_whole_devices_are_both_named(node: LocalCluster, diary: Diary) -> None:
    job = submit(node, diary, 2)

    assert diary.wait_for(1) == [Seen(job, ("0", "1"), "0,1", "whole")]
    diary.gate.open()
    assert node.rota("wait", job).code == 0


def test_a_killed_agent_and_a_killed_server_change_nothing_on_the_devices(
    node: LocalCluster, diary: Diary
) -> None:
    jobs = [submit(node, diary, 0.6), submit(node, diary, 0.6)]
    until(lambda: all(node.count(job, "running") for job in jobs), "the server knows that both run")
    node.kill_agent(1)
    node.kill_server()
    node.start_server()
    node.start_agent(1)
    node.wait_for_nodes()
    jobs.append(submit(node, diary, 0.4))
    jobs.append(submit(node, diary, 0.4))
    seen = diary.wait_for(4)

    assert taken(seen) == {"0": 1000, "1": 1000}
    diary.gate.open()
    assert node.rota("wait", *jobs).code == 0
    assert len(diary.seen()) == 4, "nothing was started twice"


def test_a_node_is_found_by_the_model_of_its_gpus(node: LocalCluster, diary: Diary) -> None:
    labels = node.node(1)["labels"]
    diary.gate.open()

    assert labels["gpu_model"] == "A100"
    job = node.submit("sh", "-c", diary.script, gpu=1, where=["gpu_model == A100"])
    assert node.rota("wait", job).code == 0


def test_a_keeper_of_another_release_is_replaced_when_idle(tmp_path: Path, diary: Diary) -> None:
    with LocalCluster(tmp_path, nodes=0, settings=GPUS) as cluster:
        directory = cluster.node_directory(1)
        directory.mkdir()
        outdated = subprocess.Popen([sys.executable, "-c", OUTDATED, str(directory)], env=cluster.environment)
        try:
            until((directory / "keeper.sock").exists, "the outdated keeper listens")
            cluster.start_agent(1)
            assert outdated.wait(60) == 0
        finally:
            outdated.kill()
            outdated.wait()
        job = submit(cluster, diary, 0.5)

        assert diary.wait_for(1) == [Seen(job, ("0",), "0", "0.5")]
        diary.gate.open()
        assert cluster.rota("wait", job).code == 0
