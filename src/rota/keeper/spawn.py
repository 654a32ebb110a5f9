"""Spawning: a job's spec + one attempt of it -> a process in its own session, with its output in files."""

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
USER_ENVIRONMENT = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR")  # only for tasks of the keeper's user
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEALTH_CHECK_STEP = -1  # in place of a step's number
# Values of the label `isolation`, for tasks of other users than the keeper's: jobs are isolated by their
# users alone, or each task also sees its own processes only, and cannot read tokens and outputs of others.
USERS, TASKS = "users", "tasks"
NO_NAMESPACE = contextlib.nullcontext()


class NodeResourceExhausted(Exception):
    """This node cannot start the attempt now (disk, memory, descriptors, a runtime); another one may."""


NO_PROCESS_AVAILABLE = NodeResourceExhausted("its end came before this node had a process to spare")


class Isolation(NamedTuple):
    """What an attempt is isolated by, if by anything."""

    cgroup: Cgroup | None = None
    pid_namespace: PidNamespace | None = None
    sandbox_report: SandboxReport | None = None


NO_ISOLATION = Isolation()


@dataclass(slots=True)
class LaunchSpec:
    """Launch parameters that all attempts of a job share, computed once per version and step."""

    argv: ctypes.Array[ctypes.c_char_p]
    path: str
    env: ctypes.Array[ctypes.c_char_p]  # with empty entries at the end for what varies
    cwd: str
    user: User | None  # None: the keeper's own
    program: bytes | None = None  # looked up at the first start
    has_gpus: bool = False
    owner: DirectoryOwner | None = None  # of the task directories
    tasks: bytes = b""  # path of the task directories


