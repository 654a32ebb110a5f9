"""Jobs in containers, from the command line to a real runtime and back."""

import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.keeper.process.users import is_own
from rota.testing import images
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.machine import needs

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    return images.ensure_image(tmp_path_factory.mktemp("image") / "rootfs")


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mounts")


@pytest.fixture
def data(mounts: Path) -> Path:
    directory = Path(tempfile.mkdtemp(dir=mounts))
    directory.chmod(0o777)
    return directory


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, mounts: Path) -> Iterator[LocalCluster]:
    """One node with a runtime, which lets what is below `mounts` be mounted; each test ends its jobs."""
    directory = tmp_path_factory.mktemp("one")
    try:
        with LocalCluster(directory, nodes=1, settings={"ROTA_MOUNTS": str(mounts)}) as running:
            yield running
    finally:
        images.remove(*containers_of(directory))


def containers_of(directory: Path) -> list[str]:
    marks = [path.read_text().strip()[:12] for path in directory.glob("node-*/keeper.id")]
    return [name for name in images.containers() if any(mark in name for mark in marks)]


@needs("containers")
def test_a_job_in_a_container_is_like_any_other(shared_cluster: LocalCluster, image: str, data: Path) -> None:
    (data / "in").write_text("from outside\n")
    script = 'cat /data/in; echo "$GREETING $ROTA_JOB_NAME"; echo to err >&2; exit 7'

    ran = shared_cluster.rota(
        *(
            "run",
            "--image",
            image,
            "--mount",
            f"{data}:/data:ro",
            "--env",
            "GREETING=hi",
            "-n",
            "boxed",
            "-m",
            "64m",
        ),
        *("--", "sh", "-c", script),
    )

    assert (ran.code, ran.out) == (7, "from outside\nhi boxed\n"), ran
    assert "to err" in ran.err
    assert shared_cluster.node(1)["labels"]["container"] == "podman"
    assert "container=podman" in shared_cluster.rota("node", "show", "node-1").out
    assert containers_of(shared_cluster.directory) == []


@needs("containers")
def test_the_container_spec_is_shown_as_it_can_be_submitted_again(
    shared_cluster: LocalCluster, image: str, data: Path
) -> None:
    job = shared_cluster.submit(
        "true", image=image, container={"mounts": [f"{data}:/data"], "workdir": "/data"}
    )
    assert shared_cluster.rota("wait", job).code == 0

    spec = json.loads(shared_cluster.rota("show", job, "-o", "json").out)["spec"]

    mount = {"source": str(data), "target": "/data", "read_only": False}
    inside = {"user": None, "network": "none", "mounts": [mount], "workdir": "/data", "pull": "never"}
    assert (spec["image"], spec["container"]) == (image, inside)
    again = shared_cluster.call("POST", "/v1/jobs", spec)
    assert again.status == 201
    assert shared_cluster.rota("wait", again.body["id"]).code == 0


@needs("containers")
def test_out_of_memory_and_a_missing_image_are_named(shared_cluster: LocalCluster, image: str) -> None:
    hungry = shared_cluster.rota("run", "--image", image, "-m", "32m", "--", "tail", "/dev/zero")
    missing = shared_cluster.rota("run", "--image", "localhost/rota-no-such:1", "--", "true")

    assert hungry.code == 137
    assert "out of memory: limit 32 MiB" in hungry.err
    assert missing.code == 127
    assert "this node has no image localhost/rota-no-such:1" in missing.err


@needs("containers")
def test_files_limits_and_outputs_are_as_without_a_container(
    shared_cluster: LocalCluster, image: str, tmp_path: Path
) -> None:
    sent = tmp_path / "run.sh"
    sent.write_text('#!/bin/sh\necho made > "$ROTA_OUTPUT_DIR/it"\ntail /dev/zero\n')

    ran = shared_cluster.rota(
        "run", "--image", image, "--send", str(sent), "-m", "64m", "--limit", "memory=32m", "--", "./run.sh"
    )

    assert ran.code == 137
    assert "out of memory: limit 32 MiB" in ran.err
    assert shared_cluster.rota("get", "last", "it", "--into", str(tmp_path)).code == 0
    assert (tmp_path / "it").read_text() == "made\n"


