"""What idle agents cost the leader: connected to it directly, and through watchers.

python bench/watchers.py [--nodes 1000,10000] [--watchers 0,2] [--seconds 30]

Agents are pretended, but speak agent.proto over connections of their own with certificates of their own: a
hello, a beat every two seconds, a load when the server wants one. What is measured is processor time of the
server (user and system) for each second of the wall clock, while nothing is submitted. The rate of beats is
printed beside it, because a machine that is too busy does not keep it up.
"""

import argparse
import asyncio
import contextlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from rota.identity.authority import SERVER_NAME, CertificateAuthority
from rota.identity.node_identity import make_request
from rota.model.ids import NodeId
from rota.model.job import Counters
from rota.model.limits import BEAT_MS, SERVER_SILENT_MS
from rota.model.node import NodeSpec
from rota.model.plan import Record
from rota.store import codec
from rota.store.protocol import Snapshot
from rota.store.sqlite import SqliteStore
from rota.testing.cluster import LocalCluster
from rota.testing.processes import cpu_seconds, until
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc

NOW_MS = 1_000_000  # cluster time when the store was filled
A_PROCESS = 1_000  # agents; more would wait for each other
CONNECTING = 4  # of a process at one time
SETTLE_SECONDS = 10.0
JOIN_SECONDS = 1_800.0
GIB = 1 << 30


class Row(NamedTuple):
    nodes: int
    watchers: int
    leader: float  # cores
    each_watcher: float
    beats: float  # a second
    silent: int  # nodes that are not ready: the machine is too busy

    @property
    def text(self) -> str:
        way = f"{self.watchers} watchers" if self.watchers else "directly"
        each = f"{self.each_watcher * 100:>10.1f} %" if self.watchers else f"{'':>12}"
        rate = f"{self.beats:>10,.0f} {self.silent:>7,}"
        return f"{self.nodes:>7,} {way:>11} {self.leader * 100:>9.1f} % {each} {rate}"


def main() -> None:
    said = arguments()
    if said.agents:
        asyncio.run(pretend(said))
        return
    print(f"{'agents':>7} {'connected':>11} {'leader':>11} {'watcher':>12} {'beats / s':>10} {'silent':>7}")
    for nodes in map(int, said.nodes.split(",")):
        for watchers in map(int, said.watchers.split(",")):
            print(measure(nodes, watchers, said.seconds).text, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="1000,10000")
    parser.add_argument("--watchers", default="0,2", help="0: agents are connected to the server")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--agents", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--ca", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--count-file", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(nodes: int, watchers: int, seconds: float) -> Row:
    with tempfile.TemporaryDirectory() as name, ExitStack() as closing:
        directory = Path(name)
        (directory / "server").mkdir(mode=0o700)
        CertificateAuthority.open(directory / "server" / "ca", datetime.now(UTC))
        known: list[Record] = [NodeSpec(NodeId(f"n{n}"), f"node-{n}") for n in range(1, nodes + 1)]
        asyncio.run(fill(directory / "server", [Counters(0, nodes), *known]))
        cluster = LocalCluster(directory, nodes=0)
        closing.callback(cluster.close)
        cluster.start_server()
        addresses = [cluster.start_watcher(number) for number in range(1, watchers + 1)] or [cluster.agent]
        agents = Agents(directory, nodes, addresses)
        closing.callback(agents.end)
        until(lambda: agents.connected() == nodes, "every agent is welcomed", JOIN_SECONDS)
        time.sleep(SETTLE_SECONDS)
        pids = [cluster.server_pid, *(process.pid for process in cluster.watchers.values())]
        before, beats, began = [cpu_seconds(pid) for pid in pids], agents.beats(), time.monotonic()
        time.sleep(seconds)
        wall = time.monotonic() - began
        took = [(cpu_seconds(pid) - used) / wall for pid, used in zip(pids, before, strict=True)]
        sent = (agents.beats() - beats) / wall
        silent = len(cluster.call("GET", "/v1/nodes?state=suspect,lost,left").body["nodes"])
    return Row(nodes, watchers, took[0], sum(took[1:]) / max(1, watchers), sent, silent)


async def fill(directory: Path, records: list[Record]) -> None:
    store = SqliteStore(directory)
    encoded = {str(one.key): codec.encode(one) for one in records}
    await store.load_snapshot(Snapshot(len(records), 1, NOW_MS, encoded), [])
    await store.close()


