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

from rota.keeper.container.argv import ContainerNotAllowed
from rota.keeper.containers import ContainerFactory, ContainerHandle, JobDirectory
from rota.keeper.directory_pool import DirectoryPool
from rota.keeper.job_files import write_files
from rota.keeper.limits.cgroups import Cgroup, Cgroups
from rota.keeper.limits.limits import PIDS_MAX, AttemptLimits
from rota.keeper.process import forked, posix, sandbox, starter
from rota.keeper.process.commands import (
    CANNOT_EXECUTE,
    JOB_ERRNOS,
    NODE_ERRNOS,
    CannotRun,
    exec_errno,
    explain_exec_error,
    find_program,
    may_execute,
)
from rota.keeper.process.pid_namespace import PidNamespace, PidNamespaces
from rota.keeper.process.posix import c_strings
from rota.keeper.process.sandbox import SandboxReport
from rota.keeper.process.starter import CannotEnter, ProcessContext
from rota.keeper.process.users import JobUsers, User, as_user, drop_privileges, give_directory
from rota.keeper.protocol import result_endpoint
from rota.keeper.protocol.wire import ConfigureOrder, KeeperJobSpec
from rota.keeper.resources.gpus import GPU, WHOLE
from rota.keeper.resources.reservations import AttemptKey
from rota.keeper.task_dirs import PLACE, DirectoryOwner, TaskDirs, group_of, has_groups

PASSED_ENVIRONMENT = ("PATH", "LANG", "TZ")
USER_ENVIRONMENT = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR")  # nobody else's work is given them
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEALTH_CHECK_STEP = -1  # stands for a step
# Label `isolation`, for work of other users than the keeper's: jobs are kept apart by their users alone, or
# each task sees its own processes only, and reads no token and no outputs of other tasks.
USERS, TASKS = "users", "tasks"
NO_NAMESPACE = contextlib.nullcontext()  # of any cell


class NodeResourceExhausted(Exception):
    """This node lacks something (disk, memory, descriptors) to start anything now."""


NO_PROCESS_AVAILABLE = NodeResourceExhausted("its end came before this node had a process to spare")


class Isolation(NamedTuple):
    """What an attempt is in, where it is in anything."""

    cgroup: Cgroup | None = None
    pid_namespace: PidNamespace | None = None
    sandbox_report: SandboxReport | None = None  # of a sandbox


NO_ISOLATION = Isolation()


@dataclass(slots=True)
class LaunchSpec:
    """What all attempts of a job have in common, worked out once."""

    argv: ctypes.Array[ctypes.c_char_p]
    path: str
    env: ctypes.Array[ctypes.c_char_p]  # with some places left for what differs
    cwd: str
    user: User | None  # None: the keeper's own
    program: bytes | None = None  # found at the first start
    has_gpus: bool = False
    owner: DirectoryOwner | None = None  # of the directories of its tasks
    tasks: bytes = b""  # where these are


