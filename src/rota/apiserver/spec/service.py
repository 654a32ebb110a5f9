"""What a submit says of a service: how it is kept alive, checked and asked to end."""

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
CODES_MAX = 32  # ranges of them: each is looked at after each check
PATH_MAX = 2048  # of HTTP: fits a request line that every server reads
PORT_MAX = 65_535


def parse_service_fields(said: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "stop_signal": parse_stop_signal(said.get("stop_signal", "TERM")),
        "restart": parse_restart(said.get("restart")),
        "check": parse_check(said.get("check")),
        "rollout": parse_rollout(said.get("rollout")),
    }


def check_service(said: Mapping[str, Any], spec: JobSpec) -> None:
    """What only services have, and what none of them can have."""
    if spec.is_service:
        _check_endless(said, spec)
        _check_reachable(spec)
        return
    for field in ("restart", "check", "rollout"):
        if said.get(field) is not None:
            raise BadField(field, "is of services only", 'write kind = "service", or leave it out')


def _check_endless(said: Mapping[str, Any], spec: JobSpec) -> None:
    if spec.run is RunMode.AT_MOST_ONCE:
        _refuse("run", "a service is started again and again, and at_most_once is started once", "run")
    if spec.run is RunMode.ONE_AT_A_TIME:
        _refuse("run", "a service cannot keep one_at_a_time yet", "run")
    for field in ("retries", "timeout", "deadline", "expect", "parallel", "steps"):
        if said.get(field) or (field == "retries" and spec.retries):
            _refuse(field, "a service runs until it is canceled, however often it has to be started", field)
    if spec.recovery is not Recovery.SCHEDULER:
        _refuse("recovery", "a service is always wanted again", "recovery")
    if spec.when_unschedulable is Unschedulable.REJECT:
        _refuse("when_unschedulable", "a service waits until there is room", "when_unschedulable")


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
    said = _parse_object("restart", value, ("attempts", "within", "delay", "delay_max"), RESTART_HINT)
    usual = RestartPolicy()
    most = limits.RESTART_ATTEMPTS_MAX
    found = RestartPolicy(
        fields.number("restart.attempts", parse_count, said.get("attempts", usual.attempts), 0, most),
        _parse_interval("restart.within", said.get("within", usual.within_seconds)),
        _parse_interval("restart.delay", said.get("delay", usual.delay_seconds)),
        _parse_interval("restart.delay_max", said.get("delay_max", usual.delay_max_seconds)),
    )
    if found.delay_max_seconds < found.delay_seconds:
        problem = f"{found.delay_max_seconds:g} s is shorter than delay, {found.delay_seconds:g} s"
        raise BadField("restart.delay_max", problem, "write at least delay")
    return found


def parse_rollout(value: object) -> RolloutPolicy:
    if value is None:
        return RolloutPolicy()
    said = _parse_object("rollout", value, ROLLOUT_FIELDS, ROLLOUT_HINT)
    usual = RolloutPolicy()
    most = said.get("max_parallel", usual.max_parallel)
    found = RolloutPolicy(
        fields.number("rollout.max_parallel", parse_count, most, 1, limits.COUNT_MAX),
        _parse_seconds("rollout.healthy", said.get("healthy", usual.healthy_seconds)),
        _parse_interval("rollout.deadline", said.get("deadline", usual.deadline_seconds)),
        fields.flag("rollout.rollback", said.get("rollback", usual.rollback)),
    )
    if found.deadline_seconds <= found.healthy_seconds:
        problem = f"{found.deadline_seconds:g} s is not longer than healthy, {found.healthy_seconds:g} s"
        raise BadField("rollout.deadline", problem, "write more: by then a new task has to be well for that")
    return found


