"""Cost of idle agents for the leader: connected to it directly, and through watchers.

python bench/watchers.py [--nodes 1000,10000] [--watchers 0,2] [--seconds 30]

Agents are simulated, but use agent.proto over their own connections with their own certificates: a hello, a
heartbeat every two seconds, and a load when the server requests one. The benchmark measures the CPU time of
the server (user and system) per second of wall time, while no job is submitted. The rate of heartbeats is
printed, too, because an overloaded machine does not sustain it.
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
AGENTS_PER_PROCESS = 1_000  # with more, the process itself becomes the bottleneck
CONNECTING = 4  # concurrent handshakes per process
SETTLE_SECONDS = 10.0
JOIN_SECONDS = 1_800.0
GIB = 1 << 30


class WatcherRow(NamedTuple):
    """CPU use of leader and watchers for one number of agents."""

    nodes: int
    watchers: int
    leader: float  # cores
    each_watcher: float
    beats: float  # per second
    silent: int  # nodes that are not ready: the machine is overloaded

    @property
    def text(self) -> str:
        route = f"{self.watchers} watchers" if self.watchers else "directly"
        each = f"{self.each_watcher * 100:>10.1f} %" if self.watchers else f"{'':>12}"
        rate = f"{self.beats:>10,.0f} {self.silent:>7,}"
        return f"{self.nodes:>7,} {route:>11} {self.leader * 100:>9.1f} % {each} {rate}"


def main() -> None:
    options = arguments()
    if options.agents:
        asyncio.run(simulate(options))
        return
    print(f"{'agents':>7} {'connected':>11} {'leader':>11} {'watcher':>12} {'beats / s':>10} {'silent':>7}")
    for nodes in map(int, options.nodes.split(",")):
        for watchers in map(int, options.watchers.split(",")):
            print(measure(nodes, watchers, options.seconds).text, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="1000,10000")
    parser.add_argument("--watchers", default="0,2", help="0: agents connect to the server directly")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--agents", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--ca", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--count-file", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(nodes: int, watchers: int, seconds: float) -> WatcherRow:
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
        until(lambda: agents.connected() == nodes, "every agent is connected", JOIN_SECONDS)
        time.sleep(SETTLE_SECONDS)
        pids = [cluster.server_pid, *(process.pid for process in cluster.watchers.values())]
        before, beats, began = [cpu_seconds(pid) for pid in pids], agents.beats(), time.monotonic()
        time.sleep(seconds)
        wall = time.monotonic() - began
        took = [(cpu_seconds(pid) - used) / wall for pid, used in zip(pids, before, strict=True)]
        sent = (agents.beats() - beats) / wall
        silent = len(cluster.call("GET", "/v1/nodes?state=suspect,lost,left").body["nodes"])
    return WatcherRow(nodes, watchers, took[0], sum(took[1:]) / max(1, watchers), sent, silent)


async def fill(directory: Path, records: list[Record]) -> None:
    store = SqliteStore(directory)
    encoded = {str(record.key): codec.encode(record) for record in records}
    await store.load_snapshot(Snapshot(len(records), 1, NOW_MS, encoded), [])
    await store.close()


class Agents:
    """Simulated agents in processes of their own, each connected to one of the addresses."""

    def __init__(self, directory: Path, nodes: int, addresses: list[str]) -> None:
        self._files: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        share = min(AGENTS_PER_PROCESS, -(-nodes // (2 * len(addresses))))
        for number, first in enumerate(range(1, nodes + 1, share)):
            file = directory / f"agents-{first}"
            file.write_text("0 0")
            count = min(share, nodes + 1 - first)
            command = [sys.executable, __file__, "--agents", str(count), "--first", str(first)]
            command += ["--ca", str(directory / "server" / "ca"), "--count-file", str(file)]
            command += ["--address", addresses[number % len(addresses)]]
            self._files.append(file)
            self._processes.append(subprocess.Popen(command))

    def connected(self) -> int:
        assert all(process.poll() is None for process in self._processes), "simulated agents have ended"
        return sum(int(self._counts(file)[0]) for file in self._files)

    def beats(self) -> int:
        return sum(int(self._counts(file)[1]) for file in self._files)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @staticmethod
    def _counts(file: Path) -> list[str]:
        return file.read_text().split() or ["0", "0"]


async def simulate(options: argparse.Namespace) -> None:
    """Run agents until killed; the numbers of connected agents and of heartbeats are written to a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    now = datetime.now(UTC)
    authority = CertificateAuthority.open(Path(options.ca), now)
    with tempfile.TemporaryDirectory() as name:
        request = make_request(Path(name) / "node")
        key = (
            Path(name) / "node" / "node.key"
        ).read_bytes()  # one key for all, since key generation is not measured
    counts = [0, 0]
    connecting = asyncio.Semaphore(CONNECTING)
    async with asyncio.TaskGroup() as tasks:
        for number in range(options.first, options.first + options.agents):
            certificate = authority.sign_node(request, f"n{number}", f"node-{number}", now)
            credentials = grpc.ssl_channel_credentials(authority.ca_pem, key, certificate)
            tasks.create_task(agent(options.address, credentials, number, counts, connecting))
        while True:
            await asyncio.sleep(0.5)
            write_counts(options.count_file, counts)


