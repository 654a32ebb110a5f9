"""The generated messages are those of the .proto files."""

import subprocess
import sys
from pathlib import Path

from tests.architecture.table import ROOT, SOURCE

GENERATED = SOURCE / "rota/wire/generated"


def test_the_generated_messages_are_those_of_the_proto_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "proto/generate.py"), str(tmp_path)], check=True)

    assert texts(tmp_path) == texts(GENERATED), "run `make proto`"


def texts(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.glob("*.py*")}
