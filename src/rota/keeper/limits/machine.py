"""What this machine allows, found once at the start: groups of version 2, of version 1, or none."""

import contextlib
import os
import time

from rota.keeper.limits.cgroup_v1 import FREEZER, GroupsV1, GroupV1
from rota.keeper.limits.cgroups import Groups, entries, write
from rota.keeper.limits.words import CPU, MEMORY, PIDS, Limits

CONTROLLERS = (FREEZER, PIDS, MEMORY, CPU)


def find_groups(root: str, mark: str) -> Groups:
    """Also remembers, in the keeper's directory, where the groups are: another keeper has to find them."""
    homes = _homes_v1()
    usable = {one: homes[one] for one in CONTROLLERS if one in homes and os.access(homes[one], os.W_OK)}
    if usable:
        with contextlib.suppress(OSError):
            groups = GroupsV1(usable, f"rota-{mark}")
            _remember(root, [f"{home}/rota-{mark}" for home in usable.values()])
            return groups
    return Groups()


def end_groups(root: str, patience_seconds: float) -> None:
    """End what an earlier keeper left in its groups."""
    try:
        with open(f"{root}/groups", encoding="utf-8") as file:
            paths = file.read().splitlines()
    except OSError:
        return
    give_up_at = time.monotonic() + patience_seconds
    while paths and time.monotonic() < give_up_at:
        paths = [path for path in paths if not end_tree(path)]
        time.sleep(0.005 if paths else 0)


def end_tree(path: str) -> bool:
    """Kill everything in a group and below, and remove it; False: something has not yet gone."""
    left = [entry.path for entry in entries(path) if not end_tree(entry.path)]
    group = GroupV1(Limits(), {FREEZER: path})
    if os.path.exists(f"{path}/cgroup.kill"):
        with contextlib.suppress(OSError):
            write(f"{path}/cgroup.kill", "1")
    else:
        group.kill()
    return not left and group.remove()


def _remember(root: str, paths: list[str]) -> None:
    fd = os.open(f"{root}/groups", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write("".join(f"{path}\n" for path in paths))


def _homes_v1() -> dict[str, str]:
    """Where this process is, by controller."""
    mounts: dict[str, tuple[str, ...]] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            place, _, source = line.partition(" - ")
            kind, _, options = source.split(maxsplit=2)
            if kind == "cgroup":
                mounts |= dict.fromkeys(options.strip().split(","), tuple(place.split()[3:5]))
    homes = {}
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                if controller in mounts:
                    part, place = mounts[controller]  # a container may see a part of the tree only
                    homes[controller] = place + path.removeprefix(part.rstrip("/")).rstrip("/")
    return homes
