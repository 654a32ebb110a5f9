"""A hundred thousand jobs: the list is read in pages, and the last page is as fast as the first."""

import time
from pathlib import Path

import pytest

from rota.model.job import Counters
from rota.store.memory import MemoryStore
from tests.apiserver.builders import spec
from tests.apiserver.serving import Serving, serving

JOBS = 100_000
AT_ONCE = 10_000
ROUNDS = 9
MANY_TIMES = 4  # a page that is found by a scan from the start takes dozens of times as long as the first


@pytest.mark.slow
async def test_paging_through_a_hundred_thousand_jobs_is_steady_while_others_are_submitted(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, MemoryStore, reconcilers=()) as server:
        for first in range(1, JOBS, AT_ONCE):
            await server.put("apiserver", *map(spec, range(first, first + AT_ONCE)))
        await server.put("apiserver", Counters(jobs=JOBS))
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = (
                await server.call("GET", f"/v1/jobs?limit=1000&fields=id{after and f'&after={after}'}")
            ).json
            seen += [job["id"] for job in page["jobs"]]
            after = page["next"]
            await server.put("apiserver", spec(JOBS + len(seen)), Counters(jobs=JOBS + len(seen)))
        newest, oldest = [], []
        for _ in range(ROUNDS):
            newest.append(await cpu_seconds(server, "/v1/jobs?limit=100"))
            oldest.append(await cpu_seconds(server, "/v1/jobs?limit=100&after=101"))

    assert seen == [str(number) for number in range(JOBS, 0, -1)]
    assert min(oldest) < MANY_TIMES * min(newest)


async def cpu_seconds(server: Serving, path: str) -> float:
    """The CPU seconds of a request: unlike elapsed time, they do not depend on other processes."""
    started = time.process_time()
    reply = await server.call("GET", path)
    assert len(reply.json["jobs"]) == 100
    return time.process_time() - started
