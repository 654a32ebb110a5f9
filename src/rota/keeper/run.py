"""A directory -> a running keeper: takes its lock, remembers, runs reaper, warden and door."""

import contextlib
import fcntl
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable

from rota.keeper import journal
from rota.keeper.attempt import ExitStatus, Kernel, result_row
from rota.keeper.containers import ContainerFactory
from rota.keeper.journal import Journal, JournalState
from rota.keeper.limits.detect import find_cgroups, kill_leftover_cgroups
from rota.keeper.output.segments import SegmentStore
from rota.keeper.process import pid_namespace, sandbox, trees
from rota.keeper.spawn import Spawner
from rota.keeper.supervisor import Supervisor
from rota.keeper.threads.checker import Checker
from rota.keeper.threads.server import KeeperServer, empty_trash, listen
from rota.keeper.threads.sweeper import Sweeper
from rota.keeper.threads.trimmer import Trimmer

KILL_SECONDS = 5.0
SWITCH_SECONDS = 0.0005  # the reaper has something to start: it waits for no thread that reads long orders
STARTER_THREADS_MIN = 4  # threads that start work: each waits for two execs, of the starter and of the work
ABANDON_NS = 10 * 10**9  # beyond the longest grace; then it leaves, and unkillable work behind


class DirectoryInUse(Exception):
    """Another keeper holds this directory."""


def run_keeper(root: str) -> None:
    """Own the work of this directory until told to quit."""
    root_fd = _lock_directory(root)
    trees.adopt_orphans()
    mark = _keeper_id(root_fd)
    pid_namespace.kill_all(mark, KILL_SECONDS)
    kill_leftover_cgroups(root, KILL_SECONDS)
    groups = find_cgroups(root, mark)
    outputs = SegmentStore(root)
    kernel = Kernel()
    memory = _recover(f"{root}/journal", mark, outputs, ContainerFactory(root, mark), kernel.now_ms())
    records = Journal(f"{root}/journal", journal.compact_lines(memory))
    bell = Wakeup()
    spawner = Spawner(root, mark, groups, sandbox.find_bwrap())
    work = Supervisor(memory, records, spawner, outputs, bell.wake, kernel=kernel)
    door = KeeperServer(root, listen(root_fd), bell.fd)
    empty_trash(root)
    farewell = Shutdown(work, kernel, bell.wake)
    threading.excepthook = _crash
    sys.setswitchinterval(SWITCH_SECONDS)
    reaper = Reaper(work, door, bell)
    for _ in range(max(STARTER_THREADS_MIN, 2 * (os.cpu_count() or 0))):
        threading.Thread(target=reaper.run, daemon=True).start()
    stock_up = (outputs.preallocate, spawner.preallocate, groups.remove_empty)
    warden = Sweeper(work, mark, groups, stock_up, spawner.cells.pids)
    threading.Thread(target=warden.run, daemon=True).start()
    threading.Thread(target=Checker(work, spawner, kernel, mark).run, daemon=True).start()
    threading.Thread(target=Trimmer(root, work, outputs).run, daemon=True).start()
    # Not in the first thread, which stands for the whole process: a thread that starts work stays in the
    # control groups that all the work is in.
    serving = threading.Thread(target=door.serve, args=(work, farewell.is_complete))
    serving.start()
    serving.join()
    os.unlink("keeper.sock", dir_fd=root_fd)
    spawner.cells.drop_spare()
    groups.close()


