"""A token file: private, whole, and never written through a link."""

import os
import stat
from pathlib import Path

import pytest

from rota.identity.errors import Unsafe
from rota.identity.token_files import read_token, write_token


def test_a_token_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "rota" / "token"
    write_token(path, "rota_first")
    write_token(path, "rota_second")

    assert read_token(path) == "rota_second"
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]


def test_only_the_owner_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "rota" / "token"
    old_umask = os.umask(0)
    try:
        write_token(path, "rota_x")
    finally:
        os.umask(old_umask)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    directory = tmp_path / "project"
    directory.mkdir()
    directory.chmod(0o755)
    write_token(directory / "token", "rota_x")

    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert stat.S_IMODE((directory / "token").stat().st_mode) == 0o600


def test_a_symlink_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    path = tmp_path / "token"
    path.symlink_to(target)
    write_token(path, "rota_x")

    assert target.read_text() == "precious"
    assert not path.is_symlink()
    assert read_token(path) == "rota_x"


def test_a_loose_file_is_replaced_by_a_private_one(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("rota_old")
    path.chmod(0o666)
    write_token(path, "rota_x")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_open_to_others_is_refused_with_the_command_to_fix_it(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "my token"
    write_token(path, "rota_x")
    path.chmod(mode)

    with pytest.raises(Unsafe) as caught:
        read_token(path)

    assert f"chmod 600 '{path}'" in str(caught.value)
    assert f"{mode:04o}" in str(caught.value)
    assert "rota_x" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"one two", b"one\ntwo\n", b"\xff\xfe"])
def test_a_file_that_is_not_one_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    write_token(path, "rota_x")
    path.write_bytes(content)

    with pytest.raises(Unsafe, match="token"):
        read_token(path)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_token(path, "x" * 5000)

    with pytest.raises(Unsafe, match="larger than 4096 bytes"):
        read_token(path)


def test_a_pipe_in_place_of_a_token_file_does_not_hang_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "token"
    os.mkfifo(path, 0o600)

    with pytest.raises(Unsafe, match="not a regular file"):
        read_token(path)


def test_a_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_token(tmp_path / "token")
