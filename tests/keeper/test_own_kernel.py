"""Limits by cgroups of version 2 with all controllers, in a user-mode kernel."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.machine import needs
from tests.own_kernel import SECONDS, SETUP, run_inside

USER = 61_000
# As systemd delegates a part of the tree to a user: only these files of its top belong to the user.
DELEGATED = f"""
echo '+cpu +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/given
cd /sys/fs/cgroup/given
chown {USER}:{USER} . cgroup.procs cgroup.subtree_control cgroup.threads
echo $$ > cgroup.procs
mkdir -m 700 /run/user
chown {USER}:{USER} /run/user
export TMPDIR=/run/user
"""
AS_USER = f"setpriv --reuid {USER} --regid {USER} --clear-groups"

pytestmark = [needs("own kernel"), pytest.mark.timeout(SECONDS + 120), pytest.mark.system]


def test_memory_and_process_limits_hold_under_version_2(tmp_path: Path) -> None:
    chosen = ["tests/keeper/test_limits.py", "-k", "too_much_memory or too_many_processes or without_memory"]

    printed = run_inside(tmp_path, SETUP, pytest_command("/run/tests", *chosen))

    assert_all_passed(printed)


@pytest.mark.nightly
def test_every_limit_holds_under_version_2(tmp_path: Path) -> None:
    chosen = ["tests/keeper/test_limits.py", "tests/keeper/test_cgroup_v2.py"]

    printed = run_inside(tmp_path, SETUP, pytest_command("/run/tests", *chosen))

    assert_all_passed(printed)


@pytest.mark.nightly
def test_limits_hold_for_an_ordinary_user_in_a_delegated_cgroup(tmp_path: Path) -> None:
    chosen = ["tests/keeper/test_limits.py", "tests/keeper/test_steps.py", "-k", "limits or order or spare"]

    printed = run_inside(tmp_path, SETUP + DELEGATED, f"{AS_USER} {pytest_command('/run/user/t', *chosen)}")

    assert_all_passed(printed)


def assert_all_passed(printed: str) -> None:
    assert "passed" in printed, printed
    assert "failed" not in printed, printed
    assert "skipped" not in printed, printed


def pytest_command(base: str, *arguments: str) -> str:
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={base}", "--timeout=200", *arguments]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return shlex.join([f"/run/python/bin/{version}", "-m", "pytest", *options])
