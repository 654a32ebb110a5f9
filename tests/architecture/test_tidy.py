"""The source is tidy, and each tidy rule finds what it looks for."""

import pytest

from tests.architecture.table import FILE_LINES, FUNCTION_LINES, PARAMETERS, SOURCE, modules
from tests.architecture.tidy import findings

DOC = '"""What it is."""\n'
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * FUNCTION_LINES
MANY_PARAMETERS = f"def f({', '.join(f'p{n}' for n in range(PARAMETERS))}, *, last): ..."


def test_the_source_is_tidy() -> None:
    untidy = [
        str(finding) for name, path in modules(SOURCE).items() for finding in findings(name, path.read_text())
    ]

    assert not untidy, "\n" + "\n".join(untidy)


@pytest.mark.parametrize(
    ("module", "text", "problem"),
    [
        ("rota.cli.ls", "x = 1", "no docstring"),
        ("rota.cli.ls", DOC + "x = 1\n" * FILE_LINES, f"at most {FILE_LINES}"),
        ("rota.cli.ls", DOC + LONG_FUNCTION, f"at most {FUNCTION_LINES}"),
        ("rota.cli.ls", DOC + MANY_PARAMETERS, f"at most {PARAMETERS}"),
        ("rota.cli.ls", DOC + "class NodeManager: ...", "NodeManager"),
        ("rota.cli.ls", DOC + "class ErrorInfo: ...", "ErrorInfo"),
        ("rota.cli.ls", DOC + "from . import show", "relative import"),
        ("rota.cli.ls", DOC + "import typing\nif typing.TYPE_CHECKING: ...", "TYPE_CHECKING"),
        ("rota.client.job", DOC + "def f():\n    import json", "import inside f"),
        ("rota.client.job", DOC + "async def f():\n    from json import loads", "import inside f"),
        ("rota.model.job", DOC + "import grpc", "grpc may not"),
        ("rota.store.sqlite", DOC + "from grpc.aio import Channel", "grpc may not"),
        ("rota.cli.ls", DOC + "import requests", "requests may not"),
        ("rota.cli.ls", DOC + "import pickle", "pickle"),
        ("rota.cli.ls", DOC + "eval('1')", "eval"),
        ("rota.cli.ls", DOC + "import yaml\nyaml.load(x)", "yaml.load"),
        ("rota.cli.ls", DOC + "from yaml import load", "yaml.load"),
        ("rota.cli.ls", DOC + "run('ls', shell=True)", "shell=True"),
        ("rota.cli.ls", DOC + "try: f()\nexcept: pass", "every error"),
        ("rota.cli.ls", DOC + "try: f()\nexcept Exception: pass", "every error"),
        ("rota.cli.ls", DOC + "try: f()\nexcept (OSError, BaseException) as e: pass", "every error"),
        ("rota.cli.ls", DOC + "try: f()\nexcept* OSError as e: raise e.exceptions[0]", "inside except*"),
        ("rota.model.job", DOC + "for x in {1, 2}: ...", "order is not fixed"),
        ("rota.scheduler.placement.place", DOC + "[x for x in list(set(y))]", "order is not fixed"),
        ("rota.scheduler.placement.place", DOC + "for x in set(y) - z: ...", "order is not fixed"),
        ("rota.model.job", DOC + "datetime.now(UTC)", "time is an argument"),
        ("rota.rules.cron_runs", DOC + "datetime.date.today()", "time is an argument"),
        ("rota.scheduler.round", DOC + "f = datetime.fromtimestamp", "time is an argument"),
        ("rota.cli.ls", DOC + "# TO" + "DO: later", "left to do"),
        ("rota.cli.ls", DOC + "home = '/ro" + "ot/x'", "path of one machine"),
    ],
)
def test_a_planted_untidiness_is_found(module: str, text: str, problem: str) -> None:
    (found,) = findings(module, text)

    assert problem in str(found)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("rota.cli.ls", DOC + "def f():\n    import rich"),
        ("rota.watcher.agent_service", DOC + "import grpc"),
        ("rota.store.etcd", DOC + "import grpc"),
        ("rota.cli.main", DOC + "try: f()\nexcept Exception: pass"),
        ("rota.cli.ls", DOC + "try: f()\nexcept BaseException:\n    undo()\n    raise"),
        ("rota.model.job", DOC + "for x in sorted(set(y)): ..."),
        ("rota.model.job", DOC + "from datetime import datetime\nx = datetime.fromisoformat(y)"),
        ("rota.model.job", DOC + "clock.now()"),
        ("rota.cli.ls", DOC + "datetime.now(UTC)"),
        ("rota.cli.ls", DOC + "for x in set(y): ..."),
        ("rota.keeper.run", DOC + "where = f'{directory}/work/{job}'"),
        ("rota.cli.ls", DOC + "class Database: ..."),
    ],
)
def test_what_is_accepted_gives_no_finding(module: str, text: str) -> None:
    assert findings(module, text) == []
