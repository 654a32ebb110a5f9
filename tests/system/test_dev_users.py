"""`rota dev` of root: once another token exists, or other machines can connect, jobs do not run as root."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.keeper.process.users import is_own
from rota.testing.cluster import LocalCluster
from tests.contracts.processes import ROOT, SOURCE
from tests.machine import needs
from tests.system.dev import Dev
from tests.system.witness_file import Gate

pytestmark = [pytest.mark.system, needs("root")]

SECONDS = 60


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that other users can pass through, as /var/lib/rota is."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        yield Path(directory)


@pytest.fixture
def open_dev(reachable: Path) -> Iterator[Dev]:
    dev = Dev(reachable)
    try:
        yield dev
    finally:
        dev.close()


def spoils(directory: Path) -> list[Path]:
    server = directory / "data" / "server"
    return [server / "token", *sorted((server / "ca").rglob("*key*")), Path("/etc/shadow")]


def guest_token(dev: Dev) -> str:
    made = dev.rota("token", "make", "guest", "--role", "submitter", "--namespace", "guests")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def attack(dev: Dev, token: str) -> subprocess.CompletedProcess[str]:
    """What a job of another token finds: its user, then one line for each file that it could read."""
    tried = "; ".join(f"head -c 1 {path} >/dev/null && echo read {path}" for path in spoils(dev.directory))
    submit = ("run", "--quiet", "--namespace", "guests", "--no-workdir", "--", "sh", "-c")
    return dev.rota(*submit, f"id -u; {tried}; true", ROTA_TOKEN=token)


def test_a_job_of_another_token_cannot_read_roots_files(open_dev: Dev) -> None:
    open_dev.start("--nodes", "2")
    assert len(spoils(open_dev.directory)) >= 3
    assert all(path.exists() for path in spoils(open_dev.directory))
    own = open_dev.rota("run", "--quiet", "--no-workdir", "--", "id", "-u")
    found = [attack(open_dev, token) for token in [guest_token(open_dev)] for _ in range(4)]

    assert own.stdout == "0\n"
    for ran in found:
        assert ran.returncode == 0, ran.stderr
        uid, *read = ran.stdout.splitlines()
        assert is_own(int(uid))
        assert read == []
    assert "jobs run as users of their own from now on, not as root" in open_dev.output()


def test_running_work_continues_when_the_second_token_is_made(open_dev: Dev) -> None:
    gate = Gate(open_dev.directory / "gate")
    open_dev.start()
    script = f"echo begun; {gate.wait}; id -u"
    running = open_dev.begin("run", "--quiet", "--no-workdir", "--", "sh", "-c", script)
    assert running.stdout is not None
    assert running.stdout.readline() == b"begun\n"

    guest_token(open_dev)
    after = open_dev.rota("run", "--quiet", "--no-workdir", "--", "id", "-u")
    gate.open()

    assert running.communicate(timeout=SECONDS)[0] == b"0\n"
    assert running.returncode == 0
    assert is_own(int(after.stdout))


def test_a_cluster_that_had_another_token_starts_with_own_users(open_dev: Dev) -> None:
    """Also after the token is deleted: a job that was submitted with it may still be pending."""
    open_dev.start()
    guest_token(open_dev)
    (listed,) = re.findall(r"^(\w+) +guest ", open_dev.rota("token", "ls").stdout, re.MULTILINE)
    assert open_dev.rota("token", "revoke", listed).returncode == 0
    open_dev.end(signal.SIGINT)
    open_dev.start()
    ran = open_dev.rota("run", "--quiet", "--no-workdir", "--", "id", "-u")

    assert is_own(int(ran.stdout))
    assert "jobs run as users of their own, not as root: " in open_dev.output()


def test_agents_of_local_machines_restart_with_own_users(open_dev: Dev) -> None:
    open_dev.start("--elastic", "1-2")
    before = open_dev.rota("run", "--quiet", "--no-workdir", "--", "id", "-u")
    ran = attack(open_dev, guest_token(open_dev))

    assert before.stdout == "0\n"
    assert ran.returncode == 0, ran.stderr
    uid, *read = ran.stdout.splitlines()
    assert is_own(int(uid))
    assert read == []


def test_another_token_is_refused_if_own_users_cannot_work(dev: Dev) -> None:
    dev.directory.chmod(0o700)
    dev.start()
    made = dev.rota("token", "make", "guest", "--role", "submitter", "--namespace", "guests")
    ran = dev.rota("run", "--quiet", "--no-workdir", "--", "id", "-u")

    assert made.returncode != 0
    assert "closed to them" in made.stderr
    assert "guest" not in dev.rota("token", "ls").stdout
    assert ran.stdout == "0\n"


def test_beyond_loopback_jobs_are_not_root(reachable: Path) -> None:
    ran = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.system.off_loopback", str(reachable), "id", "-u"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}"},
    )

    assert ran.returncode == 0, ran.stderr
    _, run, *_ = ran.stdout.splitlines()
    assert is_own(int(run.removeprefix("run ")))


def test_local_machines_of_a_servers_cluster_are_not_root(reachable: Path) -> None:
    with LocalCluster(reachable, nodes=0, run_as="own") as cluster:
        made = cluster.rota(
            *("cluster", "create", "burst", "--provider", "local", "--node", "cpu=1", "--max", "1")
        )
        ran = cluster.rota("run", "--quiet", "--no-workdir", "--cluster", "burst", "--", "id", "-u")

        assert made.code == 0, made.err
        assert is_own(int(ran.out)), ran.err
