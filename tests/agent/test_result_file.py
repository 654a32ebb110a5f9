"""Results reported by the agent are bounded, whatever the task has left."""

import os
from pathlib import Path

import pytest

from rota.agent.output import result_file
from rota.model.ids import JobId
from rota.model.limits import RESULT_BYTES_MAX
from rota.model.messages import AttemptReport, ReportedState
from rota.model.steps import StepMark
from rota.runtimes.protocol import AttemptName

NAME = AttemptName(JobId("1"), 0, 1)
GOOD = AttemptReport(0, 1, ReportedState.EXITED, 0, started_at_ms=5)


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The file that the task left; beside it is the directory of its outputs."""
    (tmp_path / "tasks/1/0/report").mkdir(parents=True)
    (tmp_path / "tasks/1/0/out").mkdir()
    return tmp_path / "tasks/1/0/report/1.json"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"results": {"a": NaN}}', "is not JSON"),
        ('{"results": {"a": "\\ud800"}}', "is not JSON"),
        ('{"results": {"a": 1}', "is not JSON"),
        ("[" * 5000, "is not JSON"),
        ('{"a": 1}', "is not an object with results and failure"),
        ('{"results": 7}', "results is no object, or failure no text"),
        ('{"failure": 7}', "results is no object, or failure no text"),
        ('{"results": ' + '{"a":' * 40 + "1" + "}" * 41, "results is nested deeper than 31 levels"),
    ],
)
def test_an_unusable_result_file_is_reported(tmp_path: Path, left: Path, text: str, error: str) -> None:
    left.write_text(text)

    assert result_file.result_body(tmp_path, NAME, GOOD) == {
        "results": {"exit_code": 0, "result_file": error},
        "failure": None,
    }


def test_outputs_are_cut_to_fit_and_odd_names_are_shown(tmp_path: Path, left: Path) -> None:
    out = tmp_path / "tasks/1/0/out"
    for number in range(100):
        (out / f"{number:03}{'x' * 240}").touch()
    os.close(os.open(os.fsencode(out) + b"/0\xff", os.O_CREAT))
    left.write_text('{"results": {"a": "%s"}}' % ("y" * 8000))
    body = result_file.result_body(tmp_path, NAME, GOOD)
    results = body["results"]

    assert len(result_file.encoded(results)) <= RESULT_BYTES_MAX
    assert (len(results["outputs"]), results["outputs_in_all"]) == (25, 101)
    assert len(results["results"]["a"]) == 8000
    assert result_file.encoded(body)


@pytest.mark.parametrize(
    ("claim", "failure"),
    [
        (AttemptReport(0, 1, ReportedState.EXITED, 3), "it ended with exit code 3"),
        (AttemptReport(0, 1, ReportedState.EXITED, 127, reason="no such command"), "no such command"),
        (AttemptReport(0, 1, ReportedState.EXITED, -1, signal=9), "it was ended by signal 9"),
        (AttemptReport(0, 1, ReportedState.STOPPED, 0), "it was stopped"),
        (AttemptReport(0, 1, ReportedState.TIMED_OUT, 143), "it exceeded its time limit"),
    ],
)
def test_an_unsuccessful_end_is_reported_as_a_failure(
    tmp_path: Path, claim: AttemptReport, failure: str
) -> None:
    assert result_file.result_body(tmp_path, NAME, claim)["failure"] == failure


def test_the_exit_code_of_each_started_step_is_reported(tmp_path: Path) -> None:
    steps = (StepMark(1, 2, 0), StepMark(3, 4, 7))
    body = result_file.result_body(tmp_path, NAME, AttemptReport(0, 1, ReportedState.EXITED, 7, steps=steps))

    assert body["results"] == {"exit_code": 7, "steps": [0, 7]}
