"""What the agent reports of an attempt that has ended: how it ended, its outputs, and the file it left. [I/O]

The body is that of the REST call by which tasks report themselves. Its `results` are the exit code, the
steps, the outputs and, under `results`, what the file holds; all of it is bounded, so that the server takes
it.
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


def result_body(directory: Path, name: AttemptName, claim: AttemptReport) -> dict[str, Any]:
    """The body of the report."""
    file = read_file(directory, name)
    said: dict[str, Any] = {"exit_code": None if claim.exit_code < 0 else claim.exit_code}
    if claim.signal:
        said["signal"] = claim.signal
    if claim.steps:
        said["steps"] = [None if mark.exit_code < 0 else mark.exit_code for mark in claim.steps]
    if file.results:
        said["results"] = file.results
    if file.error is not None:
        said["result_file"] = file.error
    return {"results": _with_outputs(said, directory, name), "failure": file.failure or _failure(claim)}


def encoded(body: object) -> bytes:
    """As it goes over the wire; a text that is not Unicode is a ValueError."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _failure(claim: AttemptReport) -> str | None:
    if claim.said == ReportedState.EXITED and claim.exit_code == 0 and not claim.signal:
        return None
    if claim.reason:
        return claim.reason[:REASON_LENGTH_MAX]
    if claim.said != ReportedState.EXITED:
        return "it was stopped" if claim.said == ReportedState.STOPPED else "it ran longer than it may"
    code, signal = claim.exit_code, claim.signal
    return f"it was ended by signal {signal}" if signal else f"it ended with exit code {code}"


def _with_outputs(said: dict[str, Any], directory: Path, name: AttemptName) -> dict[str, Any]:
    """The same with as many outputs as fit, and how many there are in all where some do not."""
    found = files.listed(directory, name.job, name.task)
    if not found:
        return said
    listed = [{"path": _shown(path), "bytes": size} for path, size in found[:RESULT_OUTPUTS_MAX]]
    while True:
        rest = {} if len(listed) == len(found) else {"outputs_in_all": len(found)}
        full = {**said, "outputs": listed, **rest}
        if not listed or len(encoded(full)) <= RESULT_BYTES_MAX:
            return full
        listed = listed[: len(listed) // 2]


def _shown(path: str) -> str:
    """A path that is not UTF-8 is shown with marks in place of what cannot be."""
    return os.fsencode(path).decode("utf-8", "replace")


def read_file(directory: Path, name: AttemptName) -> ResultFile:
    """What a task wrote for its agent to report; it may have made the file, or a link, of anything."""
    try:
        tasks = directory / PLACE / name.job
        if tasks.is_dir():
            with files.open_directory_beneath(tasks / str(name.task), REPORT) as place_fd:
                raw = _read(place_fd, f"{name.attempt}.json", os.fstat(place_fd).st_uid)
        else:  # of a keeper that was started before an upgrade
            with files.open_directory_beneath(directory / "work" / name.job, ".rota") as place_fd:
                owner = os.stat(directory / "work" / name.job).st_uid
                raw = _read(place_fd, f"{name.task}.{name.attempt}.json", owner)
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
        said = json.loads(raw, parse_constant=_no_number)
        encoded(said)  # half a character is JSON to Python, and to nobody else
    except (ValueError, RecursionError):
        return ResultFile({}, error="is not JSON")
    if not isinstance(said, dict) or not said.keys() <= {"results", "failure"}:
        return ResultFile({}, error="is not an object with results and failure")
    results, failure = said.get("results") or {}, said.get("failure")
    if not isinstance(results, dict) or not isinstance(failure, str | None):
        return ResultFile({}, error="results is no object, or failure no text")
    if depth_of(results) >= RESULT_NESTING_MAX:  # it is nested in the report
        return ResultFile({}, error=f"results is nested deeper than {RESULT_NESTING_MAX - 1} levels")
    return ResultFile(results, failure[:REASON_LENGTH_MAX].replace("\0", "") if failure else None)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number in JSON")
