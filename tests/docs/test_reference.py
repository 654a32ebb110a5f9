"""The reference pages are complete: generated parts are up to date, written ones omit nothing."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from rota.apiserver.http import ROUTES
from rota.apiserver.responses import STATUS_OF_CODE
from rota.apiserver.spec.job import SPEC_FIELDS
from rota.keeper.protocol.wire import ORDER_PARSERS
from rota.keeper.spawn import PASSED_ENVIRONMENT
from rota.model.messages import ReportedState

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
DECIDERS = ("apiserver", "controllers", "scheduler", "watcher", "clusters")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    return (REFERENCE / name).read_text()


@pytest.mark.parametrize("name", ["states.md", "limits.md", "config.md", "cli.md", "python.md"])
def test_generated_parts_are_up_to_date(name: str) -> None:
    assert generator().renewed(page(name)) == page(name), "run python docs/generate.py"


def test_every_route_is_described() -> None:
    text = page("http-api.md")

    missing = [
        f"{method} {route.path}"
        for route in ROUTES
        for method in route.methods or ()
        if f"`{method} {route.path}`" not in text
    ]
    assert not missing


def test_every_error_code_is_listed_with_its_status() -> None:
    rows = dict(re.findall(r"^\| (\d{3}) \| (.*) \|$", page("http-api.md"), re.MULTILINE))

    missing = [
        code for code, status in STATUS_OF_CODE.items() if f"`{code}`" not in rows.get(str(status), "")
    ]
    assert not missing


def test_every_field_of_a_job_is_described() -> None:
    text = page("job-spec.md")

    assert [
        field for field in SPEC_FIELDS if not re.search(rf"^\| .*`{field}`.* \|", text, re.MULTILINE)
    ] == []


def test_the_environment_of_a_task_is_described() -> None:
    assert [name for name in PASSED_ENVIRONMENT if f"`{name}`" not in page("job-spec.md")] == []


def test_every_message_call_and_event_is_described() -> None:
    protocols = "\n".join(path.read_text() for path in sorted((ROOT / "proto" / "rota").rglob("*.proto")))
    names = re.findall(r"^message (\w+)|^  rpc (\w+)", protocols, re.MULTILINE)
    deciders = [path for package in DECIDERS for path in (ROOT / "src" / "rota" / package).glob("*.py")]
    kinds = re.findall(r'"((?:job|task|node)\.[a-z]+)"', "\n".join(path.read_text() for path in deciders))
    text = page("protocol.md")

    missing = [name for pair in names for name in pair if name and f"`{name}`" not in text]
    missing += [kind for kind in kinds if f"`{kind}`" not in text]
    assert len(kinds) > 10
    assert not missing


def test_every_message_between_agent_and_keeper_is_described() -> None:
    text = page("protocol.md")

    missing = [op for op in ORDER_PARSERS if f"| `{op}`" not in text]
    missing += [
        state.name for state in ReportedState if f"| {state.name.lower()} | {state.value} |" not in text
    ]
    assert not missing
