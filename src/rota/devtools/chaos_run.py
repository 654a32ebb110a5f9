"""Does to the nodes of a dev cluster what was decided, and tells it beside what Rota does about it. [I/O]"""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from rota.config import ChaosOptions
from rota.devtools import chaos
from rota.devtools.chaos import ChaosAct, ChaosKind
from rota.devtools.chaos_report import ChaosReport
from rota.devtools.dev_node import DevNode
from rota.engine.run import Committed, Engine
from rota.wiring.console import print_line

_LOOK_SECONDS = 1.0  # how soon it is told where tasks went, and an agent that just ended is missed


async def run_chaos(engine: Engine, nodes: list[DevNode], options: ChaosOptions) -> None:
    """Until cancelled; then nobody is frozen or cut off any more, but dead agents stay dead."""
    by_name = {node.name: node for node in nodes}
    plan = chaos.start(options.seed, options.pace, _now_ms())
    with _listening(engine) as effects:
        try:
            while True:
                step = chaos.decide(plan, {node.name: node.is_ready for node in nodes}, _now_ms())
                plan = step.after
                for act in step.heal:
                    await _heal_act(by_name[act.node], act)
                if step.harm is not None:
                    await _harm(by_name[step.harm.node], step.harm)
                await _revive(nodes, plan)
                for sentence in effects.moved():
                    _print("rota", sentence)
                await asyncio.sleep(min(_LOOK_SECONDS, max(0, step.wake_at_ms - _now_ms()) / 1000))
        finally:
            for node in nodes:
                _heal(node)


async def _harm(node: DevNode, act: ChaosAct) -> None:
    _print("chaos", chaos.describe_harm(act))
    match act.kind:
        case ChaosKind.KILL_AGENT:
            await node.kill_agent()
        case ChaosKind.KILL_NODE:
            await node.kill()
        case ChaosKind.FREEZE_AGENT:
            node.signal_agent(signal.SIGSTOP)
        case ChaosKind.FREEZE_KEEPER:
            node.signal_keeper(signal.SIGSTOP)
        case ChaosKind.FREEZE_BOTH:
            node.signal_agent(signal.SIGSTOP)
            node.signal_keeper(signal.SIGSTOP)
        case ChaosKind.CUT_OFF | ChaosKind.CUT_WORDS | ChaosKind.CUT_ORDERS | ChaosKind.BREAK:
            _cut(node, act.kind)


def _cut(node: DevNode, kind: ChaosKind) -> None:
    assert node.relay is not None, "nodes that are to be harmed have one"
    if kind is ChaosKind.BREAK:
        node.relay.break_all()
    else:
        node.relay.cut(to_server=kind is not ChaosKind.CUT_ORDERS, to_node=kind is not ChaosKind.CUT_WORDS)


async def _heal_act(node: DevNode, act: ChaosAct) -> None:
    _print("chaos", chaos.describe_healing(act))
    _heal(node)
    if not node.runs:
        await node.start()


def _heal(node: DevNode) -> None:
    node.resume()
    if node.relay is not None:
        node.relay.heal()


async def _revive(nodes: list[DevNode], plan: chaos.ChaosState) -> None:
    """What died though nobody killed it is started again, and not passed over in silence."""
    harmed = [outage.act.node for outage in plan.outages]
    for node in nodes:
        if not node.runs and node.name not in harmed:
            _print("chaos", f"node {node.name}: its agent has ended of its own accord; started again")
            await node.start()


@contextmanager
def _listening(engine: Engine) -> Iterator[ChaosReport]:
    effects = ChaosReport()
    listens = True

    def hear(committed: Committed) -> None:
        if listens and committed.events:
            names = {node: entry.spec.name for node, entry in engine.mirror.nodes.items()}
            for sentence in effects.sentences(committed.events, names):
                _print("rota", sentence, committed.wall_ms)

    engine.on_commit(hear)
    try:
        yield effects
    finally:
        listens = False


def _print(who: str, sentence: str, wall_ms: int | None = None) -> None:
    at_ms = time.time_ns() // 1_000_000 if wall_ms is None else wall_ms
    clock = datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%H:%M:%S")
    print_line(f"  {clock}  {who:<5}  {sentence}")


def _now_ms() -> int:
    return round(1000 * asyncio.get_running_loop().time())
