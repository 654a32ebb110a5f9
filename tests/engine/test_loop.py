"""Loop: decides to quiescence over its own writes, and a bad decision affects its own key only."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rota.engine.loop import Decided, Loop, Request
from rota.engine.reconciler import Command, Reconciler
from rota.engine.state.mirror import Mirror
from rota.model.cluster import ClusterRecord
from rota.model.errors import Bug, Conflict, NotFound, RotaError, Unavailable, WrongWriter
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import JobCluster, JobIntent, JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import BATCH_KEYS_MAX, STALL_MS
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, Record, wake_at
from rota.model.subscriber import Subscriber
from rota.model.view import View
from rota.testing.records import job, node

Decide = Callable[[View, str, Instant], Plan]
JOB = JobId("1")


def at(ms: int) -> Instant:
    return Instant(ms, 1_000_000 + ms)


def reconciler(
    decide: Decide,
    *,
    wakes: type[Record] = JobSpec,
    name: str = "fake",
    owner: str = "controllers",
    keys: Iterable[str] = (),
) -> Reconciler:
    """A reconciler that decides the key of each record of a type."""
    return Reconciler(name, owner, {wakes: lambda record: [record.key]}, decide, lambda _: keys)


class Asker:
    """A caller that waits for the answer to a command."""

    def __init__(self, command: Command[object], owner: str = "apiserver") -> None:
        self.request = Request(owner, command, lambda _: None, lambda _: None)

    def refusal(self, decided: Decided) -> RotaError | None:
        return next((error for request, error in decided.refusals if request is self.request), None)

    def answers(self, decided: Decided) -> list[Any]:
        return [outcome.answer for outcome in decided.outcomes if outcome.request is self.request]


def ask(loop: Loop, command: Command[object], owner: str = "apiserver") -> Asker:
    asker = Asker(command, owner)
    loop.ask(asker.request)
    return asker


def always(plan: Plan) -> Command[object]:
    return lambda _view, _now: plan


def put(*records: Record, **plan: Any) -> Command[object]:
    return always(Plan(puts=records, **plan))


def decide(loop: Loop, ms: int = 0) -> Decided:
    decided = loop.decide(at(ms))
    assert decided is not None
    return decided


# ---- deciding to rest


def test_nothing_is_decided_without_work() -> None:
    loop = Loop(Mirror(), [])

    assert loop.idle
    assert loop.decide(at(0)) is None


def test_a_request_and_what_follows_from_it_are_one_batch() -> None:
    """Spec, cluster and status of a submit: each follows from the one before, and none is durable yet."""

    def choose(view: View, key: str, now: Instant) -> Plan:
        return Plan(
            (JobCluster(JOB, "default"),), events=(EventRecord("cluster", "chosen"),), why="the only one"
        )

    def begin(view: View, key: str, now: Instant) -> Plan:
        assert view.jobs[JOB].cluster == JobCluster(JOB, "default")
        return Plan((JobStatus(JOB, JobState.ASSIGNED),), why="it has a cluster")

    chooser = reconciler(choose, name="chooser", owner="clusters")
    beginner = reconciler(begin, wakes=JobCluster, name="beginner")
    loop = Loop(Mirror(), [chooser, beginner])
    asker = ask(loop, put(job(), answer="12", events=(EventRecord("job", "submitted"),)))

    decided = decide(loop, 7)

    assert decided.now == at(7)
    assert list(decided.puts) == ["job/1/spec", "job/1/cluster", "job/1/status"]
    assert [event.kind for event in decided.events] == ["job", "cluster"]
    assert decided.whys == ("the only one", "it has a cluster")
    assert asker.answers(decided) == ["12"]
    assert loop.idle


def test_the_last_write_of_a_key_counts() -> None:
    loop = Loop(Mirror(), [])
    ask(loop, put(job(), JobIntent(JOB, reason="first")))
    ask(loop, put(JobIntent(JOB, reason="second")))

    assert decide(loop).puts[Key("job/1/wish")] == JobIntent(JOB, reason="second")


@pytest.mark.parametrize("last", ["put", "delete"])
def test_the_last_of_a_put_and_a_delete_counts(last: str) -> None:
    record = Subscriber("s", 1, 0)
    plans = {"put": Plan((record,)), "delete": Plan(deletes=(record.key,))}
    order = [plans["delete"], plans["put"]] if last == "put" else [plans["put"], plans["delete"]]
    loop = Loop(Mirror(), [])
    for plan in order:
        ask(loop, always(plan))

    decided = decide(loop)

    assert (list(decided.puts), list(decided.deletes)) == (
        ([record.key], []) if last == "put" else ([], [record.key])
    )
    assert list(loop.mirror.subscribers) == (["s"] if last == "put" else [])


def test_a_key_is_decided_again_at_its_wake_time() -> None:
    looks: list[int] = []

    def look(view: View, key: str, now: Instant) -> Plan:
        looks.append(now.ms)
        return wake_at(100) if now.ms < 100 else NO_CHANGE

    loop = Loop(Mirror(), [reconciler(look)])
    loop.wake("fake", "k")

    assert loop.decide(at(0)) is None
    assert loop.next_at() == 100
    assert loop.decide(at(99)) is None
    assert loop.decide(at(100)) is None
    assert (looks, loop.next_at()) == ([0, 100], None)


def test_every_key_is_decided_after_a_start() -> None:
    looks: list[str] = []

    def look(view: View, key: str, now: Instant) -> Plan:
        looks.append(key)
        return NO_CHANGE

    loop = Loop(Mirror(), [reconciler(look, keys=["a", "b"])])
    loop.enqueue_all()
    loop.decide(at(0))

    assert looks == ["a", "b"]


def test_a_start_with_many_keys_reaches_quiescence() -> None:
    """The bound is against livelocks, not against large clusters."""
    looks: list[str] = []

    def look(view: View, key: str, now: Instant) -> Plan:
        looks.append(key)
        return NO_CHANGE

    keys = [str(number) for number in range(3 * BATCH_KEYS_MAX)]
    loop = Loop(Mirror(), [reconciler(look, keys=keys)])
    loop.enqueue_all()
    for _ in range(10):
        loop.decide(at(0))

    assert loop.idle
    assert sorted(looks) == sorted(keys)


# ---- errors, by kind


def test_a_refusal_goes_to_the_caller_and_nothing_is_written() -> None:
    def refuse(view: View, now: Instant) -> Plan:
        raise Conflict("it has ended")

    loop = Loop(Mirror(), [])
    refused = ask(loop, refuse)
    served = ask(loop, put(job(2), answer="2"))
    decided = decide(loop)

    assert isinstance(refused.refusal(decided), Conflict)
    assert refused.answers(decided) == []
    assert served.answers(decided) == ["2"]
    assert list(decided.puts) == ["job/2/spec"]
    assert not loop.parking.faults


def test_a_refusal_based_on_uncommitted_state_is_replaced_by_the_commit_error() -> None:
    def refuse(view: View, now: Instant) -> Plan:
        raise Conflict(f"there is {list(view.jobs)}")

    loop = Loop(Mirror(), [])
    errors: list[RotaError] = []
    for command in (put(job(2)), refuse):
        loop.ask(Request("apiserver", command, lambda _: None, errors.append))
    decide(loop).fail(Unavailable("the store cannot be written"))

    assert [type(error) for error in errors] == [Unavailable, Unavailable]


def test_a_refusal_alone_is_answered_after_an_empty_fenced_commit() -> None:
    def refuse(view: View, now: Instant) -> Plan:
        raise NotFound("there is no such job")

    loop = Loop(Mirror(), [])
    ask(loop, refuse)
    decided = decide(loop)

    assert decided.commits
    assert (decided.puts, decided.deletes, decided.events) == ({}, {}, ())


def test_a_bug_parks_its_key_and_the_others_continue() -> None:
    def fail(view: View, key: str, now: Instant) -> Plan:
        if key == "job/1/spec":
            raise ZeroDivisionError
        return Plan((JobStatus(JobId("2"), JobState.ASSIGNED),))

    loop = Loop(Mirror(), [reconciler(fail)])
    ask(loop, put(job(1), job(2)))
    decided = decide(loop)

    assert list(decided.puts) == ["job/1/spec", "job/2/spec", "job/2/status"]
    assert [(fault.key, type(fault.error)) for fault in loop.parking.faults] == [
        ("job/1/spec", ZeroDivisionError)
    ]


def test_a_parked_key_is_decided_when_it_is_woken_again() -> None:
    looks: list[str] = []

    def stumble_once(view: View, key: str, now: Instant) -> Plan:
        looks.append(key)
        if len(looks) == 1:
            raise ZeroDivisionError
        return NO_CHANGE

    loop = Loop(Mirror(), [reconciler(stumble_once)])
    loop.wake("fake", "k")
    loop.decide(at(0))
    untouched = loop.idle
    loop.wake("fake", "k")
    loop.decide(at(1))

    assert untouched
    assert looks == ["k", "k"]


def test_a_bug_in_a_request_refuses_it_and_the_others_are_served() -> None:
    def fail(view: View, now: Instant) -> Plan:
        raise ZeroDivisionError

    loop = Loop(Mirror(), [])
    failed = ask(loop, fail)
    served = ask(loop, put(job(), answer="1"))
    decided = decide(loop)

    assert isinstance(failed.refusal(decided), Bug)
    assert served.answers(decided) == ["1"]
    assert [type(fault.error) for fault in loop.parking.faults] == [ZeroDivisionError]


def test_a_request_that_writes_records_of_another_component_is_refused() -> None:
    loop = Loop(Mirror(), [])
    asker = ask(loop, put(job()), owner="watcher")
    decided = decide(loop)

    assert isinstance(asker.refusal(decided), Bug)
    assert (decided.puts, list(loop.mirror.jobs)) == ({}, [])
    (fault,) = loop.parking.faults
    assert isinstance(fault.error, WrongWriter)
    assert str(fault.error) == "watcher wrote job/1/spec, which is apiserver's"


def test_a_reconciler_that_writes_records_of_another_component_is_parked() -> None:
    def overstep(view: View, key: str, now: Instant) -> Plan:
        return Plan((ClusterRecord("other"),))

    loop = Loop(Mirror(), [reconciler(overstep)])
    loop.wake("fake", "k")
    decided = decide(loop)

    assert decided.puts == {}
    assert [parked.key for parked in loop.parking.all()] == ["k"]
    assert str(loop.parking.faults[0].error) == "controllers wrote cluster/other, which is clusters's"


# ---- time


@pytest.mark.parametrize(("gap_ms", "heard_at_ms"), [(STALL_MS, 0), (STALL_MS + 1, 1000 + STALL_MS + 1)])
def test_a_stall_of_the_server_does_not_count_as_silence_of_nodes(gap_ms: int, heard_at_ms: int) -> None:
    mirror = Mirror()
    mirror.apply(node("n1"))
    loop = Loop(mirror, [])
    loop.decide(at(1000))
    loop.decide(at(1000 + gap_ms))

    assert mirror.nodes[NodeId("n1")].last_seen_at_ms == heard_at_ms


def test_the_first_iteration_is_no_stall() -> None:
    mirror = Mirror()
    mirror.apply(node("n1"))
    Loop(mirror, []).decide(at(10 * STALL_MS))

    assert mirror.nodes[NodeId("n1")].last_seen_at_ms == 0


def test_a_stall_is_noticed_before_anything_is_decided() -> None:
    last_seen: list[int] = []

    def look(view: View, key: str, now: Instant) -> Plan:
        last_seen.append(view.nodes[NodeId("n1")].last_seen_at_ms)
        return wake_at(now.ms + 1)

    mirror = Mirror()
    mirror.apply(node("n1"))
    loop = Loop(mirror, [reconciler(look, keys=["n1"])])
    loop.enqueue_all()
    loop.decide(at(0))
    loop.decide(at(60_000))

    assert last_seen == [0, 60_000]
