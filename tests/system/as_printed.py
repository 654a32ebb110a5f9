"""Inside a network of its own: a server with the worker contract's own file, used as that is printed.

python -m tests.system.as_printed DIRECTORY: starts a server with tests/gateway/worker-gateway.toml as it is
and a worker that has nothing but the proto (its stubs are in STUBS), sends the printed requests, and prints
what came back as JSON.
"""

import itertools
import json
import os
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from rota.testing.processes import until
from tests.contracts.processes import ROOT
from tests.system.off_loopback import ADDRESS, ROTA, give_address

FILE = ROOT / "tests" / "gateway" / "worker-gateway.toml"
NOBODY = "d5feef60-3029-11e9-b210-d663bd873d93"
SCRIPT = "worker/scripts/count.sh"
COUNTED = "counted"  # a file beside the worker: all has been written


def main() -> None:
    give_address()
    directory = Path(sys.argv[1])
    (directory / SCRIPT).parent.mkdir(parents=True)
    (directory / SCRIPT).write_text(f"for i in $(seq 3); do echo $i; done\n>{COUNTED}\nexec sleep 600\n")
    server = subprocess.Popen(
        [*ROTA, "server", "--config", str(FILE), "--data-dir", str(directory / "data")],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    try:
        first_lines = itertools.islice(server.stderr, 5)
        told = next(line for line in first_lines if line.startswith("Worker gateway"))
        print(json.dumps({"told": told, **talk(directory)}))
    finally:
        server.terminate()
        server.wait(60)


def talk(directory: Path) -> dict[str, Any]:
    line = [sys.executable, str(ROOT / "tests/system/foreign_worker.py"), "127.0.0.1:50000", "argument"]
    worker = subprocess.Popen(
        line,
        cwd=directory,
        env={"PYTHONPATH": os.environ["STUBS"], "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    try:
        worker_id = [next(worker.stdout) for _ in range(2)][1].split()[-1]
        started = ask("/start", {"worker_id": worker_id, "command": "bash", "path": SCRIPT})
        named = {"worker_id": worker_id, "job_id": json.loads(started[1])["job_id"]}
        until((directory / COUNTED).exists, "it has counted")
        unknown = {"worker_id": NOBODY, "job_id": "4c5ced1c-5ea9-40f8-90ce-63d09cea26f6"}
        return {
            "start": started,
            "running": ask("/query", named),
            "stop": ask("/stop", named),
            "stopped": ask("/query", named),
            "stream": ask("/stream", named),
            "no worker": [
                ask("/start", {"worker_id": NOBODY, "command": "bash", "path": SCRIPT}),
                ask("/stop", unknown),
                ask("/query", unknown),
            ],
            "off loopback": [reachable(ADDRESS, port) for port in (3000, 50000)],
        }
    finally:
        worker.kill()
        worker.wait()


def ask(path: str, body: dict[str, str]) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", 3000, timeout=60)
    connection.request("POST", path, json.dumps(body, indent=2), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def reachable(host: str, port: int) -> bool:
    connection = HTTPConnection(host, port, timeout=60)
    try:
        connection.connect()
    except ConnectionRefusedError:
        return False
    connection.close()
    return True


if __name__ == "__main__":
    main()
