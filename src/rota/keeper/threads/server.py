"""The keeper's unix socket: one agent at a time, orders in, events out.

Backpressure: an agent that reads too slowly is disconnected, and gets the whole state at its next hello.
Neither attempts nor other threads ever wait for it.
"""

import contextlib
import math
import os
import selectors
import shutil
import socket
import threading
import traceback
from collections.abc import Callable

from rota.keeper.parsing import Malformed
from rota.keeper.protocol import wire
from rota.keeper.supervisor import Supervisor
from rota.keeper.task_dirs import PLACE

CHUNK_BYTES = 1 << 20
REASON_CHARACTERS_MAX = 500  # of the error about an order
UNSENT_BYTES_MAX = 256 << 20
QUIT_POLL_SECONDS = 0.05


class KeeperServer:
    """The socket server. `_lock` guards the connection and its buffers: the server thread holds it while it
    works, and a starter may take it to send a result (`try_send`)."""

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
        self._waits_to_write = False
        self._lock = threading.Lock()

    def serve(self, supervisor: Supervisor, is_done: Callable[[], bool]) -> None:
        while not is_done():
            # Without the lock: a starter may send a result while this thread waits for the socket.
            found = self._selector.select(self._timeout_seconds(supervisor))
            with self._lock:
                self._handle_ready(supervisor, found)
                self._send(supervisor)
        with self._lock:
            # The last results: attempts ended since the previous
            # message, and no later iteration sends them.
            self._unsent += supervisor.drain_events()
            self._send(supervisor)

    def try_send(self, supervisor: Supervisor) -> bool:
        """Send the last result from the thread that reaped it; False: the server thread has to do it.

        It never blocks: the calling starter holds the reap lock.
        """
        # Lock order: the caller holds `_reap_lock`, so this must not block (see the supervisor's header).
        if supervisor.running or not self._lock.acquire(blocking=False):
            return False
        try:
            if (
                self._agent is None
                # Unsent bytes come first: sending past them would tear a message.
                or self._unsent
                or supervisor.quitting
                or supervisor.outbox.due_in_ns() > 0
            ):
                return False
            self._unsent += supervisor.drain_events()
            with contextlib.suppress(OSError):
                del self._unsent[: self._agent.send(self._unsent)]
            return not self._unsent and supervisor.outbox.due_in_ns() == math.inf
        finally:
            self._lock.release()

    def _handle_ready(self, supervisor: Supervisor, found: list[tuple[selectors.SelectorKey, int]]) -> None:
        for chosen, ready in found:
            if chosen.fileobj is self._listener:
                self._accept(supervisor)
            # Drained before the events are sent: a wakeup that comes later makes the pipe readable again.
            elif chosen.fileobj == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_fd, 4096)
            elif chosen.fileobj is self._agent and ready & selectors.EVENT_READ:
                self._receive(supervisor)

    def _timeout_seconds(self, supervisor: Supervisor) -> float | None:
        due_in_ns = supervisor.outbox.due_in_ns()
        if due_in_ns < math.inf and not self._unsent:
            return max(0.0, due_in_ns / 1e9)
        return QUIT_POLL_SECONDS if supervisor.quitting else None

    def _accept(self, supervisor: Supervisor) -> None:
        # The newest connection wins: the previous agent may have died without closing its own.
        with contextlib.suppress(OSError):
            agent, _ = self._listener.accept()
            # Only after the new connection is there: its hello
            # replaces whatever the previous one had not read.
            self._disconnect(supervisor)
            agent.setblocking(False)
            self._agent = agent
            self._selector.register(agent, selectors.EVENT_READ)

    def _disconnect(self, supervisor: Supervisor) -> None:
        if self._agent is None:
            return
        # Events that were queued for this agent are dropped: the next hello gets the state instead.
        with supervisor.lock:
            supervisor.outbox.close()
        self._selector.unregister(self._agent)
        self._agent.close()
        self._agent = None
        self._incoming.clear()
        self._unsent.clear()
        self._waits_to_write = False

    def _receive(self, supervisor: Supervisor) -> None:
        assert self._agent is not None
        try:
            chunk = self._agent.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        # A line that never ends must not fill the memory of the process that holds all attempts.
        if not chunk or len(self._incoming) > wire.LINE_BYTES_MAX:
            self._disconnect(supervisor)
            return
        self._incoming += chunk
        if b"\n" not in chunk:
            return
        *lines, partial = self._incoming.split(b"\n")
        self._incoming = partial
        for line in lines:
            self._handle_line(supervisor, bytes(line))

    def _handle_line(self, supervisor: Supervisor, line: bytes) -> None:
        """Apply one order. If that fails, it fails the attempts that it would have started, nothing else."""
        try:
            self._apply_order(supervisor, wire.parse(line))
        except Malformed as error:
            self._unsent += wire.error_line(str(error)[:REASON_CHARACTERS_MAX])
            supervisor.fail(
                wire.keys_to_start(line), f"its order cannot be parsed: {error}"[:REASON_CHARACTERS_MAX]
            )
        except Exception as error:  # a fault of ours must not end the attempts of other jobs
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
            self._unsent += wire.error_line(reason)
            supervisor.refuse(wire.keys_to_start(line), f"its order failed: {reason}")

    def _apply_order(self, supervisor: Supervisor, order: wire.Order) -> None:
        match order:
            case wire.KeeperHello():
                self._unsent += supervisor.state_message()
            case wire.ForgetOrder():
                self._forget(supervisor, order.jobs)
            case wire.QuitOrder():
                supervisor.quit()
            case _:
                _forward(supervisor, order)

    def _forget(self, supervisor: Supervisor, jobs: list[str]) -> None:
        live = supervisor.forget(jobs)
        if live:
            self._unsent += wire.error_line(f"jobs: still live, not forgotten: {', '.join(live)}")
        # After `forget`, so that no new attempt of the job can be writing to the directories.
        discard_jobs(self._root, [job for job in jobs if job not in live])

    def _send(self, supervisor: Supervisor) -> None:
        if self._agent is None:
            return
        # Only when the last message is out: while the agent is slow, events coalesce in the outbox.
        if not self._unsent and supervisor.outbox.due_in_ns() <= 0:
            self._unsent += supervisor.drain_events()
        try:
            while self._unsent:
                del self._unsent[: self._agent.send(self._unsent[:CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._disconnect(supervisor)
            return
        # Backpressure: an agent that reads too slowly is disconnected, and its next hello gets the state.
        if supervisor.outbox.is_overfull() or len(self._unsent) > UNSENT_BYTES_MAX:
            self._disconnect(supervisor)
        # Registered for writing only while bytes are unsent,
        # or select() would return at once, all the time.
        elif self._waits_to_write != bool(self._unsent):
            self._waits_to_write = bool(self._unsent)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._selector.modify(self._agent, events)


def _forward(
    supervisor: Supervisor,
    order: wire.ConfigureOrder
    | wire.StartOrder
    | wire.StopOrder
    | wire.SignalOrder
    | wire.AckOrder
    | wire.RenewOrder,
) -> None:
    match order:
        case wire.ConfigureOrder():
            supervisor.configure(order)
        case wire.StartOrder():
            supervisor.start(order)
        case wire.StopOrder():
            supervisor.stop(order.attempts, order.mode)
        case wire.SignalOrder():
            supervisor.signal(order.signals)
        case wire.AckOrder():
            supervisor.ack(order.attempts)
        case wire.RenewOrder():
            supervisor.renew(order.sent_ns)


def listen(root_fd: int) -> socket.socket:
    """Listen on keeper.sock, bound by the directory's descriptor: a socket address holds 107 bytes only."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        # A leftover of an earlier keeper, which is dead: this process holds the lock of the directory.
        os.unlink("keeper.sock", dir_fd=root_fd)
    # Before the bind: the socket must never be open to other users, not even for a moment.
    before = os.umask(0o177)
    try:
        listener.bind(f"/proc/self/fd/{root_fd}/keeper.sock")
    finally:
        os.umask(before)
    listener.listen(8)
    listener.setblocking(False)
    return listener


def discard_jobs(root: str, jobs: list[str]) -> None:
    """Rename the directories of jobs away at once, and delete them in a thread: that may take long."""
    paths = [f"{root}/{kind}/{job}" for job in jobs for kind in ("logs", "work", PLACE)]
    trash = f"{root}/trash/{os.urandom(8).hex()}"  # one per call: deletions run side by side
    with contextlib.suppress(OSError):  # the disk is full: then they are deleted here
        os.makedirs(trash, mode=0o700)
        for number, path in enumerate(paths):
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, f"{trash}/{number}")
    _delete(paths)
    threading.Thread(target=_delete, args=([trash],), daemon=True).start()


def empty_trash(root: str) -> None:
    """Delete what an earlier keeper had discarded and not deleted yet."""
    trash = f"{root}/trash"
    with contextlib.suppress(FileNotFoundError):
        paths = [f"{trash}/{name}" for name in os.listdir(trash)]
        threading.Thread(target=_delete, args=(paths,), daemon=True).start()


def _delete(paths: list[str]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
