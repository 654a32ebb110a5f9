"""What runs and waits in a cluster + the sizes it may have -> machines that are asked for, and that go."""

from collections.abc import Callable, Iterable

from rota.clusters.fleet import Fleet, tend
from rota.clusters.machines import with_node
from rota.engine.reconciler import Reconciler, Wakes
from rota.model.cluster import Cluster, ClusterWish, Machine
from rota.model.fit import Growth
from rota.model.ids import NodeId
from rota.model.job import JobCluster, Kind
from rota.model.lifecycle import ClusterState, MachineEvent, MachineState
from rota.model.limits import SCALE_LOOK_MS, SCALE_NODES_A_LOOK, SCALE_SAME_LOOKS, SCALE_STEP_MAX
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.view import View, taken_away

NAME = "scale"
_NEVER_MS = -(1 << 60)

# The cluster, machines on their way, the most that may come on top -> what the scheduler would make of it.
Foresight = Callable[[View, ClusterWish, int, int, Instant], Growth]


def reconciler(foresee: Foresight) -> Reconciler:
    return Reconciler(NAME, "clusters", WAKES, Scaler(foresee).decide, start)


def _own_name(record: Cluster | ClusterWish) -> Iterable[str]:
    return (record.name,)


def _its_cluster(record: Machine | JobCluster) -> Iterable[str]:
    return (record.cluster,)


WAKES: Wakes = {ClusterWish: _own_name, Cluster: _own_name, Machine: _its_cluster, JobCluster: _its_cluster}


def start(view: View) -> Iterable[str]:
    return view.cluster_wishes


