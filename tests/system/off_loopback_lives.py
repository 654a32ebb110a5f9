"""Inside a network of its own: HTTPS off loopback through several renewals of its certificate."""

import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

from rota.testing.processes import until
from tests.system.off_loopback import ADDRESS, give_address

ROTA = [sys.executable, "-m", "tests.system.short_lives"]
LIVES = 4


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
        lines = [next(dev.stderr) for _ in range(4)]
        port = int(re.findall(r"api +https://\S+:(\d+)", "".join(lines))[0])
        shown: set[str] = set()

        def many_are_shown() -> bool:
            shown.add(
                ssl.get_server_certificate(
                    (ADDRESS, port), ca_certs=str(directory / "data" / "server" / "ca.crt")
                )
            )
            return len(shown) >= LIVES

        until(many_are_shown, "the certificate was replaced again and again", 120)
        print("lives", len(shown))
        ran = subprocess.run(
            [*ROTA, "run", "--quiet", "--", "echo", "over", "tls"], capture_output=True, text=True, check=True
        )
        print("run", ran.stdout.strip())
    finally:
        dev.send_signal(signal.SIGINT)
        dev.wait(60)


if __name__ == "__main__":
    main()
