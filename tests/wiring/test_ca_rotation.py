"""The overlap of a CA rotation ends by itself, but not while a connected node still needs the old CA."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rota.apiserver.ca_dependents import CaDependents
from rota.identity.authority import CertificateAuthority
from rota.model.errors import Unavailable
from rota.wiring import ca_rotation

NOTHING = CaDependents([], [], [])


class Leader:
    """The server that `keep_rotation` works for, with a record of its calls."""

    def __init__(self, directory: Path) -> None:
        self.authority = CertificateAuthority.open(directory / "ca", datetime.now(UTC))
        self.found = NOTHING
        self.problem: Exception | None = None
        self.changes = 0
        self._looked = asyncio.Condition()
        self._looks = 0

    async def follow(self) -> None:
        async with self._looked:
            self._looks += 1
            self._looked.notify_all()
        if self.problem is not None:
            raise self.problem

    async def changed(self) -> None:
        self.changes += 1

    async def polled(self, more: int = 3) -> None:
        target = self._looks + more
        async with self._looked:
            await self._looked.wait_for(lambda: self._looks >= target)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        keeping = ca_rotation.keep_rotation(self.authority, self.follow, lambda: self.found, self.changed)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(keeping)
            await self.polled(1)
            yield
            task.cancel()


@pytest.fixture
def leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(ca_rotation, "_POLL_SECONDS", 0.01)
    return Leader(tmp_path)


async def test_an_overlap_ends_when_its_time_is_over(leader: Leader) -> None:
    async with leader.running():
        await asyncio.to_thread(leader.authority.rotate, datetime.now(UTC), timedelta(seconds=0))
        await leader.polled()

    assert leader.authority.overlap is None
    assert leader.changes >= 1


async def test_an_overlap_lasts_for_its_time(leader: Leader) -> None:
    async with leader.running():
        leader.authority.rotate(datetime.now(UTC), timedelta(days=1))
        await leader.polled()

    assert leader.authority.overlap is not None


@pytest.mark.parametrize("holding", [CaDependents(["n1"], [], []), CaDependents([], [], ["edge"])])
async def test_connected_users_of_the_old_ca_delay_the_end_and_absent_ones_do_not(
    leader: Leader, holding: CaDependents
) -> None:
    leader.found = holding
    async with leader.running():
        leader.authority.rotate(datetime.now(UTC), timedelta(seconds=0))
        await leader.polled()
        held = leader.authority.overlap
        leader.found = CaDependents([], ["n2"], [])
        await leader.polled()

    assert held is not None
    assert leader.authority.overlap is None


@pytest.mark.parametrize("problem", [Unavailable("etcd does not answer"), OSError("no room")])
async def test_a_store_that_does_not_answer_is_asked_again(leader: Leader, problem: Exception) -> None:
    leader.problem = problem
    async with leader.running():
        leader.authority.rotate(datetime.now(UTC), timedelta(seconds=0))
        await leader.polled()

    assert leader.authority.overlap is None


async def test_an_end_that_cannot_be_published_is_tried_again(leader: Leader) -> None:
    leader.authority.rotate(datetime.now(UTC), timedelta(seconds=0))

    def refuse(_: object) -> None:
        raise TimeoutError

    leader.authority.publish_by(refuse)
    async with leader.running():
        await leader.polled()
        kept = leader.authority.overlap
        leader.authority.publish_by(lambda _: None)
        await leader.polled()

    assert kept is not None
    assert leader.authority.overlap is None
