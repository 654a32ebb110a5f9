"""A job's spec and one attempt of it -> a process in its own session, its output going straight to files."""

import errno
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from rota.keeper.rules import Key
from rota.keeper.wire import Spec

PASSED_ON = ("PATH", "HOME", "LANG", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
# What Python ignores, what the keeper ignores, and what a shell or nohup may have made it ignore.
RESET = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM]
NODE_IS_SHORT = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


class CannotRun(Exception):
    """The command cannot be executed: the job's fault, a result like any other."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.reason = reason


class Short(Exception):
    """This node lacks something (disk, memory, descriptors) to start anything now."""


@dataclass(slots=True)
class Recipe:
    """What all attempts of a job have in common, worked out once."""

    spec: Spec
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    logs: str
    program: str | None = field(default=None)  # found at the first start


class Spawner:
    """Not safe against itself: the working directory of the keeper is the one its next child starts in."""

    def __init__(self, root: str, mark: str) -> None:
        self._root = root
        self._mark = mark
        self._node = ""
        self._recipes: dict[str, Recipe] = {}
        self._cwd: str | None = None

    def name_node(self, node: str) -> None:
        if node != self._node:
            self._node = node
            self._recipes.clear()

    def forget(self, job: str) -> None:
        self._recipes.pop(job, None)
        self._cwd = None  # it may be the directory that goes now

    def spawn(self, key: Key, spec: Spec, gpus: Sequence[str]) -> int:
        """Start it and return its pid, which is also its session and its process group."""
        job, index, attempt = key
        try:
            recipe = self._recipes.get(job) or self._prepare(job, spec)
            self._enter(recipe)
            program = recipe.program or _find(recipe)
            env = recipe.env
            env["ROTA_INDEX"] = str(index)
            env["ROTA_ATTEMPT"] = str(attempt)
            if spec.asks_for("gpu"):
                env["ROTA_GPUS"] = env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
            return self._posix_spawn(program, recipe, f"{recipe.logs}/{index}.{attempt}")
        except OSError as error:
            self._recipes.pop(job, None)  # what was worked out may be out of date
            if error.errno in NODE_IS_SHORT:
                raise Short(f"{os.strerror(error.errno)} on this node") from error
            raise _explain(error, spec.argv[0]) from error

    def _posix_spawn(self, program: str, recipe: Recipe, log: str) -> int:
        return os.posix_spawn(
            program,
            recipe.argv,
            recipe.env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, log + ".out", APPEND, 0o600),
                (os.POSIX_SPAWN_OPEN, 2, log + ".err", APPEND, 0o600),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=RESET,
        )

    def _prepare(self, job: str, spec: Spec) -> Recipe:
        work, logs = f"{self._root}/work/{job}", f"{self._root}/logs/{job}"
        for directory in (logs, work, f"{work}/out"):
            os.makedirs(directory, mode=0o700, exist_ok=True)
        own = os.environ
        env = {name: own[name] for name in own if name in PASSED_ON or name.startswith("LC_")}
        env.setdefault("PATH", DEFAULT_PATH)
        env |= spec.env
        needs = dict(spec.needs)
        env |= {
            "ROTA_KEEPER": self._mark,
            "ROTA_JOB_ID": job,
            "ROTA_JOB_NAME": spec.name,
            "ROTA_COUNT": str(spec.count),
            "ROTA_NODE": self._node,
            "ROTA_CPUS": f"{needs.get('cpu', 0) / 1000:g}",
            "ROTA_MEMORY_BYTES": str(needs.get("memory", 0)),
            "ROTA_GPUS": "",
            "ROTA_OUTPUT_DIR": f"{work}/out",
        }
        recipe = Recipe(spec, spec.argv, env, os.path.join(work, spec.workdir or ""), logs)
        self._recipes[job] = recipe
        return recipe

    def _enter(self, recipe: Recipe) -> None:
        """posix_spawn has no working directory of its own to give: the child takes over the keeper's."""
        if recipe.cwd == self._cwd:
            return
        try:
            os.chdir(recipe.cwd)
        except OSError as error:
            raise CannotRun(126, f"working directory {recipe.cwd}: {os.strerror(error.errno or 0)}") from error
        self._cwd = recipe.cwd


def _find(recipe: Recipe) -> str:
    """The program, by the PATH of the work itself."""
    command = recipe.argv[0]
    if "/" in command:
        recipe.program = command
        return command
    forbidden = None
    for directory in recipe.env["PATH"].split(":"):
        path = os.path.join(directory or ".", command)
        if not os.path.isfile(path):
            continue
        if os.access(path, os.X_OK):
            recipe.program = path
            return path
        forbidden = path
    if forbidden:
        raise CannotRun(126, f"permission denied: {forbidden}")
    raise CannotRun(127, f"command not found: {command}")


def _explain(error: OSError, command: str) -> CannotRun:
    match error.errno:
        case errno.ENOENT if "/" in command and os.path.exists(command):
            return CannotRun(127, f"interpreter not found: {command}")
        case errno.ENOENT | errno.ENOTDIR:
            return CannotRun(127, f"command not found: {command}")
        case errno.EACCES | errno.EPERM | errno.EISDIR:
            return CannotRun(126, f"permission denied: {command}")
        case number:
            return CannotRun(126, f"cannot execute {command}: {os.strerror(number or 0)}")
