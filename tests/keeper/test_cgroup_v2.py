"""Cgroups of version 2 on a real hierarchy: killing, freezing and delegation, also without controllers."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.keeper.limits import cgroup_mounts
from rota.keeper.limits.cgroup_v2 import KEEPER_CGROUP, LEAF_PROCESSES_MAX, OTHERS_LEAF, CgroupsV2, CgroupV2
from rota.keeper.limits.cgroups import read_numbers
from rota.keeper.limits.detect import NAME, kill_cgroup_tree, remove_leftovers
from rota.keeper.limits.limits import AttemptLimits
from rota.keeper.process import forked
from rota.keeper.process.starter import ProcessContext
from rota.keeper.process.users import User
from tests.keeper.conftest import keeper_env, wait_until
from tests.keeper.test_limits import CROWD, MANY
from tests.machine import needs

PLACE = next(
    (mounted.place for kind, _, mounted in cgroup_mounts.read_mounts() if kind == "cgroup2"), "/nowhere"
)
USER = 61_000
ENTERS = f'echo $$ > "$0"; exec setpriv --reuid {USER} --regid {USER} --clear-groups "$@"'
HOLDS = """
import sys, time
from rota.keeper.limits.cgroup_v2 import CgroupsV2
CgroupsV2(*sys.argv[1:])
print("made", flush=True)
time.sleep(600)
"""

pytestmark = needs("cgroup v2")


@pytest.fixture
def groups() -> Iterator[CgroupsV2]:
    groups = CgroupsV2(PLACE, f"{NAME}test-{os.getpid()}")
    try:
        yield groups
    finally:
        groups.close()


@pytest.fixture
def group(groups: CgroupsV2) -> Iterator[CgroupV2]:
    group = groups.create(("7", 0, 1), AttemptLimits(pids=5000))
    assert isinstance(group, CgroupV2)
    try:
        yield group
    finally:
        groups.kill_and_remove(group)
        wait_until(lambda: not is_left(groups, group), "the end of the group")


def is_left(groups: CgroupsV2, group: CgroupV2) -> bool:
    groups.remove_empty()
    return os.path.exists(group.path)


def start(group: CgroupV2, output: Path, *argv: str, user: User | None = None, cwd: str = "/") -> int:
    env = {b"PATH": os.fsencode(os.environ["PATH"])}
    arguments = tuple(map(os.fsencode, argv))
    around = ProcessContext(user, (*group.procs_files,))
    program = forked.Program(arguments[0], arguments, env, cwd, around, [signal.SIGPIPE])
    pid, error = forked.start(program, os.fsencode(output))
    if error:
        raise OSError(error, os.strerror(error))
    return pid


@contextlib.contextmanager
def holder(*arguments: str, inside: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that creates cgroups as a keeper does, in a delegated one as an ordinary user."""
    command = [sys.executable, "-c", HOLDS, *arguments]
    if inside is not None:
        command = ["sh", "-c", ENTERS, f"{inside}/cgroup.procs", *command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=keeper_env())
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"made\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_process_is_in_its_cgroup_before_its_first_instruction(group: CgroupV2, tmp_path: Path) -> None:
    pid = start(group, tmp_path / "it", "/bin/cat", "/proc/self/cgroup")
    _, status = os.waitpid(pid, 0)

    assert status == 0
    assert f"0::/{os.path.relpath(group.path, PLACE)}\n" in (tmp_path / "it.out").read_text()


def test_a_forked_process_has_its_session_directory_and_user_only(group: CgroupV2, tmp_path: Path) -> None:
    who = "echo $$ $(cut -d ' ' -f 6 /proc/$$/stat) $(id -u) $(id -G) $(pwd)"
    script = f"{who}; env | sort; ls /proc/$$/fd; grep SigIgn /proc/$$/status"
    inherited = {int(fd) for fd in os.listdir("/proc/self/fd") if is_inherited(int(fd))}  # a keeper has none
    pid = start(group, tmp_path / "it", "/bin/sh", "-c", script, user=User(USER, USER), cwd="/usr")
    os.waitpid(pid, 0)
    first, *rest = (tmp_path / "it.out").read_text().splitlines()

    assert first.split() == [str(pid), str(pid), str(USER), str(USER), "/usr"]
    assert [line.partition("=")[0] for line in rest if "=" in line] == ["PATH", "PWD"]
    assert {int(line) for line in rest if line.isdecimal()} <= {0, 1, 2} | inherited
    assert int(rest[-1].split()[1], 16) & 1 << (signal.SIGPIPE - 1) == 0


