"""kill -9 during commits: acknowledged commits are durable, and none is partial."""

import subprocess
import sys
from pathlib import Path

from rota.store.sqlite import SqliteStore
from tests.contracts import commit_loop
from tests.contracts.processes import environment

COMMIT_LOOP = [sys.executable, "-m", "tests.contracts.commit_loop"]


async def test_every_acknowledged_commit_survives_a_kill(tmp_path: Path) -> None:
    acknowledged = 0
    epochs = []
    for commits in (1, 25, 60):
        acknowledged = _kill_after(tmp_path, acknowledged + commits)
        store = SqliteStore(tmp_path)
        snapshot = await store.read()
        rows = await store.events(0, 100_000)
        epochs.append(snapshot.epoch)
        await store.close()

        assert snapshot.revision - acknowledged in (0, 1)  # the last commit may have died before its answer
        expected = range(1, snapshot.revision + 1)
        assert snapshot.records == {
            k: v for revision in expected for k, v in commit_loop.records(revision).items()
        }
        assert [(row.revision, row.row) for row in rows] == [
            (revision, b"%d" % revision) for revision in expected
        ]
        assert snapshot.time_ms == snapshot.revision - 1

    assert epochs == [1, 2, 3]


def _kill_after(directory: Path, revision: int) -> int:
    """Kill the process once it has acknowledged that revision; returns the last one it acknowledged."""
    with subprocess.Popen(
        [*COMMIT_LOOP, str(directory)], stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        try:
            first = next(line for line in process.stdout if int(line) >= revision)
        finally:
            process.kill()
        later = [line for line in process.stdout if line.endswith("\n")]
    return int([first, *later][-1])
