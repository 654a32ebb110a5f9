"""A spec with an image + what this node allows -> the command line that runs it, or why it is refused."""

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rota.keeper.container.sources import Handle, Pin, open_source
from rota.keeper.limits.words import NO_LIMITS, OOM, Limits, size
from rota.keeper.rules import Key

PODMAN, DOCKER = "podman", "docker"
ROOT = 0
LABEL = "rota.keeper"
PIDS = 2048  # what podman allows without a word, and docker would not bound
NPROC_MOST = 32_768  # podman itself lowers its limit to this, and may not give more than it has
CANNOT_EXECUTE, NOT_FOUND = 126, 127
KILLED = 128 + 9
BATCH_BYTES = 1 << 20
CPU_SHARES = 1024  # of a whole core
SPECIAL = ",\"'\n"  # what the runtimes' lists of options cannot hold


class NotAllowed(Exception):
    """This node's policy, or its lack of a runtime, keeps a container away; its text is the reason."""


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Container:
    """What a job says of its container."""

    image: str
    user: str | None = None  # a number, or two: user:group
    network: str = "none"
    mounts: tuple[Mount, ...] = ()
    workdir: str | None = None
    pull: str = "never"
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Engine:
    """The runtime of this node, and what its owner allows."""

    kind: str  # podman or docker: how it wants to be spoken to
    program: str
    mounts: tuple[
        str, ...
    ] = ()  # directories below which a job may mount, `:ro` behind those it may only read
    root: bool = False  # user 0, and with it the runtime's own set of capabilities
    init: bool = False  # it has a first process that hands signals on and buries orphans
    old_groups: bool = (
        False  # control groups of version 1, made by itself: then it does not see memory run out
    )


@dataclass(frozen=True, slots=True)
class Start:
    """One attempt in a container."""

    name: str
    mark: str
    container: Container
    mounts: tuple[Mount, ...]  # as they are to be, policy and all
    user: str
    workdir: str
    env_file: str
    cid_file: str  # written when the container has been made
    command: tuple[str, ...]
    group: str | None = None  # the control group around that of the container


def name_of(mark: str, key: Key, step: int = 0) -> str:
    """Each step has a container of its own."""
    job, index, attempt = key
    return f"rota-{mark[:12]}-{job}-{index}-{attempt}" + (f"-{step}" if step else "")


def groups_of(mark: str) -> str:
    """Below which the control groups of a keeper's containers are, where it makes them itself."""
    return f"/rota-{mark[:12]}-containers"


def argv_of(engine: Engine, start: Start) -> list[str]:
    """In the foreground: its output is the container's, and so is its exit code."""
    container = start.container
    options = [
        *("--name", start.name, "--label", f"{LABEL}={start.mark}"),
        *("--cidfile", start.cid_file, "--pull", container.pull),
        *("--log-driver", "none", "--network", container.network),
        *("--user", start.user, "--workdir", start.workdir, "--env-file", start.env_file),
        *("--security-opt", "no-new-privileges"),
        *_capabilities(engine, start.user),
        *(_limits(start.container.limits) if keeps_limits(engine) else ()),
        *(word for mount in start.mounts for word in ("--mount", _mount(mount))),
        *(("--init",) if engine.init else ()),
        *(("--cgroup-parent", start.group) if start.group else ()),
        *(_of_podman() if engine.kind == PODMAN else ()),
    ]
    return [engine.program, "run", *options, container.image, *start.command]


def _capabilities(engine: Engine, user: str) -> tuple[str, ...]:
    return () if engine.root and _uid(user) == ROOT else ("--cap-drop", "ALL")


