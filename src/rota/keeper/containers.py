"""Containers of attempts: what is laid out for one, who tells that it is there, who clears it away. [I/O]"""

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
POLL_SECONDS = 0.02  # between looks for a container that is being made
LONGEST_POLL_SECONDS = 0.2
TAIL_BYTES = 4096
ENGINE_FAILED = 125  # what a runtime ends with that could not do what it was asked for
REASON_CHARACTERS = 300
# What a runtime's command line is given of the keeper's own environment: where its engine and its images are,
# and how it gets to a registry. Nothing of it reaches the container.
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
    pins: list[Pin] = field(default_factory=list)  # of what it mounts, for its runtime
    start_reported: bool = False  # that it is there
    exit: ContainerExit | None = None  # None: it may still be there

    @property
    def argv(self) -> list[str]:
        return run_argv(self.engine, self.launch)

    def watch_created(self, has_ended: Callable[[], bool], on_created: Callable[[], None]) -> None:
        """Tell when the container has been made; until then it is not known that it can be."""

        def look() -> None:
            pause_seconds = POLL_SECONDS
            while not os.path.exists(self.launch.cid_file):
                if has_ended():
                    return
                time.sleep(pause_seconds)
                pause_seconds = min(1.2 * pause_seconds, LONGEST_POLL_SECONDS)
            on_created()

        threading.Thread(target=look, daemon=True).start()

    def remove(self, code: int, errors: bytes, at: int, on_removed: Callable[[ContainerExit], None]) -> None:
        """Its command line has ended, negative: by a signal. Tell how it fared, once it is gone."""

        def work() -> None:
            seen = self._run_cleanup(code)
            self.pins.clear()
            for path in (self.launch.env_file, self.launch.cid_file):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            on_removed(classify_exit(code if code >= 0 else None, seen, self.launch, last_line(errors, at)))

        threading.Thread(target=work, daemon=True).start()

    def _run_cleanup(self, code: int) -> ContainerState:
        start = self.launch
        task = {"program": self.engine.program, "name": start.name, "image": start.container.image}
        was_made = code != ENGINE_FAILED or os.path.exists(start.cid_file)
        ended = {"keeper": os.getpid(), "code": code, "group": start.group, "was_made": was_made}
        words = json.dumps({**task, **ended})
        pause_seconds = POLL_SECONDS
        while True:
            with contextlib.suppress(OSError, ValueError):
                done = subprocess.run(
                    [sys.executable, "-m", "rota.keeper.container.clear", words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    check=False,  # the reaper may be told its code before us
                )
                return ContainerState(*json.loads(done.stdout))
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, clear.LONGEST_PAUSE_SECONDS)


class JobDirectory(NamedTuple):
    """A job's directory on this node, that of the task, and who it is inside."""

    work: str
    task: str
    user: str


class ContainerFactory:
    """Lays out what a container needs; its files are the keeper's own, and gone with it."""

    def __init__(self, root: str, mark: str) -> None:
        self._home = f"{root}/containers"
        self._mark = mark
        self._engine: KeeperContainerEngine | None = None
        self._pids_max: int | None = None

    def configure(self, engine: KeeperContainerEngine | None, pids_max: int | None = None) -> None:
        """Remembered on disk, too: another keeper has to find what this one leaves."""
        self._pids_max = pids_max
        if engine is None or engine == self._engine:
            return
        self._engine = engine
        os.makedirs(self._home, mode=0o700, exist_ok=True)
        _write(f"{self._home}/engine", engine.program)

    def remove_leftovers(self) -> bool:
        """Remove what an earlier keeper left; False: some may still be there."""
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
        """Who a container runs as; ContainerNotAllowed if this node does not let it."""
        assert spec.container is not None
        engine = self._known()
        return allowed_user(engine, spec.container.user, _default_user(engine, own))

    def owner(self, user: str) -> DirectoryOwner | None:
        """Of the directories that are mounted; each container sees that of its own task only."""
        return DirectoryOwner(_user(user), is_one_of_many=False) if os.geteuid() == ROOT else None

    def _known(self) -> KeeperContainerEngine:
        if self._engine is None:
            raise ContainerNotAllowed("this node has no container runtime")
        return self._engine

    def prepare(
        self, key: AttemptKey, spec: KeeperJobSpec, env: Mapping[str, str], directory: JobDirectory
    ) -> ContainerHandle:
        """ContainerNotAllowed if this node may not, or cannot, run such a container."""
        engine, container, work, user = self._known(), spec.container, directory.work, directory.user
        assert container is not None
        asked = list(container.mounts)
        if spec.workdir:
            asked.insert(0, KeeperMount(spec.workdir, spec.workdir, read_only=False))
        own = (KeeperMount(path, path, read_only=False) for path in (work, directory.task))
        name = container_name(self._mark, key, spec.step)
        granted = allowed_mounts(engine, asked, f"{pins_of(self._mark)}/{name}")
        group = (
            f"{cgroup_parent(self._mark)}/{name}" if engine.old_groups and enforces_limits(engine) else None
        )
        if group:
            self._limit_all_pids()
        _give_directory(work, user)
        os.makedirs(self._home, mode=0o700, exist_ok=True)
        stem = f"{self._home}/{name}"
        with contextlib.suppress(FileNotFoundError):  # of another try at the same start
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
        """So many processes for all containers together; the group goes with the last of them."""
        path = f"{clear.CGROUP_ROOT}/pids{cgroup_parent(self._mark)}"
        if self._pids_max is not None:
            os.makedirs(path, exist_ok=True)
            write_file(f"{path}/pids.max", str(self._pids_max))

    def engine_environment(self, key: AttemptKey) -> dict[str, str]:
        """Of the command line: the marks by which it is found, and what it needs itself."""
        return {name: os.environ[name] for name in ENGINE_ENVIRONMENT if name in os.environ} | self.markers(
            key
        )

    def markers(self, key: AttemptKey) -> dict[str, str]:
        job, index, attempt = key
        told = {"ROTA_KEEPER": self._mark, "ROTA_JOB_ID": job, "ROTA_INDEX": str(index)}
        return told | {"ROTA_ATTEMPT": str(attempt)}


def last_line(path: bytes, at: int) -> str:
    """What a runtime said last; hints at its manual are not meant."""
    try:
        with open(path, "rb") as file:
            file.seek(max(at, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip() and not line.startswith("See '")]
    return said[-1].removeprefix("Error: ")[:REASON_CHARACTERS] if said else ""


def _default_user(engine: KeeperContainerEngine, own: User | None) -> str:
    if own is not None:
        return f"{own.uid}:{own.gid}"
    if is_rootless(engine):
        return "0:0"
    return NOBODY if os.geteuid() == ROOT else f"{os.geteuid()}:{os.getegid()}"


def _give_directory(work: str, user: str) -> None:
    """The job's directory is its user's, whoever that is inside."""
    if os.geteuid() == ROOT:
        give_directory(work, _user(user))


def _user(text: str) -> User:
    uid, _, gid = text.partition(":")
    return User(int(uid), int(gid or 0))


def _write(path: str, text: str) -> None:
    """For nobody else's eyes."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
