"""Run modes, and the lease of one_at_a_time."""

from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views.job_spec import spec_json
from rota.model.errors import BadField
from rota.model.shape import LEASES, RunMode


def parsed(**body: Any) -> Any:
    return parse_spec({"command": ["true"], **body})


def test_one_at_a_time_has_a_lease_of_twenty_seconds_and_a_margin_of_three() -> None:
    spec = parsed(run="one_at_a_time")

    assert spec.run is RunMode.ONE_AT_A_TIME
    assert (spec.lease_ms, spec.lease_margin_ms) == (20_000, 3_000)
    assert LEASES in spec.conditions


def test_a_longer_lease_has_a_wider_margin() -> None:
    spec = parsed(run="one_at_a_time", lease="1m")

    assert (spec.lease_ms, spec.lease_margin_ms) == (60_000, 9_000)


def test_lease_and_margin_can_be_given_and_are_shown() -> None:
    spec = parsed(run="one_at_a_time", lease="3s", lease_margin="1s")

    assert (spec.lease_ms, spec.lease_margin_ms) == (3_000, 1_000)
    assert (spec_json(spec)["lease"], spec_json(spec)["lease_margin"]) == (3.0, 1.0)


def test_other_run_modes_have_no_lease() -> None:
    spec = parsed()

    assert spec.lease_ms is None
    assert spec.conditions == ()
    assert "lease" not in spec_json(spec)


@pytest.mark.parametrize(
    ("body", "field", "hint"),
    [
        ({"lease": "20s"}, "lease", "write run = one_at_a_time, or leave it out"),
        ({"run": "at_most_once", "lease_margin": "3s"}, "lease_margin", "write run = one_at_a_time"),
        ({"run": "one_at_a_time", "lease": "2s"}, "lease", "write 3s to 3600s"),
        ({"run": "one_at_a_time", "lease": "2h"}, "lease", "write 3s to 3600s"),
        ({"run": "one_at_a_time", "lease": "soon"}, "lease", "write"),
        ({"run": "one_at_a_time", "lease": "40s", "lease_margin": "4s"}, "lease_margin", "write at least 5s"),
        ({"run": "one_at_a_time", "lease_margin": "0.5s"}, "lease_margin", "write at least 2.5s"),
    ],
)
def test_an_invalid_lease_is_refused_by_its_field(body: dict[str, Any], field: str, hint: str) -> None:
    with pytest.raises(BadField) as refused:
        parsed(**body)

    assert refused.value.field == field
    assert hint in f"{refused.value} {refused.value.hint}"
