"""Detection of usable cgroups at start-up: version 2, version 1, or none; and removal of leftovers."""

import contextlib
import fcntl
import os
import time

from rota.keeper.limits.cgroup_mounts import delegated_cgroup_v2, own_cgroups_v1
from rota.keeper.limits.cgroup_v1 import FREEZER, CgroupsV1, CgroupV1
from rota.keeper.limits.cgroup_v2 import CgroupsV2
from rota.keeper.limits.cgroups import Cgroups, subdirectories, write_file
from rota.keeper.limits.limits import CPU, MEMORY, PIDS, AttemptLimits

CONTROLLERS = (FREEZER, PIDS, MEMORY, CPU)
NAME = "rota-keeper-"  # prefix; a keeper holds the lock of its cgroup, without a lock it is a leftover


def find_cgroups(root: str, mark: str) -> Cgroups:
    """Detect cgroups; their paths are stored in the keeper's directory, where the next keeper finds them."""
    name = f"{NAME}{mark}"
    if home := delegated_cgroup_v2():
        with contextlib.suppress(OSError):
            remove_leftovers(home)
            groups_v2 = CgroupsV2(home, name)
            _write_paths(root, [f"{home}/{name}"])
            return groups_v2
    homes = own_cgroups_v1()
    usable = {name: homes[name] for name in CONTROLLERS if name in homes and os.access(homes[name], os.W_OK)}
    if usable:
        with contextlib.suppress(OSError):
            for home in usable.values():
                remove_leftovers(home)
            groups_v1 = CgroupsV1(usable, name)
            _write_paths(root, [f"{home}/{name}" for home in usable.values()])
            return groups_v1
    return Cgroups()


def kill_leftover_cgroups(root: str, timeout_seconds: float) -> None:
    """Kill what an earlier keeper left in its cgroups."""
    try:
        with open(f"{root}/groups", encoding="utf-8") as file:
            paths = file.read().splitlines()
    except OSError:
        return
    give_up_at = time.monotonic() + timeout_seconds
    while paths and time.monotonic() < give_up_at:
        paths = [path for path in paths if not kill_cgroup_tree(path)]
        time.sleep(0.005 if paths else 0)


def kill_cgroup_tree(path: str) -> bool:
    """Kill everything in a cgroup and below, and remove it; False: some processes have not ended yet."""
    left = [entry.path for entry in subdirectories(path) if not kill_cgroup_tree(entry.path)]
    group = CgroupV1(AttemptLimits(), {FREEZER: path})
    if os.path.exists(f"{path}/cgroup.kill"):
        with contextlib.suppress(OSError):
            write_file(f"{path}/cgroup.kill", "1")
    else:
        group.kill()
    return not left and group.remove()


def remove_leftovers(home: str) -> None:
    """Remove empty cgroups whose keeper has ended, also if its directory was deleted."""
    for entry in subdirectories(home):
        if not entry.name.startswith(NAME):
            continue
        with contextlib.suppress(OSError):
            fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_empty(entry.path)
            finally:
                os.close(fd)


def _remove_empty(path: str) -> None:
    for entry in subdirectories(path):
        _remove_empty(entry.path)
    with contextlib.suppress(OSError):  # it has processes
        os.rmdir(path)


def _write_paths(root: str, paths: list[str]) -> None:
    fd = os.open(f"{root}/groups", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write("".join(f"{path}\n" for path in paths))
