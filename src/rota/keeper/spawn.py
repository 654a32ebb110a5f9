"""A job's spec and one attempt of it -> a process in its own session, its output going straight to files."""

import contextlib
import ctypes
import errno
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rota.keeper import reports, sandbox
from rota.keeper.boxes import Box, Boxes, Place
from rota.keeper.container.argv import NotAllowed
from rota.keeper.devices import GPU, WHOLE
from rota.keeper.files import place
from rota.keeper.limits.cgroups import Group, Groups
from rota.keeper.limits.words import PIDS_MOST, Limits
from rota.keeper.output.spares import Spares
from rota.keeper.process import forked, posix, starter
from rota.keeper.process.cells import Cell, Cells
from rota.keeper.process.commands import (
    CANNOT_EXECUTE,
    OF_THE_JOB,
    OF_THE_NODE,
    CannotRun,
    explain,
    find,
    may_execute,
    why_not,
)
from rota.keeper.process.posix import strings
from rota.keeper.process.starter import CannotEnter, Surroundings
from rota.keeper.process.users import User, Users, as_user, give, renounce
from rota.keeper.rules import Key
from rota.keeper.sandbox import Report
from rota.keeper.task_dirs import PLACE, Owner, TaskDirs, group_of, has_groups
from rota.keeper.wire import Configure, Spec

PASSED_ON = ("PATH", "LANG", "TZ")
OF_THE_KEEPERS_USER = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR")  # nobody else's work is given them
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
A_CHECK = -1  # stands for a step
# Label `isolation`, for work of other users than the keeper's: jobs are kept apart by their users alone, or
# each task sees its own processes only, and reads no token and no outputs of other tasks.
USERS, TASKS = "users", "tasks"
OUTSIDE = contextlib.nullcontext()  # of any cell


class Short(Exception):
    """This node lacks something (disk, memory, descriptors) to start anything now."""


NO_PROCESS = Short("its end came before this node had a process to spare")


class Around(NamedTuple):
    """What an attempt is in, where it is in anything."""

    group: Group | None = None
    cell: Cell | None = None
    report: Report | None = None  # of a sandbox


IN_NOTHING = Around()


@dataclass(slots=True)
class Recipe:
    """What all attempts of a job have in common, worked out once."""

    argv: ctypes.Array[ctypes.c_char_p]
    path: str
    env: ctypes.Array[ctypes.c_char_p]  # with some places left for what differs
    cwd: str
    user: User | None  # None: the keeper's own
    program: bytes | None = None  # found at the first start
    has_gpus: bool = False
    owner: Owner | None = None  # of the directories of its tasks
    tasks: bytes = b""  # where these are


