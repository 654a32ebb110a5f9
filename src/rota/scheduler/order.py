"""Whose turn is it? Priority first, then who holds the least of its share, then deadline and age."""

import heapq
from collections.abc import Sequence

import msgspec

from rota.model.accounts import Accounts
from rota.model.ids import JobId
from rota.model.job import JobSpec, Turn
from rota.model.lazy import lazy
from rota.model.namespace import TASKS, Namespace
from rota.model.shape import Line, Owner
from rota.model.view import JobView, View

_NO_QUOTA = Namespace("")


class Head(msgspec.Struct, frozen=True, order=True):
    """The job whose turn it is in one line. Turns are unique, so heads sort by them alone."""

    turn: Turn
    at: int
    line: Line
    jobs: Sequence[Turn]

    @property
    def job(self) -> JobId:
        return JobId(str(self.turn[2]))

    @property
    def next(self) -> "Head | None":
        at = self.at + 1
        return Head(self.jobs[at], at, self.line, self.jobs) if at < len(self.jobs) else None


class Shares:
    """What each namespace and user holds, of the resource it holds most of; with what this round placed."""

    def __init__(self, view: View) -> None:
        self._room = view.room
        self._accounts = view.accounts
        self._namespaces = view.namespaces
        self._counted = Accounts()  # of what was placed
        self._uncounted: list[tuple[JobSpec, int]] = []

    @lazy
    def _totals(self) -> dict[str, int]:
        room = self._room
        totals = room.capacity[:, : room.size].sum(axis=1).tolist() if room.size else []
        return {resource: max(1, totals[row]) for resource, row in room.rows.items() if totals}

    def of(self, owner: Owner) -> tuple[float, float]:
        """Its namespace's share by weight, then its own."""
        weight = self._namespaces.get(owner.namespace, _NO_QUOTA).weight
        held, placed = self._accounts, self._placed
        ours = self._share(
            held.of_namespace.get(owner.namespace, {}), placed.of_namespace.get(owner.namespace, {})
        )
        mine = self._share(held.of_owner.get(owner, {}), placed.of_owner.get(owner, {}))
        return ours / weight, mine

    def left(self, spec: JobSpec) -> int | None:
        """How many more of its tasks its namespace's quota allows; None: any number."""
        quota = self._namespaces.get(spec.namespace, _NO_QUOTA).quota
        if not quota:
            return None
        held = self._accounts.of_namespace.get(spec.namespace, {})
        placed = self._placed.of_namespace.get(spec.namespace, {})
        needs = {**spec.needs, TASKS: 1}
        rooms = (
            (most - held.get(resource, 0) - placed.get(resource, 0)) // needs[resource]
            for resource, most in quota.items()
            if needs.get(resource)
        )
        return max(0, min(rooms, default=spec.count))

    def charge(self, spec: JobSpec, tasks: int) -> None:
        self._uncounted.append((spec, tasks))

    @property
    def _placed(self) -> Accounts:
        """Counted when somebody asks: where nobody has a quota or shares with others, nobody does."""
        for spec, tasks in self._uncounted:
            self._counted.charge(spec.line.owner, spec.shape.needs, tasks)
        self._uncounted.clear()
        return self._counted

    def _share(self, held: dict[str, int], placed: dict[str, int]) -> float:
        shares = (
            (held.get(resource, 0) + placed.get(resource, 0)) / total
            for resource, total in self._totals.items()
        )
        return max(shares, default=0.0)


class Turns:
    """All lines: per owner the earliest turn, between owners the smaller share, above all the priority."""

    def __init__(self, shares: Shares, heads: list[Head]) -> None:
        self._shares = shares
        self._lines: dict[Owner, list[Head]] = {}
        for head in heads:
            self._lines.setdefault(head.line.owner, []).append(head)
        self._alone = len(self._lines) == 1
        self._owners: list[tuple[int, tuple[float, float], Turn, Owner]] = []
        for owner, lines in self._lines.items():
            heapq.heapify(lines)
            self._stand(owner)

    def pop(self) -> Head | None:
        while self._owners:
            _, share, _, owner = heapq.heappop(self._owners)
            if share != self._share(owner):  # others of its namespace were placed meanwhile
                self._stand(owner)
                continue
            return heapq.heappop(self._lines[owner])
        return None

    def done(self, head: Head, goes_on: bool) -> None:
        """The job has had its turn; its line goes on unless it is blocked."""
        owner = head.line.owner
        follower = head.next if goes_on else None
        if follower is not None:
            heapq.heappush(self._lines[owner], follower)
        self._stand(owner)

    def _stand(self, owner: Owner) -> None:
        lines = self._lines[owner]
        if lines:
            turn = lines[0].turn
            heapq.heappush(self._owners, (turn[0], self._share(owner), turn, owner))

    def _share(self, owner: Owner) -> tuple[float, float]:
        return (0.0, 0.0) if self._alone else self._shares.of(owner)


def may_start(job: JobView, shares: Shares) -> int:
    """How many of its tasks may start, whatever the nodes say."""
    wanted = job.tally.pending
    if job.spec.parallel is not None:
        wanted = min(wanted, job.spec.parallel - job.tally.live)
    quota = shares.left(job.spec)
    if quota is not None and quota < wanted and job.spec.gang:
        return 0
    return wanted if quota is None else min(wanted, quota)
