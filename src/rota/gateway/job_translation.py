"""A job's work -> what a worker is told of it, or why it cannot run it."""

import shlex
from typing import NamedTuple

from rota.model.messages import TaskTemplate
from rota.model.shape import RunMode

PATH = "ROTA_WORKER_PATH"  # the path a worker is given, where it is no working directory


class WorkerCommand(NamedTuple):
    command: str
    path: str


def worker_command(work: TaskTemplate) -> WorkerCommand:
    """A command of one word is a line that the worker reads as it likes."""
    command = work.argv[0] if len(work.argv) == 1 else shlex.join(work.argv)
    return WorkerCommand(command, work.env.get(PATH, work.workdir or ""))


def why_unsupported(work: TaskTemplate) -> str | None:
    """The contract knows a command and a path, and nothing else."""
    asked = {
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
    wanted = [name for name, is_asked in asked.items() if is_asked]
    return f"a worker that is dialled cannot give it {', '.join(wanted)}" if wanted else None
