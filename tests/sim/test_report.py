"""Every counter is in the report; a failure is printed with a command that reproduces it."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rota.sim
from rota.sim.faults.draw import KINDS
from rota.sim.report import BRANCHES, STEPS, batch_table, failure
from rota.sim.scenario import Finding, scenario
from tests.sim.planting import bugs, plant

EASY_BUG = "counters-not-stored"  # a planted bug that is found fast, with few jobs and faults
KNOWN = [*(f"fault: {kind}" for kind in KINDS), *BRANCHES, *STEPS]


def counted() -> Iterator[str]:
    """A pattern for each counter of the simulator."""
    for path in sorted(Path(rota.sim.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="count"), args=[ast.Constant(value=str(what))]):
                    yield re.escape(what)
                case ast.Call(func=ast.Attribute(attr="count"), args=[ast.JoinedStr(values=parts)]):
                    yield "".join(
                        re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"
                        for part in parts
                    )
                case _:
                    pass


def test_every_counter_is_in_the_table_even_if_it_is_zero() -> None:
    patterns = list(counted())

    assert patterns
    assert [
        expected for expected in patterns if not any(re.fullmatch(expected, name) for name in KNOWN)
    ] == []


def test_every_row_of_the_table_is_counted_somewhere() -> None:
    patterns = list(counted())

    assert [name for name in KNOWN if not any(re.fullmatch(expected, name) for expected in patterns)] == []
    assert len(KNOWN) == len(set(KNOWN))


def test_a_batch_table_has_counts_and_what_was_never_met() -> None:
    first, second = BRANCHES[:2]
    table = batch_table(Counter({first: 1234, "something new": 2}), 2000)
    *rows, never = table.splitlines()

    assert rows[0].split() == ["met", "in", "2,000", "seeds", "times"]
    assert [row.rsplit(maxsplit=1) for row in rows[1:]] == [[first, "1,234"], ["something new", "2"]]
    assert never.startswith("never met: fault: ")
    assert second in never
    assert first not in never


def test_a_failure_has_the_violation_its_faults_and_a_command_to_reproduce_it() -> None:
    found = scenario(7)
    part = found._replace(arrivals=found.arrivals[1:2], faults=[found.faults[0], found.faults[-1]])
    trace = ["0.1  n1: of job 3", "0.2  n1: of job 31", "0.3  fault: cut off begins", "0.4  server-1: else"]
    printed = failure(
        Finding(found, "job 3 broke", "", []), Finding(part, "job 3 broke", "", trace)
    ).splitlines()

    assert printed[0] == "seed 7: job 3 broke"
    assert printed[1].startswith(f"the shortest case found: 1 job of {len(found.arrivals)}, 2 faults of")
    assert printed[2:4] == [f"  fault at {fault}" for fault in part.faults]
    assert [line for line in printed if line in trace] == [trace[0], trace[2]]
    again = shlex.split(printed[-1].removeprefix("reproduce: "))
    assert again[:5] == ["python", "-m", "rota.sim", "--seed", "7"]
    assert again[again.index("--jobs-kept") + 1] == "1"
    assert again[again.index("--faults-kept") + 1] == f"0,{len(found.faults) - 1}"


def test_a_failure_without_faults_can_be_reproduced() -> None:
    found = scenario(7)
    printed = failure(
        Finding(found, "it broke", "", []),
        Finding(found._replace(faults=[], arrivals=[]), "it broke", "", []),
    )

    again = shlex.split(printed.splitlines()[-1])
    assert again[again.index("--jobs-kept") + 1] == again[again.index("--faults-kept") + 1] == ""


@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_command_of_a_failure_reproduces_it(tmp_path: Path) -> None:
    (bug,) = bugs([EASY_BUG])
    plant(bug, tmp_path)
    first = simulated(tmp_path, ["python", "-m", "rota.sim", "--seed", str(bug.seed)])
    printed = first.stdout.splitlines()
    again = simulated(tmp_path, shlex.split(printed[-1].removeprefix("reproduce: ")))

    assert printed[0].startswith(f"seed {bug.seed}: ")
    assert printed[-1].startswith("reproduce: python -m rota.sim ")
    assert (first.returncode, again.returncode) == (1, 1)
    broken = next(line for line in printed if " BROKEN: " in line)
    assert broken in again.stdout.splitlines()


def simulated(directory: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    assert command[0] == "python"
    env = {**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command[1:]], env=env, capture_output=True, text=True, check=False
    )
