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
def boxed(keeper: Keeper, image: str, tmp_path: Path) -> Iterator["Boxed"]:
    boxed = Boxed(keeper, image)
    try:
        yield boxed
    finally:
        keeper.kill()
        images.remove(*boxed.containers())
        remove_cgroups(f"{cgroup_parent(boxed.mark)}/*")
        unpin_all(boxed.mark)


class Boxed:
    """An agent that offers containers and lets `data` be mounted, and `books` for reading."""

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
        agent.send(op="hello", protocol=4)
        agent.receive_op("state")
        engine: dict[str, Any] = {
            "kind": "podman",
            "program": program or images.engine(),
            "old_groups": images.old_groups(),
        }
        engine |= {"mounts": [str(self.data), f"{self.books}:ro"], **more}
        amounts = {"cpu": 4000, "memory": 1 << 30}
        said = {"run_as": run_as, "pids_max": pids_max, "engine": engine}
        agent.send(op="configure", node="n1", amounts=amounts, gpus=[], **said)
        return agent

    def start(
        self, script: str, *, job: str = "1", spec: dict[str, Any] | None = None, **container: Any
    ) -> None:
        said = {"image": self.image, **container}
        self.agent.start(job, "sh", "-c", script, container=said, **(spec or {}))

    def run(self, script: str, **said: Any) -> list[Any]:
        """Its row, when it has ended."""
        self.start(script, **said)
        return self.agent.wait_ended()[0]

    def refused(self, script: str, **said: Any) -> str:
        self.start(script, **said)
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


def test_output_and_exit_code_are_the_containers_own(boxed: Boxed) -> None:
    row = boxed.run("echo to out; echo to err >&2; exit 7")

    assert (row[STATE], row[EXIT_CODE], row[REASON]) == ("exited", 7, None)
    assert (boxed.output(), boxed.output("err")) == ("to out\n", "to err\n")
    assert boxed.containers() == []


@pytest.mark.parametrize("code", [125, 126, 127])
def test_the_runtimes_own_codes_are_passed_on_where_the_command_meant_them(boxed: Boxed, code: int) -> None:
    row = boxed.run(f"exit {code}")

    assert (row[EXIT_CODE], row[REASON]) == (code, None)


def test_it_starts_in_its_own_directory_with_its_own_environment_and_nothing_of_the_agents(
    boxed: Boxed,
) -> None:
    row = boxed.run(
        'pwd; env; echo made > "$ROTA_OUTPUT_DIR/it"', spec={"env": {"GREETING": "hi  there='x'"}}
    )

    assert row[EXIT_CODE] == 0
    work = boxed.keeper.root / "work" / "1"
    here, *lines = boxed.output().splitlines()
    env = dict(line.split("=", 1) for line in lines)
    assert here == str(work)
    assert env["GREETING"] == "hi  there='x'"
    assert (env["ROTA_JOB_ID"], env["ROTA_ATTEMPT"], env["ROTA_NODE"]) == ("1", "1", "n1")
    assert (boxed.keeper.root / "tasks" / "1" / "0" / "out" / "it").read_text() == "made\n"
    assert not set(env) & {"PYTHONPATH", "VIRTUAL_ENV", "LANG", "USER", "ROTA_KEEPER"}


def test_values_of_its_environment_are_on_no_command_line(boxed: Boxed) -> None:
    boxed.start("sleep 60", spec={"env": {"TOKEN": "not-for-others"}})
    boxed.agent.wait_started()

    lines = boxed.keeper.cmdlines()
    assert any(b"--env-file" in line for line in lines)
    assert not any(b"not-for-others" in line for line in lines)
    (file,) = (boxed.keeper.root / "containers").glob("*.env")
    assert file.stat().st_mode & 0o077 == 0


def test_it_runs_as_nobody_without_any_privilege(boxed: Boxed) -> None:
    boxed.run("id -u; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status")

    uid, *status = boxed.output().split("\n")
    assert uid == ("65534" if ROOT else "0")  # who is the keeper's own user outside
    said = dict(line.split(":\t") for line in status if line)
    assert (int(said["CapEff"], 16), int(said["CapBnd"], 16), said["NoNewPrivs"]) == (0, 0, "1")


