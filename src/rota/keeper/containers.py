"""Containers of attempts: preparation, detection of their creation, and removal. [I/O]"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rota.keeper.container import clear
from rota.keeper.container.argv import (
    ROOT,
    ContainerExit,
    ContainerLaunch,
    ContainerNotAllowed,
    ContainerState,
    KeeperContainerEngine,
    KeeperMount,
    allowed_mounts,
    allowed_user,
    cgroup_parent,
    classify_exit,
    container_name,
    enforces_limits,
    is_rootless,
    run_argv,
)
from rota.keeper.container.sources import Pin, pins_of, unpin_all
from rota.keeper.limits.cgroups import write_file
from rota.keeper.process.users import User, give_directory
from rota.keeper.protocol.wire import KeeperJobSpec
from rota.keeper.resources.reservations import AttemptKey
from rota.keeper.task_dirs import DirectoryOwner

NOBODY = "65534:65534"
POLL_SECONDS = 0.02  # between two checks whether a container has been created
LONGEST_POLL_SECONDS = 0.2
TAIL_BYTES = 4096
ENGINE_FAILED = 125  # exit code of a runtime that could not do what it was asked for
REASON_CHARACTERS = 300
# The part of the keeper's environment that a runtime's command line gets: where its engine and its images
# are, and how to reach a registry. Nothing of it reaches the container.
ENGINE_ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINERS_CONF"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)


@dataclass(slots=True)
class ContainerHandle:
    """The container of one attempt."""

    engine: KeeperContainerEngine
    launch: ContainerLaunch
    pins: list[Pin] = field(default_factory=list)  # of its mount sources, held until it is removed
    start_reported: bool = False  # it has been created
    exit: ContainerExit | None = None  # None: it may still exist

    @property
    def argv(self) -> list[str]:
        return run_argv(self.engine, self.launch)

    def watch_created(self, has_ended: Callable[[], bool], on_created: Callable[[], None]) -> None:
        """Call `on_created`, from a thread, when the runtime has created the container, unless that ends."""

        def poll() -> None:
            poll_seconds = POLL_SECONDS
            while not os.path.exists(self.launch.cid_file):
                if has_ended():
                    return
                time.sleep(poll_seconds)
                poll_seconds = min(1.2 * poll_seconds, LONGEST_POLL_SECONDS)
            on_created()

        threading.Thread(target=poll, daemon=True).start()

    def remove(self, code: int, errors: bytes, at: int, on_removed: Callable[[ContainerExit], None]) -> None:
        """Remove the container, in a thread, and call `on_removed` with how it ended.

        `code` is the exit status of the runtime's command line (negative: a signal); its messages are in the
        file `errors` from the offset `at` on.
        """

        def remove() -> None:
            seen = self._run_cleanup(code)
            # After the removal: the pins keep the mount sources
            # from being replaced while the container may use them.
            self.pins.clear()
            for path in (self.launch.env_file, self.launch.cid_file):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            on_removed(classify_exit(code if code >= 0 else None, seen, self.launch, last_line(errors, at)))

        threading.Thread(target=remove, daemon=True).start()

    def _run_cleanup(self, code: int) -> ContainerState:
        start = self.launch
        task = {"program": self.engine.program, "name": start.name, "image": start.container.image}
        was_made = code != ENGINE_FAILED or os.path.exists(start.cid_file)
        ended = {"keeper": os.getpid(), "code": code, "group": start.group, "was_made": was_made}
        argument = json.dumps({**task, **ended})
        retry_seconds = POLL_SECONDS
        # Until it succeeds: a container that is left could
        # still run, and its resources would be given away.
        while True:
            with contextlib.suppress(OSError, ValueError):
                done = subprocess.run(
                    [sys.executable, "-m", "rota.keeper.container.clear", argument],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    check=False,  # race: a starter may reap it first, and its exit code is lost
                )
                return ContainerState(*json.loads(done.stdout))
            time.sleep(retry_seconds)
            retry_seconds = min(2 * retry_seconds, clear.LONGEST_PAUSE_SECONDS)


class JobDirectory(NamedTuple):
    """The directories of a job and of its task, and the user inside the container."""

    work: str
    task: str
    user: str


class ContainerFactory:
    """Prepares containers: name, mounts, environment file and cgroup."""

    def __init__(self, root: str, mark: str) -> None:
        self._home = f"{root}/containers"
        self._mark = mark
        self._engine: KeeperContainerEngine | None = None
        self._pids_max: int | None = None

    def configure(self, engine: KeeperContainerEngine | None, pids_max: int | None = None) -> None:
        """Set the runtime; stored on disk, too, because the next keeper has to remove leftovers with it."""
        self._pids_max = pids_max
        if engine is None or engine == self._engine:
            return
        self._engine = engine
        os.makedirs(self._home, mode=0o700, exist_ok=True)
        _write(f"{self._home}/engine", engine.program)

    def remove_leftovers(self) -> bool:
        """Remove containers and mounts of an earlier keeper; False: some may still exist."""
        unpin_all(self._mark)
        try:
            with open(f"{self._home}/engine", encoding="utf-8") as file:
                program = file.read().strip()
        except FileNotFoundError:
            return True
        is_done = clear.remove_marked(program, self._mark)
        shutil.rmtree(self._home, ignore_errors=True)
        return is_done

    def user_of(self, spec: KeeperJobSpec, own: User | None) -> str:
        """The user that a container runs as; ContainerNotAllowed if the node's policy forbids it."""
        assert spec.container is not None
        engine = self._known()
        return allowed_user(engine, spec.container.user, _default_user(engine, own))

    def owner(self, user: str) -> DirectoryOwner | None:
        """The owner of the mounted directories. No task groups: a container sees its own task's only."""
        return DirectoryOwner(_user(user), is_one_of_many=False) if os.geteuid() == ROOT else None

    def _known(self) -> KeeperContainerEngine:
        if self._engine is None:
            raise ContainerNotAllowed("this node has no container runtime")
        return self._engine

    def prepare(
        self, key: AttemptKey, spec: KeeperJobSpec, env: Mapping[str, str], directory: JobDirectory
    ) -> ContainerHandle:
        """Prepare a container; ContainerNotAllowed if the node's policy or its runtime forbids it."""
        engine, container, work, user = self._known(), spec.container, directory.work, directory.user
        assert container is not None
        requested = list(container.mounts)
        if spec.workdir:
            requested.insert(0, KeeperMount(spec.workdir, spec.workdir, read_only=False))
        own = (KeeperMount(path, path, read_only=False) for path in (work, directory.task))
        name = container_name(self._mark, key, spec.step)
        granted = allowed_mounts(engine, requested, f"{pins_of(self._mark)}/{name}")
        group = (
            f"{cgroup_parent(self._mark)}/{name}" if engine.old_groups and enforces_limits(engine) else None
        )
        if group:
            self._limit_all_pids()
        _give_directory(work, user)
        os.makedirs(self._home, mode=0o700, exist_ok=True)
        stem = f"{self._home}/{name}"
        with contextlib.suppress(FileNotFoundError):  # of an earlier try of the same start
            os.unlink(f"{stem}.cid")
        _write(f"{stem}.env", "".join(f"{name}={value}\n" for name, value in env.items()))
        workdir = container.workdir or spec.workdir or work
        start = ContainerLaunch(
            name=name,
            mark=self._mark,
            container=container,
            mounts=(*own, *granted.mounts),
            user=user,
            workdir=workdir,
            env_file=f"{stem}.env",
            cid_file=f"{stem}.cid",
            command=spec.argv,
            group=group,
        )
        return ContainerHandle(engine, start, granted.pins)

    def _limit_all_pids(self) -> None:
        """Limit the processes of all containers together; the cgroup is removed with the last of them."""
        path = f"{clear.CGROUP_ROOT}/pids{cgroup_parent(self._mark)}"
        if self._pids_max is not None:
            os.makedirs(path, exist_ok=True)
            write_file(f"{path}/pids.max", str(self._pids_max))

    def engine_environment(self, key: AttemptKey) -> dict[str, str]:
        """The environment of the runtime's command line, with the markers by which it is found."""
        return {name: os.environ[name] for name in ENGINE_ENVIRONMENT if name in os.environ} | self.markers(
            key
        )

    def markers(self, key: AttemptKey) -> dict[str, str]:
        job, index, attempt = key
        return {
            "ROTA_KEEPER": self._mark,
            "ROTA_JOB_ID": job,
            "ROTA_INDEX": str(index),
            "ROTA_ATTEMPT": str(attempt),
        }


def last_line(path: bytes, at: int) -> str:
    """The last line of a runtime's messages, without hints at its manual."""
    try:
        with open(path, "rb") as file:
            file.seek(max(at, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    messages = [line.strip() for line in lines if line.strip() and not line.startswith("See '")]
    return messages[-1].removeprefix("Error: ")[:REASON_CHARACTERS] if messages else ""


def _default_user(engine: KeeperContainerEngine, own: User | None) -> str:
    if own is not None:
        return f"{own.uid}:{own.gid}"
    if is_rootless(engine):
        return "0:0"
    return NOBODY if os.geteuid() == ROOT else f"{os.geteuid()}:{os.getegid()}"


def _give_directory(work: str, user: str) -> None:
    """Give the job's directory to the user inside the container."""
    if os.geteuid() == ROOT:
        give_directory(work, _user(user))


def _user(text: str) -> User:
    uid, _, gid = text.partition(":")
    return User(int(uid), int(gid or 0))


def _write(path: str, text: str) -> None:
    """Write a file that only the keeper's user can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
