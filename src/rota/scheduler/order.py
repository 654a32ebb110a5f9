"""Rank of pending jobs: by priority, then the owner's share, then when it was last served, then age."""

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
_REJECT = Unschedulable.REJECT  # enum members are slow to look up, and this one is needed for every job tried


class Standing(NamedTuple):
    """An owner's sort key among owners of the same priority: the smallest is served next.

    Where there are fewer slots than owners, an owner whose task has just ended uses as little as those that
    wait. Ordered by age of jobs, the same few owners would be served until their job arrays are done. So
    owners with equal shares take turns, by when they were last served.
    """

    namespace_share: float = 0.0  # dominant share divided by the weight
    share: float = 0.0
    namespace_served: int = 0  # when it was last served, as a growing number; 0: never
    served: int = 0


class QueueHead(msgspec.Struct, frozen=True, order=True):
    """The next job of one queue. Ranks are unique, so heads sort by them alone."""

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
    """Dominant share of each namespace and user, including what this round has placed."""

    def __init__(self, view: View) -> None:
        self._node_table = view.node_table
        self._usage = view.usage
        self._namespaces = view.namespaces
        self._charged = UsageAccounts()  # usage of what this round has placed
        # Charged lazily: most clusters have one owner and no quota, and then no sum is ever needed.
        self._uncharged: list[tuple[JobSpec, int]] = []

    @lazy
    def _totals(self) -> dict[str, int]:
        table = self._node_table
        totals = table.capacity[:, : table.size].sum(axis=1).tolist() if table.size else []
        return {resource: max(1, totals[row]) for resource, row in table.rows.items() if totals}

    def share_of(self, owner: Owner) -> Standing:
        weight = self._namespaces.get(owner.namespace, _NO_QUOTA).weight
        held, placed = self._usage, self._placed_usage
        namespace_share = self._dominant_share(
            held.by_namespace.get(owner.namespace, {}), placed.by_namespace.get(owner.namespace, {})
        )
        owner_share = self._dominant_share(held.by_owner.get(owner, {}), placed.by_owner.get(owner, {}))
        # In memory only: after a restart all owners are equal.
        served = held.served
        return Standing(
            namespace_share / weight, owner_share, served.get(owner.namespace, 0), served.get(owner, 0)
        )

    def quota_left(self, spec: JobSpec) -> int | None:
        """How many more tasks of the job the quota of its namespace allows; None: any number."""
        quota = self._namespaces.get(spec.namespace, _NO_QUOTA).quota
        if not quota:
            return None
        held = self._usage.by_namespace.get(spec.namespace, {})
        placed = self._placed_usage.by_namespace.get(spec.namespace, {})
        needs = {**spec.needs, TASKS: 1}
        allowed = (
            (most - held.get(resource, 0) - placed.get(resource, 0)) // needs[resource]
            for resource, most in quota.items()
            if needs.get(resource)
        )
        return max(0, min(allowed, default=spec.count))

    def charge(self, spec: JobSpec, tasks: int) -> None:
        self._uncharged.append((spec, tasks))

    @property
    def _placed_usage(self) -> UsageAccounts:
        """Usage of what this round has placed.

        Summed up lazily, as only quotas and several owners need it.
        """
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
    """All queue heads in order: by priority, between owners by standing, within an owner by rank."""

    def __init__(self, shares: FairShares, heads: list[QueueHead]) -> None:
        self._shares = shares
        self._queues: dict[Owner, list[QueueHead]] = {}
        for head in heads:
            self._queues.setdefault(head.queue.owner, []).append(head)
        self._has_one_owner = len(self._queues) == 1
        self._owners: list[tuple[int, Standing, QueueRank, Owner]] = []
        for owner, of_owner in self._queues.items():
            heapq.heapify(of_owner)
            self._push_owner(owner)

    def pop(self) -> QueueHead | None:
        while self._owners:
            _, standing, _, owner = heapq.heappop(self._owners)
            # Lazy update of the heap: a placement changes the standing of other users of the namespace, and
            # finding their entries would cost more.
            if standing != self._standing(owner):  # tasks of its namespace were placed since it was pushed
                self._push_owner(owner)
                continue
            return heapq.heappop(self._queues[owner])
        return None

    def advance(self, head: QueueHead, goes_on: bool) -> None:
        """The job was tried; continue with the next one of its queue unless that is blocked."""
        owner = head.queue.owner
        successor = head.next if goes_on else None
        if successor is not None:
            heapq.heappush(self._queues[owner], successor)
        self._push_owner(owner)

    def _push_owner(self, owner: Owner) -> None:
        heads = self._queues[owner]
        if heads:
            rank = heads[0].rank
            heapq.heappush(self._owners, (rank[0], self._standing(owner), rank, owner))

    def _standing(self, owner: Owner) -> Standing:
        # With one owner the rank alone decides, and shares are never computed.
        return Standing() if self._has_one_owner else self._shares.share_of(owner)