@needs("root")
def test_it_runs_as_the_user_it_asks_for(boxed: Boxed) -> None:
    row = boxed.run('id -u; id -g; touch "$ROTA_OUTPUT_DIR/it"', user="1234:4321")

    assert (row[EXIT_CODE], boxed.output()) == (0, "1234\n4321\n")
    assert (boxed.keeper.root / "tasks" / "1" / "0" / "out" / "it").stat().st_uid == 1234


@needs("root")
def test_root_is_refused_unless_the_node_allows_it(boxed: Boxed) -> None:
    assert boxed.refused("id -u", user="0") == "this node lets no container run as root"


@needs("root")
def test_root_is_given_where_the_node_allows_it(boxed: Boxed) -> None:
    boxed.agent = boxed.attach(root=True)

    assert boxed.run("id -u", user="0")[EXIT_CODE] == 0
    assert boxed.output() == "0\n"


def test_it_has_no_network_unless_it_asks_for_the_hosts(boxed: Boxed) -> None:
    boxed.run("cat /proc/net/dev")
    where = "busybox readlink /proc/self/ns/net"
    boxed.agent.start("2", "sh", "-c", where, container={"image": boxed.image, "network": "host"})
    boxed.agent.wait_ended(2)

    assert {line.split(":")[0].strip() for line in boxed.output().splitlines()[2:]} == {"lo"}
    assert boxed.keeper.output("2") == os.readlink("/proc/self/ns/net") + "\n"


def test_what_the_node_allows_is_mounted(boxed: Boxed) -> None:
    (boxed.books / "a").write_text("once upon a time\n")
    mounts = [[str(boxed.data), "/data", False], [str(boxed.books), "/books", True]]

    row = boxed.run("cat /books/a; echo x > /books/b; echo written > /data/c", mounts=mounts)

    assert row[EXIT_CODE] == 0
    assert boxed.output() == "once upon a time\n"
    assert "Read-only file system" in boxed.output("err")
    assert (boxed.data / "c").read_text() == "written\n"
    assert not (boxed.books / "b").exists()


def test_what_the_node_does_not_allow_is_refused_with_the_reason(boxed: Boxed) -> None:
    assert boxed.refused("true", mounts=[["/etc", "/x", True]]) == "this node does not let /etc be mounted"
    assert boxed.containers() == []


def test_a_directory_for_reading_is_not_mounted_for_writing(boxed: Boxed) -> None:
    reason = boxed.refused("true", mounts=[[str(boxed.books), "/x", False]])

    assert reason == f"this node lets {boxed.books} be mounted for reading only"


def test_a_link_out_of_what_is_allowed_is_refused(boxed: Boxed) -> None:
    (boxed.data / "out").symlink_to("/etc")

    reason = boxed.refused("true", mounts=[[f"{boxed.data}/out", "/x", True]])

    assert reason == f"this node does not let {boxed.data}/out (/etc) be mounted"


def test_a_working_directory_of_the_jobs_own_is_mounted_by_the_same_rule(boxed: Boxed) -> None:
    assert boxed.refused("pwd", spec={"workdir": "/etc"}) == "this node does not let /etc be mounted"
    boxed.agent.start(
        "2", "sh", "-c", "pwd", container={"image": boxed.image}, workdir=str(boxed.data), tasks=[[0, 2, 1]]
    )
    boxed.agent.wait_ended()

    assert boxed.keeper.output("2", attempt=2) == f"{boxed.data}\n"


def test_out_of_memory_is_named_with_the_limit(boxed: Boxed) -> None:
    row = boxed.run("tail /dev/zero", spec={"needs": {"cpu": 1000, "memory": 32 << 20}})

    assert row[EXIT_CODE] == 137
    assert row[REASON].startswith("out of memory: limit 32 MiB")
    wait_until(lambda: not boxed.groups(), "no control group is left")


def test_limits_of_the_job_are_the_containers(boxed: Boxed) -> None:
    spec = {"needs": {"memory": 512 << 20}, "limits": {"memory": 32 << 20, "pids": 7, "cpu": 500}}

    row = boxed.run("cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max; tail /dev/zero", spec=spec)

    assert row[REASON].startswith("out of memory: limit 32 MiB")
    assert boxed.output() == "7\n"


