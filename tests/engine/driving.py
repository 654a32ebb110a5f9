"""An engine that runs for the length of a test, and simple commands for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rota.engine.reconciler import Command, Reconciler
from rota.engine.run import Engine
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId
from rota.model.plan import EventRecord, Plan
from rota.store import codec
from rota.store.protocol import Store
from rota.testing.records import job

PATIENCE_SECONDS = 60.0  # far beyond what a busy machine needs


@asynccontextmanager
async def running(store: Store, *reconcilers: Reconciler) -> AsyncIterator[Engine]:
    engine = Engine(store, reconcilers)
    await engine.lead()
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        driver = group.create_task(engine.run())
        yield engine
        driver.cancel()


def submit(number: int) -> Command[int]:
    plan = Plan(
        (job(number),),
        events=(EventRecord("job.submitted", "asked for", job=JobId(str(number))),),
        answer=number,
    )
    return lambda _view, _now: plan


def jobs(mirror: Mirror) -> list[str]:
    return sorted(mirror.jobs)


async def jobs_on_disk(store: Store) -> list[str]:
    mirror = Mirror()
    snapshot = await store.read()
    mirror.load(codec.decode(key, value) for key, value in snapshot.records.items())
    return jobs(mirror)


async def turns(count: int = 20) -> None:
    """Let all other coroutines run."""
    for _ in range(count):
        await asyncio.sleep(0)
