"""Generated files are up to date: messages from .proto files, the asyncio client from the other one."""

import subprocess
import sys
from pathlib import Path

from tests.architecture.table import GENERATED, ROOT, SOURCE


def test_the_generated_messages_are_those_of_the_proto_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "proto/generate.py"), str(tmp_path)], check=True)

    for package in GENERATED:
        made, kept = (root / package.replace(".", "/") for root in (tmp_path, SOURCE))
        assert texts(made) == texts(kept), "run `make proto`"


def test_the_asyncio_client_is_made_from_the_other_one(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "tools/async_client.py"), str(tmp_path)], check=True)

    kept = texts(SOURCE / "rota/client/aio")
    assert {name: kept[name] for name in texts(tmp_path)} == texts(tmp_path), "run `make client`"


def texts(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.glob("*.py*")}