def _limits(bounds: Limits) -> list[str]:
    words = ["--cpu-shares", str(max(2, bounds.cpu_weight_milli * CPU_SHARES // 1000))]
    if bounds.memory_bytes is not None:
        words += ["--memory", f"{bounds.memory_bytes}b", "--memory-swap", f"{bounds.memory_bytes}b"]
    if bounds.cpu_milli is not None:
        words += ["--cpus", f"{bounds.cpu_milli / 1000:g}"]
    return [*words, "--pids-limit", str(bounds.pids or PIDS)]


def _mount(mount: Mount) -> str:
    return f"type=bind,source={mount.source},target={mount.target}" + (",readonly" if mount.read_only else "")


def _of_podman() -> list[str]:
    """The limits that it has itself: without a word it asks for more, which not everybody may have."""
    nofile, nproc = (
        resource.getrlimit(which)[1] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    if nproc == resource.RLIM_INFINITY or nproc > NPROC_MOST:
        nproc = NPROC_MOST
    return [
        "--http-proxy=false",
        "--ulimit",
        f"nofile={nofile}:{nofile}",
        "--ulimit",
        f"nproc={nproc}:{nproc}",
    ]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the runtime said of a container, once its command line had ended."""

    ran: bool = True  # its command was started
    out_of_memory: bool = False
    has_image: bool = True
    peak_bytes: int = 0  # 0: not known


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended: by itself, by its own fault before it began, or by this node's."""

    exit_code: int | None
    reason: str | None = None
    is_refused: bool = False
    peak_bytes: int = 0
    cause: str | None = None


def judge(exit_code: int | None, seen: Seen, start: Start, last_line: str) -> Verdict:
    """A broken runtime ends with 125, too; a command that it cannot execute, with 126 or 127."""
    limit, peak = start.container.limits.memory_bytes, seen.peak_bytes
    if exit_code and (seen.out_of_memory or _ran_out(exit_code, limit, peak)):
        return Verdict(exit_code, out_of_memory(limit, peak), peak_bytes=peak, cause=OOM)
    if seen.ran or exit_code is None:
        return Verdict(exit_code, peak_bytes=peak)
    if exit_code in (CANNOT_EXECUTE, NOT_FOUND):
        return Verdict(exit_code, last_line or None)
    if not seen.has_image:
        image = start.container.image
        if start.container.pull == "never":
            return Verdict(
                NOT_FOUND, f"this node has no image {image}, and the job does not let it be pulled"
            )
        return Verdict(NOT_FOUND, f"image {image} cannot be pulled: {last_line}")
    return Verdict(exit_code, f"its container cannot be started here: {last_line}", is_refused=True)


def _ran_out(exit_code: int, limit: int | None, peak: int) -> bool:
    """Killed, with nothing left: the kernel counts memory in batches, so it may be a little less than all."""
    return exit_code == KILLED and limit is not None and peak >= limit - BATCH_BYTES


def out_of_memory(limit: int | None, peak: int) -> str:
    if limit is None:
        return "out of memory"
    return f"out of memory: limit {size(limit)}" + (f", peak {size(min(peak, limit))}" if peak else "")


def is_rootless(engine: Engine) -> bool:
    """Then root in a container is whoever runs the keeper, and nobody else may be to be had."""
    return engine.kind == PODMAN and os.geteuid() != ROOT


def keeps_limits(engine: Engine) -> bool:
    """Control groups of version 1 are root's alone."""
    return not (engine.old_groups and is_rootless(engine))


def allowed_user(engine: Engine, asked: str | None, default: str) -> str:
    user = asked or default
    if _uid(user) == ROOT and not engine.root and not is_rootless(engine):
        raise NotAllowed("this node lets no container run as root")
    return user


class Granted(NamedTuple):
    """Mounts as the runtime is told of them, and pins that are to be held until it has ended."""

    mounts: list[Mount]
    pins: list[Pin]


def allowed_mounts(engine: Engine, asked: Sequence[Mount], pins: str) -> Granted:
    """Each as it was opened, links and all, below what the policy names; paths of pins begin with `pins`.

    An engine of docker may see other mounts than this process, so it is told the path that was found: there,
    and where the keeper cannot mount, a link that is put in its place afterwards is followed.
    """
    places = [(os.path.realpath(path.removesuffix(":ro")), path.endswith(":ro")) for path in engine.mounts]
    granted = Granted([], [])
    for number, mount in enumerate(asked):
        handle = _allowed(places, mount)
        source = handle.place
        if engine.kind == PODMAN and os.geteuid() == ROOT:
            granted.pins.append(Pin(handle, f"{pins}-{number}"))
            source = granted.pins[-1].path
        if any(letter in source + mount.target for letter in SPECIAL):
            raise NotAllowed(f"{mount.source} at {mount.target}: a character that no mount can be given")
        granted.mounts.append(Mount(source, mount.target, mount.read_only))
    return granted


def _allowed(places: list[tuple[str, bool]], mount: Mount) -> Handle:
    source, handle = _opened(mount.source)
    shown = mount.source if source == mount.source else f"{mount.source} ({source})"
    around = [read_only for place, read_only in places if _is_below(source, place)]
    if not around:
        raise NotAllowed(f"this node does not let {shown} be mounted")
    if all(around) and not mount.read_only:
        raise NotAllowed(f"this node lets {shown} be mounted for reading only")
    if handle is None:
        raise NotAllowed(f"there is no {shown} to mount")
    return handle


def _opened(source: str) -> tuple[str, Handle | None]:
    """Where a source is, and a handle on it; what is not there is named as it would be."""
    try:
        handle = open_source(source)
    except OSError:
        return os.path.realpath(source), None
    return handle.place, handle


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def _uid(user: str) -> int:
    return int(user.partition(":")[0])
