"""What a test needs of the machine beyond Python: is it there, and if not, may the test be left out?

A test says `@needs("etcd")`, a fixture `require("etcd")`. Where the need is not met the test is left out, and
the last lines of the run name it with the reason. With CI=true only what the kernel or the CPU cannot do may
be left out: a missing package, or a user with too few rights, fails the test.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import NamedTuple, NoReturn

import pytest

from rota.keeper.limits import cgroup_mounts
from rota.keeper.process import sandbox
from rota.keeper.process.pid_namespace import PidNamespaces
from rota.keeper.process.starter import CODE
from rota.testing import images
from tests.own_kernel import why_emulation_does_not_work, why_user_mode_does_not_boot
from tools.machine import COMMANDS


class Cause(Enum):
    PACKAGE = "a package is not installed"
    USER = "the user has too few rights"
    MACHINE = "the kernel or the CPU cannot do it"


class Lack(NamedTuple):
    cause: Cause
    reason: str


def needs(*names: str) -> pytest.MarkDecorator:
    unknown = [name for name in names if name not in NEEDS]
    assert not unknown, f"{unknown} are no needs; there are {sorted(NEEDS)}"
    return pytest.mark.needs(*names)


def require(*names: str) -> None:
    """Leave the running test out, or fail it, unless each of these needs is met."""
    for name in names:
        if (lack := lack_of(name)) is not None:
            _leave_out(name, lack)


@cache
def lack_of(name: str) -> Lack | None:
    return NEEDS[name]()


def _leave_out(name: str, lack: Lack) -> NoReturn:
    if os.environ.get("CI") == "true" and lack.cause is not Cause.MACHINE:
        pytest.fail(
            f"{name}: {lack.reason}; with CI=true this is no reason to leave a test out", pytrace=False
        )
    pytest.skip(f"{name}: {lack.reason}")


def _commands(*names: str) -> Callable[[], Lack | None]:
    def look() -> Lack | None:
        missing = [name for name in names if shutil.which(name) is None]
        packages = ", ".join(dict.fromkeys(COMMANDS[name] for name in missing))
        return Lack(Cause.PACKAGE, f"install {packages}") if missing else None

    return look


def _root() -> Lack | None:
    return None if os.geteuid() == 0 else Lack(Cause.USER, "only root may do this")


def _containers() -> Lack | None:
    if lack := _commands("runc", "podman", "busybox")() or _root():
        return lack
    return None if images.engine() else Lack(Cause.MACHINE, "`podman info` fails here")


def _sandbox() -> Lack | None:
    if lack := _commands("bwrap")():
        return lack
    return None if sandbox.find_bwrap() else Lack(Cause.MACHINE, "bubblewrap cannot make its namespaces here")


def _networks() -> Lack | None:
    """Network namespaces tied by virtual cables."""
    if lack := _commands("ip")():
        return lack
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    bridge = ["unshare", *own_user, "--net", "ip", "link", "add", "hub", "type", "bridge"]
    return (
        None if _succeeds(bridge) else Lack(Cause.MACHINE, "no network namespace with a bridge can be made")
    )


def _pid_namespaces() -> Lack | None:
    """A root agent makes them itself; other users need a user namespace around the keeper."""
    if PidNamespaces("").label is not None:
        return None
    world = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--mount-proc",
        "--fork",
        "--kill-child",
        "true",
    ]
    return None if _succeeds(world) else Lack(Cause.MACHINE, "no pid namespace can be made")


def _own_pid_namespaces() -> Lack | None:
    if lack := _root():
        return lack
    return (
        None if PidNamespaces("").label is not None else Lack(Cause.MACHINE, "no pid namespace can be made")
    )


def _control_groups() -> Lack | None:
    """Of either version, in which a root keeper can make groups."""
    if lack := _root():
        return lack
    found = [
        path
        for path in (cgroup_mounts.delegated_cgroup_v2(), *cgroup_mounts.own_cgroups_v1().values())
        if path
    ]
    return None if any(os.access(path, os.W_OK) for path in found) else Lack(Cause.MACHINE, "there are none")


def _cgroup_v2() -> Lack | None:
    if lack := _root():
        return lack
    places = (mounted.place for kind, _, mounted in cgroup_mounts.read_mounts() if kind == "cgroup2")
    if any(os.access(place, os.W_OK) for place in places):
        return None
    return Lack(Cause.MACHINE, "no control group hierarchy of version 2 is mounted")


def _own_kernel() -> Lack | None:
    """User-mode Linux where the CPU carries it, else an emulated machine."""
    user_mode = why_user_mode_does_not_boot()
    emulated = user_mode and why_emulation_does_not_work()
    if not emulated:
        return None
    reason = f"user-mode Linux does not boot ({user_mode}), and {emulated}"
    return _commands("linux.uml", "qemu-system-x86_64")() or Lack(Cause.PACKAGE, reason)


def _starter() -> Lack | None:
    """The machine code of the keeper's starter."""
    machine = platform.machine()
    return None if machine in CODE else Lack(Cause.MACHINE, f"there is no starter for {machine}")


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


NEEDS: dict[str, Callable[[], Lack | None]] = {
    "root": _root,
    "etcd": _commands("etcd", "etcdctl"),
    "containers": _containers,
    "sandbox": _sandbox,
    "prometheus": _commands("prometheus", "promtool"),
    "networks": _networks,
    "pid namespaces": _pid_namespaces,
    "own pid namespaces": _own_pid_namespaces,
    "control groups": _control_groups,
    "cgroup v2": _cgroup_v2,
    "own kernel": _own_kernel,
    "openssl": _commands("openssl"),
    "curl": _commands("curl"),
    "C compiler": _commands("cc"),
    "starter": _starter,
}
