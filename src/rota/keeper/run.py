"""A directory -> a running keeper: takes its lock, remembers, runs reaper, warden and door."""

import contextlib
import fcntl
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable

from rota.keeper import journal, trees
from rota.keeper.attempt import Kernel, Outcome, row
from rota.keeper.door import Door, discard, listen
from rota.keeper.journal import Journal, Memory
from rota.keeper.outputs import Outputs
from rota.keeper.spawn import Spawner
from rota.keeper.warden import Warden
from rota.keeper.work import Work

KILL_SECONDS = 5.0
SWITCH_SECONDS = 0.0005  # the reaper has something to start: it waits for no thread that reads long orders
LEAVE_NS = 10 * 10**9  # beyond the longest grace; then it leaves, and unkillable work behind


class Taken(Exception):
    """Another keeper holds this directory."""


def keep(root: str) -> None:
    """Own the work of this directory until told to quit."""
    root_fd = _open(root)
    trees.adopt_orphans()
    mark = _mark(root_fd)
    outputs = Outputs(root)
    kernel = Kernel()
    memory = _remember(f"{root}/journal", mark, outputs, kernel.now_ms())
    records = Journal(f"{root}/journal", journal.compact(memory))
    wake_read, wake = _make_alarm()
    work = Work(memory, records, Spawner(root, mark), outputs, wake, kernel=kernel)
    door = Door(root, listen(root_fd), wake_read)
    discard(root, [])  # what an earlier keeper did not come to delete
    farewell = Farewell(work, kernel)
    threading.excepthook = _give_up
    sys.setswitchinterval(SWITCH_SECONDS)
    turn = threading.Lock()
    for _ in range(max(2, os.cpu_count() or 0)):
        threading.Thread(target=_reap_for_ever, args=(work, turn), daemon=True).start()
    threading.Thread(target=Warden(work, mark).run, daemon=True).start()
    door.serve(work, farewell.is_due)
    os.unlink("keeper.sock", dir_fd=root_fd)


class Farewell:
    """Told to go by SIGTERM or by the agent, a keeper goes when its work has ended."""

    def __init__(self, work: Work, kernel: Kernel) -> None:
        self._work = work
        self._kernel = kernel
        self._told = False
        self._give_up_at_ns = 0
        signal.signal(signal.SIGTERM, self._tell)

    def is_due(self) -> bool:
        work = self._work
        if self._told and not work.quitting:
            work.quit()
        if not work.quitting:
            return False
        with work.lock:
            if not self._give_up_at_ns:
                graces_ms = [attempt.spec.grace_ms for attempt in work.running.values()]
                self._give_up_at_ns = self._kernel.now_ns() + max(graces_ms, default=0) * 1_000_000 + LEAVE_NS
            if work.running and self._kernel.now_ns() > self._give_up_at_ns:
                print(f"left behind, unkillable: {list(work.running)}", file=sys.stderr)
                return True
            return not work.running

    def _tell(self, *_: object) -> None:
        self._told = True


def _open(root: str) -> int:
    """The directory's handle, once it is ours alone."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    lock_fd = os.open("keeper.lock", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=root_fd)  # held open until the end
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Taken(f"another keeper runs in {root}") from error
    return root_fd


def _mark(root_fd: int) -> str:
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


def _remember(path: str, mark: str, outputs: Outputs, now_ms: int) -> Memory:
    """Read the journal and settle what was running when it ended."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    memory = journal.read(path)
    for key in trees.kill_all_marked(mark, KILL_SECONDS):
        print(f"unkillable, of an earlier keeper: {key}", file=sys.stderr)
    outputs.settle(memory.started)
    settle(memory, boot, now_ms)
    return memory


def settle(memory: Memory, boot: str, now_ms: int) -> None:
    """What was started, and nobody saw the end of, is lost."""
    reason = "the keeper died" if memory.boot == boot else "the machine restarted"
    for key, started_ms in memory.started.items():
        memory.ended[key] = row(key, "lost", Outcome(reason=reason), started_ms, now_ms)
    memory.started.clear()
    memory.boot = boot


def _give_up(what: threading.ExceptHookArgs) -> None:
    """Without one of its threads a keeper looks alive and is not: better to end and to be started again."""
    sys.excepthook(what.exc_type, what.exc_value or what.exc_type(), what.exc_traceback)
    os._exit(70)


def _make_alarm() -> tuple[int, Callable[[], None]]:
    """A descriptor to wait on, and what makes it readable: from another thread, or from a signal."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)

    def wake() -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(write_fd, b"!")

    return read_fd, wake


def _reap_for_ever(work: Work, turn: threading.Lock) -> None:
    """One waits and buries at a time: no end wakes two. Meanwhile the others start what comes next."""
    while True:
        with turn:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                work.wait_for_children()
                continue
            room_was_left = found is not None and work.reap(found.si_pid)
        if room_was_left:
            work.fill()
