"""Ended jobs expire by age, by number or by their own retention; their submit keys a day later."""

from collections.abc import Iterator
from typing import Any

from rota.controllers.expire import JobRetention, expire_jobs
from rota.engine.state.mirror import Mirror
from rota.model.attempt import AttemptBlock
from rota.model.ids import JobId, Key
from rota.model.job import JobSpec, JobStatus, JobTombstone, SubmitKey
from rota.model.lifecycle import JobState
from rota.model.limits import BLOCK_TASKS, EXPIRE_BATCH, EXPIRE_RECORDS, TOMBSTONE_MS
from rota.model.plan import Answer, Instant, Plan, Record

HOUR_MS = 3_600_000
RULES = JobRetention(age_ms=HOUR_MS, jobs=10)


def mirror_with(*ends: int | None, keep_seconds: float | None = None) -> Mirror:
    """One job per entry that ended at this time; None: it has not ended."""
    mirror = Mirror()
    for number, ended_ms in enumerate(ends, 1):
        job = JobId(str(number))
        mirror.apply(JobSpec(job, "work", ("true",), 0, keep_seconds=keep_seconds))
        mirror.apply(SubmitKey("default", f"k{number}", job, "digest"))
        if ended_ms is not None:
            mirror.apply(JobStatus(job, JobState.SUCCEEDED, ended_ms=ended_ms))
    return mirror


def apply(mirror: Mirror, plan: Plan[Answer]) -> Plan[Answer]:
    for record in plan.puts:
        mirror.apply(record)
    for key in plan.deletes:
        mirror.forget(key)
    return plan


def expired(plan: Plan) -> list[str]:
    return [record.id for record in plan.puts if isinstance(record, JobTombstone)]


def test_a_job_expires_when_it_is_old_and_not_while_it_runs() -> None:
    mirror = mirror_with(0, 1000, None)
    before = expire_jobs(mirror, RULES, Instant(HOUR_MS - 1, 0))
    plan = apply(mirror, expire_jobs(mirror, RULES, Instant(HOUR_MS, 7)))

    assert before.puts == ()
    assert expired(plan) == ["1"]
    assert list(mirror.jobs) == ["2", "3"]
    assert mirror.ended_jobs.tombstones[JobId("1")].state == "succeeded"
    assert mirror.submitted("default", "k1") is not None
    assert plan.events[0].kind == "job.expired"


def test_the_earliest_ended_jobs_expire_when_there_are_too_many() -> None:
    mirror = mirror_with(*reversed(range(12)))
    fresh = Mirror()
    records: list[Record] = [*(job.spec for job in mirror.jobs.values()), *mirror.submit_keys.values()]
    fresh.load([*records, *(job.status for job in mirror.jobs.values() if job.status is not None)])

    assert expired(expire_jobs(fresh, RULES, Instant(100, 0))) == ["12", "11"]


def test_the_namespace_with_most_jobs_expires_first_when_there_are_too_many() -> None:
    mirror = Mirror()
    owners = ["quiet"] * 2 + ["busy"] * 9 + ["other"] * 3
    for number, namespace in enumerate(owners, 1):
        job = JobId(str(number))
        keep_seconds = 9_000.0 if namespace == "busy" and number > 5 else None
        mirror.apply(JobSpec(job, "work", ("true",), 0, namespace=namespace, keep_seconds=keep_seconds))
        mirror.apply(JobStatus(job, JobState.SUCCEEDED, ended_ms=number))
    fresh = Mirror()
    records: list[Record] = [job.spec for job in mirror.jobs.values()]
    fresh.load([*records, *(job.status for job in mirror.jobs.values() if job.status is not None)])

    assert expired(expire_jobs(fresh, RULES, Instant(100, 0))) == ["3", "4", "5", "6"]
    assert expired(apply(mirror, expire_jobs(mirror, RULES, Instant(100, 0)))) == ["3", "4", "5", "6"]
    assert expired(expire_jobs(mirror, RULES._replace(jobs=4), Instant(100, 0))) == [
        "7",
        "8",
        "9",
        "12",
        "10",
        "13",
    ]


def test_expired_old_jobs_count_against_the_excess() -> None:
    mirror = mirror_with(*[0] * 3, *[HOUR_MS] * 9)

    assert expired(expire_jobs(mirror, RULES, Instant(HOUR_MS, 0))) == ["1", "2", "3"]


