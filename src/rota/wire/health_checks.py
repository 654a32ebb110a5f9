"""agent.proto <-> model: restart policy, health check and status of services."""

from rota.model.limits import REASON_LENGTH_MAX
from rota.model.service import HealthCheck, RestartPolicy, ServiceStatus
from rota.wire.generated import agent_pb2 as pb


def service_status_to_wire(life: ServiceStatus) -> pb.Life:
    return pb.Life(
        restarts=life.restarts,
        exit_code=life.exit_code,
        signal=life.signal,
        ended_at_ms=life.ended_at_ms,
        health=life.health,
        why=life.why or "",
    )


def service_status_from_wire(life: pb.Life) -> ServiceStatus:
    why = life.why[:REASON_LENGTH_MAX] or None
    return ServiceStatus(life.restarts, life.exit_code, life.signal, life.ended_at_ms, life.health, why)


def restart_to_wire(restart: RestartPolicy) -> pb.Restart:
    return pb.Restart(
        attempts=restart.attempts,
        within_ms=round(restart.within_seconds * 1000),
        delay_ms=round(restart.delay_seconds * 1000),
        delay_max_ms=round(restart.delay_max_seconds * 1000),
    )


def restart_from_wire(restart: pb.Restart) -> RestartPolicy:
    return RestartPolicy(
        restart.attempts, restart.within_ms / 1000, restart.delay_ms / 1000, restart.delay_max_ms / 1000
    )


def check_to_wire(check: HealthCheck) -> pb.Check:
    return pb.Check(
        argv=check.command,
        port=check.port,
        path=check.http,
        code_from=[low for low, _ in check.codes],
        code_to=[high for _, high in check.codes],
        interval_ms=round(check.interval_seconds * 1000),
        timeout_ms=round(check.timeout_seconds * 1000),
        after_ms=round(check.after_seconds * 1000),
        failures=check.failures,
        successes=check.successes,
    )


def check_from_wire(check: pb.Check) -> HealthCheck:
    return HealthCheck(
        tuple(check.argv),
        check.path if check.HasField("path") else None,
        check.port if check.HasField("port") else None,
        tuple(zip(check.code_from, check.code_to, strict=True)),
        check.interval_ms / 1000,
        check.timeout_ms / 1000,
        check.after_ms / 1000,
        check.failures,
        check.successes,
    )
