"""The names of a server: an unresponsive name server is not waited for."""

import subprocess
import sys
from pathlib import Path

from tests.contracts.processes import ROOT, SOURCE
from tests.machine import needs

# In a network of its own: a name server that receives queries and answers none, and nothing in /etc/hosts.
MUTE = """
import platform, socket, subprocess, sys, threading
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
mute = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mute.bind(("127.0.0.1", 53))
from rota.config import HttpServerConfig, ServerConfig
from rota.wiring.listeners import ports
names = ports.host_names(ServerConfig(http_server=HttpServerConfig(addr="10.9.9.1:0")))
mute.settimeout(60)
question = mute.recv(512)
print(platform.node() in names, len(question) > 12, flush=True)
"""


@needs("networks", "root")
def test_an_unresponsive_name_server_does_not_delay_the_start(tmp_path: Path) -> None:
    """The resolver itself would wait for far longer than this test."""
    files = {
        "hosts": "",
        "resolv.conf": "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n",
        "nsswitch.conf": "hosts: dns\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    binds = "; ".join(f"mount --bind {tmp_path}/{name} /etc/{name}" for name in files)
    script = f"hostname mute.invalid; {binds}; exec {sys.executable} -c '{MUTE}'"
    ran = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "sh", "-ec", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": f"{SOURCE}:{ROOT}"},
    )

    assert ran.stdout == "True True\n", ran.stderr
