"""The cgroups of this process, and where it may create cgroups of its own."""

import contextlib
import os
from typing import NamedTuple

from rota.keeper.limits.cgroup_v2 import OTHERS_LEAF, is_root, read_words
from rota.keeper.limits.limits import CPU, MEMORY, PIDS

DELEGATION_XATTRS = ("user.delegate", "trusted.delegate")  # set by systemd on delegated cgroups


class CgroupMount(NamedTuple):
    part: str  # the mounted subtree: a container may see a part only
    place: str

    def path_of(self, path: str) -> str:
        return self.place + path.removeprefix(self.part.rstrip("/")).rstrip("/")


def own_cgroups_v1() -> dict[str, str]:
    """The cgroups of version 1 that this process is in, by controller."""
    places = {name: mounted for kind, name, mounted in read_mounts() if kind == "cgroup"}
    return {name: places[name].path_of(path) for name, path in _own_groups() if name in places}


def delegated_cgroup_v2() -> str | None:
    """A cgroup that the keeper may divide: the root, a delegated one, or as the root user the root again.

    None: there is none, or it has no controllers.
    """
    mounted = next((mounted for kind, _, mounted in read_mounts() if kind == "cgroup2"), None)
    path = next((path for name, path in _own_groups() if not name), None)
    if mounted is None or path is None or ".." in path:
        return None
    own = mounted.path_of(path)
    own = os.path.dirname(own) if os.path.basename(own) == OTHERS_LEAF else own
    if not (is_root(own) or path == "/" or _is_delegated(own)) and os.geteuid() == 0:
        own = mounted.place
    files = [own, f"{own}/cgroup.procs", f"{own}/cgroup.subtree_control"]
    is_ours = all(os.access(file, os.W_OK) for file in files)
    controllers = read_words(f"{own}/cgroup.controllers")
    return own if is_ours and {MEMORY, PIDS, CPU}.intersection(controllers) else None


def _is_delegated(path: str) -> bool:
    for name in DELEGATION_XATTRS:
        with contextlib.suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    return os.geteuid() != 0 and os.stat(path).st_uid == os.geteuid()


def read_mounts() -> list[tuple[str, str, CgroupMount]]:
    """Mounted cgroup file systems: type, controller and mount."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            place, _, source = line.partition(" - ")
            kind, _, options = source.split(maxsplit=2)
            if kind in ("cgroup", "cgroup2"):
                mounted = CgroupMount(*place.split()[3:5])
                found += [(kind, name, mounted) for name in options.strip().split(",")]
    return found


def _own_groups() -> list[tuple[str, str]]:
    """The cgroups of this process: controller and path; version 2 has an empty controller."""
    found = []
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            found += [(name, path) for name in names.split(",")]
    return found
