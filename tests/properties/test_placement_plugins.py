"""The example plugin passes the contract suite, and the suite detects plugins that break the contract."""

import importlib.util
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rota.engine.state.mirror import Mirror
from rota.model.columns import Array
from rota.model.ids import JobId
from rota.scheduler.placement.board import NodeSlice
from rota.scheduler.placement.place import Placer
from rota.scheduler.placement.rows import Plugins
from rota.testing.builders import add_job, add_node, job_spec
from rota.testing.plugin_suite import LABELS, Samples, check_filter, check_score

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
LAB = Samples(labels=(*LABELS, {"node": "lab-1"}, {"generation": "3"}, {"generation": "nonsense"}))


def loaded(group: str, name: str) -> Any:
    """The object of the entry point with that name, without installing the plugin."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    module, _, attribute = project["entry-points"][group][name].partition(":")
    return getattr(_module(module), attribute)()


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_plugin_passes_the_contract() -> None:
    check_filter(loaded("rota.filters", "quiet-lab"), LAB)
    check_score(loaded("rota.scores", "newer-first"), LAB)


def test_the_example_decides_where_tasks_go() -> None:
    mirror = Mirror()
    for name, generation in (("lab-1", "9"), ("desk-1", "1"), ("desk-2", "2")):
        add_node(mirror, name, labels={"generation": generation})
    quiet, noisy = (
        add_job(mirror, job_spec(number, noise=kind)) for number, kind in ((1, None), (2, "disk"))
    )
    plugins = Plugins((loaded("rota.filters", "quiet-lab"),), (loaded("rota.scores", "newer-first"),))

    placer = Placer(mirror, plugins)
    assert _first(placer, mirror, quiet) == "lab-1"
    assert _first(placer, mirror, noisy) == "desk-2"


def _first(placer: Placer, mirror: Mirror, job: JobId) -> str:
    return mirror.node_table.ids[placer.place(mirror.jobs[job], 1).assigned[0].slot]


def _writes(nodes: NodeSlice) -> Array:
    nodes.amounts[:] = 0
    return _cpu(nodes)


def _cpu(nodes: NodeSlice) -> Array:
    return nodes.free("cpu").astype(np.float64)


ASKED = count()
BROKEN: dict[str, Callable[[NodeSlice], Any]] = {
    "ranks them": lambda nodes: _cpu(nodes).argsort().argsort(),
    "against the best": lambda nodes: _cpu(nodes) - _cpu(nodes).max(initial=0.0),
    "by position": lambda nodes: np.arange(len(nodes)),
    "infinite": lambda nodes: np.where(nodes.load > 0, np.inf, 0.0),
    "remembers": lambda nodes: np.full(len(nodes), next(ASKED)),
    "looks at others": lambda nodes: np.full(len(nodes), nodes._board.load.sum()),
    "does not think ahead": lambda nodes: nodes._board.free[0, nodes.slots],
    "writes": _writes,
    "one for all": lambda nodes: np.zeros(len(nodes) + 1),
    "no array": lambda nodes: [0.0] * len(nodes),
}


@dataclass
class Broken:
    """A plugin that does one thing wrong."""

    points: Callable[[NodeSlice], Any]
    allows: Callable[[NodeSlice], Any] = _cpu  # numbers instead of truth values
    name: str = "broken"


@pytest.mark.parametrize("how", BROKEN)
def test_a_score_that_breaks_the_contract_is_detected(how: str) -> None:
    with pytest.raises(AssertionError, match="broken: "):
        check_score(Broken(BROKEN[how]))


def test_a_filter_answers_with_truth_values() -> None:
    with pytest.raises(AssertionError, match="not bool"):
        check_filter(Broken(_cpu))
