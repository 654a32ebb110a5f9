"""Under every fault, the mirror of a standby that replays commits equals a mirror loaded from the store."""

from typing import Any

import pytest

from rota.engine.state.mirror import Mirror
from rota.engine.state.replay import replay_commit
from rota.model.ids import Key
from rota.sim.scenario import run, scenario
from rota.sim.simulation import SimCluster
from rota.store import codec
from rota.store.protocol import Batch
from tests.properties.by_hand import shown
from tests.properties.test_mirror import as_kept, sums

COMPARE_EVERY = 20  # commits


class ReplayingStandby:
    """Replays every commit, and compares its mirror now and then with a fresh one."""

    def __init__(self) -> None:
        self.mirror = Mirror()
        self.commits = 0
        self.comparisons = 0

    def replay(self, cluster: SimCluster, batch: Batch) -> None:
        self.mirror.now_ms = batch.time_ms
        if self.commits:
            puts = [codec.decode(key, value) for key, value in batch.puts]
            replay_commit(self.mirror, puts, map(Key, batch.deletes))
        else:
            self.mirror.load(codec.decode(key, value) for key, value in cluster.store.records.items())
        self.commits += 1
        if self.commits % COMPARE_EVERY == 0:
            self.compare(cluster, batch.time_ms)

    def compare(self, cluster: SimCluster, now_ms: int) -> None:
        again = Mirror()
        again.now_ms = now_ms
        again.load(codec.decode(key, value) for key, value in cluster.store.records.items())
        self.comparisons += 1
        assert picture(self.mirror, now_ms) == picture(again, now_ms)


def picture(mirror: Mirror, now_ms: int) -> dict[str, Any]:
    return {
        "shown": shown(mirror, now_ms),
        "kept": as_kept(mirror),
        "sums": sums(mirror),
        "held": {job: entry.live_by_node for job, entry in mirror.jobs.items()},
        "systems": sorted(mirror.system_jobs),
        "leased": sorted(mirror.leased),
        "unassigned": sorted(mirror.unassigned),
        "past": (
            sorted(mirror.ended_jobs.ended),
            sorted(mirror.ended_jobs.retained_until),
            sorted(mirror.ended_jobs.orphans),
        ),
    }


@pytest.mark.parametrize("seed", [0, 3, 16])
def test_a_standby_equals_a_fresh_load(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    standby, committed = ReplayingStandby(), SimCluster._committed

    def committed_and_replayed(cluster: SimCluster, batch: Batch, revision: int) -> None:
        committed(cluster, batch, revision)
        standby.replay(cluster, batch)

    monkeypatch.setattr(SimCluster, "_committed", committed_and_replayed)
    finding = run(scenario(seed), keep_trace=False)

    assert finding.broken is None
    assert standby.comparisons
