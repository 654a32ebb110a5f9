"""Jobs in a sandbox, from the command line to bubblewrap and back."""

from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from tests.machine import needs

pytestmark = pytest.mark.system


@needs("sandbox")
def test_a_job_in_a_sandbox_is_like_any_other(shared: LocalCluster) -> None:
    script = 'touch /etc/rota-it 2>/dev/null || echo kept out; echo it > "$ROTA_OUTPUT_DIR/it"; exit 7'

    ran = shared.rota("run", "--no-workdir", "--sandbox", "--", "sh", "-c", script)

    assert (ran.code, ran.out) == (7, "kept out\n")
    assert shared.node(1)["labels"]["sandbox"] == "bubblewrap"
    spec = shared.call("GET", "/v1/jobs/last").body["spec"]
    assert spec["sandbox"] == {"network": False, "writable": []}


@needs("sandbox")
def test_the_directory_of_submission_is_writable(shared: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()

    ran = shared.rota("run", "--sandbox", "--workdir", str(tmp_path / "here"), "--", "touch", "it")

    assert ran.code == 0, ran.err
    assert (tmp_path / "here" / "it").exists()


def test_a_node_without_bubblewrap_gets_no_sandbox_and_why_says_so(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", nodes=1, settings={"PATH": "/nowhere"}) as cluster:
        ran = cluster.rota("run", "--no-workdir", "--sandbox", "--detach", "--", "/bin/true")

        assert "no node has a bubblewrap that works now" in ran.err
        assert "1 of 1 nodes has no bubblewrap that works" in cluster.rota("why", "1").out
        assert "sandbox" not in cluster.node(1)["labels"]