def count_accepted(job: JobView) -> int:
    """Number of its tasks that a node has accepted and that do not have to be placed again."""
    if not job.attempts:
        return 0
    counts, by_phase = job.task_counts, job.task_counts.as_dict()
    carried = sum(last - first + 1 for first, last in job.spec.carried)
    unaccepted = _count_unaccepted(job) if by_phase["canceled"] or counts.stopping else 0
    return job.spec.count - counts.pending - counts.held - by_phase["offered"] - carried - unaccepted


def _count_unaccepted(job: JobView) -> int:
    """Number of its tasks that were stopped or canceled before a node accepted them."""
    return sum(
        phases.count(_CANCELED) + phases.count(_STOPPING) - _count_accepted_in_block(job, block)
        for block, phases in job.phases.items()
        if _CANCELED in phases or _STOPPING in phases
    )


def _count_accepted_in_block(job: JobView, block: int) -> int:
    """Number of stopping and canceled tasks of a block that a node had accepted before."""
    attempt, status, task = job.attempts.get(block), job.statuses.get(block), job.tasks.get(block)
    if attempt is None or status is None:
        return 0
    # The columns differ in length when the job has grown: a task missing in one of them was never accepted.
    numbers = zip(ints(attempt, "number"), ints(status, "number"), strict=False)
    wanted_tries = repeat(0) if task is None else ints(task, "wanted")
    tries = zip(ints(attempt, "tries"), wanted_tries, strict=False)
    rows = zip(job.phases[block], status.state, numbers, tries, strict=False)
    return sum(
        phase in (_CANCELED, _STOPPING)
        and state not in _UNACCEPTED
        and placed == reported
        and served == desired
        for phase, state, (placed, reported), (served, desired) in rows
    )


def must_start_now(job: JobView) -> bool:
    """Whether the job is rejected if its tasks cannot all start now: no node has accepted any of them yet.

    Once one has started, the others and retries wait like those of any job.
    """
    if job.spec.when_unschedulable is not _REJECT:
        return False
    if not job.attempts:
        return True
    is_retried = any(any(ints(task, "wanted")) for task in job.tasks.values())
    return not is_retried and count_accepted(job) <= 0


def count_startable(job: JobView, shares: FairShares, now: Instant) -> int:
    """How many of its queued tasks may start under `parallel` and quota, regardless of nodes.

    A moved task between two nodes is in no queue, but still counts towards `parallel`, whether or not this
    round has placed it.
    """
    moved = len(job.move_waits_end_ms(now.ms))
    startable = job.task_counts.pending - moved
    if job.spec.parallel is not None:
        startable = min(startable, job.spec.parallel - job.task_counts.live - moved)
    return _within_quota(job, shares, startable)


def count_movable(job: JobView, shares: FairShares, count: int, placed: int) -> int:
    """How many of `count` moved tasks may start, after this round has placed `placed` others of them.

    `parallel` may have been lowered below the number of moved tasks.
    """
    if job.spec.parallel is not None:
        count = min(count, job.spec.parallel - job.task_counts.live - placed)
    return _within_quota(job, shares, count)


def _within_quota(job: JobView, shares: FairShares, count: int) -> int:
    quota = shares.quota_left(job.spec)
    # A part of a gang cannot start, so a quota that allows a part allows nothing.
    if quota is not None and quota < count and job.spec.gang:
        return 0
    return count if quota is None else min(count, quota)
