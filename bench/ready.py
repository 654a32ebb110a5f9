"""Time until a server with many finished tasks is ready, or a standby leads, beside a plain read.

python bench/ready.py [--jobs 1000] [--tasks 1000] [--dir DIR] [--etcd]
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from rota.engine.state.mirror import Mirror
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.job import Counters, JobCluster, JobSpec, JobStatus
from rota.model.lifecycle import AttemptState, JobState, TaskState
from rota.model.node import NodeSpec
from rota.model.plan import EventRecord, Record
from rota.model.task import TaskBlock
from rota.store import codec
from rota.store.protocol import EventRow, Snapshot
from rota.store.sqlite import SqliteStore
from rota.testing.cluster import free_ports
from rota.testing.etcd import LocalEtcd
from rota.testing.records import decided, job, node, placed, reported
from rota.wiring.store_location import store_location

NODES = 20
READY_SECONDS = 120
ANY = "127.0.0.1:0"
SERVER = (sys.executable, "-m", "rota.cli.main", "server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1000, help="tasks per job")
    parser.add_argument("--dir", help="where to write; default: a temporary directory")
    parser.add_argument("--etcd", action="store_true", help="also measure on one etcd member")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        directory = Path(name)
        snapshot = finished_snapshot(options.jobs, options.tasks)
        (directory / "server").mkdir(mode=0o700)
        asyncio.run(fill(directory / "server", snapshot, options.jobs))
        size = (directory / "server" / "rota.db").stat().st_size
        print(
            f"{options.jobs * options.tasks} finished tasks of {options.jobs} jobs:"
            f" {len(snapshot.records)} records,"
        )
        print(f"{size / 2**20:.0f} MiB on disk")
        raw = timed((directory / "server" / "rota.db").read_bytes)
        read = timed(lambda: asyncio.run(read_all(directory / "server")))
        ready, peak_mib = start(directory)
        on_etcd = measure_on_etcd(directory, snapshot) if options.etcd else None
    print(f"read the file                 {raw:8.2f} s")
    print(f"open, check and read the store{read:8.2f} s")
    print(f"rota server until /readyz     {ready:8.2f} s   {peak_mib:.0f} MiB")
    if on_etcd is not None:
        print(f"the same on etcd              {on_etcd.ready_seconds:8.2f} s")
        print(f"  reading all records         {on_etcd.read_seconds:8.2f} s")
        print(f"a standby leads after a stop  {on_etcd.lead_seconds:8.2f} s   without another read")


def finished_snapshot(jobs: int, tasks: int) -> Snapshot:
    records: list[Record] = [Counters(jobs, NODES)]
    for number in range(1, NODES + 1):
        records += [NodeSpec(node(f"n{number}").id, f"node-{number}"), node(f"n{number}")]
    for number in range(1, jobs + 1):
        records += finished(job(number, count=tasks, needs={"cpu": 1000}))
    return Snapshot(jobs * 10, 1, 1_000_000, {str(record.key): codec.encode(record) for record in records})


def finished(spec: JobSpec) -> Iterator[Record]:
    yield spec
    yield JobCluster(spec.id, "default")
    yield JobStatus(spec.id, JobState.SUCCEEDED, "all tasks succeeded", 1000, 9000, 0, ended_ms=900_000)
    for block in range(spec.blocks):
        size = spec.block_size(block)
        attempts = AttemptBlock.new(spec.id, block, size)
        for at in range(NODES):
            attempts = placed(attempts, range(at, size, NODES), f"n{at + 1}", at_ms=1_700_000_000_000 + at)
        yield attempts
        status = StatusBlock.new(spec.id, block, size)
        yield reported(
            status,
            range(size),
            AttemptState.SUCCEEDED,
            started_at_ms=1_700_000_001_000,
            ended_at_ms=1_700_000_009_000,
            ran_us=8_000_000,
            cpu_us=7_000_000,
            peak_kib=40_000,
        )
        yield decided(TaskBlock.new(spec.id, block, size), range(size), state=TaskState.SUCCEEDED)


async def fill(directory: Path, snapshot: Snapshot, jobs: int) -> None:
    store = SqliteStore(directory)
    text = codec.encode_events(
        time.time_ns() // 1_000_000, (EventRecord("job.ended", "all of its tasks succeeded"),) * 20
    )
    await store.load_snapshot(snapshot, (EventRow(revision, text) for revision in range(1, jobs * 10)))
    await store.close()


async def read_all(directory: Path) -> None:
    store = SqliteStore(directory)
    await store.read()
    await store.close()


class EtcdTimes(NamedTuple):
    """Times of a server and a standby on etcd."""

    ready_seconds: float
    read_seconds: float
    lead_seconds: float


def measure_on_etcd(directory: Path, snapshot: Snapshot) -> EtcdTimes:
    async def copy(address: str) -> None:
        async with store_location("store", address).opened(alone=True, new=True) as store:
            await store.load_snapshot(snapshot, [])

    async def read(address: str) -> None:
        async with store_location("store", address).opened(alone=False) as store:
            Mirror().load(codec.decode(key, value) for key, value in (await store.read()).records.items())

    with LocalEtcd(directory / "etcd") as etcd, contextlib.ExitStack() as closing:
        asyncio.run(copy(etcd.address))
        read_seconds = timed(lambda: asyncio.run(read(etcd.address)))
        began = time.monotonic()
        first = closing.enter_context(SharedServer(directory, "one", etcd.address))
        first.wait(first.leads)
        ready_seconds = time.monotonic() - began
        second = closing.enter_context(SharedServer(directory, "two", etcd.address))
        second.wait(lambda: second.is_warm((directory / "one" / "token").read_text().strip()))
        first.process.terminate()
        began = time.monotonic()
        second.wait(second.leads)
        return EtcdTimes(ready_seconds, read_seconds, time.monotonic() - began)


class SharedServer:
    """One of two servers on the same etcd."""

    def __init__(self, directory: Path, name: str, store: str) -> None:
        http, grpc, agent = (f"127.0.0.1:{port}" for port in free_ports(3))
        self._http = http
        addresses = ("--http-addr", http, "--grpc-addr", grpc, "--agent-addr", agent)
        self.process = subprocess.Popen(
            [*SERVER, "--data-dir", str(directory / name), "--store", store, *addresses],
            env={**os.environ, "ROTA_CONFIG": str(directory / name / "config.toml")},
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def leads(self) -> bool:
        return self._ask("/readyz", "") is not None

    def is_warm(self, token: str) -> bool:
        return (self._ask("/v1/server", token) or {}).get("lag_ms") is not None

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("a server did not get ready")
            time.sleep(0.02)

    def _ask(self, path: str, token: str) -> Any:
        request = urllib.request.Request(
            f"http://{self._http}{path}", headers={"authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return json.load(answer)
        except OSError:
            return None


def start(directory: Path) -> tuple[float, float]:
    """Start a server; return the seconds until it is ready and its peak memory in MiB."""
    (directory / "contexts" / "local.toml").unlink(missing_ok=True)  # of an earlier server
    began = time.monotonic()
    addresses = ("--http-addr", ANY, "--grpc-addr", ANY, "--agent-addr", ANY)
    environment = {**os.environ, "ROTA_CONFIG": str(directory / "config.toml")}
    command = [*SERVER, "--data-dir", str(directory / "server"), *addresses]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            while not is_ready(directory):
                if server.poll() is not None or time.monotonic() - began > READY_SECONDS:
                    raise SystemExit("the server did not get ready")
                time.sleep(0.02)
            took = time.monotonic() - began
        finally:
            server.terminate()
    return took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def is_ready(directory: Path) -> bool:
    """Whether the server is ready at the address in the context `local`."""
    try:
        address = tomllib.loads((directory / "contexts" / "local.toml").read_text())["addr"]
        with urllib.request.urlopen(f"{address}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (KeyError, OSError):
        return False


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
