"""The keeper's unix socket: one agent at a time, orders in, events out; a slow reader holds up nobody."""

import contextlib
import math
import os
import selectors
import shutil
import socket
import threading
import traceback
from collections.abc import Callable

from rota.keeper import wire
from rota.keeper.reading import Malformed
from rota.keeper.task_dirs import PLACE
from rota.keeper.work import Work

CHUNK_BYTES = 1 << 20
REASON_CHARACTERS = 500  # of why an order is not obeyed
UNSENT_BYTES = 256 << 20
QUIT_POLL_SECONDS = 0.05


class Door:
    def __init__(self, root: str, listener: socket.socket, wake_fd: int) -> None:
        self._root = root
        self._listener = listener
        self._wake_fd = wake_fd
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(wake_fd, selectors.EVENT_READ)
        self._agent: socket.socket | None = None
        self._incoming = bytearray()
        self._unsent = bytearray()
        self._waits_for_room = False
        self._turn = threading.Lock()

    def serve(self, work: Work, is_done: Callable[[], bool]) -> None:
        while not is_done():
            found = self._selector.select(self._patience_seconds(work))
            with self._turn:
                self._look(work, found)
                self._send(work)
        with self._turn:
            self._unsent += work.mail()  # the last results
            self._send(work)

    def post(self, work: Work) -> bool:
        """Send the last result from the thread that found it; False: the door's own thread has to look."""
        if work.running or not self._turn.acquire(blocking=False):
            return False
        try:
            if self._agent is None or self._unsent or work.quitting or work.outbox.due_in_ns() > 0:
                return False
            self._unsent += work.mail()
            with contextlib.suppress(OSError):
                del self._unsent[: self._agent.send(self._unsent)]
            return not self._unsent and work.outbox.due_in_ns() == math.inf
        finally:
            self._turn.release()

    def _look(self, work: Work, found: list[tuple[selectors.SelectorKey, int]]) -> None:
        for chosen, ready in found:
            if chosen.fileobj is self._listener:
                self._welcome(work)
            elif chosen.fileobj == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_fd, 4096)
            elif chosen.fileobj is self._agent and ready & selectors.EVENT_READ:
                self._receive(work)

    def _patience_seconds(self, work: Work) -> float | None:
        due_in_ns = work.outbox.due_in_ns()
        if due_in_ns < math.inf and not self._unsent:
            return max(0.0, due_in_ns / 1e9)
        return QUIT_POLL_SECONDS if work.quitting else None

    def _welcome(self, work: Work) -> None:
        with contextlib.suppress(OSError):
            agent, _ = self._listener.accept()
            self._leave(work)
            agent.setblocking(False)
            self._agent = agent
            self._selector.register(agent, selectors.EVENT_READ)

    def _leave(self, work: Work) -> None:
        if self._agent is None:
            return
        with work.lock:
            work.outbox.close()
        self._selector.unregister(self._agent)
        self._agent.close()
        self._agent = None
        self._incoming.clear()
        self._unsent.clear()
        self._waits_for_room = False

    def _receive(self, work: Work) -> None:
        assert self._agent is not None
        try:
            chunk = self._agent.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk or len(self._incoming) > wire.LINE_BYTES:
            self._leave(work)
            return
        self._incoming += chunk
        if b"\n" not in chunk:
            return
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = rest
        for line in lines:
            self._take(work, bytes(line))

    def _take(self, work: Work, line: bytes) -> None:
        """Obey one line. One that cannot be obeyed costs the attempts it would have started, nothing else."""
        try:
            self._obey(work, wire.parse(line))
        except Malformed as error:
            self._unsent += wire.error(str(error)[:REASON_CHARACTERS])
            work.fail(wire.wanted(line), f"its order cannot be read: {error}"[:REASON_CHARACTERS])
        except Exception as error:  # whatever it is, the work of everybody else goes on
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]
            self._unsent += wire.error(reason)
            work.refuse(wire.wanted(line), f"its order cannot be obeyed: {reason}")

    def _obey(self, work: Work, order: wire.Order) -> None:
        match order:
            case wire.Hello():
                self._unsent += work.state()
            case wire.Forget():
                self._forget(work, order.jobs)
            case wire.Quit():
                work.quit()
            case _:
                _pass_on(work, order)

    def _forget(self, work: Work, jobs: list[str]) -> None:
        live = work.forget(jobs)
        if live:
            self._unsent += wire.error(f"jobs: still live, not forgotten: {', '.join(live)}")
        discard(self._root, [job for job in jobs if job not in live])

    def _send(self, work: Work) -> None:
        if self._agent is None:
            return
        if not self._unsent and work.outbox.due_in_ns() <= 0:
            self._unsent += work.mail()
        try:
            while self._unsent:
                del self._unsent[: self._agent.send(self._unsent[:CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._leave(work)
            return
        if work.outbox.is_overfull() or len(self._unsent) > UNSENT_BYTES:
            self._leave(work)
        elif self._waits_for_room != bool(self._unsent):
            self._waits_for_room = bool(self._unsent)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._selector.modify(self._agent, events)


def _pass_on(
    work: Work, order: wire.Configure | wire.Start | wire.Stop | wire.Signals | wire.Ack | wire.Renew
) -> None:
    match order:
        case wire.Configure():
            work.configure(order)
        case wire.Start():
            work.start(order)
        case wire.Stop():
            work.stop(order.attempts, order.how)
        case wire.Signals():
            work.signal(order.signals)
        case wire.Ack():
            work.ack(order.attempts)
        case wire.Renew():
            work.renew(order.said_ns)


def listen(root_fd: int) -> socket.socket:
    """Bind beneath the directory's handle: a unix socket's address holds 107 bytes, a path may hold more."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink("keeper.sock", dir_fd=root_fd)
    before = os.umask(0o177)
    try:
        listener.bind(f"/proc/self/fd/{root_fd}/keeper.sock")
    finally:
        os.umask(before)
    listener.listen(8)
    listener.setblocking(False)
    return listener


def discard(root: str, jobs: list[str]) -> None:
    """Put logs and work directories out of sight at once; deleting them may take long and holds up nobody."""
    there = [f"{root}/{kind}/{job}" for job in jobs for kind in ("logs", "work", PLACE)]
    heap = f"{root}/trash/{os.urandom(8).hex()}"  # of its own: who deletes another takes nothing away from it
    with contextlib.suppress(OSError):  # the disk is full: then it takes as long as it takes
        os.makedirs(heap, mode=0o700)
        for number, path in enumerate(there):
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, f"{heap}/{number}")
    _delete(there)
    threading.Thread(target=_delete, args=([heap],), daemon=True).start()


def empty_trash(root: str) -> None:
    """What an earlier keeper did not come to delete."""
    trash = f"{root}/trash"
    with contextlib.suppress(FileNotFoundError):
        heaps = [f"{trash}/{name}" for name in os.listdir(trash)]
        threading.Thread(target=_delete, args=(heaps,), daemon=True).start()


def _delete(paths: list[str]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