class Scaler:
    """Remembers since when nodes are empty, and what was foreseen last: both can be found out again."""

    def __init__(self, foresee: Foresight) -> None:
        self._foresee = foresee
        self._empty_since_ms: dict[NodeId, int] = {}
        self._foreseen: dict[str, tuple[int, tuple[int, ...], Growth]] = {}  # when, on what, and what

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        cluster, wish = view.clusters.get(key), view.cluster_wishes.get(key)
        if cluster is None or wish is None or wish.by_hand:
            return NOTHING
        fleet = Fleet.of(view, cluster, wish)
        self._look_who_is_empty(view, fleet, now)
        plan = tend(view, fleet, now) or self._resized(view, fleet, now) or NOTHING
        return plan.but(wake_at_ms=now.ms + SCALE_LOOK_MS)

    def _resized(self, view: View, fleet: Fleet, now: Instant) -> Plan | None:
        if fleet.cluster.state is ClusterState.FAILED:  # what was on its way may have come since
            going = [with_node(view, one) for one in fleet.staying]
            return _shrunk(fleet, going, "it has failed", now) if going else None
        return self._grow(view, fleet, now) or self._shrink(view, fleet, now)

    def _look_who_is_empty(self, view: View, fleet: Fleet, now: Instant) -> None:
        for machine in fleet.machines:
            node = view.nodes.get(machine.node) if machine.node is not None else None
            if node is not None and not _held_by(view, machine):
                self._empty_since_ms.setdefault(node.spec.id, now.ms)
            elif machine.node is not None:
                self._empty_since_ms.pop(machine.node, None)

    def _grow(self, view: View, fleet: Fleet, now: Instant) -> Plan | None:
        """At once: but not while its provider rests after a failure, and never above its limit."""
        wish, cluster = fleet.wish, fleet.cluster
        most = wish.max_nodes - fleet.size
        if most <= 0 or cluster.paused_until_ms > now.ms:
            return None
        missing = fleet.least - len(fleet.staying)
        growth = Growth(0, 0, 0)
        if wish.nodes is None:
            growth = self._foresight(view, fleet, most, now)
        more = min(max(missing, growth.nodes), most, SCALE_STEP_MAX)
        if more <= 0:
            return None
        new = tuple(
            Machine(f"{cluster.name}-{cluster.made + number}", cluster.name, since_ms=now.ms, asked_ms=now.ms)
            for number in range(1, more + 1)
        )
        why = _grown(fleet, more, growth, moves=_moving(view, fleet) > 0)
        event = Event("cluster.scaled", why, cluster=cluster.name, state="out")
        return Plan((cluster.asked_for(more), *new), events=(event,), why=why)

    def _foresight(self, view: View, fleet: Fleet, most: int, now: Instant) -> Growth:
        """Simulated at most once a look, and rarely when nothing has changed since: only pauses end then."""
        name, waiting, moving = fleet.cluster.name, _waiting(view, fleet), _moving(view, fleet)
        if not waiting and not moving:
            return Growth(0, 0, 0)
        on = (view.room.grown, waiting, moving, fleet.coming, most)
        at_ms, before, growth = self._foreseen.get(name, (_NEVER_MS, (), Growth(0, 0, 0)))
        look_ms = SCALE_LOOK_MS * (1 + view.room.size // SCALE_NODES_A_LOOK)
        if before == on and now.ms - at_ms < look_ms * SCALE_SAME_LOOKS:
            return growth
        if now.ms - at_ms < look_ms:
            return Growth(0, 0, 0)
        growth = self._foresee(view, fleet.wish, fleet.coming, most, now)
        self._foreseen[name] = (now.ms, on, growth)
        return growth

    def _shrink(self, view: View, fleet: Fleet, now: Instant) -> Plan | None:
        """Slowly, and by nodes on which nothing runs; at once where a size was asked for."""
        surplus = len(fleet.staying) - fleet.least
        joined = [one for one in fleet.staying if one.state is MachineState.JOINED]
        if surplus <= 0 or not joined:
            return None
        if fleet.wish.nodes is not None:
            joined.sort(key=lambda one: _held_by(view, one))
            return _shrunk(fleet, joined[:surplus], _asked(fleet.wish.nodes), now)
        comes = fleet.coming or fleet.cluster.paused_until_ms > now.ms
        if comes and not fleet.wish.drain and _waiting(view, fleet):
            return None  # an empty one may be needed together with those that come: by a gang, for one
        idle_ms = 0 if fleet.wish.drain else round(fleet.wish.idle_seconds * 1000)
        idle = {
            one.name: now.ms - self._empty_since_ms.get(one.node or NodeId(""), now.ms + 1) for one in joined
        }
        if max(idle.values()) < idle_ms or _moving(view, fleet):  # which may be meant for an empty one
            return None
        # Those that are nearly as long empty go with them, so that one fall of the load is one step.
        going = [one for one in joined if idle[one.name] >= max(0, idle_ms // 2)]
        going.sort(key=lambda one: (-idle[one.name], one.since_ms))
        return _shrunk(fleet, going[:surplus], f"empty for {idle_ms / 1000:g} s", now)


def _held_by(view: View, machine: Machine) -> int:
    """Tasks for whose sake it is there; those of system jobs come and go with it."""
    node = view.nodes.get(machine.node) if machine.node is not None else None
    assigned = () if node is None else node.assigned
    return sum(view.jobs[job].spec.kind is not Kind.SYSTEM for job, _ in assigned)


def _waiting(view: View, fleet: Fleet) -> int:
    """Jobs."""
    return view.waiting_in(fleet.cluster.name)


def _moving(view: View, fleet: Fleet) -> int:
    """Tasks on nodes whose machines are taken away, and that may go elsewhere."""
    nodes = (view.nodes[node] for node in taken_away(view, fleet.cluster.name))
    return sum(view.jobs[job].spec.movable for node in nodes for job, _ in node.assigned)


def _grown(fleet: Fleet, more: int, growth: Growth, *, moves: bool) -> str:
    name, limit = fleet.cluster.name, f"it has {fleet.size}, its limit is {fleet.wish.max_nodes}"
    head = f"adding {_nodes(more)} to {name}"
    if not growth.nodes:
        return f"{head}: at least {_asked(fleet.least)}; {limit}"
    if growth.waiting == 1:
        return f"{head}: 1 task waits{' or has to move' if moves else ''}, which would start; {limit}"
    starts = "all" if growth.starts == growth.waiting else f"{growth.starts} of them"
    wait = "wait or have to move" if moves else "wait"
    return f"{head}: {growth.waiting} tasks {wait}, {starts} would start; {limit}"


def _shrunk(fleet: Fleet, going: list[Machine], reason: str, now: Instant) -> Plan:
    left = len(fleet.staying) - len(going)
    head = f"taking {_nodes(len(going))} from {fleet.cluster.name}"
    why = f"{head}: {reason}; it keeps {left}, its least is {fleet.least}"
    event = Event("cluster.scaled", why, cluster=fleet.cluster.name, state="in")
    return Plan(
        tuple(one.turned(MachineEvent.UNWANTED, now.ms, reason) for one in going), events=(event,), why=why
    )


def _asked(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} asked for"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
