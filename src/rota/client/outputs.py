"""Output files of a job: list and download them."""

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, cast

from rota.client.backoff import RetryBackoff
from rota.client.errors import Broken, Unavailable
from rota.client.transport import ApiRequest, Transport, segment
from rota.client.views import Output, read

SILENCE_SECONDS = 60.0
COPY_BYTES = 256 * 1024
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def list_outputs(transport: Transport, job_id: str, index: int, paths: Sequence[str]) -> list[Output]:
    """The output files of a task, all or those that match a path."""
    backoff = RetryBackoff(transport.patience_seconds, transport.on_wait)
    while True:
        try:
            with transport.stream(_request(job_id, index, paths, "list"), SILENCE_SECONDS) as lines:
                return [read(Output, json.loads(line)) for line in lines if line.strip()]
        except Unavailable as problem:
            backoff.wait(problem)


def get_outputs(
    transport: Transport, job_id: str, index: int, paths: Sequence[str], into: Path
) -> Iterator[Path]:
    """Download output files below `into`, replacing older ones; yields each path when it is complete."""
    backoff = RetryBackoff(transport.patience_seconds, transport.on_wait)
    done: set[Path] = set()
    while True:
        try:
            for path in _get(transport, _request(job_id, index, paths, "tar"), into):
                if path not in done:  # a retry sends all files again
                    done.add(path)
                    yield path
            return
        except Unavailable as problem:
            backoff.wait(problem)


def _get(transport: Transport, request: ApiRequest, into: Path) -> Iterator[Path]:
    with transport.download(request, SILENCE_SECONDS) as body:
        into.mkdir(parents=True, exist_ok=True)
        try:
            with tarfile.open(fileobj=cast(IO[bytes], body), mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isreg() else None
                    if content is not None:
                        yield _write(into, member, content)
        except tarfile.TarError:
            raise Broken("internal", "the server sent outputs that are not a valid archive") from None
        # Read to the end: only then a truncated answer raises.
        while body.read(COPY_BYTES):
            pass


def _request(job_id: str, index: int, paths: Sequence[str], format_name: str) -> ApiRequest:
    query = {"format": format_name, "index": index, "path": list(paths)}
    return ApiRequest("GET", f"/v1/jobs/{segment(job_id)}/outputs", query)


def _write(into: Path, member: tarfile.TarInfo, content: IO[bytes]) -> Path:
    """Write one file of the archive; never outside `into` and never through a symbolic link.

    The archive comes from the node where the task ran: its paths are not trusted.
    """
    parts = PurePosixPath(member.name).parts
    if not parts or member.name.startswith("/") or ".." in parts:
        raise Broken("internal", f"the server sent an output with the path {member.name!r}")
    target = into.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(into.resolve()):
        raise Broken("internal", f"{target.parent} is outside of {into}")
    partial = target.with_name(f".{target.name}.partial")
    descriptor = os.open(partial, NEW_FILE, 0o600)
    with open(descriptor, "wb") as file:
        while data := content.read(COPY_BYTES):
            file.write(data)
        os.fchmod(descriptor, 0o600 | (member.mode & 0o100))
    partial.replace(target)
    return target