class Spawner:
    def __init__(
        self, root: str, mark: str, cgroups: Cgroups | None = None, bwrap: str | None = None
    ) -> None:
        self._root = root
        self._mark = mark
        self._node = ""
        self._cgroups = cgroups or Cgroups()
        self._is_root = os.geteuid() == 0
        self._users = JobUsers(f"{root}/work")
        self._no_new_privs = True
        self._threads = threading.local()
        self._launch_specs: dict[str, dict[tuple[int, int], LaunchSpec]] = {}  # by job, version and step
        self._files_version: dict[str, int] = {}  # by job, for containers: whose version's files are in place
        self._directory_pool = DirectoryPool(f"{root}/spare/work", f"{root}/work", _make_work)
        self._attributes = posix.make_attributes()
        self._dirs = TaskDirs(root)
        self._has_task_groups = self._is_root and has_groups()
        self._containers = ContainerFactory(root, mark)
        self.cells = PidNamespaces(mark)
        self._bwrap = bwrap
        starter.reserve_descriptors()
        self._starter = starter.find_starter()  # None: work of other users, or in groups, is forked

    def configure(self, order: ConfigureOrder) -> None:
        if self._users.set_run_as(order.run_as) or order.node != self._node:
            self._node = order.node
            self._launch_specs.clear()
        self._containers.configure(order.engine, order.pids_max)
        self._no_new_privs = order.no_new_privs
        if order.pids_max:
            self._cgroups.limit_all(order.pids_max)
        for problem in () if self._users.is_self else self._problems():
            print(problem, file=sys.stderr)
        if not self._users.is_self:  # so that users find their way, and see nothing there
            for path in (self._root, f"{self._root}/work", f"{self._root}/{PLACE}"):
                os.makedirs(path, exist_ok=True)
                os.chmod(path, 0o711)

    def labels(self) -> dict[str, str]:
        """How limits and leases are kept here, and which; whether there are sandboxes."""
        limits = {"limits": self._cgroups.label, "limited": ",".join(self._cgroups.controllers)}
        leases = {"leases": self.cells.label} if self.cells.label else {}
        isolation = {"isolation": USERS if self._problems() else TASKS}
        return {**limits, **leases, **isolation, **({"sandbox": "bubblewrap"} if self._bwrap else {})}

    def preallocate(self) -> None:
        """Make ahead what the next jobs will need."""
        with contextlib.suppress(OSError):  # then their first starts take longer
            self._directory_pool.refill()
            self._dirs.preallocate()
        if self._hides:
            self.cells.preallocate()

    def update_limits(self, group: Cgroup, spec: KeeperJobSpec) -> None:
        """Limits of what runs become those of the spec."""
        limits = _limits_with_sandbox(spec)
        if group.limits != limits:
            self._cgroups.update_limits(group, limits)

    def forget(self, job: str) -> None:
        self._launch_specs.pop(job, None)
        self._files_version.pop(job, None)
        self._users.forget(job)
        self._dirs.forget(job)

    def create_cgroup(self, key: AttemptKey, spec: KeeperJobSpec) -> Cgroup | None:
        """A group for an attempt, where the machine has groups.

        A root keeper makes one for every attempt: whatever the work does to its environment and its session,
        it is found and killed by its group.
        """
        if not (spec.limits or self._is_root):
            return None
        try:
            group = self._cgroups.create(key, _limits_with_sandbox(spec))
            if group and spec.check:
                group.is_plain = False  # checks are started by another thread, also while the attempt ends
            return group
        except OSError as error:
            raise NodeResourceExhausted(
                f"cannot make a control group: {os.strerror(error.errno or 0)}"
            ) from error

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

    def create_pid_namespace(self, spec: KeeperJobSpec, before: PidNamespace | None) -> PidNamespace | None:
        """A cell for what runs under a lease, or as another user; the one from before unless it was ended."""
        if before and not before.is_killed:
            return before
        if before:
            self.cells.discard(before)
        if spec.lease_ms is not None and self.cells.label is None:
            raise NodeResourceExhausted("this node cannot hold run leases")
        try:
            if spec.lease_ms is not None:
                return self.cells.create(is_bound=True)
            return self.cells.allocate() if self._hides else None
        except OSError as error:
            raise NodeResourceExhausted(
                f"cannot make a pid namespace: {os.strerror(error.errno or 0)}"
            ) from error

    def release(
        self, key: AttemptKey, spec: KeeperJobSpec, group: Cgroup | None, cell: PidNamespace | None
    ) -> None:
        """The attempt has ended.

        Only a group that is empty vouches that a cell is. Where checks are started, by a thread of their own
        and perhaps just now, no other attempt gets the cell.
        """
        self._dirs.close(key, spec.reports)
        is_empty = group is not None and group.is_empty() and not spec.check
        if group:
            self._cgroups.kill_and_remove(group)
        if cell and is_empty:
            self.cells.release(cell)
        elif cell:
            self.cells.discard(cell)

    def spawn(
        self,
        key: AttemptKey,
        spec: KeeperJobSpec,
        gpus: Sequence[str],
        output: bytes,
        isolation: Isolation = NO_ISOLATION,
    ) -> int:
        """Start it, writing to output.out and .err, or nowhere; its pid is that of its session and group."""
        job = key[0]
        recipe = None
        try:
            named = (spec.version, spec.step)
            recipe = self._launch_specs.get(job, {}).get(named) or self._prepare(job, spec)
            if recipe.program is None:
                with as_user(recipe.user):
                    recipe.program = os.fsencode(find_program(spec.argv[0], recipe.path, recipe.cwd))
            if spec.step != HEALTH_CHECK_STEP:  # a check may be started when its attempt has ended
                self._dirs.open(key, recipe.owner, spec.reports)
            env = self._environment(key, spec, gpus, recipe)
            with isolation.pid_namespace or NO_NAMESPACE:
                task_group = group_of(key[1]) if recipe.owner and recipe.owner.is_one_of_many else None
                pid, error = self._start(recipe, env, output, isolation, task_group)
        except LookupError as problem:
            raise NodeResourceExhausted(str(problem)) from problem
        except OSError as problem:  # of the job's directories
            pid, error = 0, problem.errno or errno.EIO
        if not error:
            return pid
        self._launch_specs.pop(job, None)  # it may be out of date
        if error in NODE_ERRNOS or recipe is None or (output and not os.path.isdir(os.path.dirname(output))):
            raise NodeResourceExhausted(f"{os.strerror(error)} on this node")
        with as_user(recipe.user):
            raise explain_exec_error(error, spec.argv[0], recipe.cwd)

    def _environment(
        self, key: AttemptKey, spec: KeeperJobSpec, gpus: Sequence[str], launch_spec: LaunchSpec
    ) -> ctypes.Array[ctypes.c_char_p]:
        """The recipe's, with what differs in its places."""
        env = type(launch_spec.env).from_buffer_copy(launch_spec.env)
        values = [b"ROTA_INDEX=%d" % key[1], b"ROTA_ATTEMPT=%d" % key[2]]
        values.append(b"ROTA_OUTPUT_DIR=%b/%d/out" % (launch_spec.tasks, key[1]))
        if launch_spec.has_gpus:
            devices = os.fsencode(",".join(gpus))
            values += [b"ROTA_GPUS=" + devices, b"CUDA_VISIBLE_DEVICES=" + devices]
        if spec.restart:
            values.append(b"ROTA_RESTART=%d" % spec.restarts)
        if spec.reports:
            directory = self._dirs.path(key)
            if spec.step != HEALTH_CHECK_STEP:
                result_endpoint.write_token_files(spec.reports, key, directory)
            said = result_endpoint.result_environment(spec.reports, key, directory)
            values += [os.fsencode(f"{name}={value}") for name, value in said.items()]
        for at, value in enumerate(values, start=2):
            env[-at] = value  # the last place stays empty: it ends the list
        return env

    def _start(
        self,
        launch_spec: LaunchSpec,
        env: ctypes.Array[ctypes.c_char_p],
        output: bytes,
        isolation: Isolation,
        task_group: int | None = None,
    ) -> tuple[int, int]:
        group = isolation.cgroup
        passed = {sandbox.REPORT_FD: isolation.sandbox_report.fd} if isolation.sandbox_report else {}
        if self._no_new_privs and not getattr(self._threads, "has_renounced", False):
            drop_privileges()  # in each thread that starts work, once
            self._threads.has_renounced = True
        mounts_fd = isolation.pid_namespace.mounts_fd if isolation.pid_namespace else None
        entrances = group.procs_files if group else ()
        surroundings = ProcessContext(launch_spec.user, entrances, task_group, mounts_fd)
        launch = posix.Launch(
            launch_spec.program or b"", launch_spec.argv, env, launch_spec.cwd, surroundings, passed
        )
        if group:
            group.is_unused = False
        try:
            self._cgroups.enter_parent_cgroup()
            if not surroundings:
                return posix.start(launch, output, self._attributes)
            if self._starter is None:
                return forked.start(_program(launch), output, passed)
            return posix.start_in_context(self._starter, launch, output, self._attributes)
        except CannotEnter as error:
            raise NodeResourceExhausted(
                f"cannot enter its groups and namespaces or take its user: {error}"
            ) from error

    def start_check(
        self, key: AttemptKey, spec: KeeperJobSpec, container: ContainerHandle | None, around: Isolation
    ) -> int:
        """Start the command that checks an attempt as if it were part of it; what it writes is nobody's."""
        assert spec.check is not None
        if container is not None:
            return self._start_check_in_container(key, spec, container)
        env = {**spec.env, "ROTA_CHECK": "1"}
        return self.spawn(
            key, replace(spec, argv=spec.check.argv, env=env, step=HEALTH_CHECK_STEP), (), b"", around
        )

    def _start_check_in_container(
        self, key: AttemptKey, spec: KeeperJobSpec, container: ContainerHandle
    ) -> int:
        """A container; its marks are those by which the runtime's own processes are found."""
        assert spec.check is not None
        marks = {**self._containers.markers(key), "ROTA_CHECK": "1"}
        options = [word for name, value in marks.items() for word in ("--env", f"{name}={value}")]
        argv = [container.engine.program, "exec", *options, container.launch.name, *spec.check.argv]
        return self._run_engine(key, container, argv, b"")

    def prepare_container(
        self, key: AttemptKey, spec: KeeperJobSpec, gpus: Sequence[str]
    ) -> ContainerHandle | None:
        """What an attempt with an image runs in; the container is made when it is sent."""
        if spec.container is None:
            return None
        job, index, attempt = key
        try:
            work = self._make_work(job)
            own = self._users.user_for(job)
            user = self._containers.user_of(spec, own)
            directory = self._dirs.open(key, self._containers.owner(user), spec.reports)
            env = {**spec.env, **self._job_environment(job, spec), "ROTA_GPUS": ",".join(gpus)}
            env |= {"ROTA_INDEX": str(index), "ROTA_ATTEMPT": str(attempt)}
            env["ROTA_OUTPUT_DIR"] = f"{directory}/{result_endpoint.OUT}"
            env |= {"ROTA_RESTART": str(spec.restarts)} if spec.restart else {}
            env |= result_endpoint.result_environment(spec.reports, key, directory) if spec.reports else {}
            box = self._containers.prepare(key, spec, env, JobDirectory(work, directory, user))
            if self._files_version.get(job, 0) < spec.version:
                _write_job_files(work, spec)  # once, and only now is the directory its user's
                self._files_version[job] = spec.version
            if spec.reports:
                result_endpoint.write_token_files(spec.reports, key, directory)
            return box
        except (ContainerNotAllowed, LookupError) as reason:
            raise NodeResourceExhausted(str(reason)) from reason
        except OSError as problem:
            raise NodeResourceExhausted(f"{problem.strerror} on this node") from problem

    def start_container(self, key: AttemptKey, container: ContainerHandle, output: bytes) -> int:
        """Start the runtime's command line, in the foreground; its pid, as of any other process."""
        return self._run_engine(key, container, container.argv, output)

    def _run_engine(
        self, key: AttemptKey, container: ContainerHandle, command: Sequence[str], output: bytes
    ) -> int:
        env = [
            os.fsencode(f"{name}={value}") for name, value in self._containers.engine_environment(key).items()
        ]
        argv = c_strings([os.fsencode(part) for part in command])
        program = os.fsencode(container.engine.program)
        recipe = LaunchSpec(argv, "", c_strings(env), "/", user=None, program=program)
        pid, error = self._start(recipe, recipe.env, output, NO_ISOLATION)
        if error == errno.E2BIG:
            raise CannotRun(CANNOT_EXECUTE, f"the command of the container: {os.strerror(error)}")
        if error:
            raise NodeResourceExhausted(f"{container.engine.program}: {os.strerror(error)} on this node")
        return pid

    def _prepare(self, job: str, spec: KeeperJobSpec) -> LaunchSpec:
        work = self._make_work(job)
        user = self._users.user_for(job)
        if user:
            give_directory(work, user)
        if spec.step != HEALTH_CHECK_STEP:
            _write_job_files(work, spec)
        env = _inherited_environment(user, work)
        env.setdefault("PATH", DEFAULT_PATH)
        env |= spec.env
        path = env["PATH"]
        needs = dict(spec.needs)
        env |= {"ROTA_KEEPER": self._mark, **self._job_environment(job, spec), "ROTA_GPUS": ""}
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
        argv = c_strings([os.fsencode(part) for part in spec.argv])
        recipe = LaunchSpec(argv, path, c_strings(encoded), cwd, user, has_gpus=bool(gpu))
        recipe.owner, recipe.tasks = self._owner(user), os.fsencode(self._dirs.place(job))
        if spec.sandbox:
            self._wrap_in_sandbox(recipe, spec, job, work)
        self._launch_specs.setdefault(job, {})[spec.version, spec.step] = recipe
        return recipe

    def _wrap_in_sandbox(self, launch_spec: LaunchSpec, spec: KeeperJobSpec, job: str, work: str) -> None:
        """What cannot be executed is found out before: inside, nobody could tell it from its own end."""
        assert spec.sandbox is not None
        if self._bwrap is None:
            raise LookupError("this node has no bubblewrap that works")
        with as_user(launch_spec.user):
            command = find_program(spec.argv[0], launch_spec.path, launch_spec.cwd)
            if not may_execute(os.path.join(launch_spec.cwd, command)):
                raise explain_exec_error(
                    exec_errno(os.path.join(launch_spec.cwd, command)), command, launch_spec.cwd
                )
            if path := sandbox.missing_path(spec.sandbox):
                raise CannotRun(126, f"sandbox: there is no {path} to write to")
        own = (work, self._dirs.place(job))
        place = sandbox.SandboxLayout(self._root, own, launch_spec.cwd, has_gpus=spec.needs_resource(GPU))
        around = sandbox.wrap_argv(self._bwrap, spec.sandbox, place, reports=spec.step != HEALTH_CHECK_STEP)
        words = [*around, command, *spec.argv[1:]]
        launch_spec.argv, launch_spec.program = (
            c_strings(list(map(os.fsencode, words))),
            os.fsencode(self._bwrap),
        )

    def _make_work(self, job: str) -> str:
        work = f"{self._root}/work/{job}"
        if not self._directory_pool.allocate(job):
            _make_work(work)
        return work

    def _owner(self, user: User | None) -> DirectoryOwner | None:
        """Of the directories of tasks; None: all is the keeper's own."""
        return DirectoryOwner(user, self._has_task_groups) if user else None

    def _job_environment(self, job: str, spec: KeeperJobSpec) -> dict[str, str]:
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