def test_files_are_there_for_its_user(boxed: Boxed) -> None:
    files = {"run.sh": _base64("#!/bin/sh\ncat data/words\n"), "data/words": _base64("sent along\n")}

    row = boxed.run("./run.sh && echo more >> data/words", spec={"files": files})

    assert (row[EXIT_CODE], boxed.output()) == (0, "sent along\n")
    assert (boxed.keeper.root / "work" / "1" / "data" / "words").read_text() == "sent along\nmore\n"


def test_its_user_is_the_jobs_own_where_the_node_gives_one(boxed: Boxed) -> None:
    boxed.agent = boxed.attach(run_as="own" if ROOT else "self")

    row = boxed.run('id -u; touch "$ROTA_OUTPUT_DIR/it"')

    assert row[EXIT_CODE] == 0
    uid = int(boxed.output())
    assert is_own(uid) if ROOT else uid == 0
    assert (boxed.keeper.root / "tasks" / "1" / "0" / "out" / "it").stat().st_uid == (
        uid if ROOT else os.geteuid()
    )


def test_a_missing_image_is_the_jobs_own_fault(boxed: Boxed) -> None:
    row = boxed.run("true", image="localhost/rota-no-such:1")

    reason = "this node has no image localhost/rota-no-such:1, and the job does not let it be pulled"
    assert (row[STATE], row[EXIT_CODE], row[REASON]) == ("exited", 127, reason)


def test_a_missing_command_is_told_from_one_that_fails(boxed: Boxed) -> None:
    boxed.agent.start("1", "no-such-command", container={"image": boxed.image})
    row = boxed.agent.wait_ended()[0]

    assert row[EXIT_CODE] == 127
    assert "no-such-command" in row[REASON]


def test_a_runtime_that_fails_is_the_nodes_fault_and_the_attempt_is_refused(
    boxed: Boxed, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'Error: the engine is on fire' >&2\nexit 125\n")
    broken.chmod(0o755)
    boxed.agent = boxed.attach(str(broken))

    assert boxed.refused("true") == "its container cannot be started here: the engine is on fire"
    assert boxed.agent.started == boxed.agent.ended == []


def test_without_a_runtime_it_is_refused(boxed: Boxed) -> None:
    boxed.agent = boxed.keeper.agent()
    boxed.keeper.kill()
    boxed.keeper.start()
    boxed.agent = boxed.keeper.agent()
    boxed.agent.hello()

    assert boxed.refused("true") == "this node has no container runtime"


def test_stop_ends_it_gracefully(boxed: Boxed) -> None:
    boxed.start(
        "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done", spec={"grace_ms": 60_000}
    )
    boxed.agent.wait_started()
    wait_until(lambda: "up" in boxed.output(), "it is up")

    boxed.agent.stop(["1", 0, 1])

    assert boxed.agent.wait_ended()[0][STATE] == "stopped"
    assert boxed.output() == "up\nbye\n"
    assert boxed.containers() == []


def test_one_that_ignores_sigterm_is_killed_after_the_grace(boxed: Boxed) -> None:
    boxed.start("trap '' TERM; echo up; while :; do sleep 1; done", spec={"grace_ms": 300})
    boxed.agent.wait_started()
    wait_until(lambda: "up" in boxed.output(), "it is up")

    boxed.agent.stop(["1", 0, 1])

    assert boxed.agent.wait_ended()[0][STATE] == "stopped"
    assert boxed.containers() == []


def test_over_its_time_it_is_ended(boxed: Boxed) -> None:
    row = boxed.run("trap '' TERM; while :; do sleep 1; done", spec={"timeout_ms": 1500, "grace_ms": 100})

    assert row[STATE] == "timed_out"
    assert boxed.containers() == []


def test_the_attempt_ends_with_its_container_also_when_the_command_line_is_killed(boxed: Boxed) -> None:
    boxed.start("while :; do sleep 1; done")
    boxed.agent.wait_started()
    assert len(boxed.containers()) == 1

    for pid in boxed.keeper.work():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    row = boxed.agent.wait_ended()[0]
    assert (row[STATE], row[SIGNAL]) == ("exited", signal.SIGKILL)
    assert boxed.containers() == []


def test_after_the_keepers_death_the_next_one_removes_its_containers(boxed: Boxed) -> None:
    boxed.start("trap '' TERM; while :; do sleep 1; done")
    boxed.agent.wait_started()
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
                boxed.image,
                "sh",
            ],
            capture_output=True,
            check=True,
        )
        boxed.keeper.kill()
        assert len(boxed.containers()) == 1

        boxed.keeper.start()

        assert boxed.containers() == []
        assert boxed.groups() == []
        assert other in images.containers()
        state = boxed.keeper.agent()
        state.send(op="hello", protocol=4)
        assert [row[STATE] for row in state.receive_op("state")["ended"]] == ["lost"]
    finally:
        images.remove(other)


