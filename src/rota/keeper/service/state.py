"""State of a service's attempt: restarts with backoff, and health by its checks."""

from dataclasses import dataclass, field

from rota.keeper.service.spec import KeeperCheck, KeeperRestart

MS = 1_000_000
STARTING_INTERVAL_NS = 1_000 * MS
UP = "up"  # it runs, and has no health check
STARTING, HEALTHY, UNHEALTHY = "starting", "healthy", "unhealthy"
DOWN = "down"  # its process has ended, and the restart backoff runs


@dataclass(slots=True)
class HealthCounter:
    """Counts consecutive check results since the last start; thresholds decide on the health."""

    check: KeeperCheck
    started_ns: int
    successes: int = 0
    failures: int = 0

    def record(self, health: str, now_ns: int, *, succeeded: bool) -> str:
        """The health after one more check."""
        if succeeded:
            self.successes, self.failures = self.successes + 1, 0
            return HEALTHY if self.successes >= self.check.successes else health
        self.successes = 0
        if health == STARTING and now_ns < self.started_ns + self.check.after_ms * MS:
            return health
        self.failures += 1
        return UNHEALTHY if self.failures >= self.check.failures else health

    def next_interval_ns(self, health: str, now_ns: int) -> int:
        """The time to the next check; shorter while the service starts, so that it is found healthy soon."""
        interval_ns = self.check.interval_ms * MS
        is_starting = health == STARTING and now_ns < self.started_ns + self.check.after_ms * MS
        return min(interval_ns, STARTING_INTERVAL_NS) if is_starting else interval_ns


@dataclass(slots=True)
class ServiceState:
    """One attempt of a service: several processes, one after the other."""

    restarts: int = 0
    exit_code: int | None = None  # of the last process that ended
    signum: int | None = None
    ended_ms: int = 0
    health: str = UP
    why: str | None = None  # the reason of being unhealthy or down
    backoff_until_ns: int = 0  # 0: no backoff runs
    recent_ends_ns: list[int] = field(default_factory=list)  # ends within the restart policy's window
    health_counter: HealthCounter | None = None

    def on_start(self, check: KeeperCheck | None, now_ns: int) -> None:
        self.backoff_until_ns = 0
        self.health_counter = None if check is None else HealthCounter(check, now_ns)
        self.health, self.why = (UP if check is None else STARTING), None

    def back_off(self, rule: KeeperRestart, now_ns: int) -> bool:
        """Start the backoff before the next restart; False: the restart policy allows no more."""
        backoff_ns = self._backoff_ns(rule, now_ns)
        if backoff_ns is None:
            return False
        self.recent_ends_ns.append(now_ns)
        self.backoff_until_ns = now_ns + max(1, backoff_ns)
        self.restarts += 1
        return True

    def row(self) -> list[int | str | None]:
        return [self.restarts, self.exit_code, self.signum, self.ended_ms, self.health, self.why]

    def _backoff_ns(self, rule: KeeperRestart, now_ns: int) -> int | None:
        """The backoff, doubled for each end within the window; None: there were too many."""
        self.recent_ends_ns = [at for at in self.recent_ends_ns if now_ns - at < rule.within_ms * MS]
        count = len(self.recent_ends_ns)
        if count >= rule.attempts:
            return None
        # The shift is bounded, so that many restarts do not make a huge integer before min() is applied.
        return min(rule.delay_max_ms, rule.delay_ms << min(count, 40)) * MS