def _limits_with_sandbox(spec: KeeperJobSpec) -> AttemptLimits:
    """Its limits, and room for whoever watches its sandbox."""
    if spec.sandbox is None or spec.limits.pids is None:
        return spec.limits
    return replace(spec.limits, pids=min(spec.limits.pids + sandbox.OWN_PROCESSES, PIDS_MAX))


def _write_job_files(work: str, spec: KeeperJobSpec) -> None:
    """Write the files that came with the job; a name that no file system takes is the job's own fault."""
    try:
        write_files(work, spec.files)
    except OSError as error:
        if error.errno in JOB_ERRNOS:
            name = os.fsdecode(error.filename or "")
            raise CannotRun(CANNOT_EXECUTE, f"file {name[:80]}: {os.strerror(error.errno)}") from error
        raise


def _program(launch: posix.Launch) -> forked.Program:
    argv = tuple(part for part in launch.argv if part is not None)
    pairs = (part.partition(b"=") for part in launch.env if part)
    variables = {name: value for name, _, value in pairs}
    return forked.Program(launch.program, argv, variables, launch.cwd, launch.context, posix.RESET)


def _inherited_environment(user: User | None, work: str) -> dict[str, str]:
    names = PASSED_ENVIRONMENT if user else PASSED_ENVIRONMENT + USER_ENVIRONMENT
    env = {name: value for name, value in os.environ.items() if name in names or name.startswith("LC_")}
    if user:
        env["HOME"] = work
        if user.name:
            env |= {"USER": user.name, "LOGNAME": user.name}
    return env


def _make_work(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)
