"""A directory -> a running keeper: takes its lock, remembers, runs reaper, warden and door."""

import contextlib
import fcntl
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable

from rota.keeper import journal, sandbox
from rota.keeper.attempt import Kernel, Outcome, row
from rota.keeper.boxes import Boxes
from rota.keeper.checker import Checker
from rota.keeper.door import Door, empty_trash, listen
from rota.keeper.journal import Journal, Memory
from rota.keeper.limits.machine import end_groups, find_groups
from rota.keeper.output.segments import Outputs
from rota.keeper.process import cells, trees
from rota.keeper.spawn import Spawner
from rota.keeper.trimmer import Trimmer
from rota.keeper.warden import Warden
from rota.keeper.work import Work

KILL_SECONDS = 5.0
SWITCH_SECONDS = 0.0005  # the reaper has something to start: it waits for no thread that reads long orders
STARTERS_LEAST = 4  # threads that start work: each waits for two execs, of the starter and of the work
LEAVE_NS = 10 * 10**9  # beyond the longest grace; then it leaves, and unkillable work behind


class Taken(Exception):
    """Another keeper holds this directory."""


def keep(root: str) -> None:
    """Own the work of this directory until told to quit."""
    root_fd = _open(root)
    trees.adopt_orphans()
    mark = _mark(root_fd)
    cells.end_all(mark, KILL_SECONDS)
    end_groups(root, KILL_SECONDS)
    groups = find_groups(root, mark)
    outputs = Outputs(root)
    kernel = Kernel()
    memory = _remember(f"{root}/journal", mark, outputs, Boxes(root, mark), kernel.now_ms())
    records = Journal(f"{root}/journal", journal.compact(memory))
    bell = Bell()
    spawner = Spawner(root, mark, groups, sandbox.find())
    work = Work(memory, records, spawner, outputs, bell.ring, kernel=kernel)
    door = Door(root, listen(root_fd), bell.fd)
    empty_trash(root)
    farewell = Farewell(work, kernel, bell.ring)
    threading.excepthook = _give_up
    sys.setswitchinterval(SWITCH_SECONDS)
    reaper = Reaper(work, door, bell)
    for _ in range(max(STARTERS_LEAST, 2 * (os.cpu_count() or 0))):
        threading.Thread(target=reaper.run, daemon=True).start()
    stock_up = (outputs.stock_up, spawner.stock_up, groups.bury)
    warden = Warden(work, mark, groups, stock_up, spawner.cells.pids)
    threading.Thread(target=warden.run, daemon=True).start()
    threading.Thread(target=Checker(work, spawner, kernel, mark).run, daemon=True).start()
    threading.Thread(target=Trimmer(root, work, outputs).run, daemon=True).start()
    # Not in the first thread, which stands for the whole process: a thread that starts work stays in the
    # control groups that all the work is in.
    serving = threading.Thread(target=door.serve, args=(work, farewell.is_due))
    serving.start()
    serving.join()
    os.unlink("keeper.sock", dir_fd=root_fd)
    spawner.cells.drop_spare()
    groups.close()


class Bell:
    """Calls the door's thread: from another thread, or from a signal."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._held = threading.local()
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def ring(self) -> None:
        if getattr(self._held, "is_so", False):
            self._held.is_rung = True
            return
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(self._write_fd, b"!")

    def hold(self) -> None:
        """This thread will do what it would call for."""
        self._held.is_so, self._held.is_rung = True, False

    def let_go(self) -> bool:
        """Whether it would have been rung."""
        self._held.is_so = False
        return bool(self._held.is_rung)


class Reaper:
    """One thread waits and buries at a time: no end wakes two. Meanwhile others start what comes next."""

    def __init__(self, work: Work, door: Door, bell: Bell) -> None:
        self._work = work
        self._door = door
        self._bell = bell
        self._turn = threading.Lock()

    def run(self) -> None:
        while True:
            with self._turn:
                room_was_left = self._reap()
            if room_was_left:
                self._work.fill()

    def _reap(self) -> bool:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            self._wait_for_children()
            return False
        self._bell.hold()
        room_was_left = found is not None and self._work.reap(found.si_pid)
        # To send it here is sooner done than to wake whoever sends otherwise.
        if self._bell.let_go() and not self._door.post(self._work):
            self._bell.ring()
        return room_was_left

    def _wait_for_children(self) -> None:
        """Wait until something was spawned, a second at most: orphans come without notice."""
        with self._work.lock:
            if not self._work.by_pid:
                self._work.has_children.wait(1.0)


class Farewell:
    """Told to go by SIGTERM or by the agent, a keeper goes when its work has ended."""

    def __init__(self, work: Work, kernel: Kernel, ring: Callable[[], None]) -> None:
        self._work = work
        self._kernel = kernel
        self._ring = ring
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
        self._ring()


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


def _remember(path: str, mark: str, outputs: Outputs, boxes: Boxes, now_ms: int) -> Memory:
    """Read the journal and settle what was running when it ended."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    memory = journal.read(path)
    for key in trees.kill_all_marked(mark, KILL_SECONDS):
        print(f"unkillable, of an earlier keeper: {key}", file=sys.stderr)
    boxed = [key for key in memory.started if key[0] in memory.specs and memory.specs[key[0]].container]
    if boxed and not boxes.end_all():
        print(f"containers of an earlier keeper may be left, among: {boxed[:10]}", file=sys.stderr)
    outputs.settle(memory.started)
    settle(memory, boot, now_ms)
    return memory


def settle(memory: Memory, boot: str, now_ms: int) -> None:
    """What was started, and nobody saw the end of, is lost."""
    if memory.boot == boot:
        outcome = Outcome(reason="the keeper died", cause="keeper_died")
    else:
        outcome = Outcome(reason="the machine restarted")
    for key, started_ms in memory.started.items():
        # All rows of one death share the time: by it the server knows who was there.
        memory.ended[key] = row(key, "lost", outcome, started_ms, now_ms)
    memory.started.clear()
    memory.boot = boot


def _give_up(what: threading.ExceptHookArgs) -> None:
    """Without one of its threads a keeper looks alive and is not: better to end and to be started again."""
    sys.excepthook(what.exc_type, what.exc_value or what.exc_type(), what.exc_traceback)
    os._exit(70)
