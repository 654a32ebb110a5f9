"""A spec with an image + the node's policy -> the command line of the runtime, or why it is refused."""

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rota.keeper.container.sources import Handle, Pin, open_source
from rota.keeper.limits.limits import NO_LIMITS, OOM, AttemptLimits, format_bytes
from rota.keeper.resources.reservations import AttemptKey

PODMAN, DOCKER = "podman", "docker"
ROOT = 0
LABEL = "rota.keeper"
DEFAULT_PIDS = 2048  # podman's own default; docker has none
NPROC_MAX = 32_768  # podman lowers its own limit to this, and cannot give more than it has
CANNOT_EXECUTE, NOT_FOUND = 126, 127
KILLED = 128 + 9
BATCH_BYTES = 1 << 20
CPU_SHARES = 1024  # of a whole core
SPECIAL = ",\"'\n"  # characters that a --mount option cannot contain


class ContainerNotAllowed(Exception):
    """The node's policy forbids a container, or it has no runtime; the text is the reason."""


@dataclass(frozen=True, slots=True)
class KeeperMount:
    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class KeeperContainer:
    """The container of a spec."""

    image: str
    user: str | None = None  # a number, or two: user:group
    network: str = "none"
    mounts: tuple[KeeperMount, ...] = ()
    workdir: str | None = None
    pull: str = "never"
    limits: AttemptLimits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class KeeperContainerEngine:
    """The runtime of this node, and what its operator allows."""

    kind: str  # podman or docker
    program: str
    mounts: tuple[str, ...] = ()  # directories below which a job may mount; suffix `:ro`: read-only
    root: bool = False  # user 0 is allowed, with the runtime's default capabilities
    init: bool = False  # it can run an init that forwards signals and reaps orphans
    old_groups: bool = False  # it manages cgroups of version 1 by itself, and misses OOM kills


@dataclass(frozen=True, slots=True)
class ContainerLaunch:
    """One attempt in a container."""

    name: str
    mark: str
    container: KeeperContainer
    mounts: tuple[KeeperMount, ...]  # allowed by the policy
    user: str
    workdir: str
    env_file: str
    cid_file: str  # written when the container has been created
    command: tuple[str, ...]
    group: str | None = None  # parent of the container's cgroup


def container_name(mark: str, key: AttemptKey, step: int = 0) -> str:
    """The name of a container; each step has one of its own."""
    job, index, attempt = key
    return f"rota-{mark[:12]}-{job}-{index}-{attempt}" + (f"-{step}" if step else "")


def cgroup_parent(mark: str) -> str:
    """The parent of the cgroups of a keeper's containers, if the keeper creates it."""
    return f"/rota-{mark[:12]}-containers"


def run_argv(engine: KeeperContainerEngine, start: ContainerLaunch) -> list[str]:
    """The command line that runs a container in the foreground, with its output and exit code."""
    container = start.container
    options = [
        *("--name", start.name, "--label", f"{LABEL}={start.mark}"),
        *("--cidfile", start.cid_file, "--pull", container.pull),
        *("--log-driver", "none", "--network", container.network),
        *("--user", start.user, "--workdir", start.workdir, "--env-file", start.env_file),
        *("--security-opt", "no-new-privileges"),
        *_capabilities(engine, start.user),
        *(_limits(start.container.limits) if enforces_limits(engine) else ()),
        *(option for mount in start.mounts for option in ("--mount", _mount(mount))),
        *(("--init",) if engine.init else ()),
        *(("--cgroup-parent", start.group) if start.group else ()),
        *(_podman_options() if engine.kind == PODMAN else ()),
    ]
    return [engine.program, "run", *options, container.image, *start.command]


def _capabilities(engine: KeeperContainerEngine, user: str) -> tuple[str, ...]:
    return () if engine.root and _uid(user) == ROOT else ("--cap-drop", "ALL")


