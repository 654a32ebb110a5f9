"""Every command in README and docs is run and prints what is shown; every link has a target."""

import contextlib
import re
from pathlib import Path

import pytest

from rota.testing import images
from tests.docs.machines import ADDRESSES, PRODUCTION, Machines
from tests.docs.network import own_network
from tests.docs.snippets import Block, Kind, blocks, commands, matches
from tests.docs.terminal import Terminal
from tests.machine import needs, require

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TYPED = [path for path in DOCUMENTS if any(block.runs for block in blocks(path.read_text()))]
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.system
@pytest.mark.parametrize("document", [path for path in TYPED if path != PRODUCTION], ids=name)
def test_every_command_does_what_the_document_shows(
    document: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    """A document that starts a cluster has its own; the others share one."""
    found = list(blocks(document.read_text()))
    typed = "".join(block.text for block in found if block.runs)
    alone = any(start in typed for start in ("$ rota dev", "$ rota server --", "$ etcd"))
    config = None if alone else request.getfixturevalue("shared_config")
    with contextlib.ExitStack() as around:
        inside = []
        if "$ etcd" in typed:
            require("etcd", "networks")
            inside = around.enter_context(own_network())
        terminal = around.enter_context(Terminal(tmp_path_factory.mktemp(document.stem), config, inside))
        if images.IMAGE in document.read_text():
            prepare_containers(terminal, tmp_path_factory.mktemp("image"))
        if "sandbox=bubblewrap" in document.read_text():
            require("sandbox")
        for block in found:
            terminal.type(block)


@pytest.mark.system
@needs("etcd", "networks", "openssl", "curl")
@pytest.mark.timeout(1200)
def test_every_command_does_on_its_machine_what_the_document_shows(tmp_path: Path) -> None:
    with Machines(tmp_path, ADDRESSES) as machines:
        for block in blocks(PRODUCTION.read_text()):
            machines.type(block)


def prepare_containers(terminal: Terminal, directory: Path) -> None:
    require("containers")
    images.ensure_image(directory / "rootfs")
    terminal.environment["ROTA_MOUNTS"] = f"{terminal.home}/data:ro"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_has_a_target(document: Path) -> None:
    targets = [link for link in LINK.findall(document.read_text()) if not link.startswith(("http", "#"))]

    missing = [target for target in targets if not (document.parent / target.partition("#")[0]).exists()]
    assert not missing


def test_blocks_that_are_not_run_are_few_and_say_why() -> None:
    left_out = [
        f"{name(path)}:{block.line}"
        for path in DOCUMENTS
        for block in blocks(path.read_text())
        if block.language in set(Kind) and not block.runs
    ]

    assert len(left_out) <= 3, left_out


def test_varying_output_is_not_compared() -> None:
    shown = "job 1 “echo” placed on node-1, started after 0.01 s\nhello\n…\nexit 0   peak 9 MiB"

    assert matches(
        shown, "job 27 “echo” placed on node-3, started after 1.4 s\nhello\nexit 0  peak 1.5 GiB\n"
    )
    assert not matches(
        shown, "job 27 “cat” placed on node-3, started after 1.4 s\nhello\nexit 0  peak 9 MiB\n"
    )
    assert not matches(shown, "job 27 “echo” placed on node-3, started after 1.4 s\nhello\n")


def test_a_console_block_is_split_into_commands_and_output() -> None:
    block = Block(7, "console", "$ one \\\n> two\nprinted\n$ three\n")

    first, second = commands(block)
    assert (first.line, first.text, first.shown) == (8, "one \\\ntwo", "printed")
    assert (second.line, second.text, second.shown) == (11, "three", "")