def parse_check(value: object) -> HealthCheck | None:
    if value is None:
        return None
    said = _parse_object("check", value, CHECK_FIELDS, CHECK_HINT)
    usual = HealthCheck()
    interval = _parse_interval("check.interval", said.get("interval", usual.interval_seconds))
    return HealthCheck(
        **_parse_check_target(said),
        interval_seconds=interval,
        timeout_seconds=_parse_interval("check.timeout", said.get("timeout", usual.timeout_seconds)),
        after_seconds=_parse_seconds("check.after", said.get("after", usual.after_seconds)),
        failures=_parse_threshold("check.failures", said.get("failures", usual.failures)),
        successes=_parse_threshold("check.successes", said.get("successes", usual.successes)),
    )


def parse_stop_signal(value: object) -> int:
    name = str(value).upper().removeprefix("SIG") if isinstance(value, str) else ""
    if name not in STOP_SIGNALS:
        raise BadField("stop_signal", "is not a signal to end by", f"write one of: {', '.join(STOP_SIGNALS)}")
    return int(signal.Signals[f"SIG{name}"])


def signal_name(signum: int) -> str:
    return signal.Signals(signum).name.removeprefix("SIG")


def _parse_check_target(said: Mapping[str, Any]) -> dict[str, Any]:
    given = [name for name in CHECK_TARGETS if said.get(name) is not None]
    if len(given) != 1:
        problem = "says not what to check" if not given else f"says {' and '.join(given)}"
        raise BadField("check", problem, CHECK_HINT)
    if given[0] != "http":
        for field in ("port", "codes"):
            if said.get(field) is not None:
                raise BadField(f"check.{field}", "belongs to http", "leave it out")
    match given[0]:
        case "command":
            return {"command": parse_command("check.command", said["command"])}
        case "tcp":
            return {"port": _parse_port("check.tcp", said["tcp"])}
        case _:
            if said.get("port") is None:
                raise BadField("check.port", "is missing", CHECK_HINT)
            codes = {} if said.get("codes") is None else {"codes": _parse_codes("check.codes", said["codes"])}
            return {
                "http": _parse_path(said["http"]),
                "port": _parse_port("check.port", said["port"]),
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
    for one in given:
        low, _, high = str(one).partition("-")
        pair = (int(low), int(high or low)) if (low + high).isdecimal() and low else (0, 0)
        if not 100 <= pair[0] <= pair[1] <= 599:
            raise BadField(field, f"'{fields.printable(str(one))}' is no code of HTTP", hint)
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


def _parse_object(field: str, value: object, known: tuple[str, ...], hint: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadField(field, "is not an object", hint)
    for name in value:
        if name not in known:
            shown = f"{field}.{fields.printable(str(name))}"
            raise BadField(shown, "is not a known field", f"known fields: {', '.join(known)}")
    return value


def _refuse(field: str, problem: str, leave: str) -> NoReturn:
    raise BadField(field, problem, f"leave {leave} out, or write kind = 'batch'")


def check_json(wanted: HealthCheck) -> dict[str, Any]:
    what: dict[str, Any] = {"command": list(wanted.command)} if wanted.command else {"tcp": wanted.port}
    if wanted.http is not None:
        codes = [str(low) if low == high else f"{low}-{high}" for low, high in wanted.codes]
        what = {"http": wanted.http, "port": wanted.port, "codes": codes}
    return what | {
        "interval": wanted.interval_seconds,
        "timeout": wanted.timeout_seconds,
        "after": wanted.after_seconds,
        "failures": wanted.failures,
        "successes": wanted.successes,
    }


def restart_json(wanted: RestartPolicy) -> dict[str, Any]:
    return {
        "attempts": wanted.attempts,
        "within": wanted.within_seconds,
        "delay": wanted.delay_seconds,
        "delay_max": wanted.delay_max_seconds,
    }


def rollout_policy_json(wanted: RolloutPolicy) -> dict[str, Any]:
    return {
        "max_parallel": wanted.max_parallel,
        "healthy": wanted.healthy_seconds,
        "deadline": wanted.deadline_seconds,
        "rollback": wanted.rollback,
    }
