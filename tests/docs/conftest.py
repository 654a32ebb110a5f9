"""The cluster on which the commands of documents are run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.snippets import Block
from tests.docs.terminal import Terminal

START = "$ rota dev --nodes 3\n  Rota dev cluster ready in 1.0 s\n…\n  next: …\n"


@pytest.fixture(scope="session")
def shared_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three nodes, started once; returns the context file for the command line."""
    with Terminal(tmp_path_factory.mktemp("shared")) as terminal:
        terminal.type(Block(1, "console", START))
        yield Path(terminal.environment["ROTA_CONFIG"])
