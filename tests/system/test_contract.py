"""The whole HTTP API of a live server against its OpenAPI document, by a program that tries to break it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.identity.node_identity import make_request
from rota.testing.cluster import LocalCluster

EXAMPLES = 100 if os.environ.get("ROTA_FAULTS") == "many" else 5  # of each operation
# What there is to be found, and something that there is not.
THERE = {
    "jobs": ["1", "2", "sleep", "last", "nobody"],
    "nodes": ["n1", "nobody"],
    "crons": ["nightly", "nobody"],
    "tokens": ["nobody"],
}
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method,ignored_auth"
)

pytestmark = pytest.mark.system


@pytest.fixture
def described(tmp_path: Path) -> Iterator[tuple[LocalCluster, Path]]:
    """A server with something of everything but agents, so that no command of the program's own runs."""
    with LocalCluster(tmp_path, nodes=0) as server:
        for body in ({"command": ["sleep"], "count": 2}, {"command": ["serve"], "kind": "service"}):
            assert server.call("POST", "/v1/jobs", body).status == 201
        cron = {"name": "nightly", "schedule": "0 1 1 1 *", "job": {"command": ["true"]}}
        assert server.call("POST", "/v1/crons", cron).status == 201
        assert server.call("PUT", "/v1/namespaces/team", {"weight": 2}).status == 200
        token = server.call("POST", "/v1/join-tokens", {"local": True}).body["token"]
        enrolled = {"token": token, "csr": make_request(tmp_path / "n1").decode(), "name": "n1"}
        assert server.call("POST", "/v1/enroll", enrolled).status == 201
        path = tmp_path / "openapi.json"
        path.write_text(json.dumps(finite(server.call("GET", "/v1/openapi.json").body)))
        yield server, path


def finite(document: dict[str, Any]) -> dict[str, Any]:
    """The operations without endless streams, with names that exist."""
    paths = document["paths"]
    del paths["/v1/jobs/{ref}/follow"]
    for path, operations in paths.items():
        for operation in operations.values():
            operation["parameters"] = [
                parameter for parameter in operation["parameters"] if parameter["name"] != "follow"
            ]
            for one in operation["parameters"]:
                names = THERE.get(path.split("/")[2]) if one["name"] == "ref" else ["0", "1", "7"]
                if one["in"] == "path" and names:
                    one["schema"] = {"type": "string", "enum": names}
    return document


@pytest.mark.timeout(3000)
def test_a_live_server_answers_any_request_as_its_openapi_document_says(
    described: tuple[LocalCluster, Path],
) -> None:
    server, path = described
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(path), "--url", f"http://{server.http}"]
    command += ["--header", f"Authorization: Bearer {server.token}", "--checks", CHECKS]
    command += ["--phases", "coverage,fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1"]
    command += [
        "--request-timeout",
        "60",
        "--generation-database",
        "none",
        "--suppress-health-check",
        "all",
        "--continue-on-failure",
    ]
    tried = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)

    assert tried.returncode == 0, tried.stdout[-20_000:] + tried.stderr[-2000:]
    assert server.call("GET", "/readyz").status == 200
    assert "request failed" not in (server.directory / "server.log").read_text()
