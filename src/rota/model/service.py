"""Services: restart policy, health check and rollout policy of a spec; status as reported by the node."""

from enum import StrEnum

import msgspec

SIGTERM = 15


class Health(StrEnum):
    """Health of the process of a service; without a health check it is `up`."""

    UP = "up"
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DOWN = "down"  # it ended, and will be restarted on its node


class RestartPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often a process is restarted on its node before the attempt ends and is placed again."""

    attempts: int = 3
    within_seconds: float = 600.0
    delay_seconds: float = 1.0  # doubled each time
    delay_max_seconds: float = 60.0


class HealthCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """A health check: either a command that must exit with 0, or a port of the node that must answer."""

    command: tuple[str, ...] = ()
    http: str | None = None  # a path
    port: int | None = None
    codes: tuple[tuple[int, int], ...] = ((200, 399),)  # of HTTP: from, to
    interval_seconds: float = 10.0
    timeout_seconds: float = 5.0
    after_seconds: float = 10.0  # start period in which failures do not count
    failures: int = 3  # in a row, until it is unhealthy
    successes: int = 1  # in a row, until it is healthy

    def __str__(self) -> str:
        if self.command:
            return " ".join(self.command)
        return f"tcp :{self.port}" if self.http is None else f"http :{self.port}{self.http}"


class RolloutPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a newer version replaces running tasks, and when it is rolled back."""

    max_parallel: int = 1  # tasks replaced at one time
    healthy_seconds: float = 10.0  # how long a new task has to be healthy before it counts
    deadline_seconds: float = 600.0  # within which one more task has to become healthy
    rollback: bool = True  # to the previous version, when a new task fails or none becomes healthy in time


class HealthySince(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Since when a process of the newer version has been healthy without a restart."""

    attempt: int
    restarts: int
    since_ms: int  # cluster time


class ServiceStatus(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The status of an attempt of a service, as reported by its node."""

    restarts: int = 0
    exit_code: int = -1  # of its last process that ended; -1: none
    signal: int = 0
    ended_at_ms: int = 0
    health: str = Health.UP.value
    why: str | None = None  # why it is unhealthy, or ended

    @property
    def last_end(self) -> str:
        """`exit 1`"""
        return f"killed by signal {self.signal}" if self.signal else f"exit {self.exit_code}"