def write_counts(file: str, counts: list[int]) -> None:
    temporary = Path(f"{file}.new")
    temporary.write_text(f"{counts[0]} {counts[1]}")
    temporary.replace(file)


async def agent(
    address: str, credentials: Any, number: int, counts: list[int], connecting: asyncio.Semaphore
) -> None:
    """Connect, and reconnect when the connection is lost."""
    options = [("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.use_local_subchannel_pool", 1)]
    while True:
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                async with connecting:
                    stream: Any = stub.Connect()
                    first = await handshake(stream, number)
                await run_session(stream, first, counts)
        await asyncio.sleep(random.uniform(0, 5))


async def handshake(stream: Any, number: int) -> pb.ToNode:
    hello = pb.Hello(machine_id=f"m{number}", boot_id="b", version="bench", protocol=1)
    hello.capacity.update({"cpu": 4000, "memory": 16 * GIB, "disk": 100 * GIB})
    await stream.write(pb.FromNode(n=1, hello=hello))
    first: pb.ToNode = await stream.read()
    return first


async def run_session(stream: Any, first: pb.ToNode, counts: list[int]) -> None:
    counts[0] += 1
    last_seen, interval = [time.monotonic()], [first.welcome.report_interval_ms / 1000]
    try:
        async with asyncio.TaskGroup() as halves:
            halves.create_task(receive(stream, last_seen, interval))
            halves.create_task(beat(stream, last_seen, interval, counts))
    except* (ConnectionError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        counts[0] -= 1


async def receive(stream: Any, last_seen: list[float], interval: list[float]) -> None:
    while (message := await stream.read()) is not grpc.aio.EOF:
        last_seen[0] = time.monotonic()
        if message.WhichOneof("word") == "pace":
            interval[0] = message.pace.report_interval_ms / 1000
    raise ConnectionError(f"the call has ended: {await stream.code()} {await stream.details()}")


async def beat(stream: Any, last_seen: list[float], interval: list[float], counts: list[int]) -> None:
    n, loaded_at = 1, time.monotonic() - os.getpid() % 60
    while True:
        await asyncio.sleep(BEAT_MS / 1000)
        n += 1
        now = time.monotonic()
        message = pb.FromNode(n=n, beat=pb.Beat())
        if now - loaded_at >= interval[0]:
            loaded_at = now
            load = pb.Load(cpu_milli=40, memory_free=12 * GIB, disk_free=80 * GIB, cores=4)
            message.beat.load.CopyFrom(load)
        message.wants_sign = message.holds_leases = now - last_seen[0] > SERVER_SILENT_MS / 3000
        await stream.write(message)
        counts[1] += 1


if __name__ == "__main__":
    main()
