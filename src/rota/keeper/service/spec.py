"""Restart policy, health check and stop signal of a service, parsed from its spec."""

from dataclasses import dataclass
from typing import Any

from rota.keeper import parsing
from rota.keeper.parsing import Malformed

PORT_MAX = 65_535
CODE_MAX = 599
TERM, KILL, LAST_SIGNAL = 15, 9, 64


@dataclass(frozen=True, slots=True)
class KeeperRestart:
    """How often a service's process is restarted within one attempt, and with which backoff."""

    attempts: int
    within_ms: int
    delay_ms: int
    delay_max_ms: int


@dataclass(frozen=True, slots=True)
class KeeperCheck:
    """A health check: a command, or a TCP port on this node, with a path for HTTP."""

    interval_ms: int
    timeout_ms: int
    after_ms: int  # grace after a start in which failures do not count
    failures: int  # consecutive ones that make it unhealthy
    successes: int  # consecutive ones that make it healthy
    argv: tuple[str, ...] = ()
    port: int = 0
    path: str | None = None
    codes: tuple[tuple[int, int], ...] = ()  # ranges of accepted HTTP status codes


def parse_restart(raw: object) -> KeeperRestart | None:
    if raw is None:
        return None
    fields = parsing.expect(raw, "spec.restart", dict, "an object")
    attempts = parsing.number(fields.get("attempts"), "spec.restart.attempts")
    names = ("within_ms", "delay_ms", "delay_max_ms")
    return KeeperRestart(
        attempts, *(parsing.milliseconds(fields.get(name), f"spec.restart.{name}") for name in names)
    )


def parse_check(raw: object) -> KeeperCheck | None:
    if raw is None:
        return None
    fields = parsing.expect(raw, "spec.check", dict, "an object")
    times, counts = ("interval_ms", "timeout_ms", "after_ms"), ("failures", "successes")
    common: dict[str, Any] = {
        **{name: parsing.milliseconds(fields.get(name), f"spec.check.{name}") for name in times},
        **{name: parsing.number(fields.get(name), f"spec.check.{name}") for name in counts},
    }
    if "argv" in fields:
        return KeeperCheck(**common, argv=parsing.argv(fields, "spec.check"))
    port = parsing.number(fields.get("port"), "spec.check.port")
    path = fields.get("path")
    codes = parsing.expect(fields.get("codes", []), "spec.check.codes", list, "a list of [from, to]")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in codes):
        raise Malformed("spec.check.codes: want a list of [from, to]")
    if not 0 < port <= PORT_MAX:
        raise Malformed(f"spec.check.port: want 1 to {PORT_MAX}")
    return KeeperCheck(
        **common,
        port=port,
        path=None if path is None else parsing.text(path, "spec.check.path"),
        codes=tuple((parsing.number(low, "codes"), parsing.number(high, "codes")) for low, high in codes),
    )


def parse_stop_signal(raw: object) -> int:
    signum = parsing.number(raw, "spec.stop_signal")
    if not 0 < signum <= LAST_SIGNAL or signum == KILL:
        raise Malformed("spec.stop_signal: want the number of a signal that can be caught")
    return signum
