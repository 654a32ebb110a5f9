"""The starter program: its machine code, and the same behaviour as the fork that replaces it."""

import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.keeper.process import forked, pid_namespace, posix, starter
from rota.keeper.process.posix import c_strings
from rota.keeper.process.starter import CannotEnter, ProcessContext
from rota.keeper.process.users import User
from tests.machine import needs

SOURCES = Path(starter.__file__).parent
USER = User(61_001, 61_002, (61_003, 61_004))
Start = Callable[..., tuple[int, int]]


@pytest.fixture(params=[pytest.param("starter", marks=needs("starter")), "fork"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Start a command as a keeper does; its output is in tmp_path/it.out."""

    def by_starter(around: ProcessContext, *argv: str, cwd: str = "/") -> tuple[int, int]:
        encoded = [os.fsencode(argument) for argument in argv]
        launch = posix.Launch(encoded[0], c_strings(encoded), c_strings([b"A=1"]), cwd, around, {})
        path, output = starter.find_starter(), os.fsencode(tmp_path / "it")
        assert path is not None
        try:
            return posix.start_in_context(path, launch, output, posix.make_attributes())
        finally:
            os.close(int(path.rpartition(b"/")[2]))

    def by_fork(around: ProcessContext, *argv: str, cwd: str = "/") -> tuple[int, int]:
        encoded = tuple(os.fsencode(argument) for argument in argv)
        program = forked.Program(encoded[0], encoded, {b"A": b"1"}, cwd, around, posix.RESET)
        return forked.start(program, os.fsencode(tmp_path / "it"))

    return by_starter if request.param == "starter" else by_fork


@needs("starter", "C compiler")
@pytest.mark.parametrize(("name", "code"), [("starter", starter.CODE), ("init", pid_namespace.CODE)])
def test_the_machine_code_is_that_of_its_source(tmp_path: Path, name: str, code: dict[str, bytes]) -> None:
    source = SOURCES / f"{name}_{platform.machine()}.s"
    subprocess.run(["cc", "-c", "-o", tmp_path / "it.o", source], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", tmp_path / "it.o", tmp_path / "it"], check=True)

    assert (tmp_path / "it").read_bytes() == code[platform.machine()]


@needs("root")
def test_a_started_process_has_its_user_groups_and_directory(start: Start, tmp_path: Path) -> None:
    script = "grep -E '^(Uid|Gid|Groups)' /proc/$$/status; pwd; ls /proc/$$/fd | tr '\\n' ' '; echo $A"
    pid, error = start(ProcessContext(USER, task_group=61_005), "/bin/sh", "-c", script, cwd="/usr")
    assert not error
    _, status = os.waitpid(pid, 0)

    uids, gids, groups, where, files = (tmp_path / "it.out").read_text().splitlines()
    assert status == 0
    assert set(uids.split()[1:]) == {"61001"}
    assert set(gids.split()[1:]) == {"61002"}
    assert groups.split()[1:] == ["61003", "61004", "61005"]
    assert where == "/usr"
    assert files.split()[-1] == "1"
    assert not {str(starter.STATUS_FD), str(starter.MOUNTS_FD)} & set(files.split()[:-1])


@needs("root")
@pytest.mark.parametrize(("program", "number"), [("/no/such", 2), ("/etc/passwd", 13)])
def test_a_program_that_cannot_be_executed_is_reported(start: Start, program: str, number: int) -> None:
    assert start(ProcessContext(USER), program) == (0, number)


@needs("root")
def test_a_directory_is_entered_as_the_user(start: Start, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    assert start(ProcessContext(USER), "/bin/true", cwd=str(tmp_path)) == (0, 13)


def test_a_missing_cgroup_is_the_nodes_fault(start: Start) -> None:
    with pytest.raises(CannotEnter, match="No such file"):
        start(ProcessContext(procs_files=("/proc/no/such/cgroup.procs",)), "/bin/true")


@needs("root", "pid namespaces")
@pytest.mark.parametrize("is_interpreted", [False, True])
def test_a_process_in_a_pid_namespace_sees_that_namespace_only(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_interpreted: bool
) -> None:
    if is_interpreted:  # as on a CPU without machine code
        monkeypatch.setattr(pid_namespace, "CODE", {})
    made = pid_namespace.PidNamespaces("x" * 32)
    namespace = made.create(is_bound=False)
    try:
        with namespace:
            around = ProcessContext(USER, mounts_fd=namespace.mounts_fd)
            pid, error = start(around, "/bin/sh", "-c", "echo $$; ls -d /proc/[0-9]*; cat /proc/$$/comm")
        assert not error
        os.waitpid(pid, 0)
        shell, *seen, name = (tmp_path / "it.out").read_text().split()
        assert seen == ["/proc/1", f"/proc/{shell}"]  # the names are found before `ls` is started
        assert name == "sh"
    finally:
        made.discard(namespace)
        os.waitpid(namespace.pid, 0)


@needs("root", "pid namespaces")
@pytest.mark.parametrize("is_interpreted", [False, True])
def test_an_empty_pid_namespace_ends_with_its_keeper(
    monkeypatch: pytest.MonkeyPatch, *, is_interpreted: bool
) -> None:
    if is_interpreted:
        monkeypatch.setattr(pid_namespace, "CODE", {})
    made = pid_namespace.PidNamespaces("x" * 32)
    namespace = made.create(is_bound=False)
    os.close(made._ends[1])  # as the kernel does for a keeper that was killed

    assert os.waitpid(namespace.pid, 0) == (namespace.pid, 0)
    namespace.close()
