"""Attempts in containers, on a real runtime."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.keeper.container.argv import cgroup_parent
from rota.keeper.container.clear import remove_cgroups
from rota.keeper.container.sources import pins_of, unpin_all
from rota.keeper.process.users import is_own
from rota.keeper.protocol import wire
from rota.testing import images
from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.machine import needs

pytestmark = needs("containers")

EXIT_CODE, SIGNAL, STATE, REASON = 4, 5, 3, 11
ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    return images.ensure_image(tmp_path_factory.mktemp("image") / "rootfs")


@pytest.fixture
def container_agent(keeper: Keeper, image: str, tmp_path: Path) -> Iterator["ContainerAgent"]:
    container_agent = ContainerAgent(keeper, image)
    try:
        yield container_agent
    finally:
        keeper.kill()
        images.remove(*container_agent.containers())
        remove_cgroups(f"{cgroup_parent(container_agent.mark)}/*")
        unpin_all(container_agent.mark)


class ContainerAgent:
    """An agent whose node has a container runtime and allows mounts of `data`, and `books` read-only."""

    def __init__(self, keeper: Keeper, image: str) -> None:
        self.keeper, self.image = keeper, image
        self.data, self.books = keeper.root / "data", keeper.root / "books"
        self.data.mkdir()
        self.data.chmod(0o777)
        self.books.mkdir()
        self.agent = self.attach()

    def attach(
        self, program: str | None = None, *, run_as: str = "self", pids_max: int | None = None, **more: Any
    ) -> Agent:
        agent = self.keeper.agent()
        agent.send(op="hello", protocol=wire.PROTOCOL)
        agent.receive_op("state")
        engine: dict[str, Any] = {
            "kind": "podman",
            "program": program or images.engine(),
            "old_groups": images.old_groups(),
        }
        engine |= {"mounts": [str(self.data), f"{self.books}:ro"], **more}
        amounts = {"cpu": 4000, "memory": 1 << 30}
        options = {"run_as": run_as, "pids_max": pids_max, "engine": engine}
        agent.send(op="configure", node="n1", amounts=amounts, gpus=[], **options)
        return agent

    def start(
        self, script: str, *, job: str = "1", spec: dict[str, Any] | None = None, **container: Any
    ) -> None:
        said = {"image": self.image, **container}
        self.agent.start(job, "sh", "-c", script, container=said, **(spec or {}))

    def run(self, script: str, **fields: Any) -> list[Any]:
        """Run a command in a container; return the row of its end."""
        self.start(script, **fields)
        return self.agent.wait_ended()[0]

    def refused(self, script: str, **fields: Any) -> str:
        self.start(script, **fields)
        return str(self.agent.wait_refused()[0][3])

    def output(self, stream: str = "out") -> str:
        return self.keeper.output("1", stream=stream)

    @property
    def mark(self) -> str:
        return (self.keeper.root / "keeper.id").read_text().strip()[:12]

    def groups(self) -> list[Path]:
        return list(Path("/sys/fs/cgroup").glob(f"*/rota-{self.mark}-containers"))

    def containers(self) -> list[str]:
        return [name for name in images.containers() if self.mark in name]


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def test_output_and_exit_code_are_those_of_the_container(container_agent: ContainerAgent) -> None:
    row = container_agent.run("echo to out; echo to err >&2; exit 7")

    assert (row[STATE], row[EXIT_CODE], row[REASON]) == ("exited", 7, None)
    assert (container_agent.output(), container_agent.output("err")) == ("to out\n", "to err\n")
    assert container_agent.containers() == []


@pytest.mark.parametrize("code", [125, 126, 127])
def test_exit_codes_125_to_127_of_the_command_are_passed_on(
    container_agent: ContainerAgent, code: int
) -> None:
    row = container_agent.run(f"exit {code}")

    assert (row[EXIT_CODE], row[REASON]) == (code, None)


def test_a_container_gets_its_own_directory_and_environment_only(
    container_agent: ContainerAgent,
) -> None:
    row = container_agent.run(
        'pwd; env; echo made > "$ROTA_OUTPUT_DIR/it"', spec={"env": {"GREETING": "hi  there='x'"}}
    )

    assert row[EXIT_CODE] == 0
    work = container_agent.keeper.root / "work" / "1"
    here, *lines = container_agent.output().splitlines()
    env = dict(line.split("=", 1) for line in lines)
    assert here == str(work)
    assert env["GREETING"] == "hi  there='x'"
    assert (env["ROTA_JOB_ID"], env["ROTA_ATTEMPT"], env["ROTA_NODE"]) == ("1", "1", "n1")
    assert (container_agent.keeper.root / "tasks" / "1" / "0" / "out" / "it").read_text() == "made\n"
    assert not set(env) & {"PYTHONPATH", "VIRTUAL_ENV", "LANG", "USER", "ROTA_KEEPER"}


def test_values_of_the_environment_are_on_no_command_line(container_agent: ContainerAgent) -> None:
    container_agent.start("sleep 60", spec={"env": {"TOKEN": "not-for-others"}})
    container_agent.agent.wait_started()

    lines = container_agent.keeper.cmdlines()
    assert any(b"--env-file" in line for line in lines)
    assert not any(b"not-for-others" in line for line in lines)
    (file,) = (container_agent.keeper.root / "containers").glob("*.env")
    assert file.stat().st_mode & 0o077 == 0


def test_a_container_runs_as_nobody_without_privileges(container_agent: ContainerAgent) -> None:
    container_agent.run("id -u; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status")

    uid, *status = container_agent.output().split("\n")
    assert uid == ("65534" if ROOT else "0")  # the keeper's own user outside
    values = dict(line.split(":\t") for line in status if line)
    assert (int(values["CapEff"], 16), int(values["CapBnd"], 16), values["NoNewPrivs"]) == (0, 0, "1")


@needs("root")
def test_a_container_runs_as_the_requested_user(container_agent: ContainerAgent) -> None:
    row = container_agent.run('id -u; id -g; touch "$ROTA_OUTPUT_DIR/it"', user="1234:4321")

    assert (row[EXIT_CODE], container_agent.output()) == (0, "1234\n4321\n")
    assert (container_agent.keeper.root / "tasks" / "1" / "0" / "out" / "it").stat().st_uid == 1234


@needs("root")
def test_root_is_refused_unless_the_node_allows_it(container_agent: ContainerAgent) -> None:
    assert container_agent.refused("id -u", user="0") == "this node lets no container run as root"


@needs("root")
def test_root_is_allowed_if_the_node_allows_it(container_agent: ContainerAgent) -> None:
    container_agent.agent = container_agent.attach(root=True)

    assert container_agent.run("id -u", user="0")[EXIT_CODE] == 0
    assert container_agent.output() == "0\n"


def test_a_container_has_no_network_unless_the_hosts_is_requested(container_agent: ContainerAgent) -> None:
    container_agent.run("cat /proc/net/dev")
    where = "busybox readlink /proc/self/ns/net"
    container_agent.agent.start(
        "2", "sh", "-c", where, container={"image": container_agent.image, "network": "host"}
    )
    container_agent.agent.wait_ended(2)

    assert {line.split(":")[0].strip() for line in container_agent.output().splitlines()[2:]} == {"lo"}
    assert container_agent.keeper.output("2") == os.readlink("/proc/self/ns/net") + "\n"


def test_an_allowed_directory_is_mounted(container_agent: ContainerAgent) -> None:
    (container_agent.books / "a").write_text("once upon a time\n")
    mounts = [[str(container_agent.data), "/data", False], [str(container_agent.books), "/books", True]]

    row = container_agent.run("cat /books/a; echo x > /books/b; echo written > /data/c", mounts=mounts)

    assert row[EXIT_CODE] == 0
    assert container_agent.output() == "once upon a time\n"
    assert "Read-only file system" in container_agent.output("err")
    assert (container_agent.data / "c").read_text() == "written\n"
    assert not (container_agent.books / "b").exists()


def test_a_mount_that_is_not_allowed_is_refused_with_the_reason(container_agent: ContainerAgent) -> None:
    assert (
        container_agent.refused("true", mounts=[["/etc", "/x", True]])
        == "this node does not let /etc be mounted"
    )
    assert container_agent.containers() == []


def test_a_read_only_directory_is_not_mounted_writable(container_agent: ContainerAgent) -> None:
    reason = container_agent.refused("true", mounts=[[str(container_agent.books), "/x", False]])

    assert reason == f"this node lets {container_agent.books} be mounted for reading only"


def test_a_link_out_of_the_allowed_directory_is_refused(container_agent: ContainerAgent) -> None:
    (container_agent.data / "out").symlink_to("/etc")

    reason = container_agent.refused("true", mounts=[[f"{container_agent.data}/out", "/x", True]])

    assert reason == f"this node does not let {container_agent.data}/out (/etc) be mounted"


def test_a_jobs_working_directory_is_mounted_by_the_same_rule(container_agent: ContainerAgent) -> None:
    assert (
        container_agent.refused("pwd", spec={"workdir": "/etc"}) == "this node does not let /etc be mounted"
    )
    container_agent.agent.start(
        "2",
        "sh",
        "-c",
        "pwd",
        container={"image": container_agent.image},
        workdir=str(container_agent.data),
        tasks=[[0, 2, 1]],
    )
    container_agent.agent.wait_ended()

    assert container_agent.keeper.output("2", attempt=2) == f"{container_agent.data}\n"


def test_out_of_memory_is_named_with_the_limit(container_agent: ContainerAgent) -> None:
    row = container_agent.run("tail /dev/zero", spec={"needs": {"cpu": 1000, "memory": 32 << 20}})

    assert row[EXIT_CODE] == 137
    assert row[REASON].startswith("out of memory: limit 32 MiB")
    wait_until(lambda: not container_agent.groups(), "no control group is left")


def test_limits_of_the_job_hold_for_the_container(container_agent: ContainerAgent) -> None:
    spec = {"needs": {"memory": 512 << 20}, "limits": {"memory": 32 << 20, "pids": 7, "cpu": 500}}

    row = container_agent.run(
        "cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max; tail /dev/zero", spec=spec
    )

    assert row[REASON].startswith("out of memory: limit 32 MiB")
    assert container_agent.output() == "7\n"


def test_job_files_belong_to_the_user_of_the_container(container_agent: ContainerAgent) -> None:
    files = {"run.sh": _base64("#!/bin/sh\ncat data/words\n"), "data/words": _base64("sent along\n")}

    row = container_agent.run("./run.sh && echo more >> data/words", spec={"files": files})

    assert (row[EXIT_CODE], container_agent.output()) == (0, "sent along\n")
    assert (container_agent.keeper.root / "work" / "1" / "data" / "words").read_text() == "sent along\nmore\n"


def test_a_container_runs_as_the_jobs_own_user_if_it_has_one(container_agent: ContainerAgent) -> None:
    container_agent.agent = container_agent.attach(run_as="own" if ROOT else "self")

    row = container_agent.run('id -u; touch "$ROTA_OUTPUT_DIR/it"')

    assert row[EXIT_CODE] == 0
    uid = int(container_agent.output())
    assert is_own(uid) if ROOT else uid == 0
    assert (container_agent.keeper.root / "tasks" / "1" / "0" / "out" / "it").stat().st_uid == (
        uid if ROOT else os.geteuid()
    )


def test_a_missing_image_is_the_jobs_own_fault(container_agent: ContainerAgent) -> None:
    row = container_agent.run("true", image="localhost/rota-no-such:1")

    reason = "this node has no image localhost/rota-no-such:1, and the job does not let it be pulled"
    assert (row[STATE], row[EXIT_CODE], row[REASON]) == ("exited", 127, reason)


def test_a_missing_command_is_distinguished_from_a_failing_one(container_agent: ContainerAgent) -> None:
    container_agent.agent.start("1", "no-such-command", container={"image": container_agent.image})
    row = container_agent.agent.wait_ended()[0]

    assert row[EXIT_CODE] == 127
    assert "no-such-command" in row[REASON]


def test_a_runtime_that_fails_is_the_nodes_fault_and_the_attempt_is_refused(
    container_agent: ContainerAgent, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'Error: the engine is on fire' >&2\nexit 125\n")
    broken.chmod(0o755)
    container_agent.agent = container_agent.attach(str(broken))

    assert container_agent.refused("true") == "its container cannot be started here: the engine is on fire"
    assert container_agent.agent.started == container_agent.agent.ended == []


def test_without_a_runtime_it_is_refused(container_agent: ContainerAgent) -> None:
    container_agent.agent = container_agent.keeper.agent()
    container_agent.keeper.kill()
    container_agent.keeper.start()
    container_agent.agent = container_agent.keeper.agent()
    container_agent.agent.hello()

    assert container_agent.refused("true") == "this node has no container runtime"


def test_a_stop_ends_a_container_gracefully(container_agent: ContainerAgent) -> None:
    container_agent.start(
        "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done", spec={"grace_ms": 60_000}
    )
    container_agent.agent.wait_started()
    wait_until(lambda: "up" in container_agent.output(), "it is up")

    container_agent.agent.stop(["1", 0, 1])

    assert container_agent.agent.wait_ended()[0][STATE] == "stopped"
    assert container_agent.output() == "up\nbye\n"
    assert container_agent.containers() == []


def test_a_container_that_ignores_sigterm_is_killed_after_the_grace(container_agent: ContainerAgent) -> None:
    container_agent.start("trap '' TERM; echo up; while :; do sleep 1; done", spec={"grace_ms": 300})
    container_agent.agent.wait_started()
    wait_until(lambda: "up" in container_agent.output(), "it is up")

    container_agent.agent.stop(["1", 0, 1])

    assert container_agent.agent.wait_ended()[0][STATE] == "stopped"
    assert container_agent.containers() == []


def test_a_container_over_its_time_limit_is_stopped(container_agent: ContainerAgent) -> None:
    row = container_agent.run(
        "trap '' TERM; while :; do sleep 1; done", spec={"timeout_ms": 1500, "grace_ms": 100}
    )

    assert row[STATE] == "timed_out"
    assert container_agent.containers() == []


def test_the_attempt_ends_with_its_container_also_when_the_command_line_is_killed(
    container_agent: ContainerAgent,
) -> None:
    container_agent.start("while :; do sleep 1; done")
    container_agent.agent.wait_started()
    assert len(container_agent.containers()) == 1

    for pid in container_agent.keeper.work():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    row = container_agent.agent.wait_ended()[0]
    assert (row[STATE], row[SIGNAL]) == ("exited", signal.SIGKILL)
    assert container_agent.containers() == []


def test_the_next_keeper_removes_containers_of_a_dead_one(container_agent: ContainerAgent) -> None:
    container_agent.start("trap '' TERM; while :; do sleep 1; done")
    container_agent.agent.wait_started()
    other = f"rota-other-{os.getpid()}"
    try:
        subprocess.run(
            [
                str(images.engine()),
                "create",
                "--name",
                other,
                "--label",
                "rota.keeper=another",
                container_agent.image,
                "sh",
            ],
            capture_output=True,
            check=True,
        )
        container_agent.keeper.kill()
        assert len(container_agent.containers()) == 1

        container_agent.keeper.start()

        assert container_agent.containers() == []
        assert container_agent.groups() == []
        assert other in images.containers()
        state = container_agent.keeper.agent()
        state.send(op="hello", protocol=wire.PROTOCOL)
        assert [row[STATE] for row in state.receive_op("state")["ended"]] == ["lost"]
    finally:
        images.remove(other)


def test_many_containers_at_once_leave_nothing_behind(container_agent: ContainerAgent) -> None:
    rows = [[index, 1, 1] for index in range(12)]
    container = {"image": container_agent.image}
    container_agent.agent.start(
        "1", "sh", "-c", "exit $ROTA_INDEX", container=container, tasks=rows, count=12
    )

    ended = container_agent.agent.wait_ended(12)

    assert {row[1]: row[EXIT_CODE] for row in ended} == {index: index for index in range(12)}, [
        (row[1], row[REASON]) for row in ended if row[EXIT_CODE] != row[1]
    ]
    assert container_agent.containers() == []
    assert [path.name for path in (container_agent.keeper.root / "containers").iterdir()] == ["engine"]


def test_files_of_a_container_are_removed_with_it(container_agent: ContainerAgent) -> None:
    container_agent.run("true")

    assert [path.name for path in (container_agent.keeper.root / "containers").iterdir()] == ["engine"]


def test_a_malformed_container_is_reported_with_its_field(container_agent: ContainerAgent) -> None:
    container_agent.start("true", user="root")

    assert container_agent.agent.receive_op("error")["reason"] == (
        "spec.container.user: want numbers, as 1000 or 1000:1000"
    )
    assert json.dumps(container_agent.containers()) == "[]"


def test_the_process_limit_of_the_node_holds_for_all_containers_together(
    container_agent: ContainerAgent,
) -> None:
    if not images.old_groups():
        return  # the runtime's own cgroups are out of reach there
    container_agent.agent = container_agent.attach(pids_max=20)
    row = container_agent.run(
        "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do sleep 600 & done"
    )

    assert row[EXIT_CODE] == 2
    assert "can't fork" in container_agent.output("err")


SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
one, other = map(os.fsencode, sys.argv[1:])
print("begun", flush=True)
while not libc.renameat2(-100, one, -100, other, 2):  # RENAME_EXCHANGE
    pass
"""


