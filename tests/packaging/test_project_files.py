"""The files that contributors and their tools expect are valid and agree with pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_ci_runs_the_python_versions_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    language = "Programming Language :: Python :: 3."
    named = [
        f"3.{name.removeprefix(language)}" for name in project["classifiers"] if name.startswith(language)
    ]

    assert read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"


def test_ci_runs_what_a_developer_runs() -> None:
    steps = read(".github/workflows/ci.yml")["jobs"]["test"]["steps"]

    (command,) = (step["run"] for step in steps if "run" in step)
    assert command.endswith(" bash .ci/run")


def test_pre_commit_runs_make_lint_and_downloads_nothing() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]

    assert repository["repo"] == "local"
    assert [(hook["entry"], hook["language"]) for hook in repository["hooks"]] == [("make lint", "system")]


@pytest.mark.parametrize(
    "form", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem
)
def test_an_issue_form_has_a_required_question(form: Path) -> None:
    content = read(str(form.relative_to(ROOT)))
    questions = [field for field in content["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in questions]

    assert content["name"]
    assert content["description"]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in questions)
    assert any(field.get("validations", {}).get("required") for field in questions)


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())
