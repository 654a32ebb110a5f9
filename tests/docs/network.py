"""A network namespace with loopback only: processes of a document can use their default ports. [I/O]"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_HOLD = """
import signal
from tests.system.off_loopback import give_address
give_address()
print("up", flush=True)
signal.pause()
"""


@contextlib.contextmanager
def own_network() -> Iterator[list[str]]:
    """The command prefix that runs a command in the namespace."""
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    with subprocess.Popen(
        ["unshare", *own_user, "--net", sys.executable, "-c", _HOLD],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n", "no network of its own can be had"
            same_user = ["--user", "--preserve-credentials"] if own_user else []
            yield ["nsenter", "--target", str(holder.pid), *same_user, "--net"]
        finally:
            holder.kill()
