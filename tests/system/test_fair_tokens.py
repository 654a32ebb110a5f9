"""Tokens share the time of a server: many connections give a token no larger share than a single one."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
ASKING = Path(__file__).with_name("asking.py")
MANY = 30
SECONDS = 6.0  # what averages over a second need to settle, several times


@dataclass
class Asker:
    """A process that sends requests with one token."""

    process: subprocess.Popen[str]

    def count(self) -> None:
        """Count answers from now on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """The number of answers since `count`."""
        output, _ = self.process.communicate(timeout=60)
        return int(output.split()[0])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A server whose rate limit by count is never reached."""
    settings = {"ROTA_LIMITS_REQUESTS_PER_SECOND": "100000", "ROTA_LIMITS_REQUESTS_AT_ONCE": "100000"}
    with LocalCluster(tmp_path, nodes=0, settings=settings) as made:
        yield made


@contextlib.contextmanager
def asking(cluster: LocalCluster, name: str, connections: int) -> Iterator[Asker]:
    made = cluster.rota("token", "make", name, "--role", "viewer", "--namespace", name)
    line = [sys.executable, str(ASKING), cluster.http, made.out.strip(), str(connections), "0"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield Asker(process)
        finally:
            process.kill()


def test_a_token_with_many_connections_gets_no_larger_share(
    cluster: LocalCluster,
) -> None:
    """Without shares each connection has its turn, and the first token gets MANY times as much."""
    with asking(cluster, "many", MANY) as many, asking(cluster, "one", 1) as one:
        time.sleep(SECONDS / 2)  # averages settle
        many.count()
        one.count()
        time.sleep(SECONDS)
        served = many.end(), one.end()

    assert served[0] < 5 * served[1], served
