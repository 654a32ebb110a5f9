"""Loop: an exception in our own code costs one request or parks one key, never the batch."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rota.engine.loop import Decided, Loop, Request, Tainted
from rota.engine.parking import FaultStage, Parking
from rota.engine.reconciler import Command, Reconciler, own_id
from rota.engine.state.loading import load_mirror
from rota.engine.state.mirror import Mirror
from rota.model.errors import Bug, Conflict, Damaged, NotQuiescent, RotaError
from rota.model.ids import JobId, NodeId
from rota.model.job import Counters, JobIntent, JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import KEY_DECISIONS_MAX, PARKED_FIRST_MS, REBUILD_SHARE
from rota.model.node import NodeSpec
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, Record
from rota.model.view import View
from rota.store import codec
from rota.testing.records import job

Decide = Callable[[View, str, Instant], Plan]
TOO_LARGE = 2**70  # no integer of msgpack
ONE, TWO = JobId("1"), JobId("2")


def at(ms: int) -> Instant:
    return Instant(ms, 1_000_000 + ms)


def reconciler(decide: Decide, *, name: str = "fake", wakes: type[Record] = JobSpec) -> Reconciler:
    return Reconciler(name, "controllers", {wakes: own_id}, decide, lambda view: list(view.jobs))


class Broken(Mirror):
    """A mirror that cannot apply the status of one job."""

    def __init__(self, job: str = "1") -> None:
        super().__init__()
        self.bad = job

    def apply(self, record: Record) -> None:
        super().apply(record)
        if isinstance(record, JobStatus) and record.id == self.bad:
            raise ZeroDivisionError


class Driver:
    """Drives a loop as the engine does, over records as bytes."""

    def __init__(self, *reconcilers: Reconciler, mirror: Callable[[], Mirror] = Mirror) -> None:
        self.records: dict[str, bytes] = {}
        self.parking = Parking()
        self.rebuilds = 0
        self.events: list[EventRecord] = []
        self._reconcilers = reconcilers
        self._mirror = mirror
        self.loop = self._opened()

    def ask(
        self, command: Command[object] | Record, *, owner: str = "apiserver", may_split: bool = False
    ) -> list[Any]:
        """The answer or refusal, in a list that is filled later."""
        answers: list[Any] = []
        made = command if callable(command) else lambda *_: Plan((command,))
        self.loop.ask(Request(owner, made, answers.append, answers.append, may_split))
        return answers

    def run(self, ms: int = 0) -> Decided | None:
        """Decide one batch; after a rebuild, another one."""
        decided = None
        try:
            decided = self.loop.decide(at(ms))
            if decided is not None:
                self.records |= decided.encode(encoded)
                decided.answer()
                self.events += decided.events
            return decided
        except Tainted as tainted:
            self.rebuilds += 1
            if decided is not None:
                self.loop.requeue(decided.requests)
            waiting = self.loop.drain_requests()
            self.loop = self._opened()
            self.loop.requeue(waiting)
            self.loop.condemn(tainted, at(ms))
            self.parking.rebuilt(ms, 10)
            return self.run(ms)

    def _opened(self) -> Loop:
        mirror = self._mirror()
        mirror.load(codec.decode_all(self.records.items()).records)
        loop = Loop(mirror, self._reconcilers, self.parking)
        loop.enqueue_all()
        return loop

    @property
    def parked(self) -> list[str]:
        return [parked.key for parked in self.parking.all()]


def encoded(decided: Decided) -> dict[str, bytes]:
    codec.encode_events(0, decided.events)
    return {str(key): codec.encode(record) for key, record in decided.puts.items()}


def activate(view: View, key: str, now: Instant) -> Plan:
    """Every job becomes active, one key each."""
    done = view.jobs[JobId(key)].status is not None
    return NO_CHANGE if done else Plan((JobStatus(JobId(key), JobState.ACTIVE),))


def activate_all(view: View, key: str, now: Instant) -> Plan:
    """Every job becomes active, in one plan of a cluster-wide key."""
    waiting = [name for name, entry in view.jobs.items() if entry.status is None]
    return Plan(tuple(JobStatus(name, JobState.ACTIVE) for name in waiting)) if waiting else NO_CHANGE


def whole_cluster(decide: Decide) -> Reconciler:
    return Reconciler("all", "controllers", {JobSpec: lambda _: ("all",)}, decide, lambda _: ("all",))


def is_active(driver: Driver, name: JobId) -> bool:
    return driver.loop.mirror.jobs[name].status is not None


def stored(*records: Record) -> dict[str, bytes]:
    return {str(record.key): codec.encode(record) for record in records}


# ---- applying


def test_a_request_whose_record_cannot_be_applied_is_refused_and_the_others_are_served() -> None:
    driver = Driver()
    bad = driver.ask(JobIntent(ONE))  # of a job that does not exist
    good = driver.ask(lambda *_: Plan((job(2),), answer="2"))
    driver.run()

    assert [type(error) for error in bad] == [Bug]
    assert good == ["2"]
    assert list(driver.records) == ["job/2/spec"]
    assert driver.rebuilds == 1


def test_nothing_of_a_plan_that_cannot_be_applied_is_committed() -> None:
    driver = Driver()
    driver.ask(lambda *_: Plan((job(1), JobIntent(TWO))))
    driver.run()

    assert driver.records == {}
    assert not driver.loop.mirror.jobs


def test_a_key_whose_plan_cannot_be_applied_is_parked_and_the_others_continue() -> None:
    driver = Driver(reconciler(activate), mirror=Broken)
    driver.records = stored(job(1))
    driver.loop = driver._opened()
    driver.run()
    driver.ask(job(2))
    driver.run()

    assert driver.parked == ["1"]
    assert is_active(driver, TWO)
    assert list(driver.records) == ["job/1/spec", "job/2/spec", "job/2/status"]


def test_a_plan_about_many_jobs_loses_only_the_job_that_cannot_be_applied() -> None:
    driver = Driver(whole_cluster(activate_all), mirror=Broken)
    driver.records = stored(job(1), job(2), job(3))
    driver.loop = driver._opened()
    driver.run()

    assert driver.parked == ["job/1"]
    assert (is_active(driver, TWO), is_active(driver, JobId("3"))) == (True, True)
    assert "job/1/status" not in driver.records


def test_a_submit_is_blamed_for_records_of_its_job_that_cannot_be_applied_in_the_same_batch() -> None:
    driver = Driver(whole_cluster(activate_all), mirror=Broken)
    bad, good = driver.ask(job(1)), driver.ask(lambda *_: Plan((job(2),), answer="2"))
    driver.run()

    assert [type(error) for error in bad] == [Bug]
    assert good == ["2"]
    assert driver.parked == []
    assert is_active(driver, TWO)


def test_a_report_about_many_jobs_is_applied_without_the_job_that_cannot_be_applied() -> None:
    driver = Driver(mirror=Broken)
    driver.ask(job(1))
    driver.ask(job(2))
    driver.run()
    both = tuple(JobStatus(name, JobState.ACTIVE) for name in (ONE, TWO))
    answers = driver.ask(lambda *_: Plan(both, answer="ok"), owner="controllers", may_split=True)
    driver.run()

    assert answers == ["ok"]
    assert (driver.parked, is_active(driver, TWO)) == (["job/1"], True)


def test_a_change_of_a_parked_job_is_refused() -> None:
    driver = Driver(whole_cluster(activate_all), mirror=Broken)
    driver.records = stored(job(1))
    driver.loop = driver._opened()
    driver.run()
    answers = driver.ask(JobIntent(ONE, cancel=True))
    driver.run()

    assert [type(answer) for answer in answers] == [Conflict]
    assert "job/1 cannot be changed now" in str(answers[0])


def test_a_parked_job_is_tried_again_after_its_backoff_and_recovers() -> None:
    driver = Driver(whole_cluster(activate_all), mirror=Broken)
    driver.records = stored(job(1))
    driver.loop = driver._opened()
    driver.run()
    driver._mirror = Mirror  # the bug is gone
    driver.loop.mirror.__class__ = Mirror
    next_at = driver.loop.next_at()
    assert next_at is not None
    driver.run(next_at - 1)
    before = is_active(driver, ONE)
    driver.run(next_at)
    driver.run(next_at + PARKED_FIRST_MS)

    assert (before, is_active(driver, ONE), driver.parked) == (False, True, [])
    assert [event.kind for event in driver.events] == ["engine.parked", "engine.recovered"]
    assert driver.events[0].job == ONE


def test_rebuilding_costs_at_most_its_share_of_the_time() -> None:
    """Each rebuild takes 10 ms here, and there is always something that would cause the next one."""
    driver = Driver(reconciler(activate), mirror=Broken)
    for ms in range(0, 60_000, 50):
        driver.ask(lambda *_: Plan((JobIntent(TWO),)))
        driver.ask(job(1))
        driver.run(ms)

    assert 1 < driver.rebuilds * 10 * REBUILD_SHARE <= 60_000 + 10 * REBUILD_SHARE


# ---- encoding


def test_a_request_whose_record_cannot_be_encoded_is_refused_and_the_others_are_served() -> None:
    driver = Driver()
    bad = driver.ask(job(1, priority=TOO_LARGE))
    good = driver.ask(lambda *_: Plan((job(2),), answer="2"))
    driver.run()

    assert [type(error) for error in bad] == [Bug]
    assert good == ["2"]
    assert (list(driver.records), list(driver.loop.mirror.jobs)) == (["job/2/spec"], ["2"])
    assert driver.parking.counts == {FaultStage.ENCODE: 1}


def test_a_request_whose_event_cannot_be_encoded_is_refused() -> None:
    driver = Driver()
    bad = driver.ask(lambda *_: Plan((job(1),), events=(EventRecord("k", "why", attempt=TOO_LARGE),)))
    good = driver.ask(lambda *_: Plan((job(2),), answer="2"))
    driver.run()

    assert [type(error) for error in bad] == [Bug]
    assert good == ["2"]


# ---- deciding


def test_a_parked_key_is_tried_again_after_a_backoff_that_doubles() -> None:
    looks: list[int] = []

    def fail(view: View, key: str, now: Instant) -> Plan:
        looks.append(now.ms)
        raise ZeroDivisionError

    driver = Driver(reconciler(fail))
    driver.loop.wake("fake", "k")
    for ms in range(0, 8 * PARKED_FIRST_MS, PARKED_FIRST_MS // 2):
        driver.run(ms)

    assert looks == [0, PARKED_FIRST_MS, 3 * PARKED_FIRST_MS, 7 * PARKED_FIRST_MS]
    assert [event.kind for event in driver.events] == ["engine.parked"]


def test_the_scheduler_continues_without_the_waiting_job_it_fails_on() -> None:
    def serve_all(view: View, key: str, now: Instant) -> Plan:
        waiting = [name for name, job in view.jobs.items() if job.spec.queue_rank in lines(view)]
        placed = []
        for name in waiting:
            placed += [serve(view.jobs[name])]
        return Plan(tuple(placed)) if placed else NO_CHANGE

    def lines(view: View) -> list[Any]:
        return [rank for _, ranks in view.pending_queues() for rank in ranks]

    def serve(job: Any) -> JobStatus:
        if job.spec.id == ONE:
            raise ZeroDivisionError
        return JobStatus(job.spec.id, JobState.SUCCEEDED)

    driver = Driver(whole_cluster(serve_all))
    for number in (1, 2):
        driver.ask(job(number))
        driver.ask(JobStatus(JobId(str(number)), JobState.ACTIVE), owner="controllers")
    driver.run()

    status = driver.loop.mirror.jobs[TWO].status
    assert status is not None
    assert status.state is JobState.SUCCEEDED
    assert driver.parked == ["job/1"]


def test_all_keys_are_decided_later_if_waking_failed() -> None:
    looks: list[str] = []
    broken = True

    def keys(record: JobSpec) -> Iterable[str]:
        if broken and record.id == ONE:
            raise ZeroDivisionError
        return (record.id,)

    def look(view: View, key: str, now: Instant) -> Plan:
        looks.append(key)
        return NO_CHANGE

    driver = Driver(Reconciler("fake", "controllers", {JobSpec: keys}, look, lambda view: list(view.jobs)))
    driver.ask(job(1))
    driver.ask(job(2))
    driver.run()
    before = list(looks)
    broken = False
    driver.run(PARKED_FIRST_MS)

    assert (before, looks) == (["2"], ["2", "1", "2"])
    assert driver.parked == []


# ---- cascades and livelocks


def test_a_cascade_longer_than_a_batch_is_committed_in_parts() -> None:
    links = 3 * KEY_DECISIONS_MAX
    looks = 0

    def link(view: View, key: str, now: Instant) -> Plan:
        following = JobId(str(int(key) + 1))
        return Plan((JobStatus(following, JobState.FAILED),)) if following in view.jobs else NO_CHANGE

    def note(view: View, key: str, now: Instant) -> Plan:
        nonlocal looks
        looks += 1
        return NO_CHANGE

    every = Reconciler("every", "controllers", {JobStatus: lambda _: ("all",)}, note, lambda _: ())
    driver = Driver(reconciler(link, wakes=JobStatus), every)
    for number in range(1, links + 1):
        driver.loop.mirror.apply(job(number))
    driver.ask(JobStatus(ONE, JobState.FAILED), owner="controllers")
    batches = [driver.run() for _ in range(4)]

    written = [len(batch.puts) for batch in batches if batch is not None]
    assert (sum(written), len(written) > 1) == (links, True)
    assert looks > KEY_DECISIONS_MAX
    assert (driver.parked, driver.loop.idle) == ([], True)


def test_keys_in_a_livelock_are_parked() -> None:
    """Two keys wake each other without end; a third one and requests are served meanwhile."""

    def turn(view: View, key: str, now: Instant) -> Plan:
        return Plan((JobStatus(TWO if key == "1" else ONE, JobState.ACTIVE),))

    driver = Driver(reconciler(turn, wakes=JobStatus))
    for number in (1, 2, 3):
        driver.loop.mirror.apply(job(number))
    driver.loop.wake("fake", "1")
    batches = 0
    while not driver.loop.idle:
        answers = driver.ask(lambda *_: Plan((JobIntent(JobId("3")),), answer="served"))
        driver.run()
        batches += 1

        assert answers == ["served"]
        assert batches < 10
    (parked,) = driver.parking.all()
    assert "NotQuiescent" in parked.error
    assert isinstance(driver.parking.faults[-1].error, NotQuiescent)


# ---- loading


BAD_JOBS = {
    "its spec cannot be decoded": {"job/1/spec": b"\xc1"},
    "a part cannot be decoded": {**stored(job(1)), "job/1/wish": b"\xc1"},
    "a block cannot be decoded": {**stored(job(1)), "attempt/1/0": b"\xc1"},
    "its spec is missing": stored(JobStatus(ONE, JobState.ACTIVE)),
    "another record is in its place": {"job/1/spec": codec.encode(job(7))},
    "its number is none": {"job/x/spec": codec.encode(JobSpec(JobId("x"), "n", ("true",), 0))},
}


@pytest.mark.parametrize("bad", BAD_JOBS.values(), ids=BAD_JOBS)
def test_a_job_that_cannot_be_loaded_is_set_aside_and_the_others_are_loaded(bad: dict[str, bytes]) -> None:
    good = stored(job(2), JobStatus(TWO, JobState.ACTIVE), NodeSpec(NodeId("n"), "n"), Counters(jobs=2))
    loaded = load_mirror({**bad, **good}.items(), 0)

    assert (list(loaded.mirror.jobs), list(loaded.mirror.nodes)) == (["2"], ["n"])
    assert loaded.mirror.unloadable == {subject[4:] for subject in loaded.aside} != set()
    assert loaded.mirror.counters.jobs == 2


def test_many_jobs_that_cannot_be_loaded_are_found_in_one_pass() -> None:
    bad = stored(*(JobStatus(JobId(str(number)), JobState.ACTIVE) for number in range(10, 60)))
    loaded = load_mirror({**bad, **stored(job(2))}.items(), 0)

    assert (list(loaded.mirror.jobs), len(loaded.aside)) == (["2"], 50)


def test_nothing_is_loaded_without_the_record_of_counters() -> None:
    """With new counters the next job would get the number, and the records, of an old one."""
    (key,) = stored(Counters())
    with pytest.raises(Damaged, match=key):
        load_mirror({key: b"\xc1"}.items(), 0)


def test_records_set_aside_are_never_overwritten() -> None:
    loaded = load_mirror({"job/1/spec": b"\xc1"}.items(), 0)
    driver = Driver()
    driver.parking.loaded(loaded.aside, at(0))
    answers: list[RotaError] = driver.ask(job(1))
    driver.run()

    assert [type(answer) for answer in answers] == [Conflict]
    assert driver.records == {}
