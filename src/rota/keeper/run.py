"""Start-up of a keeper: lock the directory, recover from the journal, run the threads until told to quit.

The threads and locks are described in `rota.keeper.supervisor`.
"""

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
SWITCH_SECONDS = 0.0005  # a starter must not wait long for the thread that parses a long order
STARTER_THREADS_MIN = 4  # each waits for two execs: of the starter program and of the attempt's command
# After the longest grace period. Then the keeper ends and leaves unkillable processes behind.
ABANDON_NS = 10 * 10**9


class DirectoryInUse(Exception):
    """Another keeper holds this directory."""


def run_keeper(root: str) -> None:
    """Own the attempts of this directory until told to quit.

    Recovery has an order: first everything that an earlier keeper started is killed, then its attempts are
    recorded as lost. The other way round, the server could start an attempt elsewhere while it runs here.
    """
    # First of all: two keepers on one directory would each kill the processes of the other.
    root_fd = _lock_directory(root)
    # Before anything is spawned: orphans of attempts must become children of this process, not of init.
    trees.adopt_orphans()
    mark = _keeper_id(root_fd)
    # Namespaces and cgroups before the scan of processes:
    # killing them also ends trees that fork faster than a scan.
    pid_namespace.kill_all(mark, KILL_SECONDS)
    kill_leftover_cgroups(root, KILL_SECONDS)
    groups = find_cgroups(root, mark)
    outputs = SegmentStore(root)
    kernel = Kernel()
    state = _recover(f"{root}/journal", mark, outputs, ContainerFactory(root, mark), kernel.now_ms())
    # Rewritten at the start, so that a torn last line is gone before anything is appended.
    records = Journal(f"{root}/journal", journal.compact_lines(state))
    wakeup = Wakeup()
    spawner = Spawner(root, mark, groups, sandbox.find_bwrap())
    supervisor = Supervisor(state, records, spawner, outputs, wakeup.wake, kernel=kernel)
    # Listens only now: an agent that connects gets the state after recovery, never a half recovered one.
    server = KeeperServer(root, listen(root_fd), wakeup.fd)
    empty_trash(root)
    shutdown = Shutdown(supervisor, kernel, wakeup.wake)
    # Before the first thread is started: see `_crash`.
    threading.excepthook = _crash
    sys.setswitchinterval(SWITCH_SECONDS)
    reaper = Reaper(supervisor, server, wakeup)
    for _ in range(max(STARTER_THREADS_MIN, 2 * (os.cpu_count() or 0))):
        threading.Thread(target=reaper.run, daemon=True).start()
    maintenance = (outputs.preallocate, spawner.preallocate, groups.remove_empty)
    sweeper = Sweeper(supervisor, mark, groups, maintenance, spawner.namespaces.pids)
    threading.Thread(target=sweeper.run, daemon=True).start()
    threading.Thread(target=Checker(supervisor, spawner, kernel, mark).run, daemon=True).start()
    threading.Thread(target=Trimmer(root, supervisor, outputs).run, daemon=True).start()
    # The server has a thread of its own because a thread that starts attempts stays in the cgroup that is the
    # parent of all of them. For the main thread that would mean the whole process.
    serving = threading.Thread(target=server.serve, args=(supervisor, shutdown.is_complete))
    serving.start()
    serving.join()
    os.unlink("keeper.sock", dir_fd=root_fd)
    spawner.namespaces.drop_spare()
    groups.close()


