"""Cost of many followers of one log stream for the server.

python bench/followers.py [--followers 200] [--stalled 20] [--format chunks] [--seconds 5]

One task writes a line every 10 ms. The benchmark prints the CPU time of the server per second and per
follower and line, the delay of the lines, the growth of its memory, and the latency of other requests
meanwhile.
"""

import argparse
import asyncio
import json
import os
import socket
import tempfile
import time
from base64 import b64decode
from pathlib import Path
from statistics import median

from rota.testing import processes
from rota.testing.cluster import LocalCluster

TIMED = 20  # one follower in this many measures the delay of its lines
WRITER = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    os.write(1, b"%d\\n" % time.time_ns())
    time.sleep(0.01)
"""


class LogFollower:
    """A client that reads as fast as it can, or stalls."""

    def __init__(self, *, stalls: bool) -> None:
        self.stalls = stalls
        self.chunks = 0
        self.bytes = 0
        self.late_ms: list[float] = []

    async def attach(self, cluster: LocalCluster, path: str) -> None:
        connection = socket.socket()
        if self.stalls:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = cluster.http.partition(":")
        connection.connect((host, int(port)))
        self._reader, self._writer = await asyncio.open_connection(sock=connection)
        head = f"host: {cluster.http}\r\nauthorization: Bearer {cluster.token}"
        self._writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())
        while (await self._reader.readline()).strip():
            pass

    async def read(self, *, is_timed: bool) -> None:
        """Count chunks and bytes; only timed followers parse lines, to keep reading cheaper than sending."""
        while size := int(await self._reader.readline(), 16):
            data = await self._reader.readexactly(size + 2)
            self.chunks += 1
            self.bytes += size
            if is_timed:
                now_ns = time.time_ns()
                lines = [text for line in data.splitlines() for text in written(line)]
                self.late_ms += [(now_ns - int(text)) / 1e6 for text in lines]

    def close(self) -> None:
        self._writer.close()


async def measure(cluster: LocalCluster, options: argparse.Namespace, gate: Path) -> None:
    job = cluster.submit("python3", "-c", WRITER, str(gate), str(options.seconds))
    path = f"/v1/jobs/{job}/logs?index=0&stream=stdout&follow=true&format={options.format}"
    followers = [LogFollower(stalls=number < options.stalled) for number in range(options.followers)]
    for follower in followers:
        await follower.attach(cluster, path)
    reading = followers[options.stalled :]
    memory, spent = processes.resident_bytes(cluster.server_pid), cpu_seconds(cluster.server_pid)
    await asyncio.to_thread(gate.touch)
    began = time.perf_counter()
    answers: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask(cluster, answers))
        async with asyncio.TaskGroup() as readers:
            for number, follower in enumerate(reading):
                readers.create_task(follower.read(is_timed=number % TIMED == 0))
        asking.cancel()
    took = time.perf_counter() - began
    spent = cpu_seconds(cluster.server_pid) - spent
    grew = processes.resident_bytes(cluster.server_pid) - memory
    for follower in followers:
        follower.close()
    report(options, reading, answers, (spent, took, grew))


def report(
    options: argparse.Namespace,
    reading: list[LogFollower],
    answers: list[float],
    cost: tuple[float, float, int],
) -> None:
    spent, took, grew = cost
    late = sorted(ms for follower in reading for ms in follower.late_ms)
    lines, chunks = len(reading[0].late_ms), sum(follower.chunks for follower in reading)
    print(
        f"{len(reading)} followers and {options.stalled} stalled ones, {lines} lines each, {options.format}"
    )
    print(f"  CPU of the server         {spent / took:8.2f} of a core")
    print(f"  per follower and line     {spent / (lines * len(reading)) * 1e6:8.1f} us")
    print(f"  per follower and chunk    {spent / chunks * 1e6:8.1f} us")
    print(f"  delay of the lines        {median(late):8.1f} ms, 99 %: {late[len(late) * 99 // 100]:.1f} ms")
    print(f"  latency of other requests {median(answers):8.1f} ms, at most {max(answers):.1f} ms")
    print(f"  memory of the server grew {grew / 2**20:8.1f} MiB")


def written(line: bytes) -> list[bytes]:
    return b64decode(json.loads(line)["data"]).split() if line.startswith(b"{") else [line] * bool(line)


async def ask(cluster: LocalCluster, answers: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.to_thread(cluster.call, "GET", "/v1/server")
        answers.append((time.perf_counter() - began) * 1e3)
        await asyncio.sleep(0.05)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--followers", type=int, default=200)
    parser.add_argument("--stalled", type=int, default=20)
    parser.add_argument("--format", choices=["text", "chunks"], default="chunks")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory), nodes=1) as cluster:
        asyncio.run(measure(cluster, options, Path(directory) / "gate"))


if __name__ == "__main__":
    main()
