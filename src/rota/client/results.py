"""How an attempt lives, and what it says came of its work: as others read it, and said from within."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rota.client.context import Endpoint
from rota.client.errors import Rejected
from rota.client.transport import ApiRequest, Transport

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Result:
    """What an attempt said came of its work."""

    results: Mapping[str, Any] = field(default_factory=dict)
    failure: str | None = None  # why its work has failed, whatever its exit code
    reported_at_ms: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Life:
    """How an attempt of a service lives: how it is, and how the last of its processes ended."""

    health: str = "up"
    restarts: int = 0
    exit_code: int | None = None
    signal: int | None = None
    ended_at_ms: int | None = None
    why: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def report(
    results: Mapping[str, Any] | None = None,
    *,
    failure: str | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """From within a task of a job with `results`: what came of it. The same may be said again.

    Where the agent reports, it is left in a file for it, and the last one counts. Else each server is tried
    until one answers, for as long as there is patience.
    """
    said = {"results": dict(results or {}), "failure": failure}
    if (left := environ.get("ROTA_RESULT_FILE")) is not None:
        _leave(Path(left), said)
        return
    urls, file = (
        environ.get("ROTA_RESULT_URLS", environ.get("ROTA_RESULT_URL")),
        environ.get("ROTA_TOKEN_FILE"),
    )
    if not urls or not file:
        hint = "submit the job with results = true, or --results"
        raise Rejected("bad_request", "this is no task that may report results", hint=hint)
    addresses, token = [urlsplit(url) for url in urls.split()], Path(file).read_text().strip()
    servers = ",".join(f"{address.scheme}://{address.netloc}" for address in addresses)
    transport = Transport(Endpoint(servers, token, environ.get("ROTA_CA_FILE")), patience_seconds)
    try:
        transport.call(ApiRequest("POST", addresses[0].path, body=said))
    finally:
        transport.close()


def _leave(path: Path, said: dict[str, Any]) -> None:
    """In one step: the agent never reads a part."""
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(said))
    partial.replace(path)