def test_many_at_once_leave_nothing(boxed: Boxed) -> None:
    rows = [[index, 1, 1] for index in range(12)]
    container = {"image": boxed.image}
    boxed.agent.start("1", "sh", "-c", "exit $ROTA_INDEX", container=container, tasks=rows, count=12)

    ended = boxed.agent.wait_ended(12)

    assert {row[1]: row[EXIT_CODE] for row in ended} == {index: index for index in range(12)}, [
        (row[1], row[REASON]) for row in ended if row[EXIT_CODE] != row[1]
    ]
    assert boxed.containers() == []
    assert [path.name for path in (boxed.keeper.root / "containers").iterdir()] == ["engine"]


def test_the_files_laid_out_for_it_go_with_it(boxed: Boxed) -> None:
    boxed.run("true")

    assert [path.name for path in (boxed.keeper.root / "containers").iterdir()] == ["engine"]


def test_a_container_that_is_malformed_is_named(boxed: Boxed) -> None:
    boxed.start("true", user="root")

    assert boxed.agent.receive_op("error")["reason"] == (
        "spec.container.user: want numbers, as 1000 or 1000:1000"
    )
    assert json.dumps(boxed.containers()) == "[]"


def test_all_containers_of_a_node_together_have_its_bound_on_processes(boxed: Boxed) -> None:
    if not images.old_groups():
        return  # there the runtime's own groups are out of reach
    boxed.agent = boxed.attach(pids_max=20)
    row = boxed.run("for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do sleep 600 & done")

    assert row[EXIT_CODE] == 2
    assert "can't fork" in boxed.output("err")


SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
one, other = map(os.fsencode, sys.argv[1:])
print("begun", flush=True)
while not libc.renameat2(-100, one, -100, other, 2):  # RENAME_EXCHANGE
    pass
"""


def test_a_link_that_is_swapped_in_after_the_check_is_not_mounted(boxed: Boxed) -> None:
    """The job's directory and a link to one that is not allowed change places all the time."""
    secret, own, link = boxed.keeper.root / "secret", boxed.data / "own", boxed.data / "link"
    for directory, text in ((secret, "secret"), (own, "own")):
        directory.mkdir()
        (directory / "flag").write_text(f"{text}\n")
    link.symlink_to(secret)
    agent, jobs = boxed.agent, 0
    swapping = [sys.executable, "-c", SWAP, str(own), str(link)]
    with subprocess.Popen(swapping, stdout=subprocess.PIPE) as swap:
        try:
            assert swap.stdout is not None
            assert swap.stdout.readline() == b"begun\n"
            # On a busy machine the swapping may pause for a while: until each was found in its place once.
            while not (agent.ended and agent.refused):
                for _ in range(24):
                    jobs += 1
                    boxed.start("cat /x/flag", job=str(jobs), mounts=[[str(own), "/x", True]])
                while len(agent.ended) + len(agent.refused) < jobs:
                    agent.receive()
        finally:
            swap.kill()

    assert {boxed.keeper.output(row[0]) for row in agent.ended} == {"own\n"}
    assert agent.refused
    assert os.listdir(pins_of(boxed.mark)) == []


def test_a_keeper_takes_away_what_a_killed_one_had_mounted_and_nothing_of_it(boxed: Boxed) -> None:
    (boxed.data / "flag").write_text("kept")
    boxed.start("sleep 600", mounts=[[str(boxed.data), "/x", False]])
    boxed.agent.wait_started()
    before = os.listdir(pins_of(boxed.mark))
    boxed.keeper.kill()
    boxed.keeper.start()
    boxed.attach()

    assert len(before) == 1
    assert not os.path.exists(pins_of(boxed.mark))
    assert (boxed.data / "flag").read_text() == "kept"
