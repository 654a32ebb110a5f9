"""Whose turn is it? By priority, then the least share held, then the longest wait for a turn, then age."""

import heapq
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec

from rota.model.amounts import TASKS
from rota.model.columns import ints
from rota.model.ids import JobId
from rota.model.job import JobSpec, QueueRank, Unschedulable
from rota.model.lifecycle import NOT_STARTED, AttemptState
from rota.model.namespace import NamespaceRecord, UsageAccounts
from rota.model.plan import Instant
from rota.model.shape import Owner, QueueKey
from rota.model.structures import lazy
from rota.model.view import JobView, View
from rota.rules.phases import Phase

_NO_QUOTA = NamespaceRecord("")
_UNACCEPTED = frozenset(map(int, (AttemptState.OFFERED, *NOT_STARTED)))
_CANCELED, _STOPPING = int(Phase.CANCELED), int(Phase.STOPPING)
_REJECT = Unschedulable.REJECT  # enum members are slow to look up, and this one is asked for at every turn


class Standing(NamedTuple):
    """An owner's place between others of the same priority: the smallest has the next turn.

    Where there are fewer places than owners, each that has just ended a task holds as little as those that
    wait. By the age of their jobs the same few would be served until their arrays are done: so owners whose
    shares are equal take turns.
    """

    namespace_share: float = 0.0  # by its weight
    share: float = 0.0
    namespace_served: int = 0  # when it was last given room, as a number that grows; 0: never
    served: int = 0


class QueueHead(msgspec.Struct, frozen=True, order=True):
    """The job whose turn it is in one line. Turns are unique, so heads sort by them alone."""

    rank: QueueRank
    position: int
    queue: QueueKey
    ranks: Sequence[QueueRank]

    @property
    def job(self) -> JobId:
        return JobId(str(self.rank[2]))

    @property
    def next(self) -> "QueueHead | None":
        at = self.position + 1
        return QueueHead(self.ranks[at], at, self.queue, self.ranks) if at < len(self.ranks) else None


class FairShares:
    """What each namespace and user holds, of the resource it holds most of; with what this round placed."""

    def __init__(self, view: View) -> None:
        self._node_table = view.node_table
        self._usage = view.usage
        self._namespaces = view.namespaces
        self._charged = UsageAccounts()  # of what was placed
        self._uncharged: list[tuple[JobSpec, int]] = []

    @lazy
    def _totals(self) -> dict[str, int]:
        room = self._node_table
        totals = room.capacity[:, : room.size].sum(axis=1).tolist() if room.size else []
        return {resource: max(1, totals[row]) for resource, row in room.rows.items() if totals}

    def share_of(self, owner: Owner) -> Standing:
        weight = self._namespaces.get(owner.namespace, _NO_QUOTA).weight
        held, placed = self._usage, self._placed_usage
        ours = self._dominant_share(
            held.by_namespace.get(owner.namespace, {}), placed.by_namespace.get(owner.namespace, {})
        )
        mine = self._dominant_share(held.by_owner.get(owner, {}), placed.by_owner.get(owner, {}))
        served = held.served
        return Standing(ours / weight, mine, served.get(owner.namespace, 0), served.get(owner, 0))

    def quota_left(self, spec: JobSpec) -> int | None:
        """How many more of its tasks its namespace's quota allows; None: any number."""
        quota = self._namespaces.get(spec.namespace, _NO_QUOTA).quota
        if not quota:
            return None
        held = self._usage.by_namespace.get(spec.namespace, {})
        placed = self._placed_usage.by_namespace.get(spec.namespace, {})
        needs = {**spec.needs, TASKS: 1}
        rooms = (
            (most - held.get(resource, 0) - placed.get(resource, 0)) // needs[resource]
            for resource, most in quota.items()
            if needs.get(resource)
        )
        return max(0, min(rooms, default=spec.count))

    def charge(self, spec: JobSpec, tasks: int) -> None:
        self._uncharged.append((spec, tasks))

    @property
    def _placed_usage(self) -> UsageAccounts:
        """Counted when somebody asks: where nobody has a quota or shares with others, nobody does."""
        for spec, tasks in self._uncharged:
            self._charged.charge(spec.queue_key.owner, spec.shape.needs, tasks)
        self._uncharged.clear()
        return self._charged

    def _dominant_share(self, held: dict[str, int], placed: dict[str, int]) -> float:
        shares = (
            (held.get(resource, 0) + placed.get(resource, 0)) / total
            for resource, total in self._totals.items()
        )
        return max(shares, default=0.0)


