"""Everything that is added up over live attempts, kept up to date by how each of them moves."""

from rota.engine.entries import JobEntry, Move
from rota.model.accounts import Accounts
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.namespace import TASKS
from rota.model.neighbours import Counted, Neighbours
from rota.model.room import Room


class Sums:
    """Room, accounts and neighbours, written together."""

    def __init__(self, room: Room, accounts: Accounts, neighbours: Neighbours) -> None:
        self._room = room
        self._accounts = accounts
        self._neighbours = neighbours
        self.leased: dict[JobId, None] = {}  # jobs that have not ended and whose attempts run under leases
        self.leased_on: dict[
            NodeId, dict[JobId, None]
        ] = {}  # of these, the ones with live attempts on a node
        self._live: dict[JobId, JobEntry] = {}  # jobs with live attempts

    def move(self, job: JobEntry, node: NodeId, move: Move) -> None:
        """Attempts of a job changed what they hold of a node."""
        slot, shape, live = self._room.slot[node], job.spec.shape, move.room + move.line
        self._room.hold(slot, shape.needs, move.room, move.line)
        self._room.grown += move.gave_room
        self._accounts.charge(job.spec.line.owner, shape.needs, move.room)
        if job.spec.evictable and (move.lent or move.leaving):
            self._lend(job, slot, move)
        if shape.noise is not None:
            self._room.disturb(slot, shape.noise, live)
        there = job.on.get(node, 0) + live
        if there:
            job.on[node] = there
        else:
            job.on.pop(node, None)
        self._note_live(job, node)
        if self._neighbours.members or self._neighbours.own:
            self._neighbours.count(job.spec.id, self._counted(job), slot, live)

    def _note_live(self, job: JobEntry, node: NodeId) -> None:
        name = job.spec.id
        if job.on:
            self._live[name] = job
        else:
            self._live.pop(name, None)
        if job.spec.lease_ms is None:
            return
        here = self.leased_on.setdefault(node, {})
        if node in job.on:
            here[name] = None
        else:
            here.pop(name, None)
        if not here:
            del self.leased_on[node]

    def begin(self, spec: JobSpec) -> None:
        """A job has come: where are those its terms name, if nobody had such terms before?"""
        if spec.lease_ms is not None:
            self.leased[spec.id] = None
        if not (spec.near or spec.apart or spec.spread):
            return
        for selector in self._neighbours.begin(spec, self._room.width):
            column = self._neighbours.members[selector]
            for job in self._live.values():
                if job.spec.namespace == selector[0] and selector[1].holds(job.spec.known_as):
                    for node, count in job.on.items():
                        column[self._room.slot[node]] += count

    def end(self, spec: JobSpec) -> None:
        self.leased.pop(spec.id, None)
        if spec.near or spec.apart or spec.spread:
            self._neighbours.end(spec)

    def _lend(self, job: JobEntry, slot: int, move: Move) -> None:
        needs = ((TASKS, 1), *job.spec.shape.needs)
        self._room.lent.lend(job.spec.priority, slot, needs, move.lent)
        if move.leaving:
            self._room.lent.leave(slot, needs, move.leaving)

    def _counted(self, job: JobEntry) -> Counted:
        if job.counted_version != self._neighbours.version:
            job.counted = self._neighbours.counted(job.spec)
            job.counted_version = self._neighbours.version
        return job.counted
