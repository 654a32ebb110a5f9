"""Nodes that fall silent together -> the word that the brake is on, another, or off again."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler
from rota.model.brake import Level, Silence
from rota.model.limits import BRAKE_LOOK_MS
from rota.model.node import NodeStatus, NodeWish
from rota.model.plan import NOTHING, Event, Instant, Plan, Record, look_again
from rota.model.view import View

NAME = "brake"
_CLUSTER = "cluster"


class Hush:
    """The silence at one moment, counted once for all who ask in it."""

    def __init__(self) -> None:
        self._at_ms = -1
        self._view: View | None = None
        self._known: Silence | None = None

    def is_past(self, view: View, now: Instant) -> bool:
        """What is known is of another moment."""
        return self._at_ms != now.ms or self._view is not view

    def of(self, view: View, now: Instant) -> Silence:
        if self._known is None or self.is_past(view, now):
            self._at_ms, self._view, self._known = now.ms, view, Silence(view)
        return self._known


def reconciler() -> Reconciler:
    """What was said last is remembered: after a start it may be said once more."""
    told = Level.OFF
    hush = Hush()

    def decide(view: View, key: str, now: Instant) -> Plan:
        nonlocal told
        del key
        is_fresh, silence = hush.is_past(view, now), hush.of(view, now)
        brake = silence.worst(view)
        if brake.level is told:
            at_rest = is_fresh and silence.is_whole
            return NOTHING if at_rest else look_again(now.ms + BRAKE_LOOK_MS)
        told = brake.level
        why = f"the brake is {brake.sentence}"
        event = Event("cluster.brake", why, state=brake.level.value)
        return Plan(events=(event,), why=why, wake_at_ms=now.ms + BRAKE_LOOK_MS)

    return Reconciler(
        NAME, "watcher", dict.fromkeys((NodeStatus, NodeWish), _wakes), decide, lambda _: (_CLUSTER,)
    )


def _wakes(record: Record) -> Iterable[str]:
    del record
    return (_CLUSTER,)
