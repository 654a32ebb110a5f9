"""Logs: what is read is what that attempt wrote."""

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rota.agent.output import logs
from rota.agent.output.log_files import OutputPiece, SegmentStream
from rota.keeper.output.index import Extent, end_line, find_end, find_start, start_line
from rota.wire.generated import agent_pb2 as pb
from tests.keeper.conftest import Agent, Keeper, wait_until

STREAMS = ("stdout", "stderr")
COUNT = 2000
LOUD_BYTES = 5_000_000
# Every task prints its number on both streams. Of each 200 one writes much, one leaves an orphan that goes on
# printing for a second, one is killed, and one has to be stopped.
MIXED = f"""
i=$ROTA_INDEX
echo "out $i"; echo "err $i" >&2
case $((i % 200)) in
  7) head -c {LOUD_BYTES} /dev/zero | tr '\\0' x ;;
  8) setsid -f sh -c 'for n in $(seq 20); do echo "orphan $0"; echo "orphan $0" >&2; sleep 0.05; done' $i ;;
  9) kill -9 $$ ;;
  10) exec sleep 600 ;;
esac
"""
SLOW = 'for n in 1 2 3 4 5; do echo "out $ROTA_INDEX.$n"; echo "err $ROTA_INDEX" >&2; sleep 0.01; done'


def request(index: int = 0, stream: str = "stdout", **more: object) -> pb.OpenLog:
    fields = {"id": 3, "job": "7", "index": index, "attempt": 1, "stream": stream, **more}
    return pb.OpenLog(**fields)  # type: ignore[arg-type]


async def read(root: Path, request: pb.OpenLog, is_live: Callable[[], bool] = lambda: False) -> bytes:
    """The bytes of all chunks, after a check that they are contiguous."""
    data = b""
    async for chunk in logs.read(root, request, is_live):
        assert not chunk.error, chunk.error
        assert chunk.id == 3
        if chunk.data:
            assert chunk.offset == request.offset + len(data)
        data += chunk.data
    return data


def has_spoken(keeper: Keeper, index: int) -> bool:
    return keeper.output("7", index, stream="err") != ""


def start_many(agent: Agent, count: int, script: str) -> None:
    agent.start("7", "sh", "-c", script, grace_ms=100, tasks=[[index, 1, 0] for index in range(count)])


