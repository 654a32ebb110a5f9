"""A CI pipeline as an external controller: actions run one after the other, the next only after success.

Start a cluster with `rota dev`, then: python ci_controller.py ci-pipeline.toml

It keeps a journal beside the pipeline. Killed at any moment and started again, it resumes after the last
event in it: it misses no event, and handles none twice.
"""

import contextlib
import json
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rota.client.controller import Controller
from rota.client.errors import Conflict

NAME = "ci"


def main(pipeline: Path) -> int:
    actions = tomllib.loads(pipeline.read_text())["action"]
    with Controller.connect(NAME) as controller:
        return Run(controller, actions, Journal(pipeline.with_suffix(".journal"))).run_to_end()


class Journal:
    """An append-only file; each line is durable when `write` returns."""

    def __init__(self, path: Path) -> None:
        self.lines: list[dict[str, Any]] = list(_whole_lines(path))
        self._file = path.open("ab")

    def write(self, **line: Any) -> None:
        self.lines.append(line)
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines; a crash may have cut the last one short, which then was never written."""
    data = path.read_bytes() if path.exists() else b""
    complete = data[: data.rfind(b"\n") + 1]
    path.write_bytes(complete)
    return (json.loads(line) for line in complete.splitlines())


class Run:
    """One run of a pipeline. Its actions are idempotent; an event is recorded as handled after them."""

    def __init__(self, controller: Controller, actions: list[dict[str, Any]], journal: Journal) -> None:
        self._controller = controller
        self._actions = actions
        self._journal = journal
        if not journal.lines:
            journal.write(sequence=controller.state()[0].sequence, run=os.urandom(8).hex())
        self._run = journal.lines[0]["run"]
        self._done = sum(line.get("state") == "succeeded" for line in journal.lines)

    def run_to_end(self) -> int:
        if self._is_over():
            return self._result()
        job = self._start_next()
        for event in self._controller.events(after=self._journal.lines[-1]["sequence"]):
            if event.job != job:
                continue
            if event.kind == "task.unresolved":
                # Conflict: decided before a crash that happened before the journal was written.
                with contextlib.suppress(Conflict):
                    self._controller.resolve(event, "again")
            ended = event.state if event.kind == "job.ended" else ""
            self._journal.write(sequence=event.sequence, kind=event.kind, job=event.job, state=ended)
            self._controller.acknowledge(event.sequence)
            if ended:
                self._done += ended == "succeeded"
                if self._is_over():
                    break
                job = self._start_next()
        return self._result()

    def _start_next(self) -> str:
        """Submit the next action; after a crash the same key returns the same job."""
        action = self._actions[self._done]
        spec = {**action, "recovery": "controller", "controller": NAME}
        job = self._controller.submit(spec, key=f"{self._run}-{self._done}")
        print(f"{action['name']} is job {job}", flush=True)
        return job

    def _is_over(self) -> bool:
        ended = [line["state"] for line in self._journal.lines if line.get("state")]
        return self._done == len(self._actions) or any(state != "succeeded" for state in ended)

    def _result(self) -> int:
        succeeded = self._done == len(self._actions)
        last = (
            "the pipeline succeeded" if succeeded else f"{self._actions[self._done]['name']} did not succeed"
        )
        print(last, flush=True)
        return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
