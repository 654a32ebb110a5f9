"""Inside a network of its own: a dev cluster that listens off loopback, used over TLS. Prints what it saw."""

import fcntl
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path

ADDRESS = "10.9.9.1"
SIOCSIFADDR, SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8913, 0x8914, 1
ROTA = [sys.executable, "-m", "rota.cli.main"]


def main() -> None:
    give_address()
    directory = Path(sys.argv[1])
    command = sys.argv[2:] or ["echo", "over", "tls"]
    os.environ["ROTA_CONFIG"] = str(directory / "config.toml")
    dev = subprocess.Popen(
        [*ROTA, "dev", "--listen", ADDRESS, "--port", "0", "--data-dir", str(directory / "data")],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert dev.stderr is not None
    try:
        lines = [next(dev.stderr) for _ in range(4)]
        url = re.findall(r"api +(\S+)", "".join(lines))[0]
        print("api", url.partition(":")[0])
        print("run", rota("run", "--quiet", "--no-workdir", "--", *command).stdout.strip())
        rota("run", "--quiet", "--no-workdir", "--results-by-agent", "--", "true")
        print("result", re.findall(r"reported +(.*)", rota("show", "last").stdout)[0])
        print("token", rota("node", "token").stdout.partition("?")[0].strip())
        print("plain", plain_text(url))
        print("hsts", over_tls(url).partition("strict-transport-security: ")[2].splitlines()[:1])
    finally:
        dev.send_signal(signal.SIGINT)
        dev.wait(60)


def give_address() -> None:
    """The new network has only a loopback device that is down: up with it, and one more address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name, address in ((b"lo", None), (b"lo:1", ADDRESS)):
            if address is not None:
                packed = struct.pack("16sH2s4s8x", name, socket.AF_INET, b"", socket.inet_aton(address))
                fcntl.ioctl(control, SIOCSIFADDR, packed)
            (flags,) = struct.unpack_from(
                "16xH", fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16s16x", name))
            )
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", name, flags | IFF_UP))


def rota(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ROTA, *arguments], capture_output=True, text=True, check=True, timeout=60)


def plain_text(url: str) -> str:
    with socket.create_connection((ADDRESS, int(url.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            return "answered" if connection.recv(100).startswith(b"HTTP/1.1 2") else "refused"
        except ConnectionError:
            return "refused"


def over_tls(url: str) -> str:
    """The head of a response."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((ADDRESS, int(url.rpartition(":")[2])), timeout=60) as connection,
        context.wrap_socket(connection) as wrapped,
    ):
        wrapped.sendall(f"GET /healthz HTTP/1.1\r\nHost: {ADDRESS}\r\n\r\n".encode())
        return wrapped.recv(4096).decode()


if __name__ == "__main__":
    main()
