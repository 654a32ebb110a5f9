"""Crons: what is accepted and refused, schedules, pauses, runs on request, and deletion."""

from typing import Any

import pytest

from rota.apiserver.access import Caller
from rota.apiserver.admission import crons, submission
from rota.apiserver.admission.submission import SubmitResult
from rota.controllers import cron as controller
from rota.engine.state.mirror import Mirror
from rota.engine.time_zones import zone
from rota.identity.tokens import Role
from rota.model.cron import CronRecord, MissedRuns
from rota.model.errors import Conflict, NotAllowed, NotFound, Rejected
from rota.model.ids import JobId
from rota.model.job import JobIntent, JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import CRON_MISSED_MAX, CRON_MISSED_MS
from rota.model.plan import NO_CHANGE, Instant, Plan
from tests.apiserver.builders import ADA
from tests.apiserver.test_submission import applied

NOON_MS = 1_763_294_400_000  # 2025-11-16T12:00:00Z
MINUTE_MS = 60_000
REF = ("default", "tick")
BODY = {"name": "tick", "schedule": "*/5 * * * *", "job": {"command": ["work"], "cpu": 0.5}}


def at(minutes: float = 0) -> Instant:
    """This number of minutes after noon."""
    return Instant(round(minutes * MINUTE_MS), NOON_MS + round(minutes * MINUTE_MS))


def created(**fields: Any) -> Mirror:
    mirror = Mirror()
    return applied(mirror, crons.create(mirror, BODY | fields, ADA, zone, at()))


def started_runs(mirror: Mirror, minutes: float) -> list[str]:
    """Decide at that time; the names of the jobs that start."""
    plan = controller.reconciler(zone).decide(mirror, "default/tick", at(minutes))
    applied(mirror, plan)
    return [record.name for record in plan.puts if isinstance(record, JobSpec)]


def test_a_run_is_a_job_of_the_template_named_after_its_time() -> None:
    mirror = created(zone="Europe/Zurich")
    assert started_runs(mirror, 4.9) == []
    assert started_runs(mirror, 5) == ["tick@20251116T1205Z"]
    spec = mirror.jobs[JobId("1")].spec

    assert (spec.command, spec.needs, spec.user) == (("work",), {"cpu": 500}, ADA.name)
    assert spec.labels == {"cron": "tick"}
    assert spec.env == {"ROTA_CRON_INSTANT": "2025-11-16T12:05:00Z"}
    assert mirror.counters.jobs == 1


def test_a_due_run_is_started_once_however_often_it_is_decided() -> None:
    mirror = created()

    assert started_runs(mirror, 5) == ["tick@20251116T1205Z"]
    assert started_runs(mirror, 5) == []
    assert started_runs(mirror, -60) == []
    assert started_runs(mirror, 5.5) == []


def test_a_cron_is_decided_again_soon_even_if_its_next_run_is_far_away() -> None:
    mirror = created(schedule="@yearly")
    plan = controller.reconciler(zone).decide(mirror, "default/tick", at(1))

    assert plan.puts == ()
    assert plan.wake_at_ms is not None
    assert plan.wake_at_ms - at(1).ms <= MINUTE_MS


@pytest.mark.parametrize(("missed", "runs"), [("skip", 0), ("once", 1), ("all", 3)])
def test_missed_runs_follow_the_rule_of_the_cron(missed: str, runs: int) -> None:
    mirror = created(missed=missed, overlap="allow")

    assert len(started_runs(mirror, 19)) == runs
    status = mirror.cron_statuses["default/tick"]
    assert status.skipped == 3 - runs
    assert status.last_ms == at(15).wall_ms


def test_a_clock_that_jumps_by_years_starts_a_bounded_number_of_runs() -> None:
    mirror = created(schedule="* * * * *", missed="all", overlap="allow")
    runs = started_runs(mirror, 3 * 366 * 24 * 60)
    month = CRON_MISSED_MS // MINUTE_MS

    assert len(runs) == CRON_MISSED_MAX
    assert mirror.cron_statuses["default/tick"].skipped == month - CRON_MISSED_MAX


def test_an_unfinished_run_is_left_alone_or_replaced() -> None:
    kept, replaced = created(), created(overlap="replace")
    for mirror in (kept, replaced):
        started_runs(mirror, 5)

    assert started_runs(kept, 10) == []
    assert kept.cron_statuses["default/tick"].reason == "job 1 of an earlier run has not ended"
    assert started_runs(replaced, 10) == ["tick@20251116T1210Z"]
    intent = replaced.jobs[JobId("1")].intent
    assert intent is not None
    assert intent.cancel
    assert intent.reason == "replaced by tick@20251116T1210Z"


def test_only_the_last_ended_runs_are_kept() -> None:
    mirror = created(history=2)
    for number in range(1, 6):
        started_runs(mirror, 5 * number)
        mirror.apply(JobStatus(JobId(str(number)), JobState.SUCCEEDED))
    started_runs(mirror, 30)

    assert sorted(mirror.jobs) == ["4", "5", "6"]
    assert [run.job for run in mirror.cron_statuses["default/tick"].runs] == ["4", "5", "6"]


def test_a_paused_cron_starts_nothing_and_makes_up_for_nothing() -> None:
    mirror = created(missed="all", overlap="allow")
    applied(mirror, crons.pause(mirror, REF, ADA))
    assert controller.reconciler(zone).decide(mirror, "default/tick", at(30)) is NO_CHANGE
    applied(mirror, crons.resume(mirror, REF, ADA, at(31)))

    assert started_runs(mirror, 32) == []
    assert started_runs(mirror, 35) == ["tick@20251116T1235Z"]