def test_a_link_that_is_swapped_in_after_the_check_is_not_mounted(container_agent: ContainerAgent) -> None:
    """An attacker swaps the job's directory and a link to a forbidden one all the time."""
    secret, own, link = (
        container_agent.keeper.root / "secret",
        container_agent.data / "own",
        container_agent.data / "link",
    )
    for directory, text in ((secret, "secret"), (own, "own")):
        directory.mkdir()
        (directory / "flag").write_text(f"{text}\n")
    link.symlink_to(secret)
    agent, jobs = container_agent.agent, 0
    swapping = [sys.executable, "-c", SWAP, str(own), str(link)]
    with subprocess.Popen(swapping, stdout=subprocess.PIPE) as swap:
        try:
            assert swap.stdout is not None
            assert swap.stdout.readline() == b"begun\n"
            # On a busy machine the swapping may pause for a while: until each was found in its place once.
            while not (agent.ended and agent.refused):
                for _ in range(24):
                    jobs += 1
                    container_agent.start("cat /x/flag", job=str(jobs), mounts=[[str(own), "/x", True]])
                while len(agent.ended) + len(agent.refused) < jobs:
                    agent.receive()
        finally:
            swap.kill()

    assert {container_agent.keeper.output(row[0]) for row in agent.ended} == {"own\n"}
    assert agent.refused
    assert os.listdir(pins_of(container_agent.mark)) == []


def test_a_keeper_unmounts_pins_of_a_killed_one_and_deletes_no_source(
    container_agent: ContainerAgent,
) -> None:
    (container_agent.data / "flag").write_text("kept")
    container_agent.start("sleep 600", mounts=[[str(container_agent.data), "/x", False]])
    container_agent.agent.wait_started()
    before = os.listdir(pins_of(container_agent.mark))
    container_agent.keeper.kill()
    container_agent.keeper.start()
    container_agent.attach()

    assert len(before) == 1
    assert not os.path.exists(pins_of(container_agent.mark))
    assert (container_agent.data / "flag").read_text() == "kept"
