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


class ChaosKind(StrEnum):
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


class ChaosAct(NamedTuple):
    kind: ChaosKind
    node: str
    seconds: float


class Outage(NamedTuple):
    """An act that lasts."""

    act: ChaosAct
    until_ms: int


@dataclass(frozen=True)
class ChaosState:
    """How far it has got, and what of it still lasts."""

    seed: int
    pace: float = 1.0
    turn: int = 0
    next_at_ms: int = 0
    outages: tuple[Outage, ...] = ()


class ChaosStep(NamedTuple):
    """One decision: first mend, then harm, then decide again at that time."""

    after: ChaosState
    heal: tuple[ChaosAct, ...]
    harm: ChaosAct | None
    wake_at_ms: int


def start(seed: int, pace: float, now_ms: int) -> ChaosState:
    return ChaosState(seed, pace, next_at_ms=now_ms + _pause_ms(seed, 0, pace))


def decide(chaos: ChaosState, ready: Mapping[str, bool], now_ms: int) -> ChaosStep:
    """`ready` says of every node whether the server hears it."""
    over = tuple(outage.act for outage in chaos.outages if outage.until_ms <= now_ms)
    chaos = replace(chaos, outages=tuple(one for one in chaos.outages if one.until_ms > now_ms))
    harm = None
    if now_ms >= chaos.next_at_ms:
        mended_now = [act.node for act in over]
        harm = _choose(chaos, [name for name in _healthy(chaos, ready) if name not in mended_now])
        chaos = _after(chaos, harm, now_ms)
    wake_at_ms = min([chaos.next_at_ms, *(outage.until_ms for outage in chaos.outages)])
    return ChaosStep(chaos, over, harm, wake_at_ms)


def _healthy(chaos: ChaosState, ready: Mapping[str, bool]) -> list[str]:
    harmed = [outage.act.node for outage in chaos.outages]
    return [name for name, is_ready in ready.items() if is_ready and name not in harmed]


def _choose(chaos: ChaosState, well: list[str]) -> ChaosAct | None:
    """Every kind comes once before one comes twice."""
    if len(well) <= _WELL_AFTER:
        return None
    round_number, place = divmod(chaos.turn, len(ChaosKind))
    kind = _shuffled(f"{chaos.seed}/kinds/{round_number}", ChaosKind)[place]
    node = _shuffled(f"{chaos.seed}/nodes/{chaos.turn}", well)[0]
    seconds = chaos.pace * _between(f"{chaos.seed}/outage/{chaos.turn}", *OUTAGE_SECONDS)
    return ChaosAct(kind, node, seconds)


def _after(chaos: ChaosState, harm: ChaosAct | None, now_ms: int) -> ChaosState:
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

_HARM_TEXTS = {
    ChaosKind.KILL_AGENT: "agent killed, to be started again in {}",
    ChaosKind.KILL_NODE: "agent, keeper and work killed, to be started again in {}",
    ChaosKind.FREEZE_AGENT: "agent frozen for {}",
    ChaosKind.FREEZE_KEEPER: "keeper frozen for {}",
    ChaosKind.FREEZE_BOTH: "agent and keeper frozen for {}",
    ChaosKind.CUT_OFF: "cut off for {}",
    ChaosKind.CUT_WORDS: "cut off for {}, one way: nothing it says arrives",
    ChaosKind.CUT_ORDERS: "cut off for {}, one way: it hears nothing",
    ChaosKind.BREAK: "cut off for {}: connections break, and new ones too",
}
_HEALING_TEXTS = {
    ChaosKind.KILL_AGENT: "agent started again",
    ChaosKind.KILL_NODE: "started again",
    ChaosKind.FREEZE_AGENT: "agent thawed",
    ChaosKind.FREEZE_KEEPER: "keeper thawed",
    ChaosKind.FREEZE_BOTH: "agent and keeper thawed",
    ChaosKind.CUT_OFF: "can be reached again",
    ChaosKind.CUT_WORDS: "can be reached again",
    ChaosKind.CUT_ORDERS: "can be reached again",
    ChaosKind.BREAK: "can be reached again",
}


def describe_harm(act: ChaosAct) -> str:
    """`node node-3: cut off for 12 s`"""
    return f"node {act.node}: {_HARM_TEXTS[act.kind].format(show_seconds(act.seconds))}"


def describe_healing(act: ChaosAct) -> str:
    return f"node {act.node}: {_HEALING_TEXTS[act.kind]}"


def show_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
