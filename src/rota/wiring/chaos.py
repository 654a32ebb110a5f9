"""Seed + how the nodes are + the time -> whom to harm next and how, and whom to mend."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple, TypeVar

LOST_SECONDS = 10.0  # a third of the usual: whoever watches shall see nodes being given up
PAUSE_SECONDS = (5.0, 15.0)
OUTAGE_SECONDS = (0.2 * LOST_SECONDS, 2 * LOST_SECONDS)  # about half of them end before the node is lost
_LOOK_MS = 500  # when nobody could be harmed, how soon to try again
_WELL_AFTER = 1  # nodes that stay unharmed, whatever happens to the others

Item = TypeVar("Item")


class Kind(StrEnum):
    """What can happen to a node."""

    KILL_AGENT = "kill agent"
    KILL_NODE = "kill node"
    FREEZE_AGENT = "freeze agent"
    FREEZE_KEEPER = "freeze keeper"
    FREEZE_BOTH = "freeze both"
    CUT_OFF = "cut off"
    CUT_WORDS = "cut words"
    CUT_ORDERS = "cut orders"
    BREAK = "break"


class Act(NamedTuple):
    kind: Kind
    node: str
    seconds: float


class Outage(NamedTuple):
    """An act that lasts."""

    act: Act
    until_ms: int


@dataclass(frozen=True)
class Chaos:
    """How far it has got, and what of it still lasts."""

    seed: int
    pace: float = 1.0
    turn: int = 0
    next_at_ms: int = 0
    outages: tuple[Outage, ...] = ()


class Step(NamedTuple):
    """One decision: first mend, then harm, then decide again at that time."""

    after: Chaos
    mend: tuple[Act, ...]
    harm: Act | None
    wake_at_ms: int


def begin(seed: int, pace: float, now_ms: int) -> Chaos:
    return Chaos(seed, pace, next_at_ms=now_ms + _pause_ms(seed, 0, pace))


def decide(chaos: Chaos, ready: Mapping[str, bool], now_ms: int) -> Step:
    """`ready` says of every node whether the server hears it."""
    over = tuple(outage.act for outage in chaos.outages if outage.until_ms <= now_ms)
    chaos = replace(chaos, outages=tuple(one for one in chaos.outages if one.until_ms > now_ms))
    harm = None
    if now_ms >= chaos.next_at_ms:
        mended_now = [act.node for act in over]
        harm = _choose(chaos, [name for name in _well(chaos, ready) if name not in mended_now])
        chaos = _after(chaos, harm, now_ms)
    wake_at_ms = min([chaos.next_at_ms, *(outage.until_ms for outage in chaos.outages)])
    return Step(chaos, over, harm, wake_at_ms)


def _well(chaos: Chaos, ready: Mapping[str, bool]) -> list[str]:
    harmed = [outage.act.node for outage in chaos.outages]
    return [name for name, is_ready in ready.items() if is_ready and name not in harmed]


def _choose(chaos: Chaos, well: list[str]) -> Act | None:
    """Every kind comes once before one comes twice."""
    if len(well) <= _WELL_AFTER:
        return None
    round_number, place = divmod(chaos.turn, len(Kind))
    kind = _shuffled(f"{chaos.seed}/kinds/{round_number}", Kind)[place]
    node = _shuffled(f"{chaos.seed}/nodes/{chaos.turn}", well)[0]
    seconds = chaos.pace * _between(f"{chaos.seed}/outage/{chaos.turn}", *OUTAGE_SECONDS)
    return Act(kind, node, seconds)


def _after(chaos: Chaos, harm: Act | None, now_ms: int) -> Chaos:
    if harm is None:
        return replace(chaos, next_at_ms=now_ms + round(chaos.pace * _LOOK_MS))
    turn = chaos.turn + 1
    return replace(
        chaos,
        turn=turn,
        next_at_ms=now_ms + _pause_ms(chaos.seed, turn, chaos.pace),
        outages=(*chaos.outages, Outage(harm, now_ms + round(1000 * harm.seconds))),
    )


def _pause_ms(seed: int, turn: int, pace: float) -> int:
    return round(1000 * pace * _between(f"{seed}/pause/{turn}", *PAUSE_SECONDS))


def _shuffled(salt: str, items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=lambda item: _draw(f"{salt}/{item}"))


def _between(salt: str, low: float, high: float) -> float:
    return low + (high - low) * _draw(salt) / 2**64


def _draw(salt: str) -> int:
    return int.from_bytes(blake2b(salt.encode(), digest_size=8).digest(), "big")


# ---- in words

_HARMED = {
    Kind.KILL_AGENT: "agent killed, to be started again in {}",
    Kind.KILL_NODE: "agent, keeper and work killed, to be started again in {}",
    Kind.FREEZE_AGENT: "agent frozen for {}",
    Kind.FREEZE_KEEPER: "keeper frozen for {}",
    Kind.FREEZE_BOTH: "agent and keeper frozen for {}",
    Kind.CUT_OFF: "cut off for {}",
    Kind.CUT_WORDS: "cut off for {}, one way: nothing it says arrives",
    Kind.CUT_ORDERS: "cut off for {}, one way: it hears nothing",
    Kind.BREAK: "cut off for {}: connections break, and new ones too",
}
_MENDED = {
    Kind.KILL_AGENT: "agent started again",
    Kind.KILL_NODE: "started again",
    Kind.FREEZE_AGENT: "agent thawed",
    Kind.FREEZE_KEEPER: "keeper thawed",
    Kind.FREEZE_BOTH: "agent and keeper thawed",
    Kind.CUT_OFF: "can be reached again",
    Kind.CUT_WORDS: "can be reached again",
    Kind.CUT_ORDERS: "can be reached again",
    Kind.BREAK: "can be reached again",
}


def said_of_harm(act: Act) -> str:
    """`node node-3: cut off for 12 s`"""
    return f"node {act.node}: {_HARMED[act.kind].format(show_seconds(act.seconds))}"


def said_of_mending(act: Act) -> str:
    return f"node {act.node}: {_MENDED[act.kind]}"


def show_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
