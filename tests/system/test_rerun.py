"""A rerun of an ended array: only tasks that have not succeeded run, under their own indices."""

from pathlib import Path

import pytest

from rota.client.cluster import Cluster
from rota.client.errors import Conflict
from rota.testing.cluster import LocalCluster
from tests.system.witness_file import Witness

pytestmark = pytest.mark.system

COUNT = 300  # more than a block
FAILING = (0, 7, 8, 255, 256, 299)


def fails(tmp_path: Path) -> str:
    """A script in which the tasks FAILING fail until a file exists."""
    named = " | ".join(str(index) for index in FAILING)
    return f"test -e {tmp_path}/repaired || case $ROTA_INDEX in {named}) exit 3;; esac"


def test_a_rerun_runs_only_failed_tasks(
    client: Cluster, three: LocalCluster, witness: Witness, tmp_path: Path
) -> None:
    old = client.run(*witness.script(fails(tmp_path)), count=COUNT, cpu=0.5, name="squares")
    (tmp_path / "repaired").touch()
    ran = three.rota("rerun", old.id, "--failed", "--key", "once")
    again = client.job(ran.out.strip())
    repeated = three.rota("rerun", old.id, "--failed", "--key", "once")
    ended = again.wait(60)

    assert (ran.code, repeated.out) == (0, ran.out)
    assert f"runs 6 of the 300 tasks of job {old.id} again" in ran.err
    assert (ended.state, ended.counts["succeeded"]) == ("succeeded", COUNT)
    starts = witness.starts()
    assert {index for index, times in starts.items() if times == 2} == set(FAILING)
    assert len(starts) == COUNT
    assert client.job(old.id).status.counts["failed"] == len(FAILING), "the old one stays as it is"
    assert again.task(1).reason == f"succeeded in job {old.id}"
    assert f"rerun_of   {old.id}" in three.rota("show", again.id).out


def test_a_rerun_may_fail_again_and_survives_the_server(
    cluster: LocalCluster, witness: Witness, tmp_path: Path
) -> None:
    job = cluster.submit(*witness.script(fails(tmp_path)), count=COUNT, cpu=0.5)
    cluster.rota("wait", job)
    second = cluster.rota("rerun", job, "--failed").out.strip()
    cluster.kill_server()
    cluster.start_server()
    failed = cluster.rota("wait", second)
    (tmp_path / "repaired").touch()
    third = cluster.rota("rerun", second, "--failed").out.strip()
    well = cluster.rota("wait", third)

    assert (failed.code, well.code) == (3, 0)
    assert {index for index, times in witness.starts().items() if times == 3} == set(FAILING)


def test_a_job_that_cannot_be_rerun_is_refused_with_the_reason(client: Cluster, three: LocalCluster) -> None:
    runs = client.submit("sleep", "600")
    with pytest.raises(Conflict, match="has not ended"):
        runs.rerun()
    runs.kill()
    well = client.run("true", count=3)
    refused = three.rota("rerun", well.id, "--failed")
    all_again = client.job(well.id).rerun().wait(60)

    assert refused.code == 1
    assert f"all tasks of job {well.id} succeeded" in refused.err
    assert f"rota rerun {well.id}" in refused.err
    assert all_again.counts["succeeded"] == 3