def test_a_cron_can_be_run_now_even_while_it_is_paused() -> None:
    mirror = created()
    applied(mirror, crons.pause(mirror, REF, ADA))
    plan = crons.run(mirror, REF, ADA, at(1.2))
    applied(mirror, plan)

    assert plan.answer == SubmitResult(JobId("1"), new=True)
    assert mirror.jobs[JobId("1")].spec.name == "tick@20251116T120112Z"
    with pytest.raises(Conflict, match="job 1 of an earlier run has not ended"):
        crons.run(mirror, REF, ADA, at(2))


def test_a_repeated_run_with_the_same_key_is_the_same_job() -> None:
    mirror = created()
    applied(mirror, crons.run(mirror, REF, ADA, at(1), "k"))
    again = crons.run(mirror, REF, ADA, at(2), "k")

    assert again == Plan(answer=SubmitResult(JobId("1"), new=False), fenced=True)
    with pytest.raises(Conflict, match="this key was used for job 1"):
        submission.submit_job(mirror, {"command": ["work"], "cpu": 0.5, "name": "tick"}, ADA, "k", at(2))


def test_creating_the_same_cron_again_is_accepted_and_a_different_one_refused() -> None:
    mirror = Mirror()
    body = {"name": "tick", "schedule": "* * * * *", "job": {"command": ["work"]}}
    applied(mirror, crons.create(mirror, body, ADA, zone, at(0)))

    assert crons.create(mirror, body, ADA, zone, at(5)) == Plan(answer="default/tick", fenced=True)
    with pytest.raises(Conflict, match="cron tick exists already"):
        crons.create(mirror, {**body, "schedule": "0 1 * * *"}, ADA, zone, at(5))


def test_a_new_schedule_counts_from_now() -> None:
    mirror = created(missed="all", overlap="allow")
    body = {"schedule": "* * * * *", "job": {"command": ["other"]}}
    applied(mirror, crons.change(mirror, REF, body, ADA, zones=zone, now=at(3.5)))

    assert started_runs(mirror, 3.9) == []
    assert started_runs(mirror, 4) == ["tick@20251116T1204Z"]
    assert mirror.crons["default/tick"].missed is MissedRuns.ONCE
    assert mirror.crons["default/tick"].created_at_ms == at().wall_ms


def test_deleting_a_cron_keeps_its_jobs() -> None:
    mirror = created()
    started_runs(mirror, 5)
    applied(mirror, crons.delete(mirror, REF, ADA))

    assert not mirror.crons
    assert not mirror.cron_statuses
    assert list(mirror.jobs) == ["1"]
    with pytest.raises(NotFound):
        crons.pause(mirror, REF, ADA)


def test_an_unknown_time_zone_is_reported_once_and_retried() -> None:
    mirror = created()
    mirror.apply(
        CronRecord("default", "tick", "* * * * *", mirror.crons["default/tick"].template, zone="Gone/Away")
    )
    reconciler = controller.reconciler(zone)
    first = reconciler.decide(mirror, "default/tick", at(5))
    applied(mirror, first)
    again = reconciler.decide(mirror, "default/tick", at(6))

    assert "Gone/Away" in (mirror.cron_statuses["default/tick"].reason or "")
    assert first.wake_at_ms is not None
    assert again.puts == ()
    assert again.wake_at_ms is not None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"schedule": "99 * * * *"}, "schedule: '99' is no minute"),
        ({"schedule": None}, "schedule: is not a text"),
        ({"zone": "Nowhere"}, "zone: 'Nowhere' is not a time zone known here"),
        ({"overlap": "wait"}, "overlap: is not one of them"),
        ({"missed": "some"}, "missed: is not one of them"),
        (
            {"missed": "all"},
            "missed: all missed runs start together, and overlap = skip allows one at a time",
        ),
        ({"history": -1}, "history: -1 is out of range"),
        ({"name": "a@b"}, "name: 'a@b' is not a name"),
        ({"name": "a" * 120}, "name: is 120 characters long"),
        ({"job": None}, "job: is not a job"),
        ({"job": {}}, "command: is missing"),
        ({"job": {"command": ["a"], "after": ["1"]}}, "job.after: is not allowed in the job of a cron"),
        ({"job": {"command": ["a"], "name": "b"}}, "job.name: is not allowed in the job of a cron"),
        ({"job": {"command": ["a"], "kind": "system"}}, "job: a system job never ends"),
        ({"every": "5m"}, "every: is not a known field"),
    ],
)
def test_an_invalid_cron_is_refused_by_its_field(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(Rejected) as refused:
        created(**fields)

    assert refused.value.detail == problem
    assert refused.value.hint


def test_a_cron_belongs_to_its_namespace() -> None:
    mirror = created(namespace="lab")
    other = Caller("eve", Role.SUBMITTER, ("default",))
    with pytest.raises(NotFound):
        crons.pause(mirror, ("lab", "tick"), other)
    with pytest.raises(NotAllowed):
        crons.create(mirror, BODY | {"namespace": "lab"}, other, zone, at())
    with pytest.raises(NotAllowed):
        crons.run(mirror, ("lab", "tick"), Caller("vi", Role.VIEWER, ("lab",)), at())

    assert crons.create(mirror, BODY, other, zone, at()).answer == "default/tick"


def test_a_restart_intent_is_kept_when_a_run_is_replaced() -> None:
    mirror = created(overlap="replace")
    started_runs(mirror, 5)
    mirror.apply(JobIntent(JobId("1"), restart={0: 1}))
    started_runs(mirror, 10)
    intent = mirror.jobs[JobId("1")].intent

    assert intent is not None
    assert intent.restart == {0: 1}
