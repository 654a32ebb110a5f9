"""The load sampler: reports when due, or when the load has changed by some points."""

import asyncio
import threading
from pathlib import Path

import pytest

from rota.agent.host import load as gauges
from rota.agent.host.load import BackgroundProbe, LoadSampler, has_changed
from rota.model.node import NodeLoad

GIB = 1024**3


def load(cpu: int = 0, free: int = 50) -> NodeLoad:
    return NodeLoad(cpu_milli=cpu, memory_free=free * GIB, cores=2, memory_total=100 * GIB)


def test_five_points_of_cpu_or_memory_are_a_change() -> None:
    assert not has_changed(load(), load(cpu=99, free=46))
    assert has_changed(load(), load(cpu=100))
    assert has_changed(load(cpu=100), load())
    assert has_changed(load(), load(free=45))


async def reports_of(
    measured: list[NodeLoad], report_seconds: float, at: Path, patch: pytest.MonkeyPatch
) -> list[NodeLoad]:
    """The reports that result from these samples."""
    samples = iter(measured)
    reported: list[NodeLoad] = []
    watched = LoadSampler(at)
    watched.reset(report_seconds)

    def measure(*_: object) -> NodeLoad:
        try:
            return next(samples)
        except StopIteration:
            raise asyncio.CancelledError from None

    def due() -> None:
        found = watched.pop_report()
        assert found is not None
        assert watched.pop_report() is None, "once"
        reported.append(found)

    patch.setattr(gauges, "measure", measure)
    patch.setattr(gauges, "SAMPLE_SECONDS", 0.0)
    with pytest.raises(asyncio.CancelledError):
        await watched.watch(due)
    return reported


async def test_a_change_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = await reports_of([load(), load(), load(cpu=900), load(cpu=910)], 3600, tmp_path, monkeypatch)

    assert reported == [load(), load(cpu=900)]


async def test_an_unchanged_load_is_reported_when_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = await reports_of([load(), load(), load(cpu=10)], 0, tmp_path, monkeypatch)

    assert reported == [load(), load(), load(cpu=10)]


def test_a_hanging_probe_does_not_block_the_sampler() -> None:
    asked, never = threading.Event(), threading.Event()

    def ask() -> str:
        asked.set()
        never.wait()
        return "late"

    slow = BackgroundProbe(ask, "first")
    slow.start()
    asked.wait()

    assert slow.latest == "first"
    slow.stop()
    never.set()


def test_a_sample_has_the_totals_of_the_machine(tmp_path: Path) -> None:
    found = gauges.measure(tmp_path, gauges.disks())

    assert found.cores >= 1
    assert 0 < (found.memory_free or 0) <= found.memory_total
    assert 0 <= found.swap_free <= found.swap_total
    assert all(0 <= disk.free <= disk.total for disk in found.disks)
