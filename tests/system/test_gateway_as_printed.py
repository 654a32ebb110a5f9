"""The worker contract as it is printed: its own configuration file, requests and answers."""

import json
import uuid
from pathlib import Path

import pytest

from tests.system.test_off_loopback import in_its_own_network

pytestmark = pytest.mark.system
NO_WORKER = [500, '{"error":"worker not found"}\n']


def test_the_contracts_own_file_and_requests_give_the_printed_answers(tmp_path: Path, stubs: Path) -> None:
    ran = in_its_own_network("as_printed", tmp_path, STUBS=str(stubs))
    assert ran.returncode == 0, ran.stderr
    printed = json.loads(ran.stdout)
    status, body = printed["start"]
    job = json.loads(body)["job_id"]

    assert printed["told"] == (
        "Worker gateway open: workers register at 127.0.0.1:50000 without a token, "
        "clients start jobs at 127.0.0.1:3000 without a token\n"
    )
    assert (status, body) == (201, f'{{"job_id":"{uuid.UUID(job)}"}}\n')
    assert printed["running"] == [200, '{"done":false,"error":false,"error_text":""}\n']
    assert printed["stop"] == [200, '{"success":true}\n']
    assert printed["stopped"] == [200, '{"done":true,"error":true,"error_text":"signal: killed"}\n']
    assert printed["stream"] == [200, "1\n2\n3\n"]
    assert printed["no worker"] == [NO_WORKER] * 3
    assert printed["off loopback"] == [False, False]
