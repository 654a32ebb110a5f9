"""What a task runs: its command or steps, and the files that are written into its working directory."""

import binascii
from base64 import b64decode
from collections.abc import Mapping

from rota.apiserver.spec import fields
from rota.model import limits
from rota.model.errors import BadField
from rota.model.job import JobSpec
from rota.model.steps import Step

STEP_FIELDS = ("name", "command", "env", "timeout")
_POINTER_BYTES = 9  # of execve, for each string beside its bytes: a pointer and the terminating NUL
STEPS_HINT = 'write [{"name": "build", "command": ["make"]}, {"name": "test", "command": ["make", "test"]}]'
FILE_PATH_MAX = 512
FILES_HINT = 'write {"run.sh": "#!/bin/sh\\n..."}, or {"model.bin": {"base64": "..."}} for bytes'
OUTPUT_DIRECTORY = "out"  # ROTA_OUTPUT_DIR


def parse_steps(value: object) -> tuple[Step, ...]:
    """The steps of a job, each with a name of its own; None: it has no steps."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(step, dict) for step in value):
        raise BadField("steps", "is not a list of objects", STEPS_HINT)
    if not 0 < len(value) <= limits.STEPS_MAX:
        raise BadField("steps", f"has {len(value)} entries", f"write 1 to {limits.STEPS_MAX}")
    steps = tuple(_parse_step(f"steps[{place}]", table, place) for place, table in enumerate(value))
    names = [step.name for step in steps]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise BadField(
                f"steps[{place}].name", f"'{name}' is the name of an earlier step", "choose another"
            )
    total = sum(len(part.encode()) for step in steps for part in step.command)
    if total > limits.STEPS_BYTES_MAX:
        raise BadField("steps", f"is {total} bytes long", f"write at most {limits.STEPS_BYTES_MAX}")
    return steps


def parse_command(field: str, value: object) -> tuple[str, ...]:
    hint = 'write a list of texts: ["python", "train.py"]'
    if value is None:
        raise BadField(field, "is missing", hint)
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise BadField(field, "is not a list of texts", hint)
    if not value or not value[0]:
        raise BadField(field, "names no program", hint)
    for part in value:
        if len(fields.no_nul(field, part).encode()) >= limits.COMMAND_BYTES_MAX:
            hint = f"write at most {limits.COMMAND_BYTES_MAX - 1} bytes each"
            raise BadField(field, "has an argument that is too long", hint)
    return tuple(value)


def check_exec_size(spec: JobSpec) -> None:
    """Refuse commands that are, together with their environment, longer than execve allows."""
    for place, step in enumerate(spec.steps):
        _check_length(f"steps[{place}].command", step.command, {**spec.env, **step.env})
    _check_length("command", spec.command, spec.env)
    if spec.check is not None:
        _check_length("check.command", spec.check.command, spec.env)


def _check_length(field: str, command: tuple[str, ...], env: Mapping[str, str]) -> None:
    lengths = (
        *(len(part.encode()) for part in command),
        *(len(name) + len(value.encode()) + 1 for name, value in env.items()),
    )
    total = sum(lengths) + len(lengths) * _POINTER_BYTES
    if total > limits.EXEC_BYTES_MAX:
        problem = f"takes {total} bytes with its environment"
        raise BadField(
            field,
            problem,
            f"write at most {limits.EXEC_BYTES_MAX}; each text counts {_POINTER_BYTES} bytes more",
        )


def _parse_step(field: str, value: object, place: int) -> Step:
    table = fields.table(field, value, STEP_FIELDS, STEPS_HINT)
    name, timeout = table.get("name"), table.get("timeout")
    return Step(
        name=f"step-{place + 1}" if name is None else fields.name(f"{field}.name", name),
        command=parse_command(f"{field}.command", table.get("command")),
        env=fields.environment(f"{field}.env", table.get("env", {})),
        timeout_seconds=None if timeout is None else fields.positive_seconds(f"{field}.timeout", timeout),
    )


def parse_files(value: object, workdir: str | None) -> dict[str, bytes]:
    """The content of each file, by its path in the working directory."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadField("files", "is not an object", FILES_HINT)
    if len(value) > limits.FILES_MAX:
        raise BadField("files", f"has {len(value)} entries", f"write at most {limits.FILES_MAX}")
    files = {_check_path(path): _decode_content(path, content) for path, content in sorted(value.items())}
    total = sum(map(len, files.values()))
    if total > limits.FILES_BYTES_MAX:
        hint = f"send at most {limits.FILES_BYTES_MAX} bytes in all; fetch more from within the job"
        raise BadField("files", f"is {total} bytes long", hint)
    for path in files:
        _refuse_file_as_directory(path, files)
    if files and workdir is not None:
        problem = "are written into the job's own directory, which is not the one that workdir names"
        raise BadField("files", problem, "leave workdir out")
    return files


def _check_path(path: str) -> str:
    shown = fields.printable(path)
    parts = fields.no_nul("files", path).split("/")
    if len(path) > FILE_PATH_MAX:
        raise BadField(
            "files", f"'{shown}...' is too long a path", f"write at most {FILE_PATH_MAX} characters"
        )
    if not all(parts) or "." in parts or ".." in parts:
        hint = "write a relative path, as run.sh or data/input.csv"
        raise BadField("files", f"'{shown}' is not a path within the working directory", hint)
    fields.check_path_lengths("files", path)
    if parts[0] == OUTPUT_DIRECTORY:
        raise BadField(
            "files",
            f"'{shown}' is in the directory of outputs",
            f"choose another name than {OUTPUT_DIRECTORY}",
        )
    return path


def _decode_content(path: str, content: object) -> bytes:
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError:
            pass
    elif isinstance(content, dict) and list(content) == ["base64"] and isinstance(content["base64"], str):
        try:
            return b64decode(content["base64"], validate=True)
        except (binascii.Error, ValueError):
            pass
    raise BadField(
        "files", f"the content of '{fields.printable(path)}' is neither text nor base64", FILES_HINT
    )


def _refuse_file_as_directory(path: str, files: Mapping[str, bytes]) -> None:
    parts = path.split("/")
    for parent in ("/".join(parts[:count]) for count in range(1, len(parts))):
        if parent in files:
            raise BadField("files", f"{parent} is a file, and a directory of {path}", "rename one of them")
