"""Nodes that fall silent together -> the word that the brake is on, another, or off again."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler
from rota.model.limits import BRAKE_LOOK_MS
from rota.model.node import NodeIntent, NodeStatus
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, Record, wake_at
from rota.model.view import View
from rota.rules.disruption import BrakeLevel, SilentNodes
from rota.rules.reconciler_names import ReconcilerName

NAME = ReconcilerName.BRAKE
_CLUSTER = "cluster"


class SilenceCache:
    """The silence at one moment, counted once for all who ask in it."""

    def __init__(self) -> None:
        self._at_ms = -1
        self._view: View | None = None
        self._known: SilentNodes | None = None

    def is_stale(self, view: View, now: Instant) -> bool:
        """What is known is of another moment."""
        return self._at_ms != now.ms or self._view is not view

    def get(self, view: View, now: Instant) -> SilentNodes:
        if self._known is None or self.is_stale(view, now):
            self._at_ms, self._view, self._known = now.ms, view, SilentNodes(view)
        return self._known


def reconciler() -> Reconciler:
    """What was said last is remembered: after a start it may be said once more."""
    told = BrakeLevel.OFF
    hush = SilenceCache()

    def decide(view: View, key: str, now: Instant) -> Plan:
        nonlocal told
        del key
        is_fresh, silence = hush.is_stale(view, now), hush.get(view, now)
        brake = silence.worst(view)
        if brake.level is told:
            at_rest = is_fresh and silence.all_declared_lost
            return NO_CHANGE if at_rest else wake_at(now.ms + BRAKE_LOOK_MS)
        told = brake.level
        why = f"the brake is {brake.sentence}"
        event = EventRecord("cluster.brake", why, state=brake.level.value)
        return Plan(events=(event,), why=why, wake_at_ms=now.ms + BRAKE_LOOK_MS)

    return Reconciler(
        NAME, "watcher", dict.fromkeys((NodeStatus, NodeIntent), _wakes), decide, lambda _: (_CLUSTER,)
    )


def _wakes(record: Record) -> Iterable[str]:
    del record
    return (_CLUSTER,)
