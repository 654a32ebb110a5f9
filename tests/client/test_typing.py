"""`import rota` is typed: strict mypy and strict pyright accept what is documented and refuse mistakes."""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rota.client
from tests.docs.snippets import Kind, blocks

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "python.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
EXAMPLES = [ROOT / "examples" / "sdk.py", ROOT / "examples" / "ci_controller.py"]
USER_SCRIPT = Path(__file__).parent / "typed" / "user_script.txt"
REFUSED = "# refused"
BIN = Path(sys.executable).parent

PART = re.compile(r"<!-- made from client:\w+:(\w+) -->\n(.*?)<!-- until here -->", re.DOTALL)
ROW = re.compile(r"^\| `(\w+)\(.*?\)` \| (yields )?(?:`(.*?)`)? \|", re.MULTILINE)

Errors = set[tuple[str, int]]  # by file and line


# ---- what a user may write


def test_stub_of_rota_declares_what_the_package_offers() -> None:
    assert names_of_stub("rota") == sorted(rota.__all__) == dir(rota)


def test_stub_of_the_client_declares_what_the_package_offers() -> None:
    assert names_of_stub("rota.client") == sorted(rota.client.__all__) == dir(rota.client)


@pytest.mark.parametrize("package", ["rota", "rota.client"])
def test_stub_imports_each_name_from_where_the_package_finds_it(package: str) -> None:
    imported = {
        alias.name: getattr(importlib.import_module(statement.module), alias.name)
        for statement in stub(package).body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }

    offered = importlib.import_module(package)
    assert set(imported) == set(offered.__all__) - {"__version__"}
    assert {name: getattr(offered, name) for name in imported} == imported


@pytest.mark.parametrize("check", ["mypy", "pyright"])
def test_type_checkers_refuse_the_marked_lines_and_no_others(check: str, tmp_path: Path) -> None:
    write_scripts(tmp_path)
    marked = {
        (path.name, number)
        for path in tmp_path.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if line.endswith(REFUSED)
    }

    assert len(marked) > 25
    assert CHECKERS[check](tmp_path) == marked


def test_every_documented_method_is_checked() -> None:
    documented = re.findall(r"^\| `\w+\(", REFERENCE.read_text(), re.MULTILINE)

    methods = [line for line in documented_methods().splitlines() if " = one." in line]
    assert len(methods) == 2 * len(documented) > 150


# ---- the scripts


def write_scripts(directory: Path) -> None:
    """The marked script, the examples, each snippet of the pages, and one line for each documented method."""
    (directory / "user_script.py").write_text(USER_SCRIPT.read_text())
    (directory / "documented_methods.py").write_text(documented_methods())
    for example in EXAMPLES:
        (directory / f"example_{example.name}").write_text(example.read_text())
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.language == Kind.PYTHON:
                name = f"{page.stem.replace('-', '_')}_{block.line}.py"
                (directory / name).write_text(block.text)


def documented_methods() -> str:
    """`_refresh: Callable[..., JobStatus] = one.refresh` for each row of the reference; asyncio too."""
    body = [line for prefix in ("", "Async") for line in functions(prefix)]
    homes = homes_of_types()
    used = sorted(set(re.findall(r"\w+", " ".join(body))) & homes.keys())
    imports = [f"from {homes[name]} import {name}" for name in used]
    return "\n".join([*imports, *body, ""])


def functions(prefix: str) -> Iterator[str]:
    for of, table in PART.findall(REFERENCE.read_text()):
        yield f"def use_{prefix}{of}(one: {prefix}{of}) -> None:"
        for method, yields, answer in ROW.findall(table):
            yield f"    _{method}: Callable[..., {returned(prefix, yields, answer or 'None')}] = one.{method}"


def returned(prefix: str, yields: str, answer: str) -> str:
    if yields:
        return f"{prefix}Iterator[{answer}]"
    given = f"{prefix}{answer}" if answer == "Job" else answer
    return f"Awaitable[{given}]" if prefix else given


def homes_of_types() -> dict[str, str]:
    """The module of each class that the reference names."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(rota.client.__path__, "rota.client.")
        if found.name != "rota.client.controller"
    ]
    own = {
        name: kind.__module__
        for module in modules
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__.startswith("rota.client")
    }
    abstract = dict.fromkeys(("AsyncIterator", "Awaitable", "Callable", "Iterator"), "collections.abc")
    return {**own, **abstract, "Any": "typing", "Path": "pathlib"}


# ---- the type checkers, as users run them: beside the installed package, with no settings of ours


def mypy(directory: Path) -> Errors:
    command = [str(BIN / "mypy"), "--strict", "--config-file=", "--output=json", "."]
    found = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert not found.stderr, found.stderr
    errors = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
    return {(Path(error["file"]).name, error["line"]) for error in errors if error["severity"] == "error"}


def pyright(directory: Path) -> Errors:
    (directory / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    command = [str(BIN / "basedpyright"), "--pythonpath", sys.executable, "--outputjson"]
    found = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    errors = json.loads(found.stdout)["generalDiagnostics"]
    return {
        (Path(error["file"]).name, error["range"]["start"]["line"] + 1)
        for error in errors
        if error["severity"] == "error"
    }


CHECKERS: dict[str, Callable[[Path], Errors]] = {"mypy": mypy, "pyright": pyright}


def stub(package: str) -> ast.Module:
    path = importlib.import_module(package).__file__
    assert path is not None
    return ast.parse(Path(path).with_suffix(".pyi").read_text())


def names_of_stub(package: str) -> list[str]:
    (names,) = (
        ast.literal_eval(statement.value)
        for statement in stub(package).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
    )
    return list(names)
