"""Limits by groups of version 2 with all controllers, in a kernel that runs as a process of this one."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rota.keeper

KERNEL = shutil.which("linux.uml")
# What the tests are made of, and where everybody finds it inside, whoever may enter its directory here.
MADE_OF = {
    "/run/repository": Path(__file__).parents[2],
    "/run/source": Path(rota.keeper.__file__).parents[2],
    "/run/packages": Path(pytest.__file__).parents[1],
    "/run/python": Path(sys.base_prefix),
}
SECONDS = 600
USER = 61_000
SETUP = """
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
""" + "".join(
    f"mkdir {place}\nmount --bind {shlex.quote(str(path))} {place}\n" for place, path in MADE_OF.items()
)
# As systemd gives a user a part of the tree: only these files of the top are his.
GIVEN_AWAY = f"""
echo '+cpu +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/given
cd /sys/fs/cgroup/given
chown {USER}:{USER} . cgroup.procs cgroup.subtree_control cgroup.threads
echo $$ > cgroup.procs
mkdir -m 700 /run/user
chown {USER}:{USER} /run/user
export TMPDIR=/run/user
"""
BECOMES = f"setpriv --reuid {USER} --regid {USER} --clear-groups"

pytestmark = [
    pytest.mark.skipif(KERNEL is None, reason="no user-mode-linux: `make system-packages` installs it"),
    pytest.mark.timeout(SECONDS + 60),
    pytest.mark.system,
]


def test_limits_are_kept_by_groups_of_version_2(tmp_path: Path) -> None:
    wanted = ["tests/keeper/test_limits.py", "tests/keeper/test_cgroup_v2.py"]

    ran = run_inside(tmp_path, SETUP, pytest_words("/run/tests", *wanted))

    assert_all_passed(ran)


def test_an_ordinary_user_keeps_them_in_a_group_that_was_given_away(tmp_path: Path) -> None:
    wanted = ["tests/keeper/test_limits.py", "tests/keeper/test_steps.py", "-k", "limits or order or spare"]

    ran = run_inside(tmp_path, SETUP + GIVEN_AWAY, f"{BECOMES} {pytest_words('/run/user/t', *wanted)}")

    assert_all_passed(ran)


def assert_all_passed(said: str) -> None:
    assert "passed" in said, said
    assert "failed" not in said, said
    assert "skipped" not in said, said


def pytest_words(base: str, *words: str) -> str:
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={base}", "--timeout=200", *words]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return shlex.join([f"/run/python/bin/{version}", "-m", "pytest", *options])


def run_inside(directory: Path, setup: str, command: str) -> str:
    """What a command printed whose kernel has groups of version 2, and nothing else of this machine's."""
    said, init = directory / "said", directory / "init"
    env = {
        "PYTHONPATH": "/run/source:/run/packages",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ROTA_TEST_OWN_KERNEL": "cgroup-v2",
    }
    env |= {"ROTA_TEST_PATIENCE_SECONDS": "90", "ROTA_TEST_CROWD": "50"}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    paths = "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root\n"
    # Where there is no halt, the end of the first process is a panic, and that ends it, too.
    run = f"cd /run/repository\n{command} > {shlex.quote(str(said))} 2>&1\nhalt -f\n"
    init.write_text(f"#!/bin/sh\n{paths}{exports}{setup}{run}")
    init.chmod(0o755)
    words = [
        "rootfstype=hostfs",
        "rootflags=/",
        "rw",
        "mem=768M",
        f"init={init}",
        "con=null",
        "con0=null,fd:1",
    ]
    with open(directory / "console", "wb") as console:
        process = subprocess.Popen(
            [str(KERNEL), *words, f"uml_dir={directory}", "quiet"],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,  # it is many processes, which a signal to all of them ends
        )
    try:
        process.wait(SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return said.read_text() if said.exists() else (directory / "console").read_text(errors="replace")
