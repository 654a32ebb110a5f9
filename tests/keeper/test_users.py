"""Users of jobs under a root keeper: what they can reach, and that they gain no privileges."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.keeper.process.users import find_user, is_own
from rota.keeper.task_dirs import group_of
from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.machine import needs

IS_ROOT = os.geteuid() == 0
as_root = needs("root")


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    """A keeper in a directory that other users can reach, unlike pytest's own."""
    directory = tempfile.mkdtemp(prefix="rota-users-")
    os.chmod(directory, 0o711)
    (Path(directory) / "node").mkdir(mode=0o700)
    keeper = Keeper(Path(directory) / "node")
    try:
        yield keeper
    finally:
        keeper.close()
        shutil.rmtree(directory)


@pytest.fixture
def agent(keeper: Keeper) -> Agent:
    agent = keeper.agent()
    agent.hello(run_as="own")
    return agent


def output_of(keeper: Keeper, agent: Agent, job: str, script: str) -> str:
    """Run a shell script as a job; return its output."""
    before = len(agent.ended)
    agent.start(job, "sh", "-c", script)
    agent.wait_ended(before + 1)
    return keeper.output(job)


@as_root
def test_a_service_is_checked_as_its_own_user(keeper: Keeper, agent: Agent) -> None:
    check = {"interval_ms": 20, "timeout_ms": 5_000, "after_ms": 60_000, "failures": 1, "successes": 1}
    check["argv"] = ["sh", "-c", '[ "$(id -u)" != 0 ] && touch mine']  # type: ignore[assignment]
    restart = {"attempts": 3, "within_ms": 1, "delay_ms": 1, "delay_max_ms": 1}
    agent.start("7", "sh", "-c", "exec sleep 600", restart=restart, check=check)
    while agent.lives.get(("7", 0, 1), [""] * 5)[4] != "healthy":
        agent.receive()

    assert is_own((keeper.root / "work/7/mine").stat().st_uid)


@as_root
def test_each_job_has_a_user_and_keeps_it(keeper: Keeper, agent: Agent) -> None:
    first = output_of(keeper, agent, "7", "id -u; id -G; umask").split()
    second = output_of(keeper, agent, "8", "id -u").split()
    keeper.kill()
    keeper.start()
    again = keeper.agent()
    again.hello(run_as="own")
    again.start("7", "sh", "-c", "id -u", tasks=[[1, 1, 1]])
    again.wait_ended()

    assert is_own(int(first[0]))
    assert first[1:3] == [first[0], str(group_of(0))]  # the groups of the job and of the task, and no other
    assert second[0] != first[0]
    assert keeper.output("7", 1).split()[0] == first[0]


@as_root
def test_a_jobs_directory_is_its_own_and_its_home(keeper: Keeper, agent: Agent) -> None:
    script = 'echo "$HOME"; pwd; echo mine > "$ROTA_OUTPUT_DIR/result" && stat -c %a .; echo "$USER"'
    home, where, mode, *user = output_of(keeper, agent, "7", script).splitlines()

    assert home == where == str(keeper.root / "work" / "7")
    assert mode == "700"
    assert user == [""]
    assert (keeper.root / "tasks" / "7" / "0" / "out" / "result").read_text() == "mine\n"


@as_root
def test_a_job_cannot_read_files_of_the_node_or_other_jobs(keeper: Keeper, agent: Agent) -> None:
    (keeper.root / "node.key").write_text("secret\n")
    (keeper.root / "node.key").chmod(0o600)
    output_of(keeper, agent, "7", "echo secret | tee ~/file $ROTA_OUTPUT_DIR/file")
    other = "cat ../../node.key ../../journal ../../keeper.id ../7/file ../../logs/7/0.out"
    other += "; cat ../../tasks/7/0/out/file; ls ../../tasks ../../tasks/7 ../../tasks/7/0"

    script = f"{other}; ls ../.. .. ../7; echo x > ../../keeper.sock; echo x > ../7/file; echo done"
    assert output_of(keeper, agent, "8", script) == "done\n"


@as_root
def test_a_job_cannot_signal_processes_of_others(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sleep", "600", grace_ms=0)
    agent.wait_started()
    victim = keeper.work()[0]

    script = f"kill -9 {victim} || echo refused; kill -9 {keeper.process.pid} || echo refused"
    assert output_of(keeper, agent, "8", script) == "refused\nrefused\n"
    assert keeper.work() == [victim]


@as_root
def test_setuid_programs_give_no_privileges(keeper: Keeper, agent: Agent) -> None:
    trap = keeper.root.parent / "id"
    shutil.copy(shutil.which("id") or "", trap)
    trap.chmod(0o4755)

    uid, status = output_of(
        keeper, agent, "7", f"{trap} -u; grep -E '^(Cap(Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status"
    ).split("\n", 1)
    assert is_own(int(uid))
    assert {line.split()[1] for line in status.splitlines()} == {"0000000000000000", "1"}
    assert stat.S_IMODE(trap.stat().st_mode) == 0o4755


@as_root
def test_a_job_cannot_become_root_again(keeper: Keeper, agent: Agent) -> None:
    script = "import os\ntry:\n    os.setresuid(0, 0, 0)\nexcept PermissionError:\n    print(os.getresuid())"
    agent.start("7", "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "python3", "-c", script)
    agent.wait_ended()

    ids = set(eval(keeper.output("7")))
    assert len(ids) == 1
    assert is_own(ids.pop())


@as_root
def test_one_user_can_be_configured_for_all_jobs(keeper: Keeper) -> None:
    agent = keeper.agent()
    agent.hello(run_as="nobody")

    who = output_of(keeper, agent, "7", 'id -u; id -g; echo "$USER"').split()
    nobody = find_user("nobody")
    assert who == [str(nobody.uid), str(nobody.gid), "nobody"]


@as_root
def test_a_directory_that_the_user_may_not_enter_is_the_reason(keeper: Keeper, agent: Agent) -> None:
    closed = keeper.root.parent / "closed"
    closed.mkdir(mode=0o700)
    agent.start("7", "true", workdir=str(closed))

    assert agent.wait_ended()[0][11] == f"working directory {closed}: Permission denied"


@as_root
def test_many_starts_leave_the_keeper_with_its_own_user(keeper: Keeper, agent: Agent) -> None:
    keeper.wait_preallocated()
    descriptors = f"/proc/{keeper.process.pid}/fd"
    agent.start("7", "true")
    agent.wait_ended()
    before = len(os.listdir(descriptors))
    agent.start("8", "sh", "-c", "id -u", tasks=[[index, 1, 0] for index in range(300)])
    agent.wait_ended(301)

    assert {row[4] for row in agent.ended} == {0}
    agent.send(op="forget", jobs=["8"])
    wait_until(lambda: len(os.listdir(descriptors)) <= before, "the last file closed")
    uids = [uids_of(task) for task in Path(f"/proc/{keeper.process.pid}/task").iterdir()]
    assert set(uids) - {None} == {"Uid:\t0\t0\t0\t0"}


def uids_of(task: Path) -> str | None:
    """The uids of a thread; None: it has ended."""
    try:
        return next(line for line in (task / "status").read_text().splitlines() if line.startswith("Uid:"))
    except OSError:
        return None


def test_an_ordinary_user_runs_attempts_as_itself(keeper: Keeper) -> None:
    agent = keeper.agent()
    agent.hello()
    agent.start("7", sys.executable, "-c", "import os; print(os.getuid(), os.environ.get('HOME'))")
    agent.wait_ended()

    assert keeper.output("7").split() == [str(os.getuid()), str(os.environ.get("HOME"))]
