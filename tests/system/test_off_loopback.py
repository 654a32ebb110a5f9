"""Off loopback everything uses TLS, without any setup."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.processes import ROOT, SOURCE

pytestmark = pytest.mark.system


def in_its_own_network(script: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            "unshare",
            "--map-root-user",
            "--net",
            sys.executable,
            "-m",
            f"tests.system.{script}",
            str(directory),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}", **variables},
    )


def test_https_works_through_many_renewals_of_its_certificate(tmp_path: Path) -> None:
    ran = in_its_own_network("off_loopback_lives", tmp_path, SERVER_LIFE="4")

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["lives 4", "run over tls"]


def test_a_cluster_off_loopback_uses_tls_only_and_works_by_default(tmp_path: Path) -> None:
    ran = in_its_own_network("off_loopback", tmp_path)

    assert ran.returncode == 0, ran.stderr
    api, run, result, token, plain, hsts = ran.stdout.splitlines()
    assert (api, run, plain) == ("api https", "run over tls", "plain refused")
    assert hsts == "hsts ['max-age=2592000']"
    assert result == "result success"
    assert token.startswith("token rota agent --join 'rota://10.9.9.1:")


def test_clients_and_tasks_that_know_only_the_old_ca_work_after_a_rotation(tmp_path: Path) -> None:
    ran = in_its_own_network("off_loopback_rotation", tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "rotate 0",
        "after stable",
        "reported 201",
        "now 0",
        "refused True True",
        "copied 0",
    ]
