"""Output caps and retention under a real keeper."""

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

from rota.agent.output import logs
from rota.keeper.protocol import wire
from rota.keeper.threads.trimmer import cap_slack
from rota.wire.generated import agent_pb2 as pb
from tests.keeper.conftest import Agent, Keeper, wait_until

MIB = 1 << 20
CAP = 4 * MIB
# Writes numbered blocks of 4 KiB at a given rate in MiB, then waits.
WRITER = """
import os, sys, time
mebibytes, rate = int(sys.argv[1]), float(sys.argv[2])
began = time.monotonic()
for number in range(mebibytes):
    block = b"".join(b"%016d" % (256 * number + i) + b"." * 4080 for i in range(256))
    while block:
        block = block[os.write(1, block):]
    time.sleep(max(0.0, began + number / rate - time.monotonic()))
os.write(2, b"done")
time.sleep(float(sys.argv[3]))
"""


async def read(keeper: Keeper, index: int = 0, offset: int = 0) -> tuple[int, int]:
    """The bytes received and the bytes reported missing; the received blocks are checked."""
    request = pb.OpenLog(id=3, job="7", index=index, attempt=1, stream="stdout", offset=offset)
    received = missing = 0
    async for chunk in logs.read(keeper.root, request, lambda: False):
        assert not chunk.error
        missing += chunk.missing
        assert chunk.offset == offset + received + missing
        data = chunk.data
        for at in range(-chunk.offset % 4096, len(data), 4096):
            number = b"%016d" % ((chunk.offset + at) // 4096)
            assert data[at : at + 16] == number[: len(data) - at]
        received += len(data)
    return received, missing


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def start(agent: Agent, mebibytes: int, rate: float, log_bytes: int) -> None:
    agent.start("7", "python3", "-c", WRITER, str(mebibytes), str(rate), "600", log_bytes=log_bytes)


def test_a_fast_writer_stays_within_its_cap_and_the_rest_is_intact(keeper: Keeper, agent: Agent) -> None:
    start(agent, 600, 200, CAP)
    file, most = keeper.root / "logs/7/0.out", 0
    agent.wait_started()

    def is_done() -> bool:
        nonlocal most
        most = max(most, on_disk(file))
        return keeper.output("7", stream="err") == "done"

    wait_until(is_done, "the last byte")
    wait_until(lambda: on_disk(file) <= CAP + cap_slack(CAP) + MIB, "a hole")
    wait_until(lambda: asyncio.run(read(keeper))[0] <= CAP + cap_slack(CAP), "the last hole")
    received, missing = asyncio.run(read(keeper))

    assert most < 450 * MIB  # more than two seconds' worth: the machine may be busy
    assert received + missing == 600 * MIB
    assert received >= CAP
    assert asyncio.run(read(keeper, offset=599 * MIB)) == (MIB, 0)
    assert asyncio.run(read(keeper, offset=MIB)) == (received, missing - MIB)


def test_a_job_cannot_exceed_the_nodes_cap(keeper: Keeper) -> None:
    agent = keep(keeper, stream_bytes=MIB)
    start(agent, 16, 1000, 1 << 40)
    agent.wait_started()

    file = keeper.root / "logs/7/0.out"
    wait_until(lambda: size(file) == 16 * MIB, "the last byte")
    wait_until(lambda: on_disk(file) <= MIB + cap_slack(MIB), "the last hole")


# The second of three attempts writes much, and runs until it is stopped.
THREE = """
case $ROTA_INDEX in
  1) head -c 20000000 /dev/zero | tr '\\0' y; echo done >&2; exec sleep 600 ;;
  *) head -c 100000 /dev/zero | tr '\\0' x ;;
esac
"""


def test_a_hole_spares_output_of_other_attempts_in_the_file(keeper: Keeper, agent: Agent) -> None:
    tasks = [[index, 1, 0] for index in range(3)]
    agent.start("7", "sh", "-c", THREE, tasks=tasks, needs={"cpu": 4000}, log_bytes=MIB, grace_ms=100)
    agent.wait_ended(1)
    agent.wait_started(1)
    file = keeper.root / "logs/7/0.out"
    wait_until(lambda: size(file) == 20_100_000, "the last byte")
    wait_until(lambda: on_disk(file) < 3 * MIB, "a hole")
    agent.stop(["7", 1, 1])
    agent.wait_ended(3)

    assert sorted(keeper.segments("7")) == ["0.err", "0.out"]
    for index in (0, 2):
        assert said(keeper, "7", index) == Told(b"x" * 100_000, 0)
    loud = said(keeper, "7", 1)
    assert len(loud.data) + loud.missing == 20_000_000
    assert set(loud.data) == {ord("y")}


def keep(keeper: Keeper, **keeping: int) -> Agent:
    """An agent that has configured the retention of output."""
    agent = keeper.agent()
    agent.send(op="hello", protocol=wire.PROTOCOL)
    agent.receive_op("state")
    agent.send(op="configure", node="n", amounts={"cpu": 9000}, gpus=[], keeping=keeping)
    return agent


def test_the_oldest_output_is_deleted_first_and_reported_missing(keeper: Keeper, agent: Agent) -> None:
    for job in ("7", "8", "9"):
        agent.start(job, "sh", "-c", "head -c 3000000 /dev/zero; echo $ROTA_JOB_ID >&2")
        agent.wait_ended(int(job) - 6)
    agent.start("6", "sh", "-c", "head -c 3000000 /dev/zero; exec sleep 600")
    wait_until(lambda: size(keeper.root / "logs/6/0.out") == 3_000_000, "the last byte")
    os.utime(keeper.root / "logs/6/0.out", ns=(1, 1))  # live, however old
    again = keep(keeper, node_bytes=7_000_000)
    wait_until(lambda: keeper.segments("8") == [], "room")

    assert keeper.segments("7") == []
    assert said(keeper, "7") == Told(b"", 3_000_000)
    assert said(keeper, "7", stream="stderr") == Told(b"", 2)
    assert len(said(keeper, "6").data) == len(said(keeper, "9").data) == 3_000_000
    again.send(op="start", job="8", spec=None, tasks=[[0, 2, 1]])
    again.wait_ended(1)
    assert said(keeper, "8") == Told(b"", 3_000_000)
    assert len(said(keeper, "8", attempt=2).data) == 3_000_000


def test_output_of_the_largest_job_is_deleted_before_older_output(keeper: Keeper, agent: Agent) -> None:
    for job, written in (("7", 1_000_000), ("8", 9_000_000), ("9", 3_000_000)):
        agent.start(job, "head", "-c", str(written), "/dev/zero")
        agent.wait_ended(int(job) - 6)
    keep(keeper, node_bytes=5_000_000)
    wait_until(lambda: any(keeper.segments(job) == [] for job in ("7", "8")), "room")

    assert said(keeper, "8") == Told(b"", 9_000_000)
    assert len(said(keeper, "7").data) == 1_000_000
    assert len(said(keeper, "9").data) == 3_000_000


def test_the_number_of_a_deleted_segment_is_not_reused(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "echo index $ROTA_INDEX")
    agent.wait_ended()
    keep(keeper, age_ms=0)
    wait_until(lambda: keeper.segments("7") == [], "an empty directory")
    keeper.kill()
    keeper.start()
    back = keep(keeper)
    back.send(op="start", job="7", spec=None, tasks=[[1, 1, 1]])
    back.wait_ended(1)

    assert said(keeper, "7") == Told(b"", 8)
    assert said(keeper, "7", 1) == Told(b"index 1\n", 0)


class Told(NamedTuple):
    data: bytes
    missing: int


def said(keeper: Keeper, job: str, index: int = 0, attempt: int = 1, stream: str = "stdout") -> Told:
    async def told() -> Told:
        request = pb.OpenLog(id=3, job=job, index=index, attempt=attempt, stream=stream)
        chunks = [chunk async for chunk in logs.read(keeper.root, request, lambda: False)]
        return Told(b"".join(chunk.data for chunk in chunks), sum(chunk.missing for chunk in chunks))

    return asyncio.run(told())
