"""The files of a submit -> their bytes by path, for the working directory."""

import binascii
from base64 import b64decode
from collections.abc import Mapping

from rota.apiserver.spec import fields
from rota.model import limits
from rota.model.errors import BadField

PATH_MAX = 512
HINT = 'write {"run.sh": "#!/bin/sh\\n..."}, or {"model.bin": {"base64": "..."}} for bytes'
RESERVED = "out"  # what ROTA_OUTPUT_DIR names


def parse_files(value: object, workdir: str | None) -> dict[str, bytes]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadField("files", "is not an object", HINT)
    if len(value) > limits.FILES_MAX:
        raise BadField("files", f"has {len(value)} entries", f"write at most {limits.FILES_MAX}")
    found = {_check_path(path): _decode_content(path, said) for path, said in sorted(value.items())}
    total = sum(map(len, found.values()))
    if total > limits.FILES_BYTES_MAX:
        most = f"send at most {limits.FILES_BYTES_MAX} bytes in all; fetch more from within the job"
        raise BadField("files", f"is {total} bytes long", most)
    for path in found:
        _refuse_file_as_directory(path, found)
    if found and workdir is not None:
        problem = "are written into the job's own directory, which is not the one that workdir names"
        raise BadField("files", problem, "leave workdir out")
    return found


def _check_path(path: str) -> str:
    shown = fields.printable(path)
    parts = fields.no_nul("files", path).split("/")
    if len(path) > PATH_MAX:
        raise BadField("files", f"'{shown}...' is too long a path", f"write at most {PATH_MAX} characters")
    if not all(parts) or "." in parts or ".." in parts:
        hint = "write it relative to the working directory, as run.sh or data/input.csv"
        raise BadField("files", f"'{shown}' is not a path within it", hint)
    fields.check_path_lengths("files", path)
    if parts[0] == RESERVED:
        raise BadField("files", f"'{shown}' is where outputs go", f"choose another name than {RESERVED}")
    return path


def _decode_content(path: str, said: object) -> bytes:
    if isinstance(said, str):
        try:
            return said.encode()
        except UnicodeEncodeError:
            pass
    elif isinstance(said, dict) and list(said) == ["base64"] and isinstance(said["base64"], str):
        try:
            return b64decode(said["base64"], validate=True)
        except (binascii.Error, ValueError):
            pass
    raise BadField("files", f"the content of '{fields.printable(path)}' is neither text nor base64", HINT)


def _refuse_file_as_directory(path: str, found: Mapping[str, bytes]) -> None:
    parts = path.split("/")
    for parent in ("/".join(parts[:count]) for count in range(1, len(parts))):
        if parent in found:
            raise BadField("files", f"{parent} is a file, and a directory of {path}", "rename one of them")
