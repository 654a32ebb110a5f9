"""The sdist holds the whole source tree, the wheel only `src/rota`, and the sdist builds the wheel."""

import email
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "rota"


class Distributions:
    """The sdist, built from this tree and unpacked, and the wheel built from the unpacked sdist."""

    def __init__(self, directory: Path) -> None:
        sdist = build("sdist", ROOT, directory)
        with tarfile.open(sdist) as archive:
            archive.extractall(directory, filter="data")
        self.source = directory / sdist.name.removesuffix(".tar.gz")
        self.wheel = build("wheel", self.source, directory)

    def wheel_files(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return Distributions(tmp_path_factory.mktemp("dist"))


def test_the_sdist_has_all_files_that_a_developer_needs(built: Distributions) -> None:
    expected = [
        *(path.name for path in ROOT.glob("*.md")),
        *("LICENSE", "Makefile", "pyproject.toml", "requirements.lock"),
        *(".ci/run", ".editorconfig", ".github/workflows/ci.yml", ".pre-commit-config.yaml"),
        *("bench/run.py", "docs/howto/run-an-array.md", "docs/picture.svg", "examples/sdk.py"),
        *("proto/generate.py", "src/rota/py.typed", "tests/conftest.py", "tools/machine.py"),
    ]

    assert [path for path in expected if not (built.source / path).is_file()] == []


@pytest.mark.parametrize("directory", ["bench", "docs", "examples", "proto", "src", "tests", "tools"])
def test_the_sdist_has_every_file_of_a_directory(built: Distributions, directory: str) -> None:
    assert files(built.source / directory) == files(ROOT / directory)


def test_the_sdist_leaves_out_generated_files(built: Distributions) -> None:
    made = (".venv", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "dist")

    assert [name for name in made if (built.source / name).exists()] == []


def test_the_wheel_has_only_the_package(built: Distributions) -> None:
    shipped = {name for name in built.wheel_files() if ".dist-info/" not in name}

    assert shipped == {f"rota/{name}" for name in files(PACKAGE)}
    assert {"rota/py.typed", "rota/__init__.pyi", "rota/client/__init__.pyi"} <= shipped
    assert any("/generated/" in name and name.endswith("_pb2.pyi") for name in shipped)


def test_the_wheel_has_its_metadata(built: Distributions) -> None:
    metadata = built.metadata()

    assert metadata["Author"] == "Rota developers"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "scheduler" in metadata["Keywords"].split(",")
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert str(metadata.get_payload()).startswith("# Rota\n")


def test_the_client_of_the_wheel_needs_no_other_package(built: Distributions, tmp_path: Path) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(tmp_path)
    code = "import rota; print(rota.__file__, rota.connect.__module__, rota.connect_async.__module__)"
    command = [sys.executable, "-S", "-c", code]
    shown = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )

    file, *modules = shown.stdout.split()
    assert Path(file) == tmp_path / "rota" / "__init__.py"
    assert modules == ["rota.client.cluster", "rota.client.aio.connecting"]


def build(target: str, source: Path, into: Path) -> Path:
    """Build with the backend of this environment: nothing is downloaded."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (found,) = into.glob("*.tar.gz" if target == "sdist" else "*.whl")
    return found


def files(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
