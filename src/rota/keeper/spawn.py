"""A job's spec and one attempt of it -> a process in its own session, its output going straight to files."""

import contextlib
import ctypes
import errno
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rota.keeper.boxes import Box, Boxes, Place
from rota.keeper.container.argv import NotAllowed
from rota.keeper.devices import GPU, WHOLE
from rota.keeper.files import place
from rota.keeper.limits.cgroups import Group, Groups
from rota.keeper.limits.words import Limits
from rota.keeper.output.spares import Spares
from rota.keeper.process import forked
from rota.keeper.process.users import User, Users, give, renounce, worn
from rota.keeper.rules import Key
from rota.keeper.wire import Configure, Spec

PASSED_ON = ("PATH", "LANG", "TZ")
OF_THE_KEEPERS_USER = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR")  # nobody else's work is given them
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
OPENED = APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
# What Python ignores, what the keeper ignores, and what a shell or nohup may have made it ignore.
RESET = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGIO,
)
NODE_IS_SHORT = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}

# os.posix_spawn keeps the interpreter's lock while it waits for the child's exec, which is most of a start,
# and has no working directory to give. With the C function threads start side by side.
SETSIGDEF, SETSIGMASK, SETSID = 0x04, 0x08, 0x80
OPAQUE_BYTES = 1024  # more than any C library's spawn attributes, file actions or signal set
_waiting = ctypes.CDLL(None)  # calls let other threads run
_quick = ctypes.PyDLL(None)  # calls do not: they take less time than the handing over would


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

    argv: ctypes.Array[ctypes.c_char_p]
    path: str
    env: ctypes.Array[ctypes.c_char_p]  # with some places left for what differs
    cwd: str
    user: User | None  # None: the keeper's own
    program: bytes | None = None  # found at the first start


