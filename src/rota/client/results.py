"""Results and service status of an attempt, and `rota.report()`, with which a task reports its result."""

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
    """The result that an attempt reported."""

    results: Mapping[str, Any] = field(default_factory=dict)
    failure: str | None = None  # reason of the failure; overrides the exit code
    reported_at_ms: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Life:
    """Health and restarts of an attempt of a service, and how its last process ended."""

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
    """Report the result of the task that calls this; its job needs `results`. A repeated report is harmless.

    With `results = "agent"` the report is written to a file for the agent, and the last one counts.
    Otherwise the servers are tried in turn until one answers, for `patience_seconds`.
    """
    body = {"results": dict(results or {}), "failure": failure}
    if (result_file := environ.get("ROTA_RESULT_FILE")) is not None:
        _write(Path(result_file), body)
        return
    urls = environ.get("ROTA_RESULT_URLS", environ.get("ROTA_RESULT_URL"))
    token_file = environ.get("ROTA_TOKEN_FILE")
    if not urls or not token_file:
        hint = "submit the job with results = true, or --results"
        raise Rejected("bad_request", "this process is not a task that may report results", hint=hint)
    addresses = [urlsplit(url) for url in urls.split()]
    token = Path(token_file).read_text().strip()
    servers = ",".join(f"{address.scheme}://{address.netloc}" for address in addresses)
    transport = Transport(Endpoint(servers, token, environ.get("ROTA_CA_FILE")), patience_seconds)
    try:
        transport.call(ApiRequest("POST", addresses[0].path, body=body))
    finally:
        transport.close()


def _write(path: Path, body: dict[str, Any]) -> None:
    """Write the file atomically: the agent never reads a part of it."""
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(body))
    partial.replace(path)
