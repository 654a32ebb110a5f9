"""Services: how one is kept alive and checked, as a user wishes; and how it lives, by its node's word."""

from enum import StrEnum

import msgspec

SIGTERM = 15


class Health(StrEnum):
    """How the process of a service is. What is not checked is up."""

    UP = "up"
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DOWN = "down"  # it ended, and is to be started again where it was


class RestartPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often a process is started again on its node before another node is looked for."""

    attempts: int = 3
    within_seconds: float = 600.0
    delay_seconds: float = 1.0  # doubled each time
    delay_max_seconds: float = 60.0


class HealthCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command that ends with 0, or a port of the node that answers; one of them."""

    command: tuple[str, ...] = ()
    http: str | None = None  # a path
    port: int | None = None
    codes: tuple[tuple[int, int], ...] = ((200, 399),)  # of HTTP: from, to
    interval_seconds: float = 10.0
    timeout_seconds: float = 5.0
    after_seconds: float = 10.0  # so long after a start, failures do not count
    failures: int = 3  # in a row: it is unhealthy
    successes: int = 1  # in a row: it is healthy

    def __str__(self) -> str:
        if self.command:
            return " ".join(self.command)
        return f"tcp :{self.port}" if self.http is None else f"http :{self.port}{self.http}"


class RolloutPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a newer version takes the place of what runs: when the next makes way, when it goes back."""

    max_parallel: int = 1  # tasks that may be away at one time
    healthy_seconds: float = 10.0  # so long a new one has to be well before it counts
    deadline_seconds: float = 600.0  # within which one more has to
    rollback: bool = True  # to the former version, when a new task fails or none becomes well in time


class HealthySince(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Since when a process of the newer version is well, without an end in between."""

    attempt: int
    restarts: int
    since_ms: int  # cluster time


class ServiceStatus(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How an attempt of a service lives on its node."""

    restarts: int = 0
    exit_code: int = -1  # of the last of its processes that ended; -1: it had none
    signal: int = 0
    ended_at_ms: int = 0
    health: str = Health.UP.value
    why: str | None = None  # it is unhealthy, or ended

    @property
    def last_end(self) -> str:
        """`exit 1`"""
        return f"killed by signal {self.signal}" if self.signal else f"exit {self.exit_code}"
