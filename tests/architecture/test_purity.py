"""Deciding code is pure by its place in the tree: markers are needed, and every name of the table exists."""

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import grimp
import pytest

from tests.architecture.contracts import concrete, docstring, pure
from tests.architecture.table import (
    BEHIND_THE_API,
    DECIDING,
    EDGES,
    LAYERS,
    NAME_CONCRETE_CLASSES,
    OUTSIDE,
    PORTS,
    PURE_ELSEWHERE,
    SOURCE,
    THE_WORLD,
    THIRD_PARTY,
    is_marked,
    is_pure,
    modules,
    within,
)

# Packages that deciding code may import, and that are not checked module by module.
OTHER_PACKAGES = (
    "rota.store",
    "rota.runtimes",
    "rota.providers",
    "rota.wire",
    "rota.identity",
    "rota.keeper",
    "rota.config",
    "rota.client",
    "rota.cli",
    "rota.wiring",
    "rota.devtools",
    "rota.testing",
    "rota.sim",
)


def test_every_package_is_deciding_code_or_is_not() -> None:
    top = [f"rota.{name}" for names in LAYERS for name in names]

    assert sorted(top) == sorted((*DECIDING, *OTHER_PACKAGES))


def test_the_list_of_pure_modules_comes_from_the_tree() -> None:
    listed = pure(_known_modules())

    assert {"rota.model", "rota.rules", "rota.controllers", "rota.scheduler"} <= set(listed)
    assert {"rota.engine.loop", "rota.watcher.dispatch", "rota.store.codec"} <= set(listed)
    assert not {"rota.engine", "rota.engine.run", "rota.store.sqlite"} & set(listed)


def test_a_marker_stands_only_where_it_is_needed() -> None:
    known = _known_modules()
    deciding = [name for name in known if within(name, DECIDING)]
    marked = [name for name in deciding if is_marked(docstring(known[name]))]
    needless = [name for name in marked if not (_marks_a_package(name, marked) or _reaches_the_world(name))]

    assert needless == []


def test_packages_of_deciding_code_import_nothing() -> None:
    known = _known_modules()
    packages = [name for name, path in known.items() if path.name == "__init__.py" and within(name, DECIDING)]
    importing = [name for name in packages if _imported_by(name)]

    assert importing == []


@pytest.mark.parametrize(
    "named",
    [
        *DECIDING,
        *PURE_ELSEWHERE,
        *(f"{package}.{port}" for package, ports in PORTS.items() for port in ports),
        *NAME_CONCRETE_CLASSES,
        *OUTSIDE,
        *BEHIND_THE_API,
        *EDGES,
        *(pattern for patterns in THIRD_PARTY.values() for pattern in patterns),
    ],
)
def test_every_name_of_the_table_exists(named: str) -> None:
    assert [name for name in _known_modules() if fnmatchcase(name, named)]


def test_pure_modules_elsewhere_carry_no_marker() -> None:
    known = _known_modules()

    assert [name for name in PURE_ELSEWHERE if not is_pure(name, docstring(known[name]))] == []


def _marks_a_package(name: str, marked: list[str]) -> bool:
    """Whether the name is a package all of whose modules are marked."""
    below = [other for other in _known_modules() if other.startswith(f"{name}.")]
    return bool(below) and all(other in marked for other in below)


def _reaches_the_world(start: str) -> bool:
    """Whether the module imports the world, directly or through other modules of ours."""
    known = _known_modules()
    world = (*THE_WORLD, *concrete(known))
    seen, todo = {start}, [start]
    while todo:
        for imported in _imported_by(todo.pop()):
            if within(imported, world):
                return True
            if imported in known and imported not in seen:
                seen.add(imported)
                todo.append(imported)
    return False


@cache
def _known_modules() -> dict[str, Path]:
    return modules(SOURCE)


def _imported_by(name: str) -> list[str]:
    return sorted(_graph().find_modules_directly_imported_by(name))


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("rota", include_external_packages=True, cache_dir=None)
