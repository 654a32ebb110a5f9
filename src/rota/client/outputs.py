"""What a job left on its node: which files there are, and what is in them."""

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
NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def list_outputs(transport: Transport, job_id: str, index: int, paths: Sequence[str]) -> list[Output]:
    pauses = RetryBackoff(transport.patience_seconds, transport.on_wait)
    while True:
        try:
            with transport.stream(_request(job_id, index, paths, "list"), SILENCE_SECONDS) as lines:
                return [read(Output, json.loads(line)) for line in lines if line.strip()]
        except Unavailable as problem:
            pauses.wait(problem)


def get_outputs(
    transport: Transport, job_id: str, index: int, paths: Sequence[str], into: Path
) -> Iterator[Path]:
    """Each file when it is there whole, beneath `into`; what had its name is replaced."""
    pauses = RetryBackoff(transport.patience_seconds, transport.on_wait)
    got: set[Path] = set()
    while True:
        try:
            for path in _get(transport, _request(job_id, index, paths, "tar"), into):
                if path not in got:  # all come again after a cut
                    got.add(path)
                    yield path
            return
        except Unavailable as problem:
            pauses.wait(problem)


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
            raise Broken("internal", "the server sent outputs that cannot be unpacked") from None
        while body.read(COPY_BYTES):  # up to its end: a cut answer is told
            pass


def _request(job_id: str, index: int, paths: Sequence[str], form: str) -> ApiRequest:
    query = {"format": form, "index": index, "path": list(paths)}
    return ApiRequest("GET", f"/v1/jobs/{segment(job_id)}/outputs", query)


def _write(into: Path, member: tarfile.TarInfo, content: IO[bytes]) -> Path:
    """Never outside of `into`, whatever the archive says, and through no link."""
    parts = PurePosixPath(member.name).parts
    if not parts or member.name.startswith("/") or ".." in parts:
        raise Broken("internal", f"the server sent an output with the path {member.name!r}")
    target = into.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(into.resolve()):
        raise Broken("internal", f"{target.parent} leads out of {into}")
    partial = target.with_name(f".{target.name}.partial")
    descriptor = os.open(partial, NEW, 0o600)
    with open(descriptor, "wb") as file:
        while data := content.read(COPY_BYTES):
            file.write(data)
        os.fchmod(descriptor, 0o600 | (member.mode & 0o100))
    partial.replace(target)
    return target
