"""Time of `rota ls -a` over many ended jobs, in total and by process, beside `rota ls` of the newest 20.

python bench/listing.py [--jobs 100000] [--dir DIR]
"""

import argparse
import asyncio
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ready import finished_snapshot

from rota.store.sqlite import SqliteStore
from rota.testing.cluster import LocalCluster


class Cost(NamedTuple):
    """Lines, time and CPU time of one command."""

    lines: int
    seconds: float
    client_seconds: float  # CPU time
    server_seconds: float  # CPU time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--dir", help="where to write; default: a temporary directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        directory = Path(name)
        (directory / "server").mkdir(mode=0o700)
        asyncio.run(fill(directory / "server", options.jobs))
        cluster = LocalCluster(directory, nodes=0)
        try:
            cluster.start_server()
            commands = [("ls",), ("ls", "-a"), ("ls", "-a", "-o", "jsonl")]
            costs = {command: listed(cluster, command) for command in commands}
        finally:
            cluster.close()
    print(f"{options.jobs:,} ended jobs        seconds   CPU of client   CPU of server   us of CPU per job")
    for command, cost in costs.items():
        spent = cost.client_seconds + cost.server_seconds
        print(
            f"rota {' '.join(command):20} {cost.seconds:8.2f} {cost.client_seconds:15.2f}"
            f" {cost.server_seconds:15.2f} {spent / cost.lines * 1e6:17.1f}"
        )


async def fill(directory: Path, jobs: int) -> None:
    store = SqliteStore(directory)
    await store.load_snapshot(finished_snapshot(jobs, 1), ())
    await store.close()


def listed(cluster: LocalCluster, command: tuple[str, ...]) -> Cost:
    began, client, server = time.monotonic(), _children(), _process(cluster.server_pid)
    lines = cluster.rota(*command).out.splitlines()
    seconds = time.monotonic() - began
    return Cost(len(lines), seconds, _children() - client, _process(cluster.server_pid) - server)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _process(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