def _limits(bounds: AttemptLimits) -> list[str]:
    options = ["--cpu-shares", str(max(2, bounds.cpu_weight_milli * CPU_SHARES // 1000))]
    if bounds.memory_bytes is not None:
        options += ["--memory", f"{bounds.memory_bytes}b", "--memory-swap", f"{bounds.memory_bytes}b"]
    if bounds.cpu_milli is not None:
        options += ["--cpus", f"{bounds.cpu_milli / 1000:g}"]
    return [*options, "--pids-limit", str(bounds.pids or DEFAULT_PIDS)]


def _mount(mount: KeeperMount) -> str:
    return f"type=bind,source={mount.source},target={mount.target}" + (",readonly" if mount.read_only else "")


def _podman_options() -> list[str]:
    """Options of podman: its own resource limits, because by default it asks for more than it may have."""
    nofile, nproc = (
        resource.getrlimit(which)[1] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    if nproc == resource.RLIM_INFINITY or nproc > NPROC_MAX:
        nproc = NPROC_MAX
    return [
        "--http-proxy=false",
        "--ulimit",
        f"nofile={nofile}:{nofile}",
        "--ulimit",
        f"nproc={nproc}:{nproc}",
    ]


@dataclass(frozen=True, slots=True)
class ContainerState:
    """What the runtime reports of a container after its command line has ended."""

    ran: bool = True  # its command was started
    out_of_memory: bool = False
    has_image: bool = True
    peak_bytes: int = 0  # 0: unknown


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How an attempt in a container ended; `is_refused`: this node could not start it, another one may."""

    exit_code: int | None
    reason: str | None = None
    is_refused: bool = False
    peak_bytes: int = 0
    cause: str | None = None


def classify_exit(
    exit_code: int | None, seen: ContainerState, start: ContainerLaunch, last_line: str
) -> ContainerExit:
    """Classify an exit: a failed runtime exits with 125, a command that cannot be executed with 126, 127."""
    limit, peak = start.container.limits.memory_bytes, seen.peak_bytes
    if exit_code and (seen.out_of_memory or _reached_memory_limit(exit_code, limit, peak)):
        return ContainerExit(exit_code, container_oom_reason(limit, peak), peak_bytes=peak, cause=OOM)
    if seen.ran or exit_code is None:
        return ContainerExit(exit_code, peak_bytes=peak)
    if exit_code in (CANNOT_EXECUTE, NOT_FOUND):
        return ContainerExit(exit_code, last_line or None)
    if not seen.has_image:
        image = start.container.image
        if start.container.pull == "never":
            return ContainerExit(
                NOT_FOUND, f"this node has no image {image}, and the job does not let it be pulled"
            )
        return ContainerExit(NOT_FOUND, f"image {image} cannot be pulled: {last_line}")
    return ContainerExit(exit_code, f"its container cannot be started here: {last_line}", is_refused=True)


def _reached_memory_limit(exit_code: int, limit: int | None, peak: int) -> bool:
    """Whether it was killed at its limit; the kernel counts memory in batches, so a little less will do."""
    return exit_code == KILLED and limit is not None and peak >= limit - BATCH_BYTES


def container_oom_reason(limit: int | None, peak: int) -> str:
    if limit is None:
        return "out of memory"
    return f"out of memory: limit {format_bytes(limit)}" + (
        f", peak {format_bytes(min(peak, limit))}" if peak else ""
    )


def is_rootless(engine: KeeperContainerEngine) -> bool:
    """Whether root in a container is the keeper's own user; other users may not be available."""
    return engine.kind == PODMAN and os.geteuid() != ROOT


def enforces_limits(engine: KeeperContainerEngine) -> bool:
    """Whether the runtime enforces limits: a rootless one cannot use cgroups of version 1."""
    return not (engine.old_groups and is_rootless(engine))


def allowed_user(engine: KeeperContainerEngine, requested: str | None, default: str) -> str:
    user = requested or default
    if _uid(user) == ROOT and not engine.root and not is_rootless(engine):
        raise ContainerNotAllowed("this node lets no container run as root")
    return user


class Granted(NamedTuple):
    """Mounts for the runtime's command line, and pins to hold until the container has ended."""

    mounts: list[KeeperMount]
    pins: list[Pin]


def allowed_mounts(engine: KeeperContainerEngine, requested: Sequence[KeeperMount], pins: str) -> Granted:
    """Resolve mount sources, check them against the policy, and pin them; paths of pins start with `pins`.

    A docker engine may see other mounts than this process, so it gets the resolved path: there, and where the
    keeper cannot mount, a link that is put in its place after the check is followed.
    """
    places = [(os.path.realpath(path.removesuffix(":ro")), path.endswith(":ro")) for path in engine.mounts]
    granted = Granted([], [])
    for number, mount in enumerate(requested):
        handle = _allowed(places, mount)
        source = handle.place
        if engine.kind == PODMAN and os.geteuid() == ROOT:
            granted.pins.append(Pin(handle, f"{pins}-{number}"))
            source = granted.pins[-1].path
        if any(letter in source + mount.target for letter in SPECIAL):
            raise ContainerNotAllowed(
                f"{mount.source} at {mount.target}: a character that no mount can be given"
            )
        granted.mounts.append(KeeperMount(source, mount.target, mount.read_only))
    return granted


def _allowed(places: list[tuple[str, bool]], mount: KeeperMount) -> Handle:
    source, handle = _opened(mount.source)
    shown = mount.source if source == mount.source else f"{mount.source} ({source})"
    around = [read_only for place, read_only in places if _is_below(source, place)]
    if not around:
        raise ContainerNotAllowed(f"this node does not let {shown} be mounted")
    if all(around) and not mount.read_only:
        raise ContainerNotAllowed(f"this node lets {shown} be mounted for reading only")
    if handle is None:
        raise ContainerNotAllowed(f"there is no {shown} to mount")
    return handle


def _opened(source: str) -> tuple[str, Handle | None]:
    """The resolved path of a source and a handle to it; None: it does not exist."""
    try:
        handle = open_source(source)
    except OSError:
        return os.path.realpath(source), None
    return handle.place, handle


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def _uid(user: str) -> int:
    return int(user.partition(":")[0])
