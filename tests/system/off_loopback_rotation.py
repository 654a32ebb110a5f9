"""Inside a network of its own: the CA of a cluster with TLS is rotated, and then replaced.

A client and a task know only the old CA. Prints what each of them saw.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.system.off_loopback import ADDRESS, ROTA, give_address

REPORT = """
import os, ssl, sys, time, urllib.request
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
trusted = ssl.create_default_context(cafile=os.environ["ROTA_CA_FILE"])
head = {"Authorization": "Bearer " + open(os.environ["ROTA_TOKEN_FILE"]).read().strip()}
head["Content-Type"] = "application/json"
asked = urllib.request.Request(os.environ["ROTA_RESULT_URL"], b"{}", head)
print(urllib.request.urlopen(asked, context=trusted).status)
"""
PATIENCE_SECONDS = 60.0


def main() -> None:
    give_address()
    directory = Path(sys.argv[1])
    os.environ["ROTA_CONFIG"] = str(directory / "config.toml")
    dev = subprocess.Popen(
        [*ROTA, "dev", "--listen", ADDRESS, "--port", "0", "--data-dir", str(directory / "data")],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert dev.stderr is not None
    try:
        url = re.findall(r"api +(\S+)", "".join(next(dev.stderr) for _ in range(4)))[0]
        know_only_the_old_ca(directory, url)
        rotate(directory)
    finally:
        dev.send_signal(signal.SIGINT)
        dev.wait(60)


def know_only_the_old_ca(directory: Path, url: str) -> None:
    """A context `far`, as on another machine to which the file was copied."""
    server = directory / "data" / "server"
    (directory / "old.crt").write_bytes((server / "ca.crt").read_bytes())
    lines = (f'addr = "{url}"', f'token_file = "{server / "token"}"', f'ca = "{directory / "old.crt"}"')
    (directory / "contexts" / "far.toml").write_text("\n".join(lines))


def rotate(directory: Path) -> None:
    go = directory / "go"
    rota("run", "--detach", "--results", "--name", "reports", "--", sys.executable, "-c", REPORT, str(go))
    until_running()
    print("rotate", rota("ca", "rotate", "--context", "far").returncode)
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while (finished := rota("ca", "rotate", "--finish", "--context", "far")).returncode:
        assert time.monotonic() < give_up_at, finished.stderr
        time.sleep(0.2)
    print("after", rota("ca", "status", "--context", "far").stdout.split()[1])
    go.touch()
    rota("wait", "reports")
    print("reported", rota("logs", "reports").stdout.strip())
    print("now", rota("ca", "rotate", "--now").returncode)
    refused = rota("ca", "status", "--context", "far")
    print("refused", refused.returncode != 0, "rota ca show" in refused.stderr)
    (directory / "old.crt").write_text(rota("ca", "show").stdout)
    print("copied", rota("ca", "status", "--context", "far").returncode)


def until_running() -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while "running" not in rota("show", "reports").stdout:
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def rota(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ROTA, *arguments], capture_output=True, text=True, check=False, timeout=60)


if __name__ == "__main__":
    main()