class Spawner:
    def __init__(self, root: str, mark: str, groups: Groups | None = None, bwrap: str | None = None) -> None:
        self._root = root
        self._mark = mark
        self._node = ""
        self._groups = groups or Groups()
        self._is_root = os.geteuid() == 0
        self._users = Users(f"{root}/work")
        self._no_new_privs = True
        self._threads = threading.local()
        self._recipes: dict[str, dict[tuple[int, int], Recipe]] = {}  # by job, version and step
        self._filled: dict[str, int] = {}  # by job, for containers: whose version's files are in place
        self._spares = Spares(f"{root}/spare/work", f"{root}/work", _make_work)
        self._attributes = posix.make_attributes()
        self._dirs = TaskDirs(root)
        self._has_task_groups = self._is_root and has_groups()
        self._boxes = Boxes(root, mark)
        self.cells = Cells(mark)
        self._bwrap = bwrap
        starter.reserve_numbers()
        self._starter = starter.find()  # None: work of other users, or in groups, is forked

    def configure(self, order: Configure) -> None:
        if self._users.run_as(order.run_as) or order.node != self._node:
            self._node = order.node
            self._recipes.clear()
        self._boxes.configure(order.engine, order.pids_max)
        self._no_new_privs = order.no_new_privs
        if order.pids_max:
            self._groups.limit_all(order.pids_max)
        for problem in () if self._users.is_self else self._problems():
            print(problem, file=sys.stderr)
        if not self._users.is_self:  # so that users find their way, and see nothing there
            for path in (self._root, f"{self._root}/work", f"{self._root}/{PLACE}"):
                os.makedirs(path, exist_ok=True)
                os.chmod(path, 0o711)

    def labels(self) -> dict[str, str]:
        """How limits and leases are kept here, and which; whether there are sandboxes."""
        limits = {"limits": self._groups.label, "limited": ",".join(self._groups.controllers)}
        leases = {"leases": self.cells.label} if self.cells.label else {}
        isolation = {"isolation": USERS if self._problems() else TASKS}
        return {**limits, **leases, **isolation, **({"sandbox": "bubblewrap"} if self._bwrap else {})}

    def stock_up(self) -> None:
        """Make ahead what the next jobs will need."""
        with contextlib.suppress(OSError):  # then their first starts take longer
            self._spares.fill()
            self._dirs.stock_up()
        if self._hides:
            self.cells.stock_up()

    def revise(self, group: Group, spec: Spec) -> None:
        """Limits of what runs become those of the spec."""
        limits = _around(spec)
        if group.limits != limits:
            self._groups.revise(group, limits)

    def forget(self, job: str) -> None:
        self._recipes.pop(job, None)
        self._filled.pop(job, None)
        self._users.forget(job)
        self._dirs.forget(job)

    def enclose(self, key: Key, spec: Spec) -> Group | None:
        """A group for an attempt, where the machine has groups.

        A root keeper makes one for every attempt: whatever the work does to its environment and its session,
        it is found and killed by its group.
        """
        if not (spec.limits or self._is_root):
            return None
        try:
            group = self._groups.make(key, _around(spec))
            if group and spec.check:
                group.is_plain = False  # checks are started by another thread, also while the attempt ends
            return group
        except OSError as error:
            raise Short(f"cannot make a control group: {os.strerror(error.errno or 0)}") from error

    def _problems(self) -> list[str]:
        """What keeps this machine from telling tasks of other users apart."""
        found = []
        if not (self._is_root and self.cells.hide):
            found.append(f"jobs see each other's processes: {self.cells.problem or 'the keeper is not root'}")
        if not self._has_task_groups:
            found.append(
                "tasks of a job can read each other's tokens and outputs: there are no groups for them"
            )
        return found

    @property
    def _hides(self) -> bool:
        """Whether work is in cells: that of other users, where the machine has them."""
        return self._is_root and not self._users.is_self and self.cells.hide

    def confine(self, spec: Spec, before: Cell | None) -> Cell | None:
        """A cell for what runs under a lease, or as another user; the one from before unless it was ended."""
        if before and not before.is_killed:
            return before
        if before:
            self.cells.discard(before)
        if spec.lease_ms is not None and self.cells.label is None:
            raise Short("this node cannot hold run leases")
        try:
            if spec.lease_ms is not None:
                return self.cells.make(is_bound=True)
            return self.cells.take() if self._hides else None
        except OSError as error:
            raise Short(f"cannot make a pid namespace: {os.strerror(error.errno or 0)}") from error

    def release(self, key: Key, spec: Spec, group: Group | None, cell: Cell | None) -> None:
        """The attempt has ended.

        Only a group that is empty vouches that a cell is. Where checks are started, by a thread of their own
        and perhaps just now, no other attempt gets the cell.
        """
        self._dirs.close(key, spec.reports)
        is_empty = group is not None and group.is_empty() and not spec.check
        if group:
            self._groups.end(group)
        if cell and is_empty:
            self.cells.give_back(cell)
        elif cell:
            self.cells.discard(cell)

    def spawn(
        self,
        key: Key,
        spec: Spec,
        gpus: Sequence[str],
        output: bytes,
        around: Around = IN_NOTHING,
    ) -> int:
        """Start it, writing to output.out and .err, or nowhere; its pid is that of its session and group."""
        job = key[0]
        recipe = None
        try:
            named = (spec.version, spec.step)
            recipe = self._recipes.get(job, {}).get(named) or self._prepare(job, spec)
            if recipe.program is None:
                with as_user(recipe.user):
                    recipe.program = os.fsencode(find(spec.argv[0], recipe.path, recipe.cwd))
            if spec.step != A_CHECK:  # a check may be started when its attempt has ended
                self._dirs.open(key, recipe.owner, spec.reports)
            env = self._environment(key, spec, gpus, recipe)
            with around.cell or OUTSIDE:
                task_group = group_of(key[1]) if recipe.owner and recipe.owner.is_one_of_many else None
                pid, error = self._start(recipe, env, output, around, task_group)
        except LookupError as problem:
            raise Short(str(problem)) from problem
        except OSError as problem:  # of the job's directories
            pid, error = 0, problem.errno or errno.EIO
        if not error:
            return pid
        self._recipes.pop(job, None)  # it may be out of date
        if error in OF_THE_NODE or recipe is None or (output and not os.path.isdir(os.path.dirname(output))):
            raise Short(f"{os.strerror(error)} on this node")
        with as_user(recipe.user):
            raise explain(error, spec.argv[0], recipe.cwd)

    def _environment(
        self, key: Key, spec: Spec, gpus: Sequence[str], recipe: Recipe
    ) -> ctypes.Array[ctypes.c_char_p]:
        """The recipe's, with what differs in its places."""
        env = type(recipe.env).from_buffer_copy(recipe.env)
        values = [b"ROTA_INDEX=%d" % key[1], b"ROTA_ATTEMPT=%d" % key[2]]
        values.append(b"ROTA_OUTPUT_DIR=%b/%d/out" % (recipe.tasks, key[1]))
        if recipe.has_gpus:
            devices = os.fsencode(",".join(gpus))
            values += [b"ROTA_GPUS=" + devices, b"CUDA_VISIBLE_DEVICES=" + devices]
        if spec.restart:
            values.append(b"ROTA_RESTART=%d" % spec.restarts)
        if spec.reports:
            directory = self._dirs.path(key)
            if spec.step != A_CHECK:
                reports.leave(spec.reports, key, directory)
            said = reports.told(spec.reports, key, directory)
            values += [os.fsencode(f"{name}={value}") for name, value in said.items()]
        for at, value in enumerate(values, start=2):
            env[-at] = value  # the last place stays empty: it ends the list
        return env

    def _start(
        self,
        recipe: Recipe,
        env: ctypes.Array[ctypes.c_char_p],
        output: bytes,
        around: Around,
        task_group: int | None = None,
    ) -> tuple[int, int]:
        group = around.group
        passed = {sandbox.REPORT_FD: around.report.fd} if around.report else {}
        if self._no_new_privs and not getattr(self._threads, "has_renounced", False):
            renounce()  # in each thread that starts work, once
            self._threads.has_renounced = True
        mounts_fd = around.cell.mounts_fd if around.cell else None
        entrances = group.entrances if group else ()
        surroundings = Surroundings(recipe.user, entrances, task_group, mounts_fd)
        launch = posix.Launch(recipe.program or b"", recipe.argv, env, recipe.cwd, surroundings, passed)
        if group:
            group.is_unused = False
        try:
            self._groups.settle()
            if not surroundings:
                return posix.start(launch, output, self._attributes)
            if self._starter is None:
                return forked.start(_program(launch), output, passed)
            return posix.start_around(self._starter, launch, output, self._attributes)
        except CannotEnter as error:
            raise Short(f"cannot enter its groups and namespaces or take its user: {error}") from error

    def check(self, key: Key, spec: Spec, box: Box | None, around: Around) -> int:
        """Start the command that checks an attempt as if it were part of it; what it writes is nobody's."""
        assert spec.check is not None
        if box is not None:
            return self._check_inside(key, spec, box)
        env = {**spec.env, "ROTA_CHECK": "1"}
        return self.spawn(key, replace(spec, argv=spec.check.argv, env=env, step=A_CHECK), (), b"", around)

    def _check_inside(self, key: Key, spec: Spec, box: Box) -> int:
        """A container; its marks are those by which the runtime's own processes are found."""
        assert spec.check is not None
        marks = {**self._boxes.marks(key), "ROTA_CHECK": "1"}
        options = [word for name, value in marks.items() for word in ("--env", f"{name}={value}")]
        argv = [box.engine.program, "exec", *options, box.start.name, *spec.check.argv]
        return self._run_engine(key, box, argv, b"")

    def pack(self, key: Key, spec: Spec, gpus: Sequence[str]) -> Box | None:
        """What an attempt with an image runs in; the container is made when it is sent."""
        if spec.container is None:
            return None
        job, index, attempt = key
        try:
            work = self._make_work(job)
            own = self._users.of(job)
            user = self._boxes.user_of(spec, own)
            directory = self._dirs.open(key, self._boxes.owner(user), spec.reports)
            env = {**spec.env, **self._told(job, spec), "ROTA_GPUS": ",".join(gpus)}
            env |= {"ROTA_INDEX": str(index), "ROTA_ATTEMPT": str(attempt)}
            env["ROTA_OUTPUT_DIR"] = f"{directory}/{reports.OUT}"
            env |= {"ROTA_RESTART": str(spec.restarts)} if spec.restart else {}
            env |= reports.told(spec.reports, key, directory) if spec.reports else {}
            box = self._boxes.pack(key, spec, env, Place(work, directory, user))
            if self._filled.get(job, 0) < spec.version:
                _place(work, spec)  # once, and only now is the directory its user's
                self._filled[job] = spec.version
            if spec.reports:
                reports.leave(spec.reports, key, directory)
            return box
        except (NotAllowed, LookupError) as reason:
            raise Short(str(reason)) from reason
        except OSError as problem:
            raise Short(f"{problem.strerror} on this node") from problem

    def send(self, key: Key, box: Box, output: bytes) -> int:
        """Start the runtime's command line, in the foreground; its pid, as of any other process."""
        return self._run_engine(key, box, box.argv, output)

    def _run_engine(self, key: Key, box: Box, words: Sequence[str], output: bytes) -> int:
        env = [os.fsencode(f"{name}={value}") for name, value in self._boxes.environment(key).items()]
        argv = strings([os.fsencode(part) for part in words])
        program = os.fsencode(box.engine.program)
        recipe = Recipe(argv, "", strings(env), "/", user=None, program=program)
        pid, error = self._start(recipe, recipe.env, output, IN_NOTHING)
        if error == errno.E2BIG:
            raise CannotRun(CANNOT_EXECUTE, f"the command of the container: {os.strerror(error)}")
        if error:
            raise Short(f"{box.engine.program}: {os.strerror(error)} on this node")
        return pid

    def _prepare(self, job: str, spec: Spec) -> Recipe:
        work = self._make_work(job)
        user = self._users.of(job)
        if user:
            give(work, user)
        if spec.step != A_CHECK:
            _place(work, spec)
        env = _passed_on(user, work)
        env.setdefault("PATH", DEFAULT_PATH)
        env |= spec.env
        path = env["PATH"]
        needs = dict(spec.needs)
        env |= {"ROTA_KEEPER": self._mark, **self._told(job, spec), "ROTA_GPUS": ""}
        varying = ["ROTA_INDEX", "ROTA_ATTEMPT", "ROTA_OUTPUT_DIR"]
        gpu = needs.get(GPU)
        if gpu:
            varying += ["ROTA_GPUS", "CUDA_VISIBLE_DEVICES"]
            env |= {"ROTA_GPU_SHARE": f"{gpu / WHOLE:g}"} if gpu < WHOLE else {}
        if spec.restart:
            varying.append("ROTA_RESTART")
        if spec.reports:
            varying += spec.reports.varying
        encoded = [os.fsencode(f"{name}={env[name]}") for name in env if name not in varying]
        encoded += [b""] * len(varying)  # at the end; `_environment` fills these places
        cwd = os.path.join(work, spec.workdir) if spec.workdir else work
        argv = strings([os.fsencode(part) for part in spec.argv])
        recipe = Recipe(argv, path, strings(encoded), cwd, user, has_gpus=bool(gpu))
        recipe.owner, recipe.tasks = self._owner(user), os.fsencode(self._dirs.place(job))
        if spec.sandbox:
            self._enclose_in_sandbox(recipe, spec, job, work)
        self._recipes.setdefault(job, {})[spec.version, spec.step] = recipe
        return recipe

    def _enclose_in_sandbox(self, recipe: Recipe, spec: Spec, job: str, work: str) -> None:
        """What cannot be executed is found out before: inside, nobody could tell it from its own end."""
        assert spec.sandbox is not None
        if self._bwrap is None:
            raise LookupError("this node has no bubblewrap that works")
        with as_user(recipe.user):
            command = find(spec.argv[0], recipe.path, recipe.cwd)
            if not may_execute(os.path.join(recipe.cwd, command)):
                raise explain(why_not(os.path.join(recipe.cwd, command)), command, recipe.cwd)
            if path := sandbox.missing(spec.sandbox):
                raise CannotRun(126, f"sandbox: there is no {path} to write to")
        own = (work, self._dirs.place(job))
        place = sandbox.Place(self._root, own, recipe.cwd, has_gpus=spec.asks_for(GPU))
        around = sandbox.wrap(self._bwrap, spec.sandbox, place, reports=spec.step != A_CHECK)
        words = [*around, command, *spec.argv[1:]]
        recipe.argv, recipe.program = strings(list(map(os.fsencode, words))), os.fsencode(self._bwrap)

    def _make_work(self, job: str) -> str:
        work = f"{self._root}/work/{job}"
        if not self._spares.take(job):
            _make_work(work)
        return work

    def _owner(self, user: User | None) -> Owner | None:
        """Of the directories of tasks; None: all is the keeper's own."""
        return Owner(user, self._has_task_groups) if user else None

    def _told(self, job: str, spec: Spec) -> dict[str, str]:
        """What every attempt of the job is told of itself."""
        needs = dict(spec.needs)
        return {
            "ROTA_JOB_ID": job,
            "ROTA_JOB_NAME": spec.name,
            "ROTA_COUNT": str(spec.count),
            "ROTA_NODE": self._node,
            "ROTA_CPUS": f"{needs.get('cpu', 0) / 1000:g}",
            "ROTA_MEMORY_BYTES": str(needs.get("memory", 0)),
        }


