"""Fields of services in a spec: parsed, or refused by the name of the field."""

import signal
from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.apiserver.spec.service import CHECK_FIELDS
from rota.apiserver.views.job_spec import spec_json
from rota.model.errors import BadField
from rota.model.job import JobKind
from rota.model.service import HealthCheck, RestartPolicy

SERVICE: dict[str, Any] = {"command": ["serve"], "kind": "service"}


def test_a_service_is_requested_by_its_kind() -> None:
    spec = parse_spec(SERVICE | {"count": 3})

    assert spec.kind is JobKind.SERVICE
    assert spec.restart == RestartPolicy(3, 600, 1, 60)
    assert spec.check is None
    assert spec.stop_signal == signal.SIGTERM


def test_a_job_is_a_batch_by_default() -> None:
    assert parse_spec({"command": ["work"]}).kind is JobKind.BATCH


def test_a_restart_policy_may_be_given_in_part() -> None:
    spec = parse_spec(SERVICE | {"restart": {"attempts": 10, "delay": "500ms"}})

    assert spec.restart == RestartPolicy(10, 600, 0.5, 60)


@pytest.mark.parametrize(
    ("table", "check"),
    [
        ({"command": ["./ok", "-v"]}, HealthCheck(command=("./ok", "-v"))),
        ({"tcp": 5432}, HealthCheck(port=5432)),
        ({"http": "/up", "port": 80}, HealthCheck(http="/up", port=80)),
        (
            {"http": "/", "port": 80, "codes": [200, "300-399"]},
            HealthCheck(http="/", port=80, codes=((200, 200), (300, 399))),
        ),
        (
            {"tcp": 1, "interval": "1s", "timeout": 2, "after": 0, "failures": 5, "successes": 2},
            HealthCheck(
                port=1, interval_seconds=1, timeout_seconds=2, after_seconds=0, failures=5, successes=2
            ),
        ),
    ],
)
def test_a_check_is_a_command_or_a_port(table: dict[str, Any], check: HealthCheck) -> None:
    spec = parse_spec(SERVICE | {"check": table})

    assert spec.check == check
    assert parse_spec(_through_json(spec_json(spec))).check == check  # as shown, it can be submitted again


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"retries": 3}, "retries"),
        ({"timeout": "5s"}, "timeout"),
        ({"deadline": "2h"}, "deadline"),
        ({"expect": "2h"}, "expect"),
        ({"parallel": 2}, "parallel"),
        ({"command": None, "steps": [{"command": ["x"]}]}, "steps"),
        ({"run": "at_most_once"}, "run"),
        ({"recovery": "cancel"}, "recovery"),
        ({"when_unschedulable": "reject"}, "when_unschedulable"),
        ({"stop_signal": "KILL"}, "stop_signal"),
        ({"stop_signal": 9}, "stop_signal"),
        ({"restart": 3}, "restart"),
        ({"restart": {"attempts": -1}}, "restart.attempts"),
        ({"restart": {"often": 1}}, "restart.often"),
        ({"restart": {"delay": 0}}, "restart.delay"),
        ({"restart": {"delay": "2m"}}, "restart.delay_max"),
        ({"check": {}}, "check"),
        ({"check": "true"}, "check"),
        ({"check": {"tcp": 1, "command": ["x"]}}, "check"),
        ({"check": {"tcp": 0}}, "check.tcp"),
        ({"check": {"tcp": 1, "codes": [200]}}, "check.codes"),
        ({"check": {"http": "/"}}, "check.port"),
        ({"check": {"http": "x", "port": 1}}, "check.http"),
        ({"check": {"http": "/a b", "port": 1}}, "check.http"),
        ({"check": {"http": "/", "port": 1, "codes": ["x"]}}, "check.codes"),
        ({"check": {"http": "/", "port": 1, "codes": [99]}}, "check.codes"),
        ({"check": {"command": []}}, "check.command"),
        ({"check": {"tcp": 1, "interval": 0}}, "check.interval"),
        ({"check": {"tcp": 1, "failures": 0}}, "check.failures"),
        ({"image": "web", "check": {"tcp": 1}}, "check"),
        ({"sandbox": True, "check": {"tcp": 1}}, "check"),
        ({"kind": "daemon"}, "kind"),
    ],
)
def test_an_invalid_service_is_refused_by_its_field(more: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as refused:
        parse_spec(SERVICE | more)

    assert refused.value.field == field
    assert refused.value.hint


@pytest.mark.parametrize("field", ["restart", "check"])
def test_a_batch_job_has_neither_restart_policy_nor_check(field: str) -> None:
    value = {"restart": {"attempts": 1}, "check": {"tcp": 1}}[field]

    with pytest.raises(BadField, match=field):
        parse_spec({"command": ["work"], field: value})


def test_any_job_may_choose_the_signal_that_ends_it() -> None:
    spec = parse_spec({"command": ["work"], "stop_signal": "sigint"})

    assert spec.stop_signal == signal.SIGINT
    assert spec_json(spec)["stop_signal"] == "INT"


def test_every_field_of_a_check_is_known() -> None:
    assert {"command", "http", "tcp", "port", "codes"} < set(CHECK_FIELDS)


def _through_json(shown: dict[str, Any]) -> dict[str, Any]:
    """The fields after a round trip through JSON, which has lists instead of tuples."""
    return {key: _as_list(value) for key, value in shown.items()} | {
        "check": {key: _as_list(value) for key, value in shown["check"].items()}
    }


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
