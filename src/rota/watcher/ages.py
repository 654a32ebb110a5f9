"""What a node that is there leaves undone, and for how long -> said, taken back, or given up."""

from enum import Enum
from typing import NamedTuple

from rota.engine.reconciler import Reconciler, own_id
from rota.model.attempt import StatusBlock
from rota.model.columns import ints
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptEvent, AttemptState, NodeState
from rota.model.limits import AGE_LOOK_MS, BLOCK_TASKS, OFFERED_MS, QUEUED_MS, STOPPING_MS, UNKILLABLE_MS
from rota.model.node import Link, NodeStatus
from rota.model.phase import Phase
from rota.model.plan import NOTHING, Event, Instant, Plan, look_again
from rota.model.shape import RunMode
from rota.model.sync import Claim, Said
from rota.model.view import JobView, NodeView, View
from rota.watcher.claims import Ledger

NAME = "ages"


class Stage(Enum):
    """In which an attempt may not stay for ever."""

    OFFERED = "offered"
    QUEUED = "queued"
    STOPPING = "stopping"


_STAGES: dict[int, Stage] = {
    Phase.OFFERED: Stage.OFFERED,
    Phase.QUEUED: Stage.QUEUED,
    Phase.ACCEPTED: Stage.QUEUED,
    Phase.STOPPING: Stage.STOPPING,
}
Name = tuple[JobId, int, int]  # of an attempt: job, index, number


class Since(NamedTuple):
    stage: Stage
    ms: int
    is_told: bool = False  # that it cannot be killed


class Ages:
    """Since when each is seen where it is; after a start all count as seen just now, as nodes do."""

    def __init__(self) -> None:
        self._since: dict[NodeId, dict[Name, Since]] = {}

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        node = view.nodes.get(NodeId(key))
        if node is None or node.status is None:
            self._since.pop(NodeId(key), None)
            return NOTHING
        if node.link is not Link.UP or node.status.state is not NodeState.READY:
            self._since.pop(node.spec.id, None)  # its silence is looked after elsewhere
            return look_again(now.ms + AGE_LOOK_MS)
        since = self._seen(view, node, now)
        ledger = Ledger(view, node.spec.id)
        events = []
        for name, one in since.items():
            job = view.jobs[name[0]]
            if _end(job, name, one, ledger, now):
                continue
            if one.stage is Stage.STOPPING and not one.is_told and now.ms - one.ms >= _stop_ms(job):
                events.append(_unkillable(job, name, node, ledger))
                since[name] = one._replace(is_told=True)
        puts = ledger.puts()
        told = (*events, *(event for event in ledger.events(node.spec.name) if event.kind == "task.ended"))
        why = "; ".join(event.why for event in told)
        return Plan(puts, events=told, why=why, wake_at_ms=_next_look_ms(since, now))

    def _seen(self, view: View, node: NodeView, now: Instant) -> dict[Name, Since]:
        before = self._since.get(node.spec.id, {})
        found: dict[Name, Since] = {}
        for (job, index), number in node.assigned.items():
            stage = _stage(view.jobs[job], index, number)
            if stage is not None:
                known = before.get((job, index, number))
                same = known is not None and known.stage is stage
                found[job, index, number] = known if known and same else Since(stage, now.ms)
        self._since[node.spec.id] = found
        return found


def reconciler() -> Reconciler:
    return Reconciler(NAME, "watcher", {NodeStatus: own_id}, Ages().decide, lambda view: list(view.nodes))


def _stage(job: JobView, index: int, number: int) -> Stage | None:
    block, position = divmod(index, BLOCK_TASKS)
    stage = _STAGES.get(job.phases[block][position])
    if stage is Stage.STOPPING and not _is_accepted(job.statuses.get(block), position, number):
        return Stage.OFFERED  # nothing runs that could be unkillable: the node owes an answer
    return stage


def _is_accepted(status: StatusBlock | None, position: int, number: int) -> bool:
    if status is None or ints(status, "number")[position] != number:
        return False
    return status.state[position] >= AttemptState.ACCEPTED


def _end(job: JobView, name: Name, since: Since, ledger: Ledger, now: Instant) -> bool:
    """It has stayed too long: what may begin twice counts as refused, of all else the fate is unknown."""
    limit_ms, did = _LIMITS[since.stage]
    if now.ms - since.ms < limit_ms + (_stop_ms(job) if since.stage is Stage.STOPPING else 0):
        return False
    reason = f"its node {did} in {_words(limit_ms)}"
    if since.stage is not Stage.STOPPING and job.spec.run is RunMode.AT_LEAST_ONCE:
        claim = Claim(name[1], name[2], Said.REFUSED, ended_at_ms=now.wall_ms, reason=reason)
        ledger.enter(job, claim, AttemptEvent.REFUSED)
    else:
        claim = Claim(name[1], name[2], Said.LOST, ended_at_ms=now.wall_ms, reason=reason)
        ledger.enter(job, claim, AttemptEvent.FORGOTTEN)
    return True


_LIMITS = {
    Stage.OFFERED: (OFFERED_MS, "did not answer the offer"),
    Stage.QUEUED: (QUEUED_MS, "did not start it"),
    Stage.STOPPING: (STOPPING_MS, "could not stop it"),
}


def _next_look_ms(since: dict[Name, Since], now: Instant) -> int:
    """When something may have stayed too long, or in a while: what is offered meanwhile is not known yet."""
    ends_ms = (one.ms + _LIMITS[one.stage][0] for one in since.values())
    return min([now.ms + AGE_LOOK_MS, *(at_ms for at_ms in ends_ms if at_ms > now.ms)])


def _unkillable(job: JobView, name: Name, node: NodeView, ledger: Ledger) -> Event:
    """Its state says so, unless its node has said by itself that it is stopping it."""
    _, index, number = name
    reason = f"unkillable: not stopped {_words(_stop_ms(job))} after it was asked to"
    claim = Claim(index, number, Said.STOPPING, started_at_ms=_started_at_ms(job, index), reason=reason)
    ledger.enter(job, claim, AttemptEvent.STOP_ORDERED)
    why = f"task {index} of job {job.spec.id} on {node.spec.name} is {reason}"
    state = AttemptState.STOPPING.name.lower()
    return Event(
        "task.unkillable", why, job=job.spec.id, node=node.spec.id, indices=((index, index),), state=state
    )


def _stop_ms(job: JobView) -> int:
    return round(job.spec.grace_seconds * 1000) + UNKILLABLE_MS


def _started_at_ms(job: JobView, index: int) -> int:
    block, position = divmod(index, BLOCK_TASKS)
    status = job.statuses.get(block)
    return 0 if status is None else ints(status, "started_at_ms")[position]


def _words(ms: int) -> str:
    hours, rest = divmod(ms, 3_600_000)
    return f"{hours} h" if hours and not rest else f"{ms / 1000:g} s"
