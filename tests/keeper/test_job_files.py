"""Files sent with a job are in its working directory before its first start."""

import os
from base64 import b64encode
from pathlib import Path

from rota.keeper.job_files import write_files
from tests.keeper.conftest import Agent, Keeper


def sent(**files: bytes) -> dict[str, str]:
    return {
        name.replace("__", "/").replace("_", "."): b64encode(data).decode() for name, data in files.items()
    }


def test_a_task_finds_the_files_of_its_job(keeper: Keeper, agent: Agent) -> None:
    files = sent(run_sh=b"#!/bin/sh\ncat data/in.txt\n", data__in_txt=b"here\xff\n")
    agent.start("7", "./run.sh", files=files)
    (ended,) = agent.wait_ended()

    assert ended[3:5] == ["exited", 0]
    assert (keeper.root / "logs/7/0.out").read_bytes() == b"here\xff\n"
    modes = [(keeper.root / "work/7" / path).stat().st_mode & 0o777 for path in ("run.sh", "data/in.txt")]
    assert modes == [0o700, 0o600]


def test_a_file_that_a_task_changed_stays(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "echo more >> it; cat it", files=sent(it=b"first\n"))
    agent.wait_ended()
    keeper.kill()
    keeper.start()
    again = keeper.agent()
    again.hello()
    again.send(op="start", job="7", spec=None, tasks=[[0, 2, 1]])
    again.wait_ended()

    assert keeper.output("7", attempt=2) == "first\nmore\nmore\n"


def test_files_are_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/data").symlink_to(tmp_path / "elsewhere")
    refused = False
    try:
        write_files(str(tmp_path / "work"), sent(data__x=b"1"))
    except OSError:
        refused = True

    assert refused
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_path_out_of_the_directory_is_malformed(agent: Agent) -> None:
    for path in ("../x", "/x", "a//b", "./x"):
        agent.start("7", "true", files={path: ""})
        assert "spec.files" in agent.receive_op("error")["reason"]
    agent.start("7", "true", files={"x": "no base64!"})
    assert "base64" in agent.receive_op("error")["reason"]
