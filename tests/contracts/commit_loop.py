"""A process that commits until it is killed, and prints each revision once it is acknowledged."""

import asyncio
import sys
from pathlib import Path

from rota.store.sqlite import SqliteStore
from rota.testing.store_contract import batch

PARTS = 20


def records(revision: int) -> dict[str, bytes]:
    """The records of that commit: many keys, so that a partial commit would show."""
    return {f"{revision}/{part}": b"%d" % revision * 200 for part in range(PARTS)}


async def commit_until_killed(directory: Path) -> None:
    store = SqliteStore(directory)
    epoch = await store.acquire_epoch()
    revision = (await store.read()).revision
    while True:
        puts = records(revision + 1)
        revision = await store.commit(
            batch(epoch, after=revision, time_ms=revision, puts=puts, events=b"%d" % (revision + 1))
        )
        print(revision, flush=True)


if __name__ == "__main__":
    asyncio.run(commit_until_killed(Path(sys.argv[1])))
