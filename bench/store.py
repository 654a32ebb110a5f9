"""Durable changes per second of each store, and the latency of a commit.

python bench/store.py [--seconds 3] [--records 1,100,1000]

The benchmark commits one batch after the other, as the engine does, with records of 300 bytes. Each store is
compared with the limit of its medium in the same run: for SQLite plain appends with fdatasync to a
preallocated file, for etcd bare guarded transactions of the same bytes. `ratio` is the share of that limit.
etcd's members and the client share this machine.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import uvloop

from rota.store.etcd import layout
from rota.store.etcd.batches import PIECE_BYTES
from rota.store.etcd.client import EtcdAccess, EtcdClient
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.store import EtcdStore
from rota.store.protocol import Store
from rota.store.sqlite import SqliteStore
from rota.testing.etcd import LocalEtcd
from rota.testing.store_contract import batch

RECORD_BYTES = 300
KEYS = 10_000
PREALLOCATED_BYTES = 64 * 2**20
Once = Callable[[int], Awaitable[None]]


class StoreFigures(NamedTuple):
    """Rate and latency of commits."""

    per_second: float
    p50_ms: float
    p99_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--records", default="1,100,1000")
    options = parser.parse_args()
    sizes = [int(size) for size in options.records.split(",")]
    uvloop.run(compare(options.seconds, sizes))


async def compare(seconds: float, sizes: list[int]) -> None:
    print(f"{'':28}{'records':>8}{'commits/s':>11}{'changes/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for size in sizes:
            limit = await measured(appends(root / f"plain-{size}", size), seconds)
            show("fdatasync append", size, limit, limit)
            store = SqliteStore(root)
            show("SQLite", size, await measured(await commits(store, size), seconds), limit)
            await store.close()
            (root / "rota.db").unlink()
        for members in (1, 3):
            with LocalEtcd(root / f"etcd-{members}", members) as etcd:
                await compare_etcd(etcd, seconds, sizes)


async def compare_etcd(etcd: LocalEtcd, seconds: float, sizes: list[int]) -> None:
    access = EtcdAccess(tuple(etcd.endpoints))
    for size in sizes:
        name = f"etcd x {len(etcd.endpoints)}"
        client = EtcdClient(access)
        limit = await measured(transactions(client, size), seconds)
        await client.close()
        show(f"{name}, bare transactions", size, limit, limit)
        store = EtcdStore(access, f"{size}/", 300)
        show(name, size, await measured(await commits(store, size), seconds), limit)
        await store.close()


async def measured(once: Once, seconds: float) -> StoreFigures:
    took_ms: list[float] = []
    end = time.perf_counter() + seconds
    began = time.perf_counter()
    while (now := time.perf_counter()) < end:
        await once(len(took_ms))
        took_ms.append((time.perf_counter() - now) * 1000)
    per_second = len(took_ms) / (time.perf_counter() - began)
    took_ms.sort()
    return StoreFigures(per_second, took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100])


def changes(number: int, size: int) -> dict[str, bytes]:
    """Records with changing keys out of KEYS, as with jobs that are submitted and deleted."""
    return {f"task/{(number * size + n) % KEYS}": os.urandom(RECORD_BYTES) for n in range(size)}


def appends(path: Path, size: int) -> Once:
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(file, bytes(PREALLOCATED_BYTES))
    os.fsync(file)

    async def once(number: int) -> None:
        os.pwrite(
            file, b"".join(changes(number, size).values()), number * size * RECORD_BYTES % PREALLOCATED_BYTES
        )
        os.fdatasync(file)

    return once


async def commits(store: Store, size: int) -> Once:
    epoch = await store.acquire_epoch()

    async def once(number: int) -> None:
        await store.commit(batch(epoch, after=number, time_ms=number, puts=changes(number, size)))

    return once


def transactions(client: EtcdClient, size: int) -> Once:
    """The same bytes in as few operations as etcd allows, each with a compare like that of a fence."""

    async def once(number: int) -> None:
        value = b"".join(changes(number, size).values())
        for start in range(0, len(value), PIECE_BYTES):
            key = b"bare/%d/%d" % (number % KEYS, start)
            put = layout.put(key, value[start : start + PIECE_BYTES])
            answer = await client.write(pb.TxnRequest(compare=[layout.absent(b"fence")], success=[put]))
            assert answer.succeeded

    return once


def show(name: str, size: int, figures: StoreFigures, limit: StoreFigures) -> None:
    ratio = figures.per_second / limit.per_second
    print(
        f"{name:28}{size:8,}{figures.per_second:11,.0f}{figures.per_second * size:11,.0f}"
        f"{figures.p50_ms:9.2f}{figures.p99_ms:9.2f}{ratio:8.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
