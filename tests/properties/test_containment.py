"""If our code fails for one job or node, all other jobs continue, also after a restart."""

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from rota.engine.loop import Loop
from rota.engine.reconciler import Reconciler
from rota.engine.state.mirror import Mirror
from rota.model.errors import RotaError
from rota.model.ids import NodeId, subject_of
from rota.model.plan import Record
from rota.model.shape import QueueKey
from rota.scheduler.round import Round
from rota.store import codec
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine
from rota.watcher import dispatch
from tests.properties.test_mirror import as_kept, sums

SEEDS = range(120)
JOBS = 6
ROUNDS = 300  # seconds of cluster time after which everything that can end has ended
POINTS = ("decide", "serve", "apply before", "apply after", "forget", "encode", "decode", "orders")
_KINDS = ("JobSpec", "JobStatus", "JobCluster", "TaskBlock", "AttemptBlock", "StatusBlock")
_NODE_KINDS = ("NodeSpec", "NodeStatus")


class Injected(Exception):
    """The error that the test injects."""


class Fault(NamedTuple):
    """Where the error is raised, and for which job or node."""

    point: str
    victim: str  # the id of a job or node
    kind: str  # of record, where one is meant
    chance: float  # how often

    @property
    def subject(self) -> str:
        return f"{'job' if self.victim.isdecimal() else 'node'}/{self.victim}"

    def hits(self, record: Record) -> bool:
        return type(record).__name__ == self.kind and subject_of(record.key) == self.subject


class Faulty:
    """Our code, which raises at one point while it is `armed`."""

    def __init__(self, fault: Fault, random: Random, patch: pytest.MonkeyPatch) -> None:
        self.fault = fault
        self.armed = False
        self.raised = 0
        self._random = random
        self._patch(patch)

    def may_raise(self, point: str, *, when: bool) -> None:
        if self.armed and when and point == self.fault.point and self._random.random() < self.fault.chance:
            self.raised += 1
            raise Injected(point)

    def reconcilers(self, loop: Loop) -> None:
        """Decisions on keys of the victim fail."""
        for name, reconciler in loop._reconcilers.items():
            loop._reconcilers[name] = reconciler._replace(decide=self._decide(reconciler))

    def _decide(self, reconciler: Reconciler) -> Callable[..., Any]:
        def decide(view: Any, key: str, now: Any) -> Any:
            self.may_raise("decide", when=key.partition("/")[0] == self.fault.victim)
            return reconciler.decide(view, key, now)

        return decide

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        fault = self.fault
        apply, forget, serve, orders = (
            Mirror.apply,
            Mirror.forget,
            Round._try_job,
            dispatch.DispatchState.orders,
        )
        encode, decode = codec.encode, codec.decode

        def faulty_apply(mirror: Mirror, record: Record) -> None:
            self.may_raise("apply before", when=fault.hits(record))
            apply(mirror, record)
            self.may_raise("apply after", when=fault.hits(record))

        def faulty_forget(mirror: Mirror, key: Any) -> None:
            self.may_raise("forget", when=subject_of(key) == fault.subject)
            forget(mirror, key)

        def faulty_encode(record: Record) -> bytes:
            self.may_raise("encode", when=fault.hits(record))
            return encode(record)

        def faulty_decode(key: str, value: bytes) -> Record:
            record = decode(key, value)
            self.may_raise("decode", when=fault.hits(record))
            return record

        def faulty_serve(turn: Round, job: Any, line: QueueKey) -> bool:
            self.may_raise("serve", when=job.spec.id == fault.victim)
            return serve(turn, job, line)

        def faulty_orders(state: dispatch.DispatchState, view: Any, node: NodeId) -> Any:
            self.may_raise("orders", when=node == fault.victim)
            return orders(state, view, node)

        patch.setattr(Mirror, "apply", faulty_apply)
        patch.setattr(Mirror, "forget", faulty_forget)
        patch.setattr(codec, "encode", faulty_encode)
        patch.setattr(codec, "decode", faulty_decode)
        patch.setattr(Round, "_try_job", faulty_serve)
        patch.setattr(dispatch.DispatchState, "orders", faulty_orders)


