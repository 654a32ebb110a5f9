"""How one attempt of a service lives: when it is started again, and whether its checks say it is well."""

from dataclasses import dataclass, field

from rota.keeper.service.spec import KeeperCheck, KeeperRestart

MS = 1_000_000
STARTING_INTERVAL_NS = 1_000 * MS
UP = "up"  # it runs, and nothing checks it
STARTING, HEALTHY, UNHEALTHY = "starting", "healthy", "unhealthy"
DOWN = "down"  # it ended, and waits to be started again


@dataclass(slots=True)
class HealthCounter:
    """Checks since its last start -> healthy or not, by so many alike in a row."""

    check: KeeperCheck
    started_ns: int
    successes: int = 0
    failures: int = 0

    def record(self, health: str, now_ns: int, *, succeeded: bool) -> str:
        """How it is after one more of them."""
        if succeeded:
            self.successes, self.failures = self.successes + 1, 0
            return HEALTHY if self.successes >= self.check.successes else health
        self.successes = 0
        if health == STARTING and now_ns < self.started_ns + self.check.after_ms * MS:
            return health
        self.failures += 1
        return UNHEALTHY if self.failures >= self.check.failures else health

    def next_interval_ns(self, health: str, now_ns: int) -> int:
        """From one check to the next: while it starts, it is not kept waiting for long."""
        pause_ns = self.check.interval_ms * MS
        starts = health == STARTING and now_ns < self.started_ns + self.check.after_ms * MS
        return min(pause_ns, STARTING_INTERVAL_NS) if starts else pause_ns


@dataclass(slots=True)
class ServiceState:
    """One attempt of a service, which may see several processes."""

    restarts: int = 0
    exit_code: int | None = None  # of the last of them that ended
    signum: int | None = None
    ended_ms: int = 0
    health: str = UP
    why: str | None = None  # it is unhealthy, or ended
    backoff_until_ns: int = 0  # 0: it does not rest
    recent_ends_ns: list[int] = field(default_factory=list)  # when it was found to have ended
    health_counter: HealthCounter | None = None

    def on_start(self, check: KeeperCheck | None, now_ns: int) -> None:
        self.backoff_until_ns = 0
        self.health_counter = None if check is None else HealthCounter(check, now_ns)
        self.health, self.why = (UP if check is None else STARTING), None

    def back_off(self, rule: KeeperRestart, now_ns: int) -> bool:
        """Its process has ended: lie down until it is started again; False: that was once too often."""
        pause_ns = self._backoff_ns(rule, now_ns)
        if pause_ns is None:
            return False
        self.recent_ends_ns.append(now_ns)
        self.backoff_until_ns = now_ns + max(1, pause_ns)
        self.restarts += 1
        return True

    def row(self) -> list[int | str | None]:
        return [self.restarts, self.exit_code, self.signum, self.ended_ms, self.health, self.why]

    def _backoff_ns(self, rule: KeeperRestart, now_ns: int) -> int | None:
        """Twice as long after each end; who has run for long enough begins anew."""
        self.recent_ends_ns = [at for at in self.recent_ends_ns if now_ns - at < rule.within_ms * MS]
        count = len(self.recent_ends_ns)
        if count >= rule.attempts:
            return None
        return min(rule.delay_max_ms, rule.delay_ms << min(count, 40)) * MS
