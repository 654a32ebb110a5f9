"""The latency of the hops of a job alone: processes like Rota's that decide nothing.

The client sends an HTTP request; the server appends to a file and syncs it, then sends a message to an agent
(gRPC, mutual TLS); the agent forwards it to a keeper (unix socket), which writes a line, spawns the program
and waits for it; the message returns the same way, the server appends and syncs again, and answers the
client. Libraries, processes and threads are those of Rota, each doing the minimum.
"""

import asyncio
import http.client
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import grpc
import uvicorn
import uvloop

from rota.agent import dial
from rota.identity.authority import CertificateAuthority
from rota.identity.node_identity import load_identity, make_request, store_identity
from rota.testing.cluster import free_ports
from rota.testing.processes import until

BATCH_BYTES = 1500  # about what the records of a job of one task take
PREALLOCATED_BYTES = 8 << 20
PATH = "/hops/Connect"


class Chain:
    """The processes, and a client's connection to them."""

    def __init__(self, directory: Path, program: Path) -> None:
        self._directory, self._program = directory, program
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._directory.mkdir()
        web, agent_port = free_ports(2)
        now = datetime.now(UTC)
        authority = CertificateAuthority.open(self._directory / "ca", now)
        certificate = authority.sign_node(make_request(self._directory / "node"), "n1", "n1", now)
        store_identity(self._directory / "node", certificate, authority.ca_pem)
        try:
            self._start("keeper", str(self._program))
            self._start("server", str(web), str(agent_port))
            self._start("agent", str(agent_port))
            self._connection = http.client.HTTPConnection("127.0.0.1", web, timeout=30)
            until((self._directory / "connected").exists, "the agent is connected")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def run(self, note: Path) -> None:
        self._connection.request("POST", "/", body=str(note).encode())
        answer = self._connection.getresponse()
        assert answer.read() == b"ended", answer.status

    def _start(self, role: str, *arguments: str) -> None:
        command = [sys.executable, __file__, role, str(self._directory), *arguments]
        self._processes.append(subprocess.Popen(command))


# ---- the processes


async def serve(directory: Path, web: str, agent_port: str) -> None:
    messages: asyncio.Queue[bytes] = asyncio.Queue()
    pending: dict[bytes, asyncio.Future[None]] = {}
    append = appender(directory / "log")

    async def app(_: Any, receive: Any, send: Any) -> None:
        note = (await receive())["body"]
        await append()
        ended = pending[note] = asyncio.get_running_loop().create_future()
        messages.put_nowait(note)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await ended
        await send({"type": "http.response.body", "body": b"ended"})

    async def connect(received: AsyncIterator[bytes], context: Any) -> None:
        async def receive_all() -> None:
            async for note in received:
                await append()
                pending.pop(note).set_result(None)

        (directory / "connected").touch()
        async with asyncio.TaskGroup() as halves:
            halves.create_task(receive_all())
            while True:
                await context.write(await messages.get())

    agents = grpc.aio.server()
    methods: dict[str, Any] = {PATH.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(connect)}
    agents.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(PATH.split("/")[1], methods)])
    keys = CertificateAuthority.open(directory / "ca", datetime.now(UTC)).server_identity(
        (), datetime.now(UTC)
    )
    pair = [(keys.key_pem, keys.cert_pem)]
    agents.add_secure_port(f"127.0.0.1:{agent_port}", grpc.ssl_server_credentials(pair, keys.ca_pem, True))
    config = uvicorn.Config(app, log_level="error", lifespan="off", access_log=False)
    with socket.create_server(("127.0.0.1", int(web))) as listener:
        # Ordering: the HTTP listener is open before an agent can report that it is connected.
        await agents.start()
        await uvicorn.Server(config).serve([listener])


def appender(path: Path) -> Any:
    """Return a coroutine function that appends in a thread, to a preallocated file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(file, bytes(PREALLOCATED_BYTES))
    os.fsync(file)
    thread = ThreadPoolExecutor(1)
    at = 0

    def append() -> None:
        nonlocal at
        os.pwrite(file, bytes(BATCH_BYTES), at)
        os.fdatasync(file)
        at = (at + BATCH_BYTES) % (PREALLOCATED_BYTES - BATCH_BYTES)

    return lambda: asyncio.get_running_loop().run_in_executor(thread, append)


async def forward(directory: Path, agent_port: str) -> None:
    """The agent: forwards messages between server and keeper."""
    identity = load_identity(directory / "node")
    assert identity is not None
    async with dial.channel(f"127.0.0.1:{agent_port}", identity) as channel:
        call: Any = channel.stream_stream(PATH)(wait_for_ready=True)
        reader, writer = await asyncio.open_unix_connection(directory / "keeper.sock")

        async def report() -> None:
            async for line in reader:
                await call.write(line.rstrip(b"\n"))

        async with asyncio.TaskGroup() as halves:
            halves.create_task(report())
            async for note in call:
                writer.write(note + b"\n")


def keep(directory: Path, program: str) -> None:
    """The keeper: one thread starts programs, another one reaps them."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "keeper.sock"))
    listener.listen(1)
    agent = listener.accept()[0]
    started: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
    threading.Thread(target=reap, args=(agent, started), daemon=True).start()
    journal = os.open(directory / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for line in agent.makefile("rb"):
        os.write(journal, line)
        note = line.rstrip(b"\n")
        out = (os.POSIX_SPAWN_OPEN, 1, str(directory / "out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        pid = os.posix_spawn(program, [program, os.fsdecode(note)], {}, file_actions=[out], setpgroup=0)
        started.put((pid, note))


def reap(agent: socket.socket, started: "queue.SimpleQueue[tuple[int, bytes]]") -> None:
    while True:
        pid, note = started.get()
        os.waitpid(pid, 0)
        agent.sendall(note + b"\n")


def main() -> None:
    role, directory, *arguments = sys.argv[1:]
    match role:
        case "server":
            uvloop.run(serve(Path(directory), *arguments))
        case "agent":
            until((Path(directory) / "keeper.sock").exists, "the keeper listens")
            uvloop.run(forward(Path(directory), *arguments))
        case _:
            keep(Path(directory), *arguments)


if __name__ == "__main__":
    main()