def _around(spec: Spec) -> Limits:
    """Its limits, and room for whoever watches its sandbox."""
    if spec.sandbox is None or spec.limits.pids is None:
        return spec.limits
    return replace(spec.limits, pids=min(spec.limits.pids + sandbox.OWN_PROCESSES, PIDS_MOST))


def _place(work: str, spec: Spec) -> None:
    """Write the files that came with the job; a name that no file system takes is the job's own fault."""
    try:
        place(work, spec.files)
    except OSError as error:
        if error.errno in OF_THE_JOB:
            name = os.fsdecode(error.filename or "")
            raise CannotRun(CANNOT_EXECUTE, f"file {name[:80]}: {os.strerror(error.errno)}") from error
        raise


def _program(launch: posix.Launch) -> forked.Program:
    argv = tuple(part for part in launch.argv if part is not None)
    pairs = (part.partition(b"=") for part in launch.env if part)
    variables = {name: value for name, _, value in pairs}
    return forked.Program(launch.program, argv, variables, launch.cwd, launch.around, posix.RESET)


def _passed_on(user: User | None, work: str) -> dict[str, str]:
    names = PASSED_ON if user else PASSED_ON + OF_THE_KEEPERS_USER
    env = {name: value for name, value in os.environ.items() if name in names or name.startswith("LC_")}
    if user:
        env["HOME"] = work
        if user.name:
            env |= {"USER": user.name, "LOGNAME": user.name}
    return env


def _make_work(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)