def test_a_job_sets_its_own_retention() -> None:
    mirror = mirror_with(0, keep_seconds=10)

    assert expired(expire_jobs(mirror, RULES, Instant(9_999, 0))) == []
    assert expired(expire_jobs(mirror, RULES, Instant(10_000, 0))) == ["1"]
    assert expired(expire_jobs(mirror_with(0, keep_seconds=10_000), RULES, Instant(HOUR_MS, 0))) == []


def test_a_submit_key_is_retained_for_a_day_after_its_job() -> None:
    mirror = mirror_with(0)
    apply(mirror, expire_jobs(mirror, RULES, Instant(HOUR_MS, 0)))
    early = expire_jobs(mirror, RULES, Instant(HOUR_MS + TOMBSTONE_MS - 1, 0))
    apply(mirror, expire_jobs(mirror, RULES, Instant(HOUR_MS + TOMBSTONE_MS, 0)))

    assert early.deletes == ()
    assert mirror.submitted("default", "k1") is None
    assert (mirror.ended_jobs.tombstones, mirror.ended_jobs.key_of, mirror.submit_keys) == ({}, {}, {})


def test_the_submit_key_of_a_deleted_job_expires_too() -> None:
    mirror = mirror_with(0)
    for part in ("spec", "status"):
        mirror.forget(Key(f"job/1/{part}"))
    plan = apply(mirror, expire_jobs(mirror, RULES, Instant(5, 0)))
    apply(mirror, expire_jobs(mirror, RULES, Instant(5 + TOMBSTONE_MS, 0)))

    assert expired(plan) == ["1"]
    assert mirror.submit_keys == {}


def test_one_batch_expires_at_a_time_and_the_next_soon_after() -> None:
    mirror = mirror_with(*range(EXPIRE_BATCH + 30))
    first = apply(mirror, expire_jobs(mirror, RULES, Instant(HOUR_MS * 2, 0)))
    second = apply(mirror, expire_jobs(mirror, RULES, Instant(HOUR_MS * 2, 0)))

    assert len(expired(first)) == EXPIRE_BATCH
    assert first.wake_at_ms == HOUR_MS * 2 + 100
    assert len(expired(second)) == 30
    assert mirror.jobs == {}


class Counted(dict[JobId, int]):
    """A dict that counts how many of its entries are read."""

    looks = 0

    def __iter__(self) -> Iterator[JobId]:
        for job in super().__iter__():
            self.looks += 1
            yield job

    def get(self, job: JobId, default: object = None) -> Any:
        self.looks += 1
        return super().get(job, default)


def test_jobs_within_their_own_retention_cost_nothing() -> None:
    mirror = mirror_with(*range(2_000), keep_seconds=60.0)
    kept = mirror.ended_jobs.retained_until = Counted(mirror.ended_jobs.retained_until)
    assert not expire_jobs(mirror, JobRetention(), Instant(1, 0)).puts
    none_due = kept.looks
    plan = expire_jobs(mirror, JobRetention(), Instant(60_004, 0))

    assert none_due == 0
    assert sorted(expired(plan), key=int) == ["1", "2", "3", "4", "5"]
    assert kept.looks <= 10


def test_deleted_jobs_and_jobs_with_extended_retention_are_not_due() -> None:
    mirror = mirror_with(*range(200), keep_seconds=60.0)
    for number in range(2, 200):
        mirror.ended_jobs.forget(JobId(str(number)))
    again = JobSpec(JobId("200"), "work", ("true",), 0, keep_seconds=90.0)
    mirror.ended_jobs.end(again, JobStatus(again.id, JobState.SUCCEEDED, ended_ms=0))

    assert list(mirror.ended_jobs.due(70_000)) == ["1"]
    assert sorted(mirror.ended_jobs.due(90_000)) == ["1", "200"]


def test_large_arrays_expire_in_several_commits() -> None:
    mirror = Mirror()
    blocks = 1_000
    for number in range(1, 31):
        job = JobId(str(number))
        mirror.apply(JobSpec(job, "work", ("true",), 0, count=blocks * BLOCK_TASKS))
        for block in range(blocks):
            mirror.apply(AttemptBlock.new(job, block, BLOCK_TASKS))
        mirror.apply(JobStatus(job, JobState.SUCCEEDED, ended_ms=0))
    commits = 0
    while len(mirror.jobs) > 0:
        plan = apply(mirror, expire_jobs(mirror, RULES, Instant(HOUR_MS + commits, 0)))
        commits += 1
        assert len(plan.deletes) <= EXPIRE_RECORDS + blocks + 20

    assert commits == 3
