"""Seed + states of the nodes + the time -> which node to harm next and how, and which faults to heal."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple, TypeVar

LOST_SECONDS = 10.0  # a third of the default, so that lost nodes can be seen in a short session
INTERVAL_SECONDS = (5.0, 15.0)
OUTAGE_SECONDS = (0.2 * LOST_SECONDS, 2 * LOST_SECONDS)  # about half of them end before the node is lost
_RETRY_MS = 500  # when no node could be harmed
_HEALTHY_MIN = 1  # nodes that are always left unharmed

Item = TypeVar("Item")


class ChaosKind(StrEnum):
    """The faults of a node; the values also seed their order."""

    KILL_AGENT = "kill agent"
    KILL_NODE = "kill node"
    FREEZE_AGENT = "freeze agent"
    FREEZE_KEEPER = "freeze keeper"
    FREEZE_BOTH = "freeze both"
    CUT_OFF = "cut off"
    CUT_REPORTS = "cut words"
    CUT_ORDERS = "cut orders"
    BREAK = "break"


class ChaosAct(NamedTuple):
    """A fault of one node and its duration."""

    kind: ChaosKind
    node: str
    seconds: float


class Outage(NamedTuple):
    """A fault that is active until a time."""

    act: ChaosAct
    until_ms: int


@dataclass(frozen=True)
class ChaosState:
    """Position in the sequence of faults, and those that are active."""

    seed: int
    pace: float = 1.0
    number: int = 0
    next_at_ms: int = 0
    outages: tuple[Outage, ...] = ()


class ChaosStep(NamedTuple):
    """One decision: heal, then harm, then decide again at `wake_at_ms`."""

    after: ChaosState
    heal: tuple[ChaosAct, ...]
    harm: ChaosAct | None
    wake_at_ms: int


def start(seed: int, pace: float, now_ms: int) -> ChaosState:
    return ChaosState(seed, pace, next_at_ms=now_ms + _interval_ms(seed, 0, pace))


def decide(chaos: ChaosState, ready: Mapping[str, bool], now_ms: int) -> ChaosStep:
    """Decide the next step; `ready` says of each node whether it is connected and open."""
    over = tuple(outage.act for outage in chaos.outages if outage.until_ms <= now_ms)
    chaos = replace(chaos, outages=tuple(outage for outage in chaos.outages if outage.until_ms > now_ms))
    harm = None
    if now_ms >= chaos.next_at_ms:
        # A node that is healed in this step is not harmed again in it: its recovery would not be seen.
        healed_now = [act.node for act in over]
        harm = _choose(chaos, [name for name in _healthy(chaos, ready) if name not in healed_now])
        chaos = _after(chaos, harm, now_ms)
    wake_at_ms = min([chaos.next_at_ms, *(outage.until_ms for outage in chaos.outages)])
    return ChaosStep(chaos, over, harm, wake_at_ms)


def _healthy(chaos: ChaosState, ready: Mapping[str, bool]) -> list[str]:
    harmed = [outage.act.node for outage in chaos.outages]
    return [name for name, is_ready in ready.items() if is_ready and name not in harmed]


def _choose(chaos: ChaosState, healthy: list[str]) -> ChaosAct | None:
    """Choose a fault; each kind comes once before any comes twice."""
    # One node stays healthy, so that work always has a place to go.
    if len(healthy) <= _HEALTHY_MIN:
        return None
    round_number, position = divmod(chaos.number, len(ChaosKind))
    kind = _shuffled(f"{chaos.seed}/kinds/{round_number}", ChaosKind)[position]
    # By a hash of seed and number, without a generator: a repeated seed gives the same faults
    # although nodes recover at other times.
    node = _shuffled(f"{chaos.seed}/nodes/{chaos.number}", healthy)[0]
    seconds = chaos.pace * _between(f"{chaos.seed}/outage/{chaos.number}", *OUTAGE_SECONDS)
    return ChaosAct(kind, node, seconds)


def _after(chaos: ChaosState, harm: ChaosAct | None, now_ms: int) -> ChaosState:
    if harm is None:
        return replace(chaos, next_at_ms=now_ms + round(chaos.pace * _RETRY_MS))
    number = chaos.number + 1
    return replace(
        chaos,
        number=number,
        next_at_ms=now_ms + _interval_ms(chaos.seed, number, chaos.pace),
        outages=(*chaos.outages, Outage(harm, now_ms + round(1000 * harm.seconds))),
    )


def _interval_ms(seed: int, number: int, pace: float) -> int:
    return round(1000 * pace * _between(f"{seed}/pause/{number}", *INTERVAL_SECONDS))


def _shuffled(salt: str, items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=lambda item: _draw(f"{salt}/{item}"))


def _between(salt: str, low: float, high: float) -> float:
    return low + (high - low) * _draw(salt) / 2**64


def _draw(salt: str) -> int:
    return int.from_bytes(blake2b(salt.encode(), digest_size=8).digest(), "big")


# ---- texts

_HARM_TEXTS = {
    ChaosKind.KILL_AGENT: "agent killed, restarts in {}",
    ChaosKind.KILL_NODE: "agent, keeper and tasks killed, restarts in {}",
    ChaosKind.FREEZE_AGENT: "agent frozen for {}",
    ChaosKind.FREEZE_KEEPER: "keeper frozen for {}",
    ChaosKind.FREEZE_BOTH: "agent and keeper frozen for {}",
    ChaosKind.CUT_OFF: "cut off for {}",
    ChaosKind.CUT_REPORTS: "cut off for {}, one way: its reports do not arrive",
    ChaosKind.CUT_ORDERS: "cut off for {}, one way: it receives nothing",
    ChaosKind.BREAK: "cut off for {}: connections break, and so do new ones",
}
_HEALING_TEXTS = {
    ChaosKind.KILL_AGENT: "agent restarted",
    ChaosKind.KILL_NODE: "restarted",
    ChaosKind.FREEZE_AGENT: "agent resumed",
    ChaosKind.FREEZE_KEEPER: "keeper resumed",
    ChaosKind.FREEZE_BOTH: "agent and keeper resumed",
    ChaosKind.CUT_OFF: "reachable again",
    ChaosKind.CUT_REPORTS: "reachable again",
    ChaosKind.CUT_ORDERS: "reachable again",
    ChaosKind.BREAK: "reachable again",
}


def describe_harm(act: ChaosAct) -> str:
    """`node node-3: cut off for 12 s`"""
    return f"node {act.node}: {_HARM_TEXTS[act.kind].format(show_seconds(act.seconds))}"


def describe_healing(act: ChaosAct) -> str:
    return f"node {act.node}: {_HEALING_TEXTS[act.kind]}"


def show_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
