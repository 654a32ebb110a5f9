"""Versions side by side, by real processes of two trees: agents are replaced, unknown messages ignored."""

import os
import shutil
import signal
from pathlib import Path

import pytest

import rota
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Witness

pytestmark = pytest.mark.system
TASKS = 200
KEEP_WORK = {"ROTA_KEEP_WORK": "true"}
OURS = Path(rota.__file__).parent
WELCOMED = """                await session.welcomed.wait()
        except TimeoutError:
            raise ConnectionOver from None  # the server hangs; another one may answer
"""
SPEAKS_UP = (
    WELCOMED,
    f'{WELCOMED}        await session.send(pb.FromNode.FromString(b"\\xba\\x06\\x00"))  # field 103\n',
)
WELCOMES = "        session.send(self._settings.welcome(session))\n"
SAYS_MORE = (
    WELCOMES,
    f"""{WELCOMES}
        news = pb.ToNode.FromString(b"\\xba\\x06\\x00")
        news.epoch = self._engine.epoch
        session.send(news)
""",
)


def another_version(directory: Path, edited: str | None = None, edit: tuple[str, str] = ("", "")) -> str:
    """A second install: a copy of our tree with another version, and perhaps one edit."""
    copy = directory / "rota"
    shutil.copytree(OURS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    changes = {"__init__.py": (f'"{rota.__version__}"', '"99.9.9"')} | ({edited: edit} if edited else {})
    for name, (old, new) in changes.items():
        text = (copy / name).read_text()
        assert text.count(old) == 1, f"{name} has changed"
        (copy / name).write_text(text.replace(old, new))
    return str(directory)


def all_work(cluster: LocalCluster) -> list[int]:
    """A process in exec has no environment for a moment, so the list is retried."""
    found = sorted(cluster.work())
    return found if len(found) == TASKS else []


def test_an_agent_of_another_version_takes_over_without_affecting_tasks(
    tmp_path: Path, witness: Witness
) -> None:
    other = another_version(tmp_path / "other")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with LocalCluster(tmp_path / "c", nodes=1, cpu=TASKS, settings=KEEP_WORK) as cluster:
        job = cluster.submit(*witness.script(f"exec cat {gate}"), count=TASKS, retries=0)
        until(lambda: cluster.count(job, "running") == TASKS, "all run")
        witness.wait_for(TASKS)
        before = until(lambda: all_work(cluster), "every process is there")
        assert cluster.node(1)["agent_version"] == rota.__version__

        assert cluster.kill_agent(1, signal.SIGTERM) == 0
        cluster.start_agent(1, PYTHONPATH=other)
        until(lambda: cluster.node(1)["agent_version"] == "99.9.9", "the other one is there")

        cluster.wait_for_nodes()
        assert sorted(cluster.work()) == before, "every process is the one that it was"
        assert cluster.count(job, "running") == TASKS
        gate.open("w").close()
        assert cluster.rota("wait", job).code == 0
        assert witness.starts() == dict.fromkeys(range(TASKS), 1)


def test_a_server_ignores_unknown_messages_of_a_newer_agent(tmp_path: Path) -> None:
    newer = another_version(tmp_path / "newer", "agent/run.py", SPEAKS_UP)
    with LocalCluster(tmp_path / "c", nodes=1, settings=KEEP_WORK) as cluster:
        cluster.kill_agent(1, signal.SIGTERM)
        cluster.start_agent(1, PYTHONPATH=newer)
        until(lambda: cluster.node(1)["agent_version"] == "99.9.9", "it is greeted")

        assert cluster.rota("run", "-q", "--", "echo", "hello").out == "hello\n"
        log = cluster.directory / "server.log"
        until(lambda: "unexpected message" in log.read_text(), "it is told")
        assert cluster.node(1)["state"] == "ready"


def test_an_agent_ignores_unknown_messages_of_a_newer_server(tmp_path: Path) -> None:
    newer = another_version(tmp_path / "newer", "watcher/node_sessions.py", SAYS_MORE)
    with LocalCluster(tmp_path / "c", nodes=1, settings={"PYTHONPATH": newer, **KEEP_WORK}) as cluster:
        cluster.kill_agent(1, signal.SIGTERM)
        cluster.start_agent(1, PYTHONPATH=str(OURS.parent))
        until(lambda: cluster.node(1)["agent_version"] == rota.__version__, "the older one is there")

        assert cluster.rota("run", "-q", "--", "echo", "hello").out == "hello\n"
        until(lambda: "unknown message" in cluster.agent_log(1), "it is told")
        assert cluster.node(1)["state"] == "ready"
