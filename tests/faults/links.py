"""Links from nodes to their server that a test can cut: in network namespaces, or by a relay on loopback."""

import asyncio
import contextlib
import ctypes
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from rota.devtools.relay import Relay
from rota.testing.cluster import LocalCluster
from tests.faults.tally import Tally

CLONE_NEWNET = 0x40000000
PORT = 50001
_libc = ctypes.CDLL(None, use_errno=True)


class CutCluster(LocalCluster):
    """A cluster whose agents each dial through a link of their own, once `tie` has been called."""

    links: "NodeLinks | None" = None
    tally = Tally()  # of the running test

    def tie(self, links: "NodeLinks") -> None:
        """Restart the agents, which joined directly, on their links."""
        self.links = links
        for number in self.numbers:
            self.kill_agent(number)
            self.start_agent(number)
        self.wait_for_nodes()

    def start_agent(self, number: int, **variables: str) -> None:
        if self.links is not None:
            variables["ROTA_SERVER_ADDR"] = self.links.address(number)
        super().start_agent(number, **variables)

    def _start(self, name: str, *arguments: str, **secrets: str) -> subprocess.Popen[bytes]:
        self._prefix = self.links.within(name) if self.links is not None else []
        return super()._start(name, *arguments, **secrets)

    def _command(self, *arguments: str | bytes) -> list[str | bytes]:
        prefix = self._prefix if arguments[0] == "agent" else []
        return [*prefix, *super()._command(*arguments)]

    _prefix: list[str] = []  # noqa: RUF012  set before each start


class NodeLinks:
    """Relays on loopback: a cut holds bytes back without closing, and healing loses nothing."""

    def __init__(self, target: str, numbers: range) -> None:
        self._loop = asyncio.new_event_loop()
        self._relays: dict[int, Relay] = {}
        self._addresses: dict[int, str] = {}
        self._closing = asyncio.Event()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._relay(target, numbers, ready))
        )
        self._thread.start()
        ready.wait()

    def address(self, number: int) -> str:
        return self._addresses[number]

    def within(self, name: str) -> list[str]:
        """The prefix of the command line of an agent."""
        del name
        return []

    def cut(self, number: int) -> None:
        self._call(lambda: self._relays[number].cut(to_server=True, to_node=True))

    def heal(self, number: int) -> None:
        self._call(self._relays[number].heal)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._loop.close()

    def listening(self, number: int) -> socket.socket:
        """The listener to which the node dials."""
        del number
        return socket.create_server(("127.0.0.1", 0))

    def _call(self, act: object) -> None:
        done = threading.Event()

        def run() -> None:
            assert callable(act)
            act()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()

    async def _relay(self, target: str, numbers: range, ready: threading.Event) -> None:
        async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as stack:
            for number in numbers:
                relay = self._relays[number] = Relay(target, tasks)
                bound = self.listening(number)
                host, port = bound.getsockname()
                self._addresses[number] = f"{host}:{port}"
                stack.push_async_callback(_closed, await asyncio.start_server(relay.accept, sock=bound))
                stack.callback(relay.break_all)
            ready.set()
            await self._closing.wait()


class NamespaceLinks(NodeLinks):
    """Each node in its own network namespace, connected to a hub by a veth pair."""

    def __init__(self, target: str, numbers: range) -> None:
        self._token = secrets.token_hex(3)
        self._numbers = numbers
        self._made: list[str] = []
        try:
            self._make(self._hub)
            for number in numbers:
                self._make(self._node(number))
                self._connect(number)
            super().__init__(target, numbers)
        except BaseException:
            self._remove()
            raise

    @property
    def _hub(self) -> str:
        return f"rota-{self._token}"

    def _node(self, number: int) -> str:
        return f"rota-{self._token}-{number}"

    def within(self, name: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._node(int(name.rpartition('-')[2]))}"]

    def cut(self, number: int) -> None:
        _ip("-n", self._hub, "link", "set", f"v{number}", "down")

    def heal(self, number: int) -> None:
        _ip("-n", self._hub, "link", "set", f"v{number}", "up")

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._remove()

    def listening(self, number: int) -> socket.socket:
        with entered(self._hub):  # a socket stays in the namespace of its creation
            return socket.create_server((f"10.77.{number}.1", PORT))

    def _make(self, name: str) -> None:
        _ip("netns", "add", name)
        self._made.append(name)
        _ip("-n", name, "link", "set", "lo", "up")

    def _connect(self, number: int) -> None:
        cable = f"v{number}"
        _ip("-n", self._hub, "link", "add", cable, "type", "veth", "peer", "e0", "netns", self._node(number))
        for space, end, last in ((self._hub, cable, 1), (self._node(number), "e0", 2)):
            _ip("-n", space, "address", "add", f"10.77.{number}.{last}/24", "dev", end)
            _ip("-n", space, "link", "set", end, "up")

    def _remove(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], check=False)


@contextlib.contextmanager
def entered(name: str) -> Iterator[None]:
    """Run in that network namespace; the thread returns to its own on exit."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    target = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        assert _libc.setns(target, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        yield
    finally:
        assert _libc.setns(own, CLONE_NEWNET) == 0
        os.close(target)
        os.close(own)


def can_make_namespaces() -> bool:
    """Whether this user can create network namespaces: root, with iproute2 and the kernel's consent."""
    name = f"rota-{secrets.token_hex(3)}"
    if os.geteuid() != 0 or not any(
        Path(d, "ip").exists() for d in ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
    ):
        return False
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], check=False)
    return made


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


async def _closed(server: asyncio.Server) -> None:
    server.close()
