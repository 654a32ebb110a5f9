"""The one registry of reconcilers is complete and used everywhere; no string literal wakes a component."""

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from rota.engine.time_zones import zone
from rota.reconcilers import ReconcilerSettings, reconcilers
from rota.rules.reconciler_names import ReconcilerName
from tests.architecture.table import SOURCE, modules, within

REGISTRY = "rota.reconcilers"
USERS = ("rota.wiring", "rota.sim", "rota.testing")


def test_the_registry_holds_every_reconciler_in_the_order_of_their_names() -> None:
    registered = [reconciler.name for reconciler in reconcilers(ReconcilerSettings(zones=zone))]

    assert registered == list(ReconcilerName)


def test_every_module_that_makes_a_reconciler_is_in_the_registry() -> None:
    imported = set(_imports(_tree(REGISTRY)))
    makers = {name for name in _trees() if any(_made(_tree(name)))}

    assert makers - imported == set()
    assert len(makers) == len(ReconcilerName)


def test_every_reconciler_is_named_by_a_member_of_the_enum() -> None:
    named = [ast.unparse(call.args[0]) for name in _trees() for call in _made(_tree(name))]

    assert [name for name in named if name != "NAME" and not name.startswith("ReconcilerName.")] == []


@pytest.mark.parametrize("user", USERS)
def test_server_simulator_and_stage_use_the_registry(user: str) -> None:
    within_user = [name for name in _trees() if within(name, (user,))]

    assert any(f"{REGISTRY}.reconcilers" in set(_imports(_tree(name))) for name in within_user)


def test_no_other_module_lists_reconcilers() -> None:
    listing = {
        name
        for name in _trees()
        if name != REGISTRY
        and any(
            isinstance(node, ast.Attribute) and node.attr == "RECONCILER" for node in ast.walk(_tree(name))
        )
    }

    assert listing == set()


def test_no_string_literal_wakes_a_component() -> None:
    literals = [f"{name}: {found}" for name, tree in _trees().items() for found in _literal_wakes(tree)]

    assert literals == []


@pytest.mark.parametrize(
    "text",
    [
        'loop.wake("place", key)',
        'engine.observe(note, ("place", "round"))',
        'WAKE = ("place", "round")',
    ],
)
def test_a_planted_literal_is_found(text: str) -> None:
    assert list(_literal_wakes(ast.parse(text)))


def _literal_wakes(tree: ast.Module) -> Iterator[str]:
    """Calls and constants that name the reconciler to wake by a string literal."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=func, args=[first, _]) if _called(func) in ("wake", "WorkItem"):
                found = _is_name(first)
            case ast.Call(func=func, args=[_, *pairs]) if _called(func) == "observe":
                found = any(isinstance(pair, ast.Tuple) and _is_name(pair.elts[0]) for pair in pairs)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple(elts=[first, _])) if "WAKE" in name:
                found = _is_name(first)
            case _:
                found = False
        if found:
            yield ast.unparse(node)


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in tuple(ReconcilerName)


def _called(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _made(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reconciler":
            yield node


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _tree(name: str) -> ast.Module:
    return _trees()[name]


@cache
def _trees() -> dict[str, ast.Module]:
    """Every module of ours, parsed once."""
    return {name: ast.parse(path.read_text()) for name, path in modules(SOURCE).items()}