class Spawner:
    """Starts processes of attempts. Most of it runs without `Supervisor.lock`, in several threads at a time.

    `configure`, `labels`, `forget` and `release` are called with the lock held.
    """

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
        self._files_version: dict[
            str, int
        ] = {}  # by job, for containers: the version whose files are written
        self._directory_pool = DirectoryPool(f"{root}/spare/work", f"{root}/work", _make_work)
        self._attributes = posix.make_attributes()
        self._dirs = TaskDirs(root)
        self._has_task_groups = self._is_root and has_groups()
        self._containers = ContainerFactory(root, mark)
        self.namespaces = PidNamespaces(mark)
        self._bwrap = bwrap
        starter.reserve_descriptors()
        self._starter = starter.find_starter()  # None: tasks with a user or cgroup of their own are forked

    def configure(self, order: ConfigureOrder) -> None:
        # Cached launch specs hold the user and the node's name.
        if self._users.set_run_as(order.run_as) or order.node != self._node:
            self._node = order.node
            self._launch_specs.clear()
        self._containers.configure(order.engine, order.pids_max)
        self._no_new_privs = order.no_new_privs
        if order.pids_max:
            self._cgroups.limit_all(order.pids_max)
        for problem in () if self._users.is_self else self._problems():
            print(problem, file=sys.stderr)
        if not self._users.is_self:  # other users must traverse these directories, and list nothing
            for path in (self._root, f"{self._root}/work", f"{self._root}/{PLACE}"):
                os.makedirs(path, exist_ok=True)
                os.chmod(path, 0o711)

    def labels(self) -> dict[str, str]:
        """Labels of the node: how limits, leases and isolation are enforced, and whether it has sandboxes."""
        limits = {"limits": self._cgroups.label, "limited": ",".join(self._cgroups.controllers)}
        leases = {"leases": self.namespaces.label} if self.namespaces.label else {}
        isolation = {"isolation": USERS if self._problems() else TASKS}
        return {**limits, **leases, **isolation, **({"sandbox": "bubblewrap"} if self._bwrap else {})}

    def preallocate(self) -> None:
        """Create directories and pid namespaces ahead for the next jobs."""
        with contextlib.suppress(OSError):  # then first starts take longer
            self._directory_pool.refill()
            self._dirs.preallocate()
        if self._hides:
            self.namespaces.preallocate()

    def update_limits(self, group: Cgroup, spec: KeeperJobSpec) -> None:
        """Set the limits of a running attempt to those of the spec."""
        limits = _limits_with_sandbox(spec)
        if group.limits != limits:
            self._cgroups.update_limits(group, limits)

    def forget(self, job: str) -> None:
        self._launch_specs.pop(job, None)
        self._files_version.pop(job, None)
        self._users.forget(job)
        self._dirs.forget(job)

    def create_cgroup(self, key: AttemptKey, spec: KeeperJobSpec) -> Cgroup | None:
        """Create a cgroup for an attempt, if the machine has cgroups.

        A root keeper creates one for every attempt: whatever a process does to its environment and session,
        it is found and killed by its cgroup.
        """
        if not (spec.limits or self._is_root):
            return None
        try:
            group = self._cgroups.create(key, _limits_with_sandbox(spec))
            if group and spec.check:
                # Race: the checker thread may spawn into it while the attempt ends, so it is not reused.
                group.is_plain = False
            return group
        except OSError as error:
            raise NodeResourceExhausted(
                f"cannot make a control group: {os.strerror(error.errno or 0)}"
            ) from error

    def _problems(self) -> list[str]:
        """Why tasks of other users are not fully isolated on this machine."""
        found = []
        if not (self._is_root and self.namespaces.hide):
            found.append(
                f"jobs see each other's processes: {self.namespaces.problem or 'the keeper is not root'}"
            )
        if not self._has_task_groups:
            found.append(
                "tasks of a job can read each other's tokens and outputs: there are no groups for them"
            )
        return found

    @property
    def _hides(self) -> bool:
        """Whether attempts run in pid namespaces: those of other users, if the machine supports it."""
        return self._is_root and not self._users.is_self and self.namespaces.hide

    def create_pid_namespace(self, spec: KeeperJobSpec, before: PidNamespace | None) -> PidNamespace | None:
        """A pid namespace for an attempt with a run lease or of another user; reuses `before` if alive."""
        if before and not before.is_killed:
            return before
        if before:
            self.namespaces.discard(before)
        if spec.lease_ms is not None and self.namespaces.label is None:
            raise NodeResourceExhausted("this node cannot hold run leases")
        try:
            if spec.lease_ms is not None:
                return self.namespaces.create(is_bound=True)
            return self.namespaces.allocate() if self._hides else None
        except OSError as error:
            raise NodeResourceExhausted(
                f"cannot make a pid namespace: {os.strerror(error.errno or 0)}"
            ) from error

    def release(
        self, key: AttemptKey, spec: KeeperJobSpec, group: Cgroup | None, namespace: PidNamespace | None
    ) -> None:
        """Release the directory, cgroup and pid namespace of an attempt that has ended.

        A pid namespace is reused only if the cgroup is empty, which proves that the namespace is. Race: the
        checker may spawn a health check just now, so the namespace of an attempt with checks is not reused.
        """
        self._dirs.close(key, spec.reports)
        # Ordering: asked before the cgroup is killed and removed, which would make the answer meaningless.
        is_empty = group is not None and group.is_empty() and not spec.check
        if group:
            self._cgroups.kill_and_remove(group)
        if namespace and is_empty:
            self.namespaces.release(namespace)
        elif namespace:
            self.namespaces.discard(namespace)

    def spawn(
        self,
        key: AttemptKey,
        spec: KeeperJobSpec,
        gpus: Sequence[str],
        output: bytes,
        isolation: Isolation = NO_ISOLATION,
    ) -> int:
        """Start a process with its output in `output`.out and .err, or discarded if `output` is empty.

        The pid is also that of its session and process group. NodeResourceExhausted: another node may run it;
        CannotRun: none can.
        """
        job = key[0]
        launch_spec = None
        try:
            named = (spec.version, spec.step)
            # Race: two threads may both prepare it. They compute the same, and the last one stays.
            launch_spec = self._launch_specs.get(job, {}).get(named) or self._prepare(job, spec)
            if launch_spec.program is None:
                with as_user(launch_spec.user):
                    launch_spec.program = os.fsencode(
                        find_program(spec.argv[0], launch_spec.path, launch_spec.cwd)
                    )
            # Race: a check may be spawned after its attempt has ended; it must not claim the directory.
            if spec.step != HEALTH_CHECK_STEP:
                self._dirs.open(key, launch_spec.owner, spec.reports)
            env = self._environment(key, spec, gpus, launch_spec)
            # Only around the spawn: everything else of this thread must happen in the keeper's namespace.
            with isolation.pid_namespace or NO_NAMESPACE:
                task_group = (
                    group_of(key[1]) if launch_spec.owner and launch_spec.owner.is_one_of_many else None
                )
                pid, error = self._start(launch_spec, env, output, isolation, task_group)
        except LookupError as problem:
            raise NodeResourceExhausted(str(problem)) from problem
        except OSError as problem:  # from the job's directories
            pid, error = 0, problem.errno or errno.EIO
        if not error:
            return pid
        self._launch_specs.pop(job, None)  # the cached program or directory may be out of date
        if (
            error in NODE_ERRNOS
            or launch_spec is None
            or (output and not os.path.isdir(os.path.dirname(output)))
        ):
            raise NodeResourceExhausted(f"{os.strerror(error)} on this node")
        with as_user(launch_spec.user):
            raise explain_exec_error(error, spec.argv[0], launch_spec.cwd)

    def _environment(
        self, key: AttemptKey, spec: KeeperJobSpec, gpus: Sequence[str], launch_spec: LaunchSpec
    ) -> ctypes.Array[ctypes.c_char_p]:
        """The launch spec's environment with the entries of this attempt filled in."""
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
            variables = result_endpoint.result_environment(spec.reports, key, directory)
            values += [os.fsencode(f"{name}={value}") for name, value in variables.items()]
        for at, value in enumerate(values, start=2):
            env[-at] = value  # the last entry stays NULL: it ends the list
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
        # By thread, because no_new_privs is an attribute of a thread and cannot be undone.
        if self._no_new_privs and not getattr(self._threads, "has_dropped", False):
            drop_privileges()  # once in each thread that spawns
            self._threads.has_dropped = True
        mounts_fd = isolation.pid_namespace.mounts_fd if isolation.pid_namespace else None
        procs_files = group.procs_files if group else ()
        context = ProcessContext(launch_spec.user, procs_files, task_group, mounts_fd)
        launch = posix.Launch(
            launch_spec.program or b"", launch_spec.argv, env, launch_spec.cwd, context, passed
        )
        if group:
            # Before the spawn: from here on only the kernel knows whether the cgroup is empty.
            group.is_unused = False
        try:
            self._cgroups.enter_parent_cgroup()
            if not context:
                return posix.start(launch, output, self._attributes)
            if self._starter is None:
                return forked.start(_program(launch), output, passed)
            return posix.start_in_context(self._starter, launch, output, self._attributes)
        except CannotEnter as error:
            raise NodeResourceExhausted(
                f"cannot enter its groups and namespaces or take its user: {error}"
            ) from error

    def start_check(
        self, key: AttemptKey, spec: KeeperJobSpec, container: ContainerHandle | None, isolation: Isolation
    ) -> int:
        """Start the command of a health check, isolated as its attempt is; its output is discarded."""
        assert spec.check is not None
        if container is not None:
            return self._start_check_in_container(key, spec, container)
        env = {**spec.env, "ROTA_CHECK": "1"}
        return self.spawn(
            key, replace(spec, argv=spec.check.argv, env=env, step=HEALTH_CHECK_STEP), (), b"", isolation
        )

    def _start_check_in_container(
        self, key: AttemptKey, spec: KeeperJobSpec, container: ContainerHandle
    ) -> int:
        """Start a health check in its container, with the markers by which its processes are found."""
        assert spec.check is not None
        markers = {**self._containers.markers(key), "ROTA_CHECK": "1"}
        options = [option for name, value in markers.items() for option in ("--env", f"{name}={value}")]
        argv = [container.engine.program, "exec", *options, container.launch.name, *spec.check.argv]
        return self._run_engine(key, container, argv, b"")

    def prepare_container(
        self, key: AttemptKey, spec: KeeperJobSpec, gpus: Sequence[str]
    ) -> ContainerHandle | None:
        """Prepare the container of an attempt with an image; None: it has none. Nothing is started yet."""
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
            container = self._containers.prepare(key, spec, env, JobDirectory(work, directory, user))
            if self._files_version.get(job, 0) < spec.version:
                _write_job_files(work, spec)  # after `prepare`, which gives the directory to its user
                self._files_version[job] = spec.version
            if spec.reports:
                result_endpoint.write_token_files(spec.reports, key, directory)
            return container
        except (ContainerNotAllowed, LookupError) as reason:
            raise NodeResourceExhausted(str(reason)) from reason
        except OSError as problem:
            raise NodeResourceExhausted(f"{problem.strerror} on this node") from problem

    def start_container(self, key: AttemptKey, container: ContainerHandle, output: bytes) -> int:
        """Start the runtime's command line in the foreground; return its pid, as of any other process."""
        return self._run_engine(key, container, container.argv, output)

    def _run_engine(
        self, key: AttemptKey, container: ContainerHandle, command: Sequence[str], output: bytes
    ) -> int:
        env = [
            os.fsencode(f"{name}={value}") for name, value in self._containers.engine_environment(key).items()
        ]
        argv = c_strings([os.fsencode(part) for part in command])
        program = os.fsencode(container.engine.program)
        launch_spec = LaunchSpec(argv, "", c_strings(env), "/", user=None, program=program)
        pid, error = self._start(launch_spec, launch_spec.env, output, NO_ISOLATION)
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
        encoded += [b""] * len(varying)  # at the end; `_environment` fills these entries
        cwd = os.path.join(work, spec.workdir) if spec.workdir else work
        argv = c_strings([os.fsencode(part) for part in spec.argv])
        launch_spec = LaunchSpec(argv, path, c_strings(encoded), cwd, user, has_gpus=bool(gpu))
        launch_spec.owner, launch_spec.tasks = self._owner(user), os.fsencode(self._dirs.place(job))
        if spec.sandbox:
            self._wrap_in_sandbox(launch_spec, spec, job, work)
        self._launch_specs.setdefault(job, {})[spec.version, spec.step] = launch_spec
        return launch_spec

    def _wrap_in_sandbox(self, launch_spec: LaunchSpec, spec: KeeperJobSpec, job: str, work: str) -> None:
        """Wrap the command in bubblewrap.

        Whether the command can be executed is checked before: inside, a failure would look like its own exit.
        """
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
        prefix = sandbox.wrap_argv(self._bwrap, spec.sandbox, place, reports=spec.step != HEALTH_CHECK_STEP)
        argv = [*prefix, command, *spec.argv[1:]]
        launch_spec.argv, launch_spec.program = (
            c_strings(list(map(os.fsencode, argv))),
            os.fsencode(self._bwrap),
        )

    def _make_work(self, job: str) -> str:
        work = f"{self._root}/work/{job}"
        if not self._directory_pool.allocate(job):
            _make_work(work)
        return work

    def _owner(self, user: User | None) -> DirectoryOwner | None:
        """The owner of task directories; None: the keeper's own user."""
        return DirectoryOwner(user, self._has_task_groups) if user else None

    def _job_environment(self, job: str, spec: KeeperJobSpec) -> dict[str, str]:
        """The environment variables that all attempts of the job share."""
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
    """The spec's limits, with the processes of bubblewrap itself added."""
    if spec.sandbox is None or spec.limits.pids is None:
        return spec.limits
    return replace(spec.limits, pids=min(spec.limits.pids + sandbox.OWN_PROCESSES, PIDS_MAX))


def _write_job_files(work: str, spec: KeeperJobSpec) -> None:
    """Write the files that came with the job; CannotRun for a name that no file system accepts."""
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
