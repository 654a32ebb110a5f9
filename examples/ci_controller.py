"""A CI pipeline as a controller of its own: one action after the other, the next only after success.

Start a cluster with `rota dev`, then: python ci_controller.py ci-pipeline.toml

It writes a diary beside the pipeline. Killed at any moment and started again, it goes on behind the last
event in it: it misses nothing, and handles nothing twice.
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
        return Run(controller, actions, Diary(pipeline.with_suffix(".diary"))).to_its_end()


class Diary:
    """Lines that are on disk before anything else happens."""

    def __init__(self, path: Path) -> None:
        self.lines: list[dict[str, Any]] = list(_whole_lines(path))
        self._file = path.open("ab")

    def write(self, **line: Any) -> None:
        self.lines.append(line)
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The last one may have been cut short, and was then not written."""
    kept = path.read_bytes() if path.exists() else b""
    kept = kept[: kept.rfind(b"\n") + 1]
    path.write_bytes(kept)
    return (json.loads(line) for line in kept.splitlines())


class Run:
    """One run of a pipeline. What it does may be repeated; that an event was handled is written down last."""

    def __init__(self, controller: Controller, actions: list[dict[str, Any]], diary: Diary) -> None:
        self._controller = controller
        self._actions = actions
        self._diary = diary
        if not diary.lines:
            diary.write(sequence=controller.state()[0].sequence, run=os.urandom(8).hex())
        self._run = diary.lines[0]["run"]
        self._done = sum(line.get("state") == "succeeded" for line in diary.lines)

    def to_its_end(self) -> int:
        if self._is_over():
            return self._result()
        job = self._start_next()
        for event in self._controller.events(after=self._diary.lines[-1]["sequence"]):
            if event.job != job:
                continue
            if event.kind == "task.unresolved":
                with contextlib.suppress(Conflict):  # it was decided before: we died before we wrote it down
                    self._controller.resolve(event, "again")
            ended = event.state if event.kind == "job.ended" else ""
            self._diary.write(sequence=event.sequence, kind=event.kind, job=event.job, state=ended)
            self._controller.acknowledge(event.sequence)
            if ended:
                self._done += ended == "succeeded"
                if self._is_over():
                    break
                job = self._start_next()
        return self._result()

    def _start_next(self) -> str:
        """The same job again, if it was started before."""
        action = self._actions[self._done]
        spec = {**action, "recovery": "controller", "controller": NAME}
        job = self._controller.submit(spec, key=f"{self._run}-{self._done}")
        print(f"{action['name']} is job {job}", flush=True)
        return job

    def _is_over(self) -> bool:
        ended = [line["state"] for line in self._diary.lines if line.get("state")]
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