class Spawner:
    def __init__(self, root: str, mark: str, groups: Groups | None = None) -> None:
        self._root = root
        self._mark = mark
        self._node = ""
        self._groups = groups or Groups()
        self._users = Users(f"{root}/work")
        self._no_new_privs = True
        self._threads = threading.local()
        self._recipes: dict[str, dict[tuple[int, int], Recipe]] = {}  # by job, version and step
        self._filled: dict[str, int] = {}  # by job, for containers: whose version's files are in place
        self._spares = Spares(f"{root}/spare/work", f"{root}/work", _make_work)
        self._attributes = _make_attributes()
        self._boxes = Boxes(root, mark)

    def configure(self, order: Configure) -> None:
        if self._users.run_as(order.run_as) or order.node != self._node:
            self._node = order.node
            self._recipes.clear()
        self._boxes.configure(order.engine)
        self._no_new_privs = order.no_new_privs
        if order.pids_max:
            self._groups.limit_all(order.pids_max)
        if not self._users.is_self:  # so that users find their way, and see nothing there
            for path in (self._root, f"{self._root}/work"):
                os.makedirs(path, exist_ok=True)
                os.chmod(path, 0o711)

    def labels(self) -> dict[str, str]:
        """How limits are kept here, and which."""
        return {"limits": self._groups.label, "limited": ",".join(self._groups.controllers)}

    def stock_up(self) -> None:
        """Make ahead what the next jobs will need."""
        with contextlib.suppress(OSError):  # then their first starts take longer
            self._spares.fill()

    def revise(self, group: Group | None, limits: Limits) -> None:
        """Limits of what runs become these; where it has no group they are watched."""
        if group:
            self._groups.revise(group, limits)

    def forget(self, job: str) -> None:
        self._recipes.pop(job, None)
        self._filled.pop(job, None)
        self._users.forget(job)

    def enclose(self, key: Key, spec: Spec) -> Group | None:
        """A group for an attempt that has limits, where the machine has groups."""
        if not spec.limits:
            return None
        try:
            return self._groups.make(key, spec.limits)
        except OSError as error:
            raise Short(f"cannot make a control group: {os.strerror(error.errno or 0)}") from error

    def release(self, group: Group | None) -> None:
        if group:
            self._groups.end(group)

    def spawn(
        self, key: Key, spec: Spec, gpus: Sequence[str], output: bytes, group: Group | None = None
    ) -> int:
        """Start it, writing to output.out and .err; its pid is also its session and its process group."""
        job, index, attempt = key
        recipe = None
        try:
            named = (spec.version, spec.step)
            recipe = self._recipes.get(job, {}).get(named) or self._prepare(job, spec)
            if recipe.program is None:
                with worn(recipe.user):
                    recipe.program = os.fsencode(_find(spec.argv[0], recipe))
            env = type(recipe.env).from_buffer_copy(recipe.env)
            env[-3], env[-2] = b"ROTA_INDEX=%d" % index, b"ROTA_ATTEMPT=%d" % attempt
            if spec.asks_for(GPU):
                devices = os.fsencode(",".join(gpus))
                env[-5], env[-4] = b"ROTA_GPUS=" + devices, b"CUDA_VISIBLE_DEVICES=" + devices
            pid, error = self._start(recipe, env, output, group)
        except LookupError as problem:
            raise Short(str(problem)) from problem
        except OSError as problem:  # of the job's directories
            pid, error = 0, problem.errno or errno.EIO
        if not error:
            return pid
        self._recipes.pop(job, None)  # it may be out of date
        if error in NODE_IS_SHORT or recipe is None or not os.path.isdir(os.path.dirname(output)):
            raise Short(f"{os.strerror(error)} on this node")
        with worn(recipe.user):
            raise _explain(error, spec.argv[0], recipe.cwd)

    def _start(
        self, recipe: Recipe, env: ctypes.Array[ctypes.c_char_p], output: bytes, group: Group | None
    ) -> tuple[int, int]:
        if self._no_new_privs and not getattr(self._threads, "has_renounced", False):
            renounce()  # in each thread that starts work, once
            self._threads.has_renounced = True
        if group and group.entrance:
            return forked.start(_program(recipe, env), output, group.entrance)
        try:
            self._groups.enter(group)
            return self._posix_spawn(recipe, env, output)
        finally:
            self._groups.leave(group)

    def pack(self, key: Key, spec: Spec, gpus: Sequence[str]) -> Box | None:
        """What an attempt with an image runs in; the container is made when it is sent."""
        if spec.container is None:
            return None
        job, index, attempt = key
        try:
            work = self._make_work(job)
            env = {**spec.env, **self._told(job, spec, work), "ROTA_GPUS": ",".join(gpus)}
            env |= {"ROTA_INDEX": str(index), "ROTA_ATTEMPT": str(attempt)}
            box = self._boxes.pack(key, spec, env, Place(work, self._users.of(job)))
            if self._filled.get(job, 0) < spec.version:
                place(work, spec.files)  # once, and only now is the directory its user's
                self._filled[job] = spec.version
            return box
        except (NotAllowed, LookupError) as reason:
            raise Short(str(reason)) from reason
        except OSError as problem:
            raise Short(f"{problem.strerror} on this node") from problem

    def send(self, key: Key, box: Box, output: bytes) -> int:
        """Start the runtime's command line, in the foreground; its pid, as of any other process."""
        env = [os.fsencode(f"{name}={value}") for name, value in self._boxes.environment(key).items()]
        argv = _strings([os.fsencode(part) for part in box.argv])
        program = os.fsencode(box.engine.program)
        recipe = Recipe(argv, "", _strings(env), "/", user=None, program=program)
        pid, error = self._start(recipe, recipe.env, output, None)
        if error:
            raise Short(f"{box.engine.program}: {os.strerror(error)} on this node")
        return pid

    def _posix_spawn(
        self, recipe: Recipe, env: ctypes.Array[ctypes.c_char_p], output: bytes
    ) -> tuple[int, int]:
        """The new pid and 0, or 0 and the number of the error."""
        actions = ctypes.create_string_buffer(OPAQUE_BYTES)
        pid = ctypes.c_int(0)
        _quick.posix_spawn_file_actions_init(actions)
        _quick.posix_spawn_file_actions_addchdir_np(actions, os.fsencode(recipe.cwd))
        given = (recipe.program, actions, self._attributes, recipe.argv, env)
        try:
            if recipe.user:
                with _opened(actions, output), worn(recipe.user):
                    error = _waiting.posix_spawn(ctypes.byref(pid), *given)
            else:
                _quick.posix_spawn_file_actions_addopen(actions, 1, output + b".out", APPEND, 0o600)
                _quick.posix_spawn_file_actions_addopen(actions, 2, output + b".err", APPEND, 0o600)
                error = _waiting.posix_spawn(ctypes.byref(pid), *given)
        finally:
            _quick.posix_spawn_file_actions_destroy(actions)
        return pid.value, error

    def _prepare(self, job: str, spec: Spec) -> Recipe:
        work = self._make_work(job)
        user = self._users.of(job)
        if user:
            give(work, user)
        place(work, spec.files)
        env = _passed_on(user, work)
        env.setdefault("PATH", DEFAULT_PATH)
        env |= spec.env
        path = env["PATH"]
        needs = dict(spec.needs)
        env |= {"ROTA_KEEPER": self._mark, **self._told(job, spec, work), "ROTA_GPUS": ""}
        varying = ["ROTA_INDEX", "ROTA_ATTEMPT"]
        if gpu := needs.get(GPU):
            varying = ["ROTA_GPUS", "CUDA_VISIBLE_DEVICES", *varying]
            env |= {"ROTA_GPU_SHARE": f"{gpu / WHOLE:g}"} if gpu < WHOLE else {}
        encoded = [os.fsencode(f"{name}={env[name]}") for name in env if name not in varying]
        encoded += [b""] * len(varying)  # at the end, in this order
        cwd = os.path.join(work, spec.workdir) if spec.workdir else work
        argv = _strings([os.fsencode(part) for part in spec.argv])
        recipe = Recipe(argv, path, _strings(encoded), cwd, user)
        self._recipes.setdefault(job, {})[spec.version, spec.step] = recipe
        return recipe

    def _make_work(self, job: str) -> str:
        work = f"{self._root}/work/{job}"
        if not self._spares.take(job):
            _make_work(work)
        return work

    def _told(self, job: str, spec: Spec, work: str) -> dict[str, str]:
        """What every attempt of the job is told of itself."""
        needs = dict(spec.needs)
        return {
            "ROTA_JOB_ID": job,
            "ROTA_JOB_NAME": spec.name,
            "ROTA_COUNT": str(spec.count),
            "ROTA_NODE": self._node,
            "ROTA_CPUS": f"{needs.get('cpu', 0) / 1000:g}",
            "ROTA_MEMORY_BYTES": str(needs.get("memory", 0)),
            "ROTA_OUTPUT_DIR": f"{work}/out",
        }