class RankedQueue:
    """All lines: per owner the earliest turn, between owners the smaller standing, above all the priority."""

    def __init__(self, shares: FairShares, heads: list[QueueHead]) -> None:
        self._shares = shares
        self._queues: dict[Owner, list[QueueHead]] = {}
        for head in heads:
            self._queues.setdefault(head.queue.owner, []).append(head)
        self._has_one_owner = len(self._queues) == 1
        self._owners: list[tuple[int, Standing, QueueRank, Owner]] = []
        for owner, lines in self._queues.items():
            heapq.heapify(lines)
            self._push_owner(owner)

    def pop(self) -> QueueHead | None:
        while self._owners:
            _, standing, _, owner = heapq.heappop(self._owners)
            if standing != self._standing(owner):  # others of its namespace were placed meanwhile
                self._push_owner(owner)
                continue
            return heapq.heappop(self._queues[owner])
        return None

    def advance(self, head: QueueHead, goes_on: bool) -> None:
        """The job has had its turn; its line goes on unless it is blocked."""
        owner = head.queue.owner
        follower = head.next if goes_on else None
        if follower is not None:
            heapq.heappush(self._queues[owner], follower)
        self._push_owner(owner)

    def _push_owner(self, owner: Owner) -> None:
        lines = self._queues[owner]
        if lines:
            turn = lines[0].rank
            heapq.heappush(self._owners, (turn[0], self._standing(owner), turn, owner))

    def _standing(self, owner: Owner) -> Standing:
        return Standing() if self._has_one_owner else self._shares.share_of(owner)


def count_accepted(job: JobView) -> int:
    """How many of its tasks a node has accepted, as far as they have not to be placed again."""
    if not job.attempts:
        return 0
    tally, by_phase = job.task_counts, job.task_counts.as_dict()
    carried = sum(last - first + 1 for first, last in job.spec.carried)
    unaccepted = _count_unaccepted(job) if by_phase["canceled"] or tally.stopping else 0
    return job.spec.count - tally.pending - tally.held - by_phase["offered"] - carried - unaccepted


def _count_unaccepted(job: JobView) -> int:
    """How many of its tasks were stopped or canceled before a node accepted them."""
    return sum(
        phases.count(_CANCELED) + phases.count(_STOPPING) - _count_accepted_in_block(job, block)
        for block, phases in job.phases.items()
        if _CANCELED in phases or _STOPPING in phases
    )


def _count_accepted_in_block(job: JobView, block: int) -> int:
    """How many of the stopping and canceled tasks of a block a node had accepted before."""
    attempt, status, task = job.attempts.get(block), job.statuses.get(block), job.tasks.get(block)
    if attempt is None or status is None:
        return 0
    # The columns differ in length when the job has grown: a task missing in one of them was never accepted.
    numbers = zip(ints(attempt, "number"), ints(status, "number"), strict=False)
    wanted_tries = repeat(0) if task is None else ints(task, "wanted")
    tries = zip(ints(attempt, "tries"), wanted_tries, strict=False)
    rows = zip(job.phases[block], status.state, numbers, tries, strict=False)
    return sum(
        phase in (_CANCELED, _STOPPING) and state not in _UNACCEPTED and placed == told and served == wanted
        for phase, state, (placed, told), (served, wanted) in rows
    )


def must_start_now(job: JobView) -> bool:
    """The job is rejected if its tasks cannot all start now: no node has accepted any of them so far.

    Once one has begun, the others and its retries wait like those of any job.
    """
    if job.spec.when_unschedulable is not _REJECT:
        return False
    if not job.attempts:
        return True
    is_retried = any(any(ints(task, "wanted")) for task in job.tasks.values())
    return not is_retried and count_accepted(job) <= 0


def count_startable(job: JobView, shares: FairShares, now: Instant) -> int:
    """How many of its tasks in line may start, whatever the nodes say.

    A moved task between two nodes is in no line, but keeps its place under `parallel`. It counts the same
    whether or not this round has placed it.
    """
    moved = len(job.move_waits_end_ms(now.ms))
    wanted = job.task_counts.pending - moved
    if job.spec.parallel is not None:
        wanted = min(wanted, job.spec.parallel - job.task_counts.live - moved)
    return _within_quota(job, shares, wanted)


def count_movable(job: JobView, shares: FairShares, wanted: int, placed: int) -> int:
    """How many of `wanted` moved tasks may start, after this round has placed `placed` others of them.

    There may be fewer places than moved tasks if `parallel` was lowered meanwhile.
    """
    if job.spec.parallel is not None:
        wanted = min(wanted, job.spec.parallel - job.task_counts.live - placed)
    return _within_quota(job, shares, wanted)


def _within_quota(job: JobView, shares: FairShares, wanted: int) -> int:
    quota = shares.quota_left(job.spec)
    if quota is not None and quota < wanted and job.spec.gang:
        return 0
    return wanted if quota is None else min(wanted, quota)