def is_inherited(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


@pytest.mark.parametrize(
    ("program", "error"), [("/no/such", FileNotFoundError), ("/etc/passwd", PermissionError)]
)
def test_a_fork_reports_exec_errors_as_a_spawn_does(
    group: CgroupV2, tmp_path: Path, program: str, error: type[OSError]
) -> None:
    with pytest.raises(error):
        start(group, tmp_path / "it", program)


@pytest.mark.parametrize("way", ["kill", "_kill_frozen"], ids=["by a new kernel", "by an old one"])
def test_grandchildren_that_ignore_sigterm_are_killed_at_once(
    group: CgroupV2, tmp_path: Path, way: str
) -> None:
    pid = start(group, tmp_path / "it", sys.executable, "-c", CROWD)
    wait_until(lambda: "ready" in (tmp_path / "it.out").read_text(), "a crowd")
    assert len(group.members()) == MANY + 1
    getattr(group, way)()
    os.waitpid(pid, 0)

    wait_until(lambda: not group.members(), "the end of the crowd")


def test_a_fork_bomb_is_killed_at_once(group: CgroupV2, tmp_path: Path) -> None:
    """Each child leaves the session and its parent; there are never many at a time."""
    script = "import os\nwhile True:\n    if os.fork():\n        os._exit(0)\n    os.setsid()"
    pid = start(group, tmp_path / "it", sys.executable, "-c", script)
    os.waitpid(pid, 0)
    assert group.members()
    group.kill()

    wait_until(lambda: not group.members(), "the end of the bomb")


@contextlib.contextmanager
def sleepers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of attempts without limits, in the leaf that the keeper was in when it spawned them."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.extend(subprocess.Popen(["sleep", "600"]) for _ in range(count))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def leaf_of(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line.rpartition("/")[2] for line in lines if line.startswith("0::"))


def test_a_keeper_leaves_a_leaf_with_many_processes(groups: CgroupsV2) -> None:
    with sleepers(LEAF_PROCESSES_MAX + 1) as crowd:
        groups.leave_shared_cgroup()
        assert leaf_of(os.getpid()) == "2"
        assert {leaf_of(process.pid) for process in crowd} == {"1"}
        groups.remove_empty()
        with sleepers(1) as few:
            groups.leave_shared_cgroup()
            assert leaf_of(os.getpid()) == leaf_of(few[0].pid) == "2"

    def is_left_behind() -> bool:
        groups.remove_empty()
        return os.path.exists(f"{PLACE}/{NAME}test-{os.getpid()}/{KEEPER_CGROUP}/1")

    wait_until(lambda: not is_left_behind(), "the end of the leaf that was left")


def test_frozen_processes_can_be_killed_and_others_continue(groups: CgroupsV2) -> None:
    with sleepers(LEAF_PROCESSES_MAX + 1) as (first, other, *_):
        with groups.freeze_all():
            frozen = Path(
                f"{PLACE}/{NAME}test-{os.getpid()}/{KEEPER_CGROUP}/{leaf_of(first.pid)}/cgroup.events"
            )
            wait_until(lambda: "frozen 1" in frozen.read_text(), "a crowd that is still")
            first.kill()
            first.wait()
            assert leaf_of(os.getpid()) != leaf_of(other.pid)

        wait_until(lambda: "frozen 0" in frozen.read_text(), "work that goes on")
        assert other.poll() is None


def test_a_leaf_with_few_processes_is_not_frozen(groups: CgroupsV2) -> None:
    with sleepers(1) as (sleeper,), groups.freeze_all():
        where = f"{PLACE}/{NAME}test-{os.getpid()}/{KEEPER_CGROUP}/{leaf_of(sleeper.pid)}/cgroup.events"

        assert "frozen 0" in Path(where).read_text()


def test_only_empty_cgroups_without_a_keeper_are_removed(
    groups: CgroupsV2, group: CgroupV2, tmp_path: Path
) -> None:
    name = f"{NAME}dead-{os.getpid()}"
    with holder(PLACE, name) as keeper:
        remove_leftovers(PLACE)
        assert os.path.exists(f"{PLACE}/{name}/{KEEPER_CGROUP}")  # its keeper lives
        sleeper = subprocess.Popen(["sleep", "600"])
        Path(f"{PLACE}/{name}/x").mkdir()
        Path(f"{PLACE}/{name}/x/cgroup.procs").write_text(str(sleeper.pid))
        keeper.kill()
        keeper.wait()
        try:
            remove_leftovers(PLACE)
            assert os.path.exists(f"{PLACE}/{name}/x")  # it has a process
        finally:
            sleeper.kill()
            sleeper.wait()

    def is_left_over() -> bool:
        """Tolerates other keepers that remove the same cgroups at this moment."""
        remove_leftovers(PLACE)
        return os.path.exists(f"{PLACE}/{name}")

    wait_until(lambda: not is_left_over(), "the end of what nobody is in")
    assert os.path.exists(group.path)


def test_an_ordinary_user_creates_cgroups_in_a_delegated_one(tmp_path: Path) -> None:
    """Other processes of the cgroup are moved to a leaf, because only leaves may have processes."""
    home = Path(f"{PLACE}/given-{os.getpid()}")
    home.mkdir()
    for path in (
        home,
        *(home / file for file in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")),
    ):
        os.chown(path, USER, USER)
    neighbour = subprocess.Popen(["sleep", "600"])
    (home / "cgroup.procs").write_text(str(neighbour.pid))
    try:
        with holder(str(home), f"{NAME}x", inside=home) as keeper:
            assert read_numbers(f"{home}/cgroup.procs") == []
            assert read_numbers(f"{home}/{OTHERS_LEAF}/cgroup.procs") == [neighbour.pid]
            assert read_numbers(f"{home}/{NAME}x/{KEEPER_CGROUP}/1/cgroup.procs") == [keeper.pid]
    finally:
        neighbour.kill()
        neighbour.wait()
        wait_until(lambda: kill_cgroup_tree(str(home)), "the end of the group")