class Wakeup:
    """Calls the door's thread: from another thread, or from a signal."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._held = threading.local()
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def wake(self) -> None:
        if getattr(self._held, "is_so", False):
            self._held.is_rung = True
            return
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(self._write_fd, b"!")

    def hold(self) -> None:
        """This thread will do what it would call for."""
        self._held.is_so, self._held.is_rung = True, False

    def release(self) -> bool:
        """Whether it would have been rung."""
        self._held.is_so = False
        return bool(self._held.is_rung)


class Reaper:
    """One thread waits and buries at a time: no end wakes two. Meanwhile others start what comes next."""

    def __init__(self, supervisor: Supervisor, server: KeeperServer, wakeup: Wakeup) -> None:
        self._supervisor = supervisor
        self._server = server
        self._wakeup = wakeup
        self._reap_lock = threading.Lock()

    def run(self) -> None:
        while True:
            with self._reap_lock:
                room_was_left = self._reap()
            if room_was_left:
                self._supervisor.start_admitted()

    def _reap(self) -> bool:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            self._wait_for_children()
            return False
        self._wakeup.hold()
        room_was_left = found is not None and self._supervisor.on_child_exit(found.si_pid)
        # To send it here is sooner done than to wake whoever sends otherwise.
        if self._wakeup.release() and not self._server.try_send(self._supervisor):
            self._wakeup.wake()
        return room_was_left

    def _wait_for_children(self) -> None:
        """Wait until something was spawned, a second at most: orphans come without notice."""
        with self._supervisor.lock:
            if not self._supervisor.by_pid:
                self._supervisor.has_children.wait(1.0)


class Shutdown:
    """Told to go by SIGTERM or by the agent, a keeper goes when its work has ended."""

    def __init__(self, supervisor: Supervisor, kernel: Kernel, ring: Callable[[], None]) -> None:
        self._supervisor = supervisor
        self._kernel = kernel
        self._wake = ring
        self._requested = False
        self._abandon_at_ns = 0
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def is_complete(self) -> bool:
        work = self._supervisor
        if self._requested and not work.quitting:
            work.quit()
        if not work.quitting:
            return False
        with work.lock:
            if not self._abandon_at_ns:
                graces_ms = [attempt.spec.grace_ms for attempt in work.running.values()]
                self._abandon_at_ns = (
                    self._kernel.now_ns() + max(graces_ms, default=0) * 1_000_000 + ABANDON_NS
                )
            if work.running and self._kernel.now_ns() > self._abandon_at_ns:
                print(f"left behind, unkillable: {list(work.running)}", file=sys.stderr)
                return True
            return not work.running

    def _on_sigterm(self, *_: object) -> None:
        self._requested = True
        self._wake()


def _lock_directory(root: str) -> int:
    """The directory's handle, once it is ours alone."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    lock_fd = os.open("keeper.lock", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=root_fd)  # held open until the end
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DirectoryInUse(f"another keeper runs in {root}") from error
    return root_fd


def _keeper_id(root_fd: int) -> str:
    """The id of this directory, made once: work of an earlier keeper is known by it."""
    fd = os.open("keeper.id", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=root_fd)
    try:
        mark = os.read(fd, 64).decode().strip()
        if len(mark) != 32:
            mark = secrets.token_hex(16)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{mark}\n".encode(), 0)
            os.fsync(fd)
        return mark
    finally:
        os.close(fd)


def _recover(
    path: str, mark: str, outputs: SegmentStore, containers: ContainerFactory, now_ms: int
) -> JournalState:
    """Read the journal and settle what was running when it ended."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    memory = journal.read_journal(path)
    for key in trees.kill_all_marked(mark, KILL_SECONDS):
        print(f"unkillable, of an earlier keeper: {key}", file=sys.stderr)
    boxed = [key for key in memory.started if key[0] in memory.specs and memory.specs[key[0]].container]
    if boxed and not containers.remove_leftovers():
        print(f"containers of an earlier keeper may be left, among: {boxed[:10]}", file=sys.stderr)
    outputs.record_lost_ends(memory.started)
    mark_running_lost(memory, boot, now_ms)
    return memory


def mark_running_lost(state: JournalState, boot: str, now_ms: int) -> None:
    """What was started, and nobody saw the end of, is lost."""
    if state.boot == boot:
        outcome = ExitStatus(reason="the keeper died", cause="keeper_died")
    else:
        outcome = ExitStatus(reason="the machine restarted")
    for key, started_ms in state.started.items():
        # All rows of one death share the time: by it the server knows who was there.
        state.ended[key] = result_row(key, "lost", outcome, started_ms, now_ms)
    state.started.clear()
    state.boot = boot


def _crash(what: threading.ExceptHookArgs) -> None:
    """Without one of its threads a keeper looks alive and is not: better to end and to be started again."""
    sys.excepthook(what.exc_type, what.exc_value or what.exc_type(), what.exc_traceback)
    os._exit(70)
