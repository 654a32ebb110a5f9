"""Injects the decided faults into a dev cluster, and prints them beside what Rota does about them. [I/O]"""

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

_POLL_SECONDS = 1.0  # for moved tasks and agents that have ended


async def run_chaos(engine: Engine, nodes: list[DevNode], options: ChaosOptions) -> None:
    """Run until cancelled; then nothing stays frozen or cut off, but dead agents stay dead."""
    by_name = {node.name: node for node in nodes}
    plan = chaos.start(options.seed, options.pace, _now_ms())
    with _reporting(engine) as effects:
        try:
            while True:
                step = chaos.decide(plan, {node.name: node.is_ready for node in nodes}, _now_ms())
                plan = step.after
                for act in step.heal:
                    await _heal_act(by_name[act.node], act)
                if step.harm is not None:
                    await _harm(by_name[step.harm.node], step.harm)
                # After the faults: an agent that chaos has just killed is expected to be dead.
                await _revive(nodes, plan)
                for sentence in effects.moved():
                    _print("rota", sentence)
                await asyncio.sleep(min(_POLL_SECONDS, max(0, step.wake_at_ms - _now_ms()) / 1000))
        finally:
            # A frozen process would not react to the stop that follows.
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
        case ChaosKind.CUT_OFF | ChaosKind.CUT_REPORTS | ChaosKind.CUT_ORDERS | ChaosKind.BREAK:
            _cut(node, act.kind)


def _cut(node: DevNode, kind: ChaosKind) -> None:
    assert node.relay is not None, "nodes under chaos have a relay"
    if kind is ChaosKind.BREAK:
        node.relay.break_all()
    else:
        node.relay.cut(to_server=kind is not ChaosKind.CUT_ORDERS, to_node=kind is not ChaosKind.CUT_REPORTS)


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
    """Restart agents that ended without a fault of ours, and say so."""
    harmed = [outage.act.node for outage in plan.outages]
    for node in nodes:
        if not node.runs and node.name not in harmed:
            _print("chaos", f"node {node.name}: agent ended unexpectedly; restarted")
            await node.start()


@contextmanager
def _reporting(engine: Engine) -> Iterator[ChaosReport]:
    effects = ChaosReport()
    is_active = True

    def on_commit(committed: Committed) -> None:
        if is_active and committed.events:
            # Read at the commit: a node that is deleted later still has its name in the sentence.
            names = {node: entry.spec.name for node, entry in engine.mirror.nodes.items()}
            for sentence in effects.sentences(committed.events, names):
                _print("rota", sentence, committed.wall_ms)

    engine.on_commit(on_commit)
    try:
        yield effects
    finally:
        is_active = False


def _print(source: str, sentence: str, wall_ms: int | None = None) -> None:
    at_ms = time.time_ns() // 1_000_000 if wall_ms is None else wall_ms
    clock = datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%H:%M:%S")
    print_line(f"  {clock}  {source:<5}  {sentence}")


def _now_ms() -> int:
    return round(1000 * asyncio.get_running_loop().time())
