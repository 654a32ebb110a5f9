"""How a service is to be kept alive and looked after, as its job says it."""

from dataclasses import dataclass
from typing import Any

from rota.keeper import parsing
from rota.keeper.parsing import Malformed

PORT_MAX = 65_535
CODE_MAX = 599
TERM, KILL, LAST_SIGNAL = 15, 9, 64


@dataclass(frozen=True, slots=True)
class KeeperRestart:
    """How often its process is started again in one attempt, and after which pause."""

    attempts: int
    within_ms: int
    delay_ms: int
    delay_max_ms: int


@dataclass(frozen=True, slots=True)
class KeeperCheck:
    """What is tried again and again: a command, or a port on this node, with a path if it speaks HTTP."""

    interval_ms: int
    timeout_ms: int
    after_ms: int  # so long after a start, failures do not count yet
    failures: int  # so many in a row: it is unhealthy
    successes: int  # so many in a row: it is healthy
    argv: tuple[str, ...] = ()
    port: int = 0
    path: str | None = None
    codes: tuple[tuple[int, int], ...] = ()  # from, to: what an answer may be


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
    said: dict[str, Any] = {
        **{name: parsing.milliseconds(fields.get(name), f"spec.check.{name}") for name in times},
        **{name: parsing.number(fields.get(name), f"spec.check.{name}") for name in counts},
    }
    if "argv" in fields:
        return KeeperCheck(**said, argv=parsing.argv(fields, "spec.check"))
    port = parsing.number(fields.get("port"), "spec.check.port")
    path = fields.get("path")
    codes = parsing.expect(fields.get("codes", []), "spec.check.codes", list, "a list of [from, to]")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in codes):
        raise Malformed("spec.check.codes: want a list of [from, to]")
    if not 0 < port <= PORT_MAX:
        raise Malformed(f"spec.check.port: want 1 to {PORT_MAX}")
    return KeeperCheck(
        **said,
        port=port,
        path=None if path is None else parsing.text(path, "spec.check.path"),
        codes=tuple((parsing.number(low, "codes"), parsing.number(high, "codes")) for low, high in codes),
    )


def parse_stop_signal(raw: object) -> int:
    signum = parsing.number(raw, "spec.stop_signal")
    if not 0 < signum <= LAST_SIGNAL or signum == KILL:
        raise Malformed("spec.stop_signal: want the number of a signal that can be caught")
    return signum
