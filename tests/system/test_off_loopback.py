"""Off loopback everything speaks TLS, and nobody has to set it up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rota

pytestmark = pytest.mark.system
SCRIPT = Path(__file__).with_name("off_loopback.py")


def test_a_cluster_for_other_machines_speaks_tls_only_and_works_out_of_the_box(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(rota.__file__).parents[1])}
    ran = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=environment,
    )

    assert ran.returncode == 0, ran.stderr
    api, run, token, plain = ran.stdout.splitlines()
    assert (api, run, plain) == ("api https", "run over tls", "plain refused")
    assert token.startswith("token rota agent --join 'rota://10.9.9.1:")
