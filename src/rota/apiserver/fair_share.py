"""The server time that each account has used lately + the time -> how long its next request waits.

Accounts are those of tokens. Time is CPU time of the event loop, in seconds. Each account has a bucket of
seconds that its requests empty by what they were measured to take, and that fills at its *allowance*:

    allowance = max(1.2 * mean use, 0.5 * capacity - use of the others)    while a light account is active
    allowance = 1, and no request waits                                    otherwise

Use is a decaying average, in seconds per second; an account is active for two seconds after its last request.
An account is light if it uses less than 0.7 of the mean. Capacity is the part of a core that the loop can
have: below 1 on a machine that is busy with other processes.

So a heavy account beside light ones leaves the loop idle half of the time, which keeps the latency of the
light ones. Accounts that use about equal parts have the whole loop: what one of them does not use delays none
that is owed more. An account whose bucket is empty waits until its debt and the requests that wait before it
are paid for.

Invariant: accounts are in the order of their last use, so that those no longer active are found in front.
"""

import math
from dataclasses import dataclass, field

from rota.model.limits import (
    SHARE_ACTIVE_SECONDS,
    SHARE_AT_ONCE_SECONDS,
    SHARE_DEBT_SECONDS_MAX,
    SHARE_LIGHT,
    SHARE_LOOK_SECONDS,
    SHARE_OF_HEAVY,
    SHARE_TOLERANCE,
    SHARE_WINDOW_SECONDS,
)


@dataclass(slots=True)
class Average:
    """A sum per second that decays: events of the last SHARE_WINDOW_SECONDS weigh most."""

    value: float = 0.0
    at_seconds: float = 0.0

    def add(self, amount: float, now: float) -> None:
        self.value = self.at(now) + amount / SHARE_WINDOW_SECONDS
        self.at_seconds = now

    def at(self, now: float) -> float:
        return self.value * math.exp((self.at_seconds - now) / SHARE_WINDOW_SECONDS)


@dataclass(slots=True)
class _Account:
    seconds: Average = field(default_factory=Average)
    requests: Average = field(default_factory=Average)
    left: float = SHARE_AT_ONCE_SECONDS  # of its bucket; below 0: its debt
    at_seconds: float = 0.0
    waiting: int = 0

    def request_seconds(self, now: float) -> float:
        """What one request takes, on average."""
        return self.seconds.at(now) / max(self.requests.at(now), 1e-9)


@dataclass(slots=True)
class Shares:
    """The accounts of one server."""

    capacity: float = 1.0
    _total: Average = field(default_factory=Average)
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _has_light: bool = False
    _check_at: float = 0.0

    def enter(self, name: str, now: float) -> float:
        """Count a request; the seconds it has to wait, or 0. A request that waited calls `resume` then."""
        account = self._used(name, now)
        account.requests.add(1.0, now)
        missing = -account.left
        # With requests waiting, a later one must not overtake them even if the bucket has filled meanwhile.
        if not self._has_light or (missing <= 0 and not account.waiting):
            return 0.0
        missing = max(0.0, missing) + account.waiting * account.request_seconds(now)
        account.waiting += 1
        return missing / self._allowance(account, now)

    def resume(self, name: str) -> None:
        """Count that a request no longer waits: its time has come, or its client has disconnected."""
        account = self._accounts.get(name)
        if account is not None and account.waiting:
            account.waiting -= 1

    def charge(self, name: str, seconds: float, now: float) -> None:
        account = self._used(name, now)
        # Bounded: one expensive request must not lock out its account for minutes.
        account.left = max(account.left - seconds, -SHARE_DEBT_SECONDS_MAX)
        account.seconds.add(seconds, now)
        self._total.add(seconds, now)

    def use(self, name: str, now: float) -> float:
        """Seconds of the loop per second that an account uses."""
        account = self._accounts.get(name)
        return 0.0 if account is None else account.seconds.at(now)

    def _used(self, name: str, now: float) -> _Account:
        """The account, filled up to now and last in order."""
        self._drop_inactive(now)
        # Moved to the end, which keeps the accounts in the order of their last use.
        account = self._accounts.pop(name, None) or _Account(at_seconds=now)
        self._accounts[name] = account
        if now >= self._check_at:
            self._check_for_light(now)
        filled = account.left + (now - account.at_seconds) * self._allowance(account, now)
        account.left, account.at_seconds = min(filled, SHARE_AT_ONCE_SECONDS), now
        return account

    def _allowance(self, account: _Account, now: float) -> float:
        if not self._has_light:
            return 1.0
        active = len(self._accounts)
        heavy = SHARE_OF_HEAVY * self.capacity
        total = self._total.at(now)
        others = max(0.0, total - account.seconds.at(now))
        # The last term is a floor: an equal part of the share that heavy accounts have together.
        return max(SHARE_TOLERANCE * total / active, heavy - others, heavy / active)

    def _check_for_light(self, now: float) -> None:
        """Find out whether any account is light; not at each request, since it reads all accounts."""
        light = SHARE_LIGHT * self._total.at(now) / len(self._accounts)
        self._has_light = any(account.seconds.at(now) < light for account in self._accounts.values())
        self._check_at = now + SHARE_LOOK_SECONDS

    def _drop_inactive(self, now: float) -> None:
        while self._accounts:
            name = next(iter(self._accounts))
            account = self._accounts[name]
            # All accounts after an active one are active, too. One that waits is kept: `resume` needs it.
            if account.waiting or account.at_seconds > now - SHARE_ACTIVE_SECONDS:
                return
            del self._accounts[name]