@needs("containers")
def test_under_a_root_agent_a_container_runs_as_the_jobs_user(image: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        home = Path(directory) / "cluster"
        try:
            with LocalCluster(home, nodes=1, run_as="own") as cluster:
                ran = cluster.rota("run", "--image", image, "--", "sh", "-c", "id -u; touch it; ls")
                work = cluster.node_directory(1) / "work" / "1"

                assert (ran.code, ran.out.split()[1:]) == (0, ["it"])
                assert is_own(int(ran.out.split()[0]))
                assert (work / "it").stat().st_uid == int(ran.out.split()[0])
        finally:
            images.remove(*containers_of(home))


@needs("containers")
def test_a_job_with_a_mount_that_no_node_allows_waits_with_the_reason(
    shared_cluster: LocalCluster, image: str
) -> None:
    job = shared_cluster.submit("true", image=image, container={"mounts": ["/etc:/x:ro"]})
    refusal = "node-1 (this node does not let /etc be mounted)"

    until(lambda: refusal in shared_cluster.rota("why", job).out, "the reason is told")

    assert shared_cluster.count(job, "pending") == 1
    assert shared_cluster.rota("cancel", job, "--wait").code == 0


@needs("containers")
def test_cancel_ends_a_container_that_ignores_sigterm(shared_cluster: LocalCluster, image: str) -> None:
    job = shared_cluster.submit(
        "sh", "-c", "trap '' TERM; while :; do sleep 1; done", image=image, grace="500ms"
    )
    until(lambda: shared_cluster.count(job, "running") == 1, "it runs")
    assert len(containers_of(shared_cluster.directory)) == 1

    assert shared_cluster.rota("cancel", job, "--wait").code == 0

    assert containers_of(shared_cluster.directory) == []


@needs("containers")
def test_a_container_outlives_its_agent_and_its_end_is_reported_once(
    shared_cluster: LocalCluster, image: str, data: Path
) -> None:
    script = "echo begun >> /data/seen; while [ ! -e /data/go ]; do sleep 0.1; done; exit 5"
    job = shared_cluster.submit("sh", "-c", script, image=image, container={"mounts": [f"{data}:/data"]})
    until(lambda: (data / "seen").exists() and shared_cluster.count(job, "running") == 1, "it runs")

    shared_cluster.kill_agent(1)
    (data / "go").touch()
    until(lambda: not containers_of(shared_cluster.directory), "it has ended while nobody was there")
    shared_cluster.start_agent(1)

    assert shared_cluster.rota("wait", job).code == 5
    assert (data / "seen").read_text() == "begun\n"
    events = shared_cluster.call("GET", f"/v1/events?job={job}&kind=task.ended").body["events"]
    assert len(events) == 1


@needs("containers")
def test_containers_of_a_killed_keeper_are_removed_and_run_again(
    shared_cluster: LocalCluster, image: str, data: Path
) -> None:
    script = 'echo "$ROTA_ATTEMPT" >> /data/seen; while [ ! -e /data/go ]; do sleep 0.1; done'
    job = shared_cluster.submit("sh", "-c", script, image=image, container={"mounts": [f"{data}:/data"]})
    until(lambda: (data / "seen").exists() and shared_cluster.count(job, "running") == 1, "it runs")
    (before,) = containers_of(shared_cluster.directory)

    (keeper,) = shared_cluster.keepers()
    os.kill(keeper, signal.SIGKILL)

    until(lambda: (data / "seen").read_text() == "1\n2\n", "it runs again")
    assert Counter(containers_of(shared_cluster.directory))[before] == 0
    (data / "go").touch()
    assert shared_cluster.rota("wait", job).code == 0
    assert containers_of(shared_cluster.directory) == []


@needs("containers")
def test_steps_run_in_containers_and_report_their_exit_codes(
    shared_cluster: LocalCluster, image: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.toml"
    steps = [["sh", "-c", "echo one > it"], ["cat", "it"], ["false"], ["echo", "never"]]
    written = "".join(f"[[steps]]\ncommand = {json.dumps(step)}\n" for step in steps)
    file.write_text(f'image = "{image}"\n{written}')

    ran = shared_cluster.rota("run", "--no-workdir", "-f", str(file))

    assert (ran.code, ran.out) == (1, "one\n")
    assert "step 3 of 4" in ran.err
    task = shared_cluster.call("GET", "/v1/jobs/last/tasks/0").body
    begun = [step for step in task["steps"] if step["started_at_ms"]]
    took_ms = sum(step["ended_at_ms"] - step["started_at_ms"] for step in begun)
    assert len(begun) == 3
    assert took_ms <= task["ran_ms"] + len(begun), "of each a millisecond may be rounded up"


def test_a_node_without_a_runtime_gets_no_container_and_the_reason_is_shown(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, settings={"ROTA_CONTAINER": "none"}) as cluster:
        ran = cluster.rota("run", "--detach", "--image", "alpine:3.20", "--", "true")
        job = ran.out.strip()

        assert "warning: image: no node has a container runtime now" in ran.err
        assert "container" not in cluster.node(1)["labels"]
        why = cluster.rota("why", job).out
        assert "1 of 1 nodes has no container runtime" in why
        assert "would start on node-1 without image" in why
        assert cluster.rota("plan", "--image", "alpine:3.20", "--", "true").code == 11
