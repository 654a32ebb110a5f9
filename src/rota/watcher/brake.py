"""Nodes that fall silent together -> an event when the brake level changes."""

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
    """Memoises the silent nodes of one moment, since all keys decided in it need the same count."""

    def __init__(self) -> None:
        self._at_ms = -1
        self._view: View | None = None
        self._cached: SilentNodes | None = None

    def is_stale(self, view: View, now: Instant) -> bool:
        """Whether the cached value belongs to another moment."""
        # Both are compared: after a reload another view may have the same time.
        return self._at_ms != now.ms or self._view is not view

    def get(self, view: View, now: Instant) -> SilentNodes:
        if self._cached is None or self.is_stale(view, now):
            self._at_ms, self._view, self._cached = now.ms, view, SilentNodes(view)
        return self._cached


def reconciler() -> Reconciler:
    """Remembers the level of the last event in memory; after a restart the event may be repeated once."""
    announced = BrakeLevel.OFF
    cache = SilenceCache()

    def decide(view: View, key: str, now: Instant) -> Plan:
        nonlocal announced
        del key
        is_fresh, silence = cache.is_stale(view, now), cache.get(view, now)
        brake = silence.worst(view)
        if brake.level is announced:
            nothing_pending = is_fresh and silence.all_declared_lost
            return NO_CHANGE if nothing_pending else wake_at(now.ms + BRAKE_LOOK_MS)
        announced = brake.level
        why = f"the brake is {brake.sentence}"
        event = EventRecord("cluster.brake", why, state=brake.level.value)
        return Plan(events=(event,), why=why, wake_at_ms=now.ms + BRAKE_LOOK_MS)

    return Reconciler(
        NAME, "watcher", dict.fromkeys((NodeStatus, NodeIntent), _wakes), decide, lambda _: (_CLUSTER,)
    )


def _wakes(record: Record) -> Iterable[str]:
    del record
    return (_CLUSTER,)
