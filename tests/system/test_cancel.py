"""Cancel ends the whole process tree, however it tries to escape."""

import sys
from secrets import token_hex

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until, with_argument

pytestmark = pytest.mark.system

# All ignore SIGTERM. The grandchild is an orphan in a session of its own; `start` is what becomes of it.
TREE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    {start}
time.sleep(600)
"""
SLEEPS = TREE.format(start="time.sleep(600)")
FORGETS = TREE.format(
    start=f'os.execve(sys.executable, [sys.executable, "-c", {SLEEPS!r}, sys.argv[1]], {{}})'
)


@pytest.mark.parametrize(("tree", "size", "seconds"), [(SLEEPS, 2, 0), (FORGETS, 3, 60)])
def test_no_process_of_a_canceled_tree_is_left(
    shared: LocalCluster, tree: str, size: int, seconds: float
) -> None:
    """Not even of one that cleared the environment by which it is known; that may take a moment."""
    witness = f"tree-{token_hex(8)}"
    job = shared.submit(sys.executable, "-c", tree, witness, grace="0.5s")
    until(lambda: len(with_argument(witness)) == size, "the whole tree is there")

    canceled = shared.rota("cancel", "--wait", job)

    assert canceled.code == 0, canceled.err
    until(lambda: not with_argument(witness), "the whole tree is gone", seconds)
    assert shared.call("GET", f"/v1/jobs/{job}").body["state"] == "canceled"


def test_processes_left_by_a_task_end_with_it(shared: LocalCluster) -> None:
    witness = f"left-{token_hex(8)}"
    script = f"setsid sh -c 'sleep 600; : {witness}' > /dev/null 2>&1 & exit 0"

    assert shared.rota("run", "--", "sh", "-c", script).code == 0

    until(lambda: not with_argument(witness), "nothing is left")


def test_a_pending_job_is_canceled_before_it_ran(shared: LocalCluster) -> None:
    job = shared.submit("true", cpu=4000)

    assert shared.rota("cancel", "--wait", "--reason", "too big", job).code == 0

    status = shared.call("GET", f"/v1/jobs/{job}").body
    assert (status["state"], status["started_at_ms"]) == ("canceled", None)
    assert "too big" in shared.rota("show", job).out