class Agents:
    """Pretended agents in processes of their own, each connected to one of the addresses."""

    def __init__(self, directory: Path, nodes: int, addresses: list[str]) -> None:
        self._files: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        share = min(A_PROCESS, -(-nodes // (2 * len(addresses))))
        for number, first in enumerate(range(1, nodes + 1, share)):
            file = directory / f"agents-{first}"
            file.write_text("0 0")
            count = min(share, nodes + 1 - first)
            line = [sys.executable, __file__, "--agents", str(count), "--first", str(first)]
            line += ["--ca", str(directory / "server" / "ca"), "--count-file", str(file)]
            line += ["--address", addresses[number % len(addresses)]]
            self._files.append(file)
            self._processes.append(subprocess.Popen(line))

    def connected(self) -> int:
        assert all(process.poll() is None for process in self._processes), "pretended agents have ended"
        return sum(int(self._said(file)[0]) for file in self._files)

    def beats(self) -> int:
        return sum(int(self._said(file)[1]) for file in self._files)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @staticmethod
    def _said(file: Path) -> list[str]:
        return file.read_text().split() or ["0", "0"]


async def pretend(said: argparse.Namespace) -> None:
    """Agents of one process until it is killed; how many are welcomed, and their beats, stand in a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    now = datetime.now(UTC)
    authority = CertificateAuthority.open(Path(said.ca), now)
    with tempfile.TemporaryDirectory() as name:
        request = make_request(Path(name) / "node")
        key = (Path(name) / "node" / "node.key").read_bytes()  # one key for all: making it is not measured
    counts = [0, 0]
    connecting = asyncio.Semaphore(CONNECTING)
    async with asyncio.TaskGroup() as tasks:
        for number in range(said.first, said.first + said.agents):
            certificate = authority.sign_node(request, f"n{number}", f"node-{number}", now)
            credentials = grpc.ssl_channel_credentials(authority.ca_pem, key, certificate)
            tasks.create_task(agent(said.address, credentials, number, counts, connecting))
        while True:
            await asyncio.sleep(0.5)
            note(said.count_file, counts)


def note(file: str, counts: list[int]) -> None:
    beside = Path(f"{file}.new")
    beside.write_text(f"{counts[0]} {counts[1]}")
    beside.replace(file)


async def agent(
    address: str, credentials: Any, number: int, counts: list[int], connecting: asyncio.Semaphore
) -> None:
    """Calls again when its connection is lost."""
    options = [("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.use_local_subchannel_pool", 1)]
    while True:
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                async with connecting:
                    stream: Any = stub.Connect()
                    first = await greet(stream, number)
                await converse(stream, first, counts)
        await asyncio.sleep(random.uniform(0, 5))


async def greet(stream: Any, number: int) -> pb.ToNode:
    hello = pb.Hello(machine_id=f"m{number}", boot_id="b", version="bench", protocol=1)
    hello.capacity.update({"cpu": 4000, "memory": 16 * GIB, "disk": 100 * GIB})
    await stream.write(pb.FromNode(n=1, hello=hello))
    first: pb.ToNode = await stream.read()
    return first


async def converse(stream: Any, first: pb.ToNode, counts: list[int]) -> None:
    counts[0] += 1
    heard, interval = [time.monotonic()], [first.welcome.report_interval_ms / 1000]
    try:
        async with asyncio.TaskGroup() as halves:
            halves.create_task(hear(stream, heard, interval))
            halves.create_task(beat(stream, heard, interval, counts))
    except* (ConnectionError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        counts[0] -= 1


async def hear(stream: Any, heard: list[float], interval: list[float]) -> None:
    while (word := await stream.read()) is not grpc.aio.EOF:
        heard[0] = time.monotonic()
        if word.WhichOneof("word") == "pace":
            interval[0] = word.pace.report_interval_ms / 1000
    raise ConnectionError(f"the call has ended: {await stream.code()} {await stream.details()}")


async def beat(stream: Any, heard: list[float], interval: list[float], counts: list[int]) -> None:
    n, loaded_at = 1, time.monotonic() - os.getpid() % 60
    while True:
        await asyncio.sleep(BEAT_MS / 1000)
        n += 1
        now = time.monotonic()
        word = pb.FromNode(n=n, beat=pb.Beat())
        if now - loaded_at >= interval[0]:
            loaded_at = now
            load = pb.Load(cpu_milli=40, memory_free=12 * GIB, disk_free=80 * GIB, cores=4)
            word.beat.load.CopyFrom(load)
        word.wants_sign = word.holds_leases = now - heard[0] > SERVER_SILENT_MS / 3000
        await stream.write(word)
        counts[1] += 1


if __name__ == "__main__":
    main()
