"""A root agent reads files of the job's own user only, and follows no links."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from rota.agent.output import files, result_file
from rota.model.ids import JobId
from rota.runtimes.protocol import AttemptName
from rota.wire.generated import agent_pb2
from tests.machine import needs

pytestmark = needs("root")
USER = 61200


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The directory of task 0 of job 1, owned as its keeper leaves it."""
    made = tmp_path / "tasks" / "1" / "0"
    for directory in (made / "out", made / "report"):
        directory.mkdir(parents=True)
        os.chown(directory, USER, USER)
    return made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of root. Where hard links are not protected, a user may have linked to it."""
    path = tmp_path / "secret"
    path.write_text('{"message": "s3cr3t"}')
    path.chmod(0o600)
    return path


def own(path: Path) -> None:
    path.write_text("own")
    os.chown(path, USER, USER)


async def archive(root: Path) -> bytes:
    request = agent_pb2.OpenOutputs(id=1, job="1")
    return b"".join([chunk.data async for chunk in files.read(root, request, 1 << 20)])


async def test_a_hard_link_to_another_users_file_is_no_output(
    work: Path, secret: Path, tmp_path: Path
) -> None:
    own(work / "out" / "own")
    os.link(work / "out" / "own", work / "out" / "twice")
    os.link(secret, work / "out" / "linked")
    (work / "out" / "left").write_text("its other name is gone")
    sent = await archive(tmp_path)

    assert [path for path, _ in files.listed(tmp_path, "1", 0)] == ["own", "twice"]
    with tarfile.open(fileobj=io.BytesIO(sent)) as found:
        assert found.getnames() == ["own", "twice"]
    assert b"s3cr3t" not in sent


async def test_a_file_that_is_swapped_after_it_was_listed_is_not_sent(
    work: Path, secret: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        own(work / "out" / name)
    request = agent_pb2.OpenOutputs(id=1, job="1")
    chunks = files.read(tmp_path, request, 1 << 20)
    sent = b"".join([(await anext(chunks)).data for _ in range(2)])  # by now all are listed
    (work / "out" / "b").unlink()
    os.link(secret, work / "out" / "b")
    rest = [chunk async for chunk in chunks]
    sent += b"".join(chunk.data for chunk in rest)

    assert b"s3cr3t" not in sent
    assert rest[-1].code == "unavailable"


def test_a_result_file_that_is_a_hard_link_is_not_reported(work: Path, secret: Path, tmp_path: Path) -> None:
    os.link(secret, work / "report" / "1.json")
    found = result_file.read_file(tmp_path, AttemptName(JobId("1"), 0, 1))

    assert "s3cr3t" not in repr(found)
    assert found.error == "is no plain file of at most 8192 bytes"
