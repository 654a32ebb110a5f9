"""When a certificate expires -> a warning for the operator."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from rota.identity.certificates import Period


@dataclass(frozen=True, slots=True)
class Expiry:
    """A certificate by name, its period of use, and what to do before it expires."""

    name: str
    period: Period
    remedy: str

    def warning(self, now: datetime) -> str | None:
        """The warning; None while more than a fifth of its life is left."""
        if not self.period.is_ending(now):
            return None
        return f"certificate {self.name} {describe_end(self.period.end, now)}: {self.remedy}"


def describe_end(end: datetime, now: datetime) -> str:
    """`expires in 3 days, on 2027-01-02`."""
    left = end - now
    if left <= timedelta(0):
        return f"expired on {end:%Y-%m-%d %H:%M} UTC"
    span = f"{left.days} days" if left.days > 1 else f"{left.total_seconds() / 3600:.1f} hours"
    return f"expires in {span}, on {end:%Y-%m-%d %H:%M} UTC"