def _program(recipe: Recipe, env: ctypes.Array[ctypes.c_char_p]) -> forked.Program:
    assert recipe.program is not None
    argv = tuple(part for part in recipe.argv if part is not None)
    pairs = (part.partition(b"=") for part in env if part)
    variables = {name: value for name, _, value in pairs}
    return forked.Program(recipe.program, argv, variables, recipe.cwd, recipe.user, RESET)


@contextlib.contextmanager
def _opened(actions: ctypes.Array[ctypes.c_char], output: bytes) -> Iterator[None]:
    """Its files, opened for work that cannot come near them."""
    with contextlib.ExitStack() as files:
        for number, end in ((1, b".out"), (2, b".err")):
            fd = os.open(output + end, OPENED, 0o600)
            files.callback(os.close, fd)
            _quick.posix_spawn_file_actions_adddup2(actions, fd, number)
        yield


def _passed_on(user: User | None, work: str) -> dict[str, str]:
    names = PASSED_ON if user else PASSED_ON + OF_THE_KEEPERS_USER
    env = {name: value for name, value in os.environ.items() if name in names or name.startswith("LC_")}
    if user:
        env["HOME"] = work
        if user.name:
            env |= {"USER": user.name, "LOGNAME": user.name}
    return env


def _make_work(path: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    for one in (path, f"{path}/out"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(one, mode=0o700)


def _make_attributes() -> ctypes.Array[ctypes.c_char]:
    """A session of its own, no signal blocked, none ignored."""
    attributes = ctypes.create_string_buffer(OPAQUE_BYTES)
    signals = ctypes.create_string_buffer(OPAQUE_BYTES)
    _quick.posix_spawnattr_init(attributes)
    _quick.sigemptyset(signals)
    _quick.posix_spawnattr_setsigmask(attributes, signals)
    for signum in RESET:
        _quick.sigaddset(signals, int(signum))
    _quick.posix_spawnattr_setsigdefault(attributes, signals)
    _quick.posix_spawnattr_setflags(attributes, ctypes.c_short(SETSIGDEF | SETSIGMASK | SETSID))
    return attributes


def _strings(parts: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(parts) + 1))(*parts, None)


def _find(command: str, recipe: Recipe) -> str:
    """The program, by the PATH of the work itself."""
    if "/" in command:
        return command
    forbidden = None
    for directory in recipe.path.split(":"):
        path = os.path.join(recipe.cwd, directory, command)
        if not os.path.isfile(path):
            continue
        if os.access(path, os.X_OK):
            return path
        forbidden = path
    if forbidden:
        raise CannotRun(126, f"permission denied: {forbidden}")
    raise CannotRun(127, f"command not found: {command}")


def _explain(error: int, command: str, cwd: str) -> CannotRun:
    """Either the child could not enter its directory, or it could not execute the command."""
    if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
        return CannotRun(126, f"working directory {cwd}: {os.strerror(error)}")
    match error:
        case errno.ENOENT if "/" in command and os.path.exists(os.path.join(cwd, command)):
            return CannotRun(127, f"interpreter not found: {command}")
        case errno.ENOENT | errno.ENOTDIR:
            return CannotRun(127, f"command not found: {command}")
        case errno.EACCES | errno.EPERM | errno.EISDIR:
            return CannotRun(126, f"permission denied: {command}")
        case number:
            return CannotRun(126, f"cannot execute {command}: {os.strerror(number)}")
