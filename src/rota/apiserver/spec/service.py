"""Services in a submit: restart policy, health check, rollout policy and stop signal."""

import signal
from collections.abc import Mapping
from typing import Any, NoReturn

from rota.apiserver.spec import fields
from rota.apiserver.spec.steps import parse_command
from rota.model import limits
from rota.model.amounts import parse_count, parse_seconds
from rota.model.container import ContainerNetwork
from rota.model.errors import BadField
from rota.model.job import JobSpec, Recovery, Unschedulable
from rota.model.service import HealthCheck, RestartPolicy, RolloutPolicy
from rota.model.shape import RunMode

STOP_SIGNALS = ("TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "WINCH")
RESTART_HINT = 'write {"attempts": 3, "within": "10m", "delay": "1s", "delay_max": "1m"}, or some of these'
ROLLOUT_HINT = (
    'write {"max_parallel": 1, "healthy": "10s", "deadline": "10m", "rollback": true}, or some of these'
)
CHECK_HINT = 'write {"http": "/health", "port": 8080}, {"tcp": 8080} or {"command": ["./check"]}'
CHECK_TARGETS = ("command", "http", "tcp")
CHECK_FIELDS = (*CHECK_TARGETS, "port", "codes", "interval", "timeout", "after", "failures", "successes")
ROLLOUT_FIELDS = ("max_parallel", "healthy", "deadline", "rollback")
CODES_MAX = 32  # ranges of HTTP status codes: each is compared after each check
PATH_MAX = 2048  # of an HTTP check: every server accepts a request line of that length
PORT_MAX = 65_535


def parse_service_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "stop_signal": parse_stop_signal(body.get("stop_signal", "TERM")),
        "restart": parse_restart(body.get("restart")),
        "check": parse_check(body.get("check")),
        "rollout": parse_rollout(body.get("rollout")),
    }


def check_service(body: Mapping[str, Any], spec: JobSpec) -> None:
    """Refuse fields of services on other jobs, and on a service those that it cannot have."""
    if spec.is_service:
        _check_never_ending(body, spec)
        _check_reachable(spec)
        return
    for field in ("restart", "check", "rollout"):
        if body.get(field) is not None:
            raise BadField(field, "is for services only", 'write kind = "service", or leave it out')


def _check_never_ending(body: Mapping[str, Any], spec: JobSpec) -> None:
    if spec.run is RunMode.AT_MOST_ONCE:
        _refuse("run", "a service is restarted whenever it ends, and at_most_once is started once")
    if spec.run is RunMode.ONE_AT_A_TIME:
        _refuse("run", "one_at_a_time is not supported for services yet")
    for field in ("retries", "timeout", "deadline", "expect", "parallel", "steps"):
        if body.get(field) or (field == "retries" and spec.retries):
            _refuse(field, "a service runs until it is canceled, however often it has to be started")
    if spec.recovery is not Recovery.SCHEDULER:
        _refuse("recovery", "a lost task of a service is always replaced")
    if spec.when_unschedulable is Unschedulable.REJECT:
        _refuse("when_unschedulable", "a service waits until it fits")


def _check_reachable(spec: JobSpec) -> None:
    by_port = spec.check is not None and not spec.check.command
    if by_port and spec.container is not None and spec.container.network is ContainerNetwork.NONE:
        hint = 'write container = {network = "host"}, or check by a command'
        raise BadField("check", "a container without a network has no port to be reached at", hint)
    if by_port and spec.sandbox is not None and not spec.sandbox.network:
        hint = "write sandbox = {network = true}, or check by a command"
        raise BadField("check", "a sandbox without a network has no port to be reached at", hint)


def parse_restart(value: object) -> RestartPolicy:
    if value is None:
        return RestartPolicy()
    table = fields.table("restart", value, ("attempts", "within", "delay", "delay_max"), RESTART_HINT)
    default = RestartPolicy()
    maximum = limits.RESTART_ATTEMPTS_MAX
    found = RestartPolicy(
        fields.number("restart.attempts", parse_count, table.get("attempts", default.attempts), 0, maximum),
        _parse_interval("restart.within", table.get("within", default.within_seconds)),
        _parse_interval("restart.delay", table.get("delay", default.delay_seconds)),
        _parse_interval("restart.delay_max", table.get("delay_max", default.delay_max_seconds)),
    )
    if found.delay_max_seconds < found.delay_seconds:
        problem = f"{found.delay_max_seconds:g} s is shorter than delay, {found.delay_seconds:g} s"
        raise BadField("restart.delay_max", problem, "write at least delay")
    return found


def parse_rollout(value: object) -> RolloutPolicy:
    if value is None:
        return RolloutPolicy()
    table = fields.table("rollout", value, ROLLOUT_FIELDS, ROLLOUT_HINT)
    default = RolloutPolicy()
    max_parallel = table.get("max_parallel", default.max_parallel)
    found = RolloutPolicy(
        fields.number("rollout.max_parallel", parse_count, max_parallel, 1, limits.COUNT_MAX),
        _parse_seconds("rollout.healthy", table.get("healthy", default.healthy_seconds)),
        _parse_interval("rollout.deadline", table.get("deadline", default.deadline_seconds)),
        fields.flag("rollout.rollback", table.get("rollback", default.rollback)),
    )
    if found.deadline_seconds <= found.healthy_seconds:
        problem = f"{found.deadline_seconds:g} s is not longer than healthy, {found.healthy_seconds:g} s"
        raise BadField(
            "rollout.deadline",
            problem,
            "write more: a new task has to be healthy for that long within the deadline",
        )
    return found


