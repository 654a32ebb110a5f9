"""The template of a task -> the command for a worker, or why a worker cannot run it."""

import shlex
from typing import NamedTuple

from rota.model.messages import TaskTemplate
from rota.model.shape import RunMode

PATH = "ROTA_WORKER_PATH"  # the path that a worker is given, if it is not the working directory


class WorkerCommand(NamedTuple):
    """What the contract lets a worker run: a command line and a path."""

    command: str
    path: str


def worker_command(work: TaskTemplate) -> WorkerCommand:
    """The command line and path. An argv of one element is passed as it is: the worker interprets it."""
    command = work.argv[0] if len(work.argv) == 1 else shlex.join(work.argv)
    return WorkerCommand(command, work.env.get(PATH, work.workdir or ""))


def why_unsupported(work: TaskTemplate) -> str | None:
    """The fields that a worker cannot honour, as its contract has a command and a path only; None: none."""
    requested = {
        f"run = {work.run.value}": work.run is not RunMode.AT_LEAST_ONCE,
        "a service": work.restart is not None,
        "steps": bool(work.steps),
        "files": bool(work.files),
        "a container": work.container is not None,
        "a sandbox": work.sandbox is not None,
        "limits": bool(work.limits),
        "results": work.reports is not None,
        "variables": bool(work.env.keys() - {PATH}),
    }
    unsupported = [name for name, is_requested in requested.items() if is_requested]
    return f"a dialled worker does not support {', '.join(unsupported)}" if unsupported else None
