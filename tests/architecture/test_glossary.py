"""The glossary lists every package and every state, and every name it gives for code exists."""

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from rota.model import lifecycle
from tests.architecture.table import ROOT, SOURCE

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
TERMS = ["term", "meaning", "code", "elsewhere"]
PACKAGES = ["package", "holds"]
NAME = re.compile(r"`(rota(?:\.\w+)+)`")


class Table(NamedTuple):
    header: list[str]
    rows: list[list[str]]


def test_every_package_is_listed_and_no_other() -> None:
    assert listed_packages(page()) == packages(SOURCE)


def test_every_member_of_a_state_enum_is_listed_and_no_other() -> None:
    listed = states(page())
    required = {f"rota.model.lifecycle.{enum.__name__}" for enum in state_enums()}

    assert required <= set(listed)
    for name, members in listed.items():
        assert members == members_of(name), name


def test_every_name_given_for_code_exists() -> None:
    missing = [name for name in code_names(page()) if not exists(name, SOURCE)]

    assert not missing


def test_every_term_has_one_complete_row() -> None:
    rows = rows_under(TERMS, page())
    terms = Counter(row[0] for row in rows)

    assert [term for term, times in terms.items() if times > 1] == []
    assert [row[0] for row in rows if len(row) != len(TERMS) or not all(row)] == []


def test_the_code_column_has_nothing_but_names() -> None:
    cells = [row[2] for row in rows_under(TERMS, page())]

    assert cells
    assert [cell for cell in cells if cell != "-" and NAME.sub("", cell).strip(" ,")] == []


def test_a_package_that_is_not_listed_is_noticed(tmp_path: Path) -> None:
    planted = tmp_path / "rota" / "planted"
    planted.mkdir(parents=True)
    (planted / "module.py").touch()

    assert "rota.planted" in packages(tmp_path)
    assert "rota.planted" not in listed_packages(page())


def test_a_state_that_is_not_listed_is_noticed() -> None:
    name = "rota.model.lifecycle.MachineState"
    without = re.sub(r"^\| joined \|.*\n", "", page(), flags=re.MULTILINE)

    assert states(without)[name] != members_of(name)


@pytest.mark.parametrize(
    "name", ["rota.model.jobs", "rota.model.job.Jobs", "rota.model.job.JobSpec.nothing", "rota.nowhere"]
)
def test_a_name_that_does_not_exist_is_noticed(name: str) -> None:
    assert not exists(name, SOURCE)


@pytest.mark.parametrize(
    "name", ["rota.model", "rota.model.job", "rota.model.job.JobSpec", "rota.model.job.JobSpec.count"]
)
def test_packages_modules_classes_and_fields_are_names(name: str) -> None:
    assert exists(name, SOURCE)


# ---- the page


def page() -> str:
    return GLOSSARY.read_text()


def tables(text: str) -> Iterator[Table]:
    """Every table of a page: consecutive lines that begin with a bar; the second one is a rule."""
    block: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append([cell.strip() for cell in line.strip("|").split("|")])
        elif block:
            header, _, *rows = block
            yield Table(header, rows)
            block = []


def rows_under(header: list[str], text: str) -> list[list[str]]:
    return [row for table in tables(text) if table.header == header for row in table.rows]


def listed_packages(text: str) -> list[str]:
    return sorted(row[0].strip("`") for row in rows_under(PACKAGES, text))


def states(text: str) -> dict[str, list[str]]:
    """The members of each enum that heads a table, in the order of the table."""
    return {
        match[1]: [row[0] for row in table.rows]
        for table in tables(text)
        if (match := NAME.fullmatch(table.header[0]))
    }


def code_names(text: str) -> list[str]:
    """Every name in the code column, every package and every enum that heads a table."""
    code = [name for row in rows_under(TERMS, text) for name in NAME.findall(row[2])]
    return [*code, *listed_packages(text), *states(text)]


# ---- the tree


def packages(source: Path) -> list[str]:
    directories = {path.parent for path in (source / "rota").rglob("*.py")} - {source / "rota"}
    return sorted(".".join(path.relative_to(source).parts) for path in directories)


def state_enums() -> list[type[Enum]]:
    found = [enum for _, enum in inspect.getmembers(lifecycle, _is_enum) if enum.__name__.endswith("State")]
    assert found
    return found


def _is_enum(one: object) -> bool:
    return inspect.isclass(one) and issubclass(one, Enum) and one.__module__ == lifecycle.__name__


def members_of(name: str) -> list[str]:
    """As users read them: the value, or the name where the value is a number."""
    module, _, enum = name.rpartition(".")
    members = getattr(importlib.import_module(module), enum)
    return [member.value if isinstance(member.value, str) else member.name.lower() for member in members]


def exists(name: str, source: Path) -> bool:
    """Whether this is a package, a module, or something that a module or a class of it defines."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = source.joinpath(*parts[:end])
        if path.is_dir() and end == len(parts):
            return True
        if (module := path.with_suffix(".py")).is_file():
            return _defines(_body(module), parts[end:])
        if (module := path / "__init__.py").is_file():
            return _defines(_body(module), parts[end:])
    return False


@cache
def _body(module: Path) -> list[ast.stmt]:
    return ast.parse(module.read_text()).body


def _defines(body: list[ast.stmt], names: list[str]) -> bool:
    if not names:
        return True
    for statement in body:
        match statement:
            case ast.ClassDef(name=name, body=inner) if name == names[0]:
                return _defines(inner, names[1:])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == names[0]:
                return len(names) == 1
            case ast.AnnAssign(target=ast.Name(id=name)) if name == names[0]:
                return len(names) == 1
            case ast.Assign(targets=targets) if any(_is_named(target, names[0]) for target in targets):
                return len(names) == 1
            case _:
                pass
    return False


def _is_named(target: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(target))