class Wakeup:
    """Wakes the server thread from another thread or from a signal handler."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._held = threading.local()
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def wake(self) -> None:
        # Per thread: a wakeup of another thread must not be suppressed.
        if getattr(self._held, "is_held", False):
            self._held.was_requested = True
            return
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(self._write_fd, b"!")

    def hold(self) -> None:
        """Suppress wakeups by this thread until `release`: it will try to send by itself."""
        self._held.is_held, self._held.was_requested = True, False

    def release(self) -> bool:
        """End the suppression; return whether a wakeup was requested meanwhile."""
        self._held.is_held = False
        return bool(self._held.was_requested)


class Reaper:
    """The loop of the starter threads: one waits for a child and reaps it while the others spawn.

    `_reap_lock` makes it one waiter at a time, so that no exit wakes two threads.
    """

    def __init__(self, supervisor: Supervisor, server: KeeperServer, wakeup: Wakeup) -> None:
        self._supervisor = supervisor
        self._server = server
        self._wakeup = wakeup
        self._reap_lock = threading.Lock()

    def run(self) -> None:
        while True:
            with self._reap_lock:
                released_resources = self._reap()
            if released_resources:
                self._supervisor.start_admitted()

    def _reap(self) -> bool:
        try:
            # WNOWAIT: the zombie keeps its pid until the supervisor
            # has looked it up, so the pid cannot be reused.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            self._wait_for_children()
            return False
        # Wakeups are held back during the reaping, because this thread sends the event itself below.
        self._wakeup.hold()
        released_resources = found is not None and self._supervisor.on_child_exit(found.si_pid)
        # Sending the result here is faster than waking the server thread, unless that one is busy.
        if self._wakeup.release() and not self._server.try_send(self._supervisor):
            self._wakeup.wake()
        return released_resources

    def _wait_for_children(self) -> None:
        """Wait until something was spawned; a second at most, because orphans are adopted without notice."""
        # Under the lock, which the spawning thread takes to
        # record a pid: otherwise the notify could be missed.
        with self._supervisor.lock:
            if not self._supervisor.by_pid:
                self._supervisor.has_children.wait(1.0)


class Shutdown:
    """Ends the keeper, after SIGTERM or the agent's `quit`, when no attempt is left."""

    def __init__(self, supervisor: Supervisor, kernel: Kernel, wake: Callable[[], None]) -> None:
        self._supervisor = supervisor
        self._kernel = kernel
        self._wake = wake
        self._requested = False
        self._abandon_at_ns = 0
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def is_complete(self) -> bool:
        supervisor = self._supervisor
        if self._requested and not supervisor.quitting:
            supervisor.quit()
        if not supervisor.quitting:
            return False
        with supervisor.lock:
            # Set once, at the first call: the deadline must not move while attempts end one by one.
            if not self._abandon_at_ns:
                graces_ms = [attempt.spec.grace_ms for attempt in supervisor.running.values()]
                self._abandon_at_ns = (
                    self._kernel.now_ns() + max(graces_ms, default=0) * 1_000_000 + ABANDON_NS
                )
            if supervisor.running and self._kernel.now_ns() > self._abandon_at_ns:
                print(f"left behind, unkillable: {list(supervisor.running)}", file=sys.stderr)
                return True
            return not supervisor.running

    def _on_sigterm(self, *_: object) -> None:
        # Only a flag: taking the supervisor's lock in a signal handler could deadlock with the main thread.
        self._requested = True
        self._wake()


def _lock_directory(root: str) -> int:
    """Lock the keeper's directory and return its descriptor; DirectoryInUse if another keeper holds it."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    # Held open until the process ends, since closing it releases the lock.
    lock_fd = os.open("keeper.lock", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=root_fd)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DirectoryInUse(f"another keeper runs in {root}") from error
    return root_fd


def _keeper_id(root_fd: int) -> str:
    """The id of this directory, created once: the marker by which processes of all its keepers are found."""
    fd = os.open("keeper.id", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=root_fd)
    try:
        mark = os.read(fd, 64).decode().strip()
        if len(mark) != 32:
            mark = secrets.token_hex(16)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{mark}\n".encode(), 0)
            # Durable before anything is spawned with it: after a
            # power failure the next keeper must find the same marker.
            os.fsync(fd)
        return mark
    finally:
        os.close(fd)


def _recover(
    path: str, mark: str, outputs: SegmentStore, containers: ContainerFactory, now_ms: int
) -> JournalState:
    """Read the journal, kill what an earlier keeper left running, and record its attempts as lost."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    state = journal.read_journal(path)
    # Killed before anything is recorded as lost, see `run_keeper`.
    for key in trees.kill_all_marked(mark, KILL_SECONDS):
        print(f"unkillable, of an earlier keeper: {key}", file=sys.stderr)
    in_containers = [key for key in state.started if key[0] in state.specs and state.specs[key[0]].container]
    if in_containers and not containers.remove_leftovers():
        print(f"containers of an earlier keeper may be left, among: {in_containers[:10]}", file=sys.stderr)
    outputs.record_lost_ends(state.started)
    mark_running_lost(state, boot, now_ms)
    return state


def mark_running_lost(state: JournalState, boot: str, now_ms: int) -> None:
    """Record every attempt that was started and has no end as lost."""
    if state.boot == boot:
        outcome = ExitStatus(reason="the keeper died", cause="keeper_died")
    else:
        outcome = ExitStatus(reason="the machine restarted")
    for key, started_ms in state.started.items():
        # All rows of one keeper's death share the time: by it the server knows which tasks were running.
        state.ended[key] = result_row(key, "lost", outcome, started_ms, now_ms)
    state.started.clear()
    state.boot = boot


def _crash(what: threading.ExceptHookArgs) -> None:
    """Crash on any thread's uncaught exception; the agent starts a new keeper."""
    sys.excepthook(what.exc_type, what.exc_value or what.exc_type(), what.exc_traceback)
    # os._exit, because sys.exit in a thread ends only that thread. Processes are killed by the next keeper.
    os._exit(70)
