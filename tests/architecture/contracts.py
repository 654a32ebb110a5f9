"""The table -> import-linter's contracts, for the modules that exist."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.table import (
    BEHIND_THE_API,
    LAYERS,
    NAME_CONCRETE_CLASSES,
    OUTSIDE,
    PORTS,
    THE_WORLD,
    is_pure,
    modules,
    within,
)

Contract = dict[str, str | bool | list[str]]


def complaints(source: Path, scratch: Path) -> str:
    """Complaints of import-linter about the tree below `source`; empty when every contract holds."""
    settings = scratch / "contracts.toml"
    settings.write_text(as_toml(contracts(source)))
    lint = ["lint", "--config", str(settings), "--no-cache", "--no-logo"]
    linted = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import import_linter; import_linter()", *lint],
        env=os.environ | {"PYTHONPATH": str(source), "COLUMNS": "200", "NO_COLOR": "1"},
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if linted.returncode == 0 else linted.stdout + linted.stderr


def contracts(source: Path) -> list[Contract]:
    # import-linter refuses a contract that names a module that does not exist.
    known = modules(source)
    drafts: list[Contract] = [
        layers(known),
        forbidden("deciding code touches nothing", pure(known), (*THE_WORLD, *concrete(known))),
        forbidden("the keeper imports nothing else of ours", ("rota.keeper",), packages_but("keeper")),
        forbidden("outside is outside", OUTSIDE, BEHIND_THE_API) | {"allow_indirect_imports": True},
        protected("only the wiring names concrete classes", concrete(known)),
        {"name": "no cycles", "type": "acyclic_siblings", "ancestors": ["rota"]},
    ]
    return [contract for draft in drafts if (contract := only_what_exists(draft, known))]


def layers(known: dict[str, Path]) -> Contract:
    existing = [[name for name in names if f"rota.{name}" in known] for names in LAYERS]
    return {
        "name": "imports go downward only",
        "type": "layers",
        "containers": ["rota"],
        "exhaustive": True,
        "layers": [" | ".join(names) for names in existing if names],
    }


def forbidden(name: str, sources: tuple[str, ...], targets: tuple[str, ...]) -> Contract:
    return {
        "name": name,
        "type": "forbidden",
        "source_modules": list(sources),
        "forbidden_modules": list(targets),
    }


def protected(name: str, targets: tuple[str, ...]) -> Contract:
    return {
        "name": name,
        "type": "protected",
        "protected_modules": list(targets),
        # A concrete class may be spread over several files of its own package.
        "allowed_importers": [*NAME_CONCRETE_CLASSES, *PORTS],
    }


def packages_but(name: str) -> tuple[str, ...]:
    return tuple(f"rota.{other}" for names in LAYERS for other in names if other != name)


def pure(known: dict[str, Path]) -> tuple[str, ...]:
    """All deciding code: each package whose modules are all pure, else each pure module by itself."""
    impure = [name for name, path in known.items() if not is_pure(name, docstring(path))]
    whole = [name for name in known if not any(within(below, (name,)) for below in impure)]
    # A contract on a package covers everything below it: naming its modules as well would only cost time.
    return tuple(name for name in whole if not _has_named_parent(name, frozenset(whole)))


def _has_named_parent(name: str, named: frozenset[str]) -> bool:
    parent = name.rpartition(".")[0]
    return bool(parent) and (parent in named or _has_named_parent(parent, named))


def docstring(path: Path) -> str | None:
    return ast.get_docstring(ast.parse(path.read_text()))


def concrete(known: dict[str, Path]) -> tuple[str, ...]:
    """Each module directly below a port's package, except the ports."""
    below = (name.rpartition(".") for name in known)
    return tuple(f"{package}.{leaf}" for package, _, leaf in below if leaf not in PORTS.get(package, (leaf,)))


def only_what_exists(draft: Contract, known: dict[str, Path]) -> Contract:
    """The contract without modules that do not exist; empty when none of its modules do."""
    lists = ("source_modules", "forbidden_modules", "protected_modules", "allowed_importers")
    kept = dict(draft)
    for key in lists:
        names = draft.get(key)
        if isinstance(names, list):
            kept[key] = [name for name in names if name in known or not name.startswith("rota.")]
    return kept if all(kept.get(key, True) for key in lists) else {}


def as_toml(drawn_up: list[Contract]) -> str:
    """The contracts as TOML; strings, booleans and lists of strings have the same syntax in JSON."""
    head = '[tool.importlinter]\nroot_package = "rota"\ninclude_external_packages = true\n'
    tables = (
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in contract.items()) for contract in drawn_up
    )
    return head + "".join(f"\n[[tool.importlinter.contracts]]\n{table}" for table in tables)