def parse_check(value: object) -> HealthCheck | None:
    if value is None:
        return None
    table = fields.table("check", value, CHECK_FIELDS, CHECK_HINT)
    default = HealthCheck()
    interval = _parse_interval("check.interval", table.get("interval", default.interval_seconds))
    return HealthCheck(
        **_parse_check_target(table),
        interval_seconds=interval,
        timeout_seconds=_parse_interval("check.timeout", table.get("timeout", default.timeout_seconds)),
        after_seconds=_parse_seconds("check.after", table.get("after", default.after_seconds)),
        failures=_parse_threshold("check.failures", table.get("failures", default.failures)),
        successes=_parse_threshold("check.successes", table.get("successes", default.successes)),
    )


def parse_stop_signal(value: object) -> int:
    name = str(value).upper().removeprefix("SIG") if isinstance(value, str) else ""
    if name not in STOP_SIGNALS:
        raise BadField("stop_signal", "is not a stop signal", f"write one of: {', '.join(STOP_SIGNALS)}")
    return int(signal.Signals[f"SIG{name}"])


def signal_name(signum: int) -> str:
    return signal.Signals(signum).name.removeprefix("SIG")


def _parse_check_target(table: Mapping[str, Any]) -> dict[str, Any]:
    given = [name for name in CHECK_TARGETS if table.get(name) is not None]
    if len(given) != 1:
        problem = "does not say what to check" if not given else f"has {' and '.join(given)}"
        raise BadField("check", problem, CHECK_HINT)
    if given[0] != "http":
        for field in ("port", "codes"):
            if table.get(field) is not None:
                raise BadField(f"check.{field}", "is for http checks only", "leave it out")
    match given[0]:
        case "command":
            return {"command": parse_command("check.command", table["command"])}
        case "tcp":
            return {"port": _parse_port("check.tcp", table["tcp"])}
        case _:
            if table.get("port") is None:
                raise BadField("check.port", "is missing", CHECK_HINT)
            codes = (
                {} if table.get("codes") is None else {"codes": _parse_codes("check.codes", table["codes"])}
            )
            return {
                "http": _parse_path(table["http"]),
                "port": _parse_port("check.port", table["port"]),
                **codes,
            }


def _parse_path(value: object) -> str:
    path = fields.text("check.http", value, PATH_MAX)
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise BadField("check.http", f"'{fields.printable(path)}' is not a path", "write /health")
    return path


def _parse_codes(field: str, value: object) -> tuple[tuple[int, int], ...]:
    hint = 'write [200] or ["200-299", 401]'
    given = value if isinstance(value, list) else [value]
    if not 0 < len(given) <= CODES_MAX:
        raise BadField(field, f"has {len(given)} entries", f"write 1 to {CODES_MAX}")
    found = []
    for entry in given:
        low, _, high = str(entry).partition("-")
        pair = (int(low), int(high or low)) if (low + high).isdecimal() and low else (0, 0)
        if not 100 <= pair[0] <= pair[1] <= 599:
            raise BadField(field, f"'{fields.printable(str(entry))}' is not an HTTP status code", hint)
        found.append(pair)
    return tuple(found)


def _parse_port(field: str, value: object) -> int:
    return fields.number(field, parse_count, value, 1, PORT_MAX)


def _parse_threshold(field: str, value: object) -> int:
    return fields.number(field, parse_count, value, 1, limits.CHECK_COUNT_MAX)


def _parse_interval(field: str, value: object) -> float:
    seconds = _parse_seconds(field, value)
    if seconds < limits.CHECK_SECONDS_MIN:
        raise BadField(field, f"{seconds:g} s is too short", f"write at least {limits.CHECK_SECONDS_MIN:g}s")
    return seconds


def _parse_seconds(field: str, value: object) -> float:
    return fields.number(field, parse_seconds, value, limits.TIMEOUT_SECONDS_MAX)


def _refuse(field: str, problem: str) -> NoReturn:
    raise BadField(field, problem, f"leave {field} out, or write kind = 'batch'")


def check_json(check: HealthCheck) -> dict[str, Any]:
    target: dict[str, Any] = {"command": list(check.command)} if check.command else {"tcp": check.port}
    if check.http is not None:
        codes = [str(low) if low == high else f"{low}-{high}" for low, high in check.codes]
        target = {"http": check.http, "port": check.port, "codes": codes}
    return target | {
        "interval": check.interval_seconds,
        "timeout": check.timeout_seconds,
        "after": check.after_seconds,
        "failures": check.failures,
        "successes": check.successes,
    }


def restart_json(restart: RestartPolicy) -> dict[str, Any]:
    return {
        "attempts": restart.attempts,
        "within": restart.within_seconds,
        "delay": restart.delay_seconds,
        "delay_max": restart.delay_max_seconds,
    }


def rollout_policy_json(policy: RolloutPolicy) -> dict[str, Any]:
    return {
        "max_parallel": policy.max_parallel,
        "healthy": policy.healthy_seconds,
        "deadline": policy.deadline_seconds,
        "rollback": policy.rollback,
    }
