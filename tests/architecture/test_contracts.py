"""The import contracts hold, and each of them can be broken."""

from pathlib import Path

import pytest

from tests.architecture.contracts import complaints
from tests.architecture.table import LAYERS, PORTS, PURE_ELSEWHERE, SOURCE


def test_the_import_contracts_hold(tmp_path: Path) -> None:
    assert complaints(SOURCE, tmp_path) == ""


def test_the_whole_planned_tree_keeps_the_contracts(skeleton: Path, tmp_path: Path) -> None:
    assert complaints(skeleton, tmp_path) == ""


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("rota.model.job", "import rota.config", "imports go downward only"),
        ("rota.scheduler.plan", "import rota.controllers.batch", "imports go downward only"),
        ("rota.surprise", "", "imports go downward only"),
        ("rota.scheduler.plan", "import time", "deciding code touches nothing"),
        ("rota.agent.surprise", "import asyncio", "deciding code touches nothing"),
        ("rota.engine.loop", "import rota.store.memory", "deciding code touches nothing"),
        ("rota.store.codec", "import os", "deciding code touches nothing"),
        ("rota.config", "import os", "deciding code touches nothing"),
        ("rota.keeper.run", "import rota.model", "the keeper imports nothing else of ours"),
        ("rota.cli.main", "import rota.scheduler", "outside is outside"),
        ("rota.agent.run", "import rota.runtimes.process", "only the wiring names concrete classes"),
        ("rota.store.codec", "import rota.store.memory\n", "no cycles"),
    ],
)
def test_a_planted_import_breaks_its_contract(
    skeleton: Path, tmp_path: Path, module: str, line: str, contract: str
) -> None:
    plant(skeleton, module, line)

    assert f"{contract} BROKEN" in complaints(skeleton, tmp_path)


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """Every module the table names, empty, but for the two imports that the plants complete."""
    source = tmp_path / "src"
    for name in (name for names in LAYERS for name in names if name not in ("wiring", "config")):
        plant(source, f"rota.{name}.run", "")
    for module in ("rota.wiring", "rota.config", "rota.runtimes.process", *PURE_ELSEWHERE):
        plant(source, module, "")
    for package, ports in PORTS.items():
        for port in ports:
            plant(source, f"{package}.{port}", "")
    plant(source, "rota.apiserver.access", "import rota.config")
    plant(source, "rota.store.memory", "import rota.store.codec")
    return source


def plant(source: Path, module: str, line: str) -> None:
    path = source.joinpath(*module.split("."))
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(line)
    for package in path.parents:
        if package.is_relative_to(source / "rota"):
            (package / "__init__.py").touch()
