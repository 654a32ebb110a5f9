"""The result that the agent reports for an ended attempt: exit code, outputs and its result file. [I/O]

The body is that of the REST call by which tasks report by themselves. Its `results` hold the exit code, the
steps, the outputs and, under `results`, the contents of the file. All of it is bounded, so that the server
accepts it.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from rota.agent.output import files
from rota.keeper.protocol.result_endpoint import REPORT
from rota.keeper.task_dirs import PLACE
from rota.model.limits import (
    REASON_LENGTH_MAX,
    RESULT_BYTES_MAX,
    RESULT_FILE_BYTES_MAX,
    RESULT_NESTING_MAX,
    RESULT_OUTPUTS_MAX,
)
from rota.model.messages import AttemptReport, ReportedState
from rota.model.result import depth_of
from rota.runtimes.protocol import AttemptName


class ResultFile(NamedTuple):
    """The result file of an attempt; `error` says why it cannot be used."""

    results: dict[str, Any]
    failure: str | None = None
    error: str | None = None


def result_body(directory: Path, name: AttemptName, report: AttemptReport) -> dict[str, Any]:
    """The body of the REST call that reports the attempt's result."""
    file = read_file(directory, name)
    results: dict[str, Any] = {"exit_code": None if report.exit_code < 0 else report.exit_code}
    if report.signal:
        results["signal"] = report.signal
    if report.steps:
        results["steps"] = [None if step.exit_code < 0 else step.exit_code for step in report.steps]
    if file.results:
        results["results"] = file.results
    if file.error is not None:
        results["result_file"] = file.error
    return {"results": _with_outputs(results, directory, name), "failure": file.failure or _failure(report)}


def encoded(body: object) -> bytes:
    """A body as compact JSON; ValueError for text that is not Unicode."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _failure(report: AttemptReport) -> str | None:
    if report.state == ReportedState.EXITED and report.exit_code == 0 and not report.signal:
        return None
    if report.reason:
        return report.reason[:REASON_LENGTH_MAX]
    if report.state != ReportedState.EXITED:
        return "it was stopped" if report.state == ReportedState.STOPPED else "it exceeded its time limit"
    code, signal = report.exit_code, report.signal
    return f"it was ended by signal {signal}" if signal else f"it ended with exit code {code}"


def _with_outputs(results: dict[str, Any], directory: Path, name: AttemptName) -> dict[str, Any]:
    """Add as many outputs as fit, and their total number if some do not."""
    found = files.listed(directory, name.job, name.task)
    if not found:
        return results
    listed = [{"path": _shown(path), "bytes": size} for path, size in found[:RESULT_OUTPUTS_MAX]]
    while True:
        total = {} if len(listed) == len(found) else {"outputs_in_all": len(found)}
        full = {**results, "outputs": listed, **total}
        if not listed or len(encoded(full)) <= RESULT_BYTES_MAX:
            return full
        listed = listed[: len(listed) // 2]


def _shown(path: str) -> str:
    """The path as text; bytes that are not UTF-8 become replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")


def read_file(directory: Path, name: AttemptName) -> ResultFile:
    """Read the file that a task wrote for its agent to report. The task may have put anything there."""
    try:
        task = directory / PLACE / name.job / str(name.task)
        with files.open_directory_beneath(task, REPORT) as place_fd:
            raw = _read(place_fd, f"{name.attempt}.json", os.fstat(place_fd).st_uid)
    except FileNotFoundError:
        return ResultFile({})
    except files.NotItsOwn:
        raw = None
    except OSError as error:
        return ResultFile({}, error=f"cannot be read: {error.strerror}")
    if raw is None:
        return ResultFile({}, error=f"is no plain file of at most {RESULT_FILE_BYTES_MAX} bytes")
    return _parsed(raw)


def _read(place_fd: int, name: str, owner: int) -> bytes | None:
    with files.opened_file(place_fd, name, owner) as fd:
        too_long = os.fstat(fd).st_size > RESULT_FILE_BYTES_MAX
        return None if too_long else os.read(fd, RESULT_FILE_BYTES_MAX)


def _parsed(raw: bytes) -> ResultFile:
    try:
        content = json.loads(raw, parse_constant=_no_number)
        encoded(content)  # Python accepts lone surrogates in JSON, other parsers do not
    except (ValueError, RecursionError):
        return ResultFile({}, error="is not JSON")
    if not isinstance(content, dict) or not content.keys() <= {"results", "failure"}:
        return ResultFile({}, error="is not an object with results and failure")
    results, failure = content.get("results") or {}, content.get("failure")
    if not isinstance(results, dict) or not isinstance(failure, str | None):
        return ResultFile({}, error="results is no object, or failure no text")
    if depth_of(results) >= RESULT_NESTING_MAX:  # the body nests it one level deeper
        return ResultFile({}, error=f"results is nested deeper than {RESULT_NESTING_MAX - 1} levels")
    return ResultFile(results, failure[:REASON_LENGTH_MAX].replace("\0", "") if failure else None)


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not a number in JSON")
