"""Every documented field of a job is updated on a real server: it works, or is refused with a reason."""

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.apiserver.test_update_fields import BASES, VALUES

pytestmark = pytest.mark.system


@pytest.mark.parametrize("base", ["batch", "service", "system", "leased", "owned"])
def test_no_update_causes_a_server_fault_and_other_jobs_continue(shared: LocalCluster, base: str) -> None:
    body = BASES[base] | {"command": ["sleep", "600"]}
    body.pop("check", None)
    job = str(shared.call("POST", "/v1/jobs", body).body["id"])
    shared.call("POST", f"/v1/jobs/{job}/pause", {"stop": True})
    for field, values in VALUES.items():
        for value in (*values, None):
            answer = shared.call("PATCH", f"/v1/jobs/{job}", {field: value})

            assert answer.status in (200, 400, 409, 422), (field, value, answer.body)
            assert answer.status == 200 or answer.body["detail"], (field, value)
    shared.call("POST", f"/v1/jobs/{job}/cancel", {})

    assert shared.rota("run", "--", "true").code == 0
    until(lambda: shared.call("GET", f"/v1/jobs/{job}").body["state"] == "canceled", "it is canceled")


def test_a_paused_job_is_timed_out_at_its_deadline(shared: LocalCluster) -> None:
    job = shared.submit("sleep", "600", deadline="2s")
    shared.rota("pause", job)

    assert shared.rota("wait", job).code != 0
    assert shared.call("GET", f"/v1/jobs/{job}").body["state"] == "timed_out"