@pytest.mark.slow
async def test_a_log_has_the_output_of_its_attempt_only(keeper: Keeper, agent: Agent) -> None:
    start_many(agent, COUNT, MIXED)
    stopped: set[int] = set()
    while len(agent.ended) < COUNT:
        agent.receive()
        news = {row[1] for row in agent.started if row[1] % 200 == 10} - stopped
        for index in news:
            wait_until(partial(has_spoken, keeper, index), "its last words")
            agent.stop(["7", index, 1])
        stopped |= news

    for index in range(COUNT):
        out, err = [await read(keeper.root, request(index, stream)) for stream in STREAMS]
        own_out, own_err = f"out {index}\n".encode(), f"err {index}\n".encode()
        if index % 200 == 7:
            own_out += b"x" * LOUD_BYTES
        if index % 200 == 8:
            left = f"orphan {index}\n".encode()
            assert out.replace(left, b"") == own_out
            assert err.replace(left, b"") == own_err
        else:
            assert (out, err) == (own_out, own_err)
    assert len(keeper.segments("7")) <= 2 * (4 + COUNT // 200)  # those running at once, and one per orphan


@pytest.mark.slow
async def test_followers_read_the_same_while_segments_are_reused(keeper: Keeper, agent: Agent) -> None:
    count = 160
    start_many(agent, count, SLOW)
    ended: set[int] = set()

    def listen() -> None:
        while len(agent.ended) < count:
            agent.receive()
            ended.update(row[1] for row in agent.ended)

    async def follow(index: int, stream: str) -> bytes:
        return await read(keeper.root, request(index, stream, follow=True), lambda: index not in ended)

    listener = threading.Thread(target=listen)
    listener.start()
    async with asyncio.TaskGroup() as group:
        tasks = {
            (index, stream): group.create_task(follow(index, stream))
            for index in range(0, count, 2)
            for stream in STREAMS
        }
    listener.join()

    for (index, stream), task in tasks.items():
        spoken = [f"out {index}.{n}\n" if stream == "stdout" else f"err {index}\n" for n in range(1, 6)]
        assert task.result() == "".join(spoken).encode()
    assert len(keeper.segments("7")) <= 2 * 4


async def test_output_between_two_polls_and_before_the_end_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was empty when it was read, and the end was in the index afterwards."""
    job = tmp_path / "logs" / "7"
    job.mkdir(parents=True)
    output, lines = job / "0.out", job / "index"
    output.touch()
    lines.write_bytes(start_line(0, 1, 0, Extent(0, 0)))
    read_before = SegmentStream.read

    def read_in_vain(stream: SegmentStream, offset: int) -> OutputPiece:
        piece = read_before(stream, offset)
        monkeypatch.setattr(SegmentStream, "read", read_before)
        output.write_bytes(b"last words\nof another\n")
        lines.write_bytes(lines.read_bytes() + end_line(0, 1, Extent(len(b"last words\n"), 0)))
        return piece

    monkeypatch.setattr(SegmentStream, "read", read_in_vain)

    assert await read(tmp_path, request(follow=True), lambda: True) == b"last words\n"


async def test_an_attempt_that_starts_and_ends_while_its_log_is_opened_is_read(tmp_path: Path) -> None:
    """The start was indexed before the files were created."""
    job = tmp_path / "logs" / "7"
    job.mkdir(parents=True)
    lines = job / "index"
    lines.write_bytes(start_line(0, 1, 0, Extent(0, 0)))
    chunks = logs.read(tmp_path, request(), lambda: True)
    opened = await anext(chunks)
    (job / "0.out").write_bytes(b"all of it\n")
    lines.write_bytes(lines.read_bytes() + end_line(0, 1, Extent(len(b"all of it\n"), 0)))
    rest = [(chunk.data, chunk.missing) async for chunk in chunks]

    assert (opened.data, opened.missing, opened.error) == (b"", 0, "")
    assert rest == [(b"all of it\n", 0), (b"", 0)]


async def test_logs_outlive_the_keeper_that_made_them(keeper: Keeper, agent: Agent) -> None:
    script = 'echo "out $ROTA_INDEX"; echo "err $ROTA_INDEX" >&2; [ $ROTA_INDEX -lt 50 ] || exec sleep 600'
    start_many(agent, 54, script)
    agent.wait_ended(50)
    while not {50, 51, 52, 53} <= {row[1] for row in agent.started}:
        agent.receive()
    for index in range(50, 54):
        wait_until(partial(has_spoken, keeper, index), "its last words")
    keeper.kill()
    lost = await read(keeper.root, request(53))
    keeper.start()
    back = keeper.agent()
    back.hello()
    back.send(op="start", job="7", spec=None, tasks=[[index, 1, 0] for index in range(60, 80)])
    back.send(op="start", job="7", spec=None, tasks=[[index, 2, 0] for index in range(40)])
    back.send(op="stop", attempts=[["7", index, 1] for index in range(60, 80)])
    back.wait_ended(60)

    assert lost == b"out 53\n"
    lines = (keeper.root / "logs/7/index").read_bytes()
    old = {begun.segment for index in range(54) if (begun := find_start(lines, index, 1))}
    new = {begun.segment for index in range(40) if (begun := find_start(lines, index, 2))}
    assert min(new) > max(old)
    assert all(find_end(lines, index, 1) for index in range(50, 54))
    for index in range(54):
        assert await read(keeper.root, request(index)) == f"out {index}\n".encode()
        assert await read(keeper.root, request(index, "stderr")) == f"err {index}\n".encode()
    for index in range(40):
        assert await read(keeper.root, request(index, attempt=2)) == f"out {index}\n".encode()


async def test_a_follower_gets_arrival_times(keeper: Keeper, agent: Agent) -> None:
    go = keeper.root / "go"
    script = f"echo early; until [ -e {go} ]; do sleep 0.02; done; echo late"
    agent.start("7", "sh", "-c", script)
    agent.wait_started()
    wait_until(lambda: keeper.output("7") == "early\n", "the first words")
    chunks = []
    async for chunk in logs.read(keeper.root, request(follow=True), lambda: not agent.ended):
        chunks += [chunk] if chunk.data else []
        if len(chunks) == 1:
            asyncio.get_running_loop().call_later(0.2, go.touch)  # by then the reader has caught up
        elif chunks:
            await asyncio.to_thread(agent.wait_ended)

    assert [(chunk.data, chunk.at_ms > 0) for chunk in chunks] == [(b"early\n", True), (b"late\n", True)]


async def test_reading_starts_at_the_requested_offset(keeper: Keeper, agent: Agent) -> None:
    start_many(agent, 3, "printf 0123456789")
    agent.wait_ended(3)

    for index in range(3):
        assert await read(keeper.root, request(index, offset=4)) == b"456789"
        assert await read(keeper.root, request(index, offset=11)) == b""
        assert await read(keeper.root, request(index, offset=(1 << 64) - 1, follow=True)) == b""


async def test_a_reader_without_follow_gets_the_current_output(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "echo begun; exec sleep 600")
    agent.wait_started()
    wait_until(lambda: keeper.output("7") == "begun\n", "the first words")

    assert await read(keeper.root, request(), lambda: True) == b"begun\n"


async def test_an_attempt_that_never_started_has_an_empty_log(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "true")
    agent.wait_ended()

    assert await read(keeper.root, request(5)) == b""
    assert await read(keeper.root, request(5), lambda: True) == b""


async def test_a_follower_waits_for_the_start(keeper: Keeper, agent: Agent) -> None:
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read(keeper.root, request(follow=True), lambda: not agent.ended))
        await asyncio.sleep(0)  # it has polled once
        agent.start("7", "echo", "hello")
        await asyncio.to_thread(agent.wait_ended)

    assert reading.result() == b"hello\n"


@pytest.mark.parametrize("wanted", [request(job="8"), request(job="../7"), request(stream="index")])
async def test_a_log_that_is_not_on_the_node_is_an_error(
    keeper: Keeper, agent: Agent, wanted: pb.OpenLog
) -> None:
    agent.start("7", "true")
    agent.wait_ended()

    chunks = [chunk async for chunk in logs.read(keeper.root, wanted, lambda: False)]
    assert [chunk.error for chunk in chunks] == ["the log is no longer on the node"]


@pytest.mark.parametrize("how", ["link", "pipe"])
async def test_only_regular_files_of_the_keeper_are_read(keeper: Keeper, agent: Agent, how: str) -> None:
    agent.start("7", "true")
    agent.wait_ended()
    file = keeper.root / "logs/7/0.out"
    file.unlink()
    if how == "link":
        file.symlink_to(keeper.root / "journal")
    else:
        os.mkfifo(file)

    assert await read(keeper.root, request()) == b""


async def test_an_end_is_reported_when_no_process_of_the_group_writes(keeper: Keeper, agent: Agent) -> None:
    script = "while :; do echo y; done & sleep 0.05"
    agent.start("7", "sh", "-c", script, tasks=[[index, 1, 0] for index in range(24)])
    agent.wait_ended(24)

    sizes = [len(await read(keeper.root, request(index))) for index in range(24)]
    segments = [path for path in (keeper.root / "logs/7").glob("*.out") if path.stat().st_size]
    assert sum(path.stat().st_size for path in segments) == sum(sizes)  # no byte without an owner
    assert len(keeper.segments("7")) <= 2 * 4