class Cluster(Stage):
    """Three autonomous nodes, and code that fails for one job or node."""

    def __init__(self, faulty: Faulty) -> None:
        self.faulty = faulty
        super().__init__(contains=True)
        for name in ("a", "b", "c"):
            self.join(StageMachine(name, {"cpu": 16_000}, {}))

    def _opened(self) -> Loop:
        loop = super()._opened()
        self.faulty.reconcilers(loop)
        return loop

    def _report(self, machine: StageMachine) -> bool:
        """Reports that could not be stored are sent again."""
        unreported = list(machine.unreported)
        try:
            return super()._report(machine)
        except RotaError:
            machine.unreported = unreported
            return False

    def _order(self, machine: StageMachine) -> None:
        """Orders that cannot be computed cost a node its connection."""
        try:
            if machine.dispatch is not None:
                super()._order(machine)
        except Injected:
            machine.dispatch = None

    def try_to(self, act: Callable[[], object]) -> None:
        """Run a user's command or a node's call, which may be refused."""
        with contextlib.suppress(RotaError):
            act()

    def pass_time(self) -> None:
        """One second passes: running tasks end, and disconnected nodes reconnect."""
        for machine in self.machines.values():
            if machine.dispatch is None:
                self.try_to(lambda machine=machine: self.call(machine))  # type: ignore[misc]
            for task in [task for task, held in machine.held.items() if held.state.name == "RUNNING"]:
                machine.end(task, 0, 1000)
        self.wait(1000)

    def unfinished(self) -> set[str]:
        """Jobs other than the victim that have not succeeded."""
        numbers = {str(number) for number in range(1, JOBS + 1)} - {self.faulty.fault.victim}
        ended = {
            name
            for name, entry in self.mirror.jobs.items()
            if entry.status is not None and entry.status.state.value == "succeeded"
        }
        return numbers - ended

    def run_until_done(self) -> None:
        for _ in range(ROUNDS):
            if not self.unfinished():
                return
            self.pass_time()


def drawn_by(random: Random) -> Fault:
    point = random.choice(POINTS)
    of_job = point in ("serve", "forget") or (point != "orders" and random.random() < 0.7)
    victim = str(random.randint(1, JOBS)) if of_job else random.choice(("a", "b", "c"))
    kind = random.choice(_KINDS if of_job else _NODE_KINDS)
    return Fault(point, victim, kind, random.choice((1.0, 1.0, 0.3)))


@pytest.mark.parametrize("seed", SEEDS)
def test_all_other_jobs_continue(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    fault = drawn_by(random)
    faulty = Faulty(fault, random, monkeypatch)
    cluster = Cluster(faulty)
    faulty.armed = True
    restarts = {random.randint(1, 2 * JOBS) for _ in range(2)}
    submits = iter(range(1, JOBS + 1))
    for step in range(2 * JOBS):
        if step % 2 == 0:
            number = next(submits)
            keep = 1.0 if fault.point == "forget" and fault.victim == str(number) else None
            # The victim keeps the resources of its attempts: others must be left.
            count = random.choice((1, 3, 300 if number == 3 and fault.victim != "3" else 5))
            spec = job_spec(number, count=count, retries=2, keep_seconds=keep)
            cluster.try_to(lambda spec=spec: cluster.submit(spec))  # type: ignore[misc]
        else:
            cluster.pass_time()
        if step in restarts:
            cluster.restart()
    cluster.run_until_done()
    for _ in range(5):
        cluster.pass_time()

    assert cluster.unfinished() == set(), (fault, cluster.parking.all())
    assert_is_as_loaded(cluster, fault)
    cluster.restart()
    cluster.pass_time()
    assert cluster.unfinished() == set(), (fault, cluster.parking.all())
    if fault.chance == 1.0 and fault.victim.isdecimal():
        assert faulty.raised, fault
    faulty.armed = False
    cluster.restart()
    for _ in range(ROUNDS):
        cluster.pass_time()
    assert cluster.parking.all() == [], fault
    assert_is_as_loaded(cluster, fault)
    assert all(entry.status is not None and entry.status.ended for entry in cluster.mirror.jobs.values()), (
        fault
    )


def assert_is_as_loaded(cluster: Cluster, fault: Fault) -> None:
    """The mirror equals a reload from the store, while nothing fails."""
    armed, cluster.faulty.armed = cluster.faulty.armed, False
    mirror = cluster.mirror
    again = Mirror()
    again.now_ms = mirror.now_ms
    records = (codec.decode(key, value) for key, value in cluster.records.items())
    again.load([record for record in records if subject_of(record.key) not in aside(cluster)])
    again.inherit(mirror)
    cluster.faulty.armed = armed

    for node in [name for name in mirror.nodes if f"node/{name}" in aside(cluster)]:
        again.mark_seen(node)  # a connected node has an entry, even if its records were set aside
        again.connect(node, mirror.nodes[node].connection)
    assert sums(again) == sums(mirror), fault
    assert as_kept(again) == as_kept(mirror), fault


def aside(cluster: Cluster) -> set[str]:
    return {parked.key for parked in cluster.parking.all() if parked.retry_at_ms is None}


def test_the_seeds_cover_every_point() -> None:
    drawn = [drawn_by(Random(seed)) for seed in SEEDS]

    assert {fault.point for fault in drawn} == set(POINTS)
    assert {fault.kind for fault in drawn} == {*_KINDS, *_NODE_KINDS}
