"""The generated messages are those of the .proto files."""

import subprocess
import sys
from pathlib import Path

from tests.architecture.table import GENERATED, ROOT, SOURCE


def test_the_generated_messages_are_those_of_the_proto_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "proto/generate.py"), str(tmp_path)], check=True)

    for package in GENERATED:
        made, kept = (root / package.replace(".", "/") for root in (tmp_path, SOURCE))
        assert texts(made) == texts(kept), "run `make proto`"


def texts(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.glob("*.py*")}
