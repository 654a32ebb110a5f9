"""Origins of needs: explicit, from the namespace, observed at the last job of the name, or built in."""

from typing import Any

import msgspec
import pytest

from rota.apiserver.admission import crons, namespaces
from rota.apiserver.admission.submission import SubmitResult, submit_job
from rota.apiserver.admission.update import UpdateRequest, update_job
from rota.apiserver.views import job_spec
from rota.engine.state.mirror import Mirror
from rota.engine.time_zones import zone
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.errors import BadField, Conflict, Rejected
from rota.model.ids import JobId
from rota.model.job import JobSpec, JobStatus, with_observed_needs
from rota.model.lifecycle import AttemptState, JobState
from rota.model.limits import BLOCK_TASKS, OBSERVED_BLOCKS
from rota.model.namespace import NamespaceRecord
from rota.model.plan import Answer, Plan
from rota.rules.needs import used_by
from rota.store import codec
from rota.testing.builders import add_node, at
from rota.testing.records import placed, reported
from tests.apiserver.builders import ADA

GIB, MIB = 2**30, 2**20
SECOND_US = 1_000_000


def applied(mirror: Mirror, plan: Plan[Answer]) -> Plan[Answer]:
    for record in plan.puts:
        mirror.apply(record)
    return plan


def submitted(mirror: Mirror, key: str | None = None, **body: Any) -> JobSpec:
    plan = applied(mirror, submit_job(mirror, {"command": ["train"], **body}, ADA, key, at(0)))
    assert isinstance(plan.answer, SubmitResult)
    return mirror.jobs[plan.answer.job].spec


def ended_job(mirror: Mirror, state: JobState = JobState.SUCCEEDED, *, tasks: int = 1, **body: Any) -> JobId:
    """An ended job with that many tasks, each of which has used these amounts."""
    used = {name: body.pop(name, 0) for name in ("peak_kib", "cpu_us", "ran_us")}
    spec = submitted(mirror, count=tasks, **body)
    end = AttemptState.SUCCEEDED if state is JobState.SUCCEEDED else AttemptState.FAILED
    for block in range(spec.blocks):
        size = spec.block_size(block)
        mirror.apply(placed(AttemptBlock.new(spec.id, block, size), range(size), "n1"))
        mirror.apply(reported(StatusBlock.new(spec.id, block, size), range(size), end, **used))
    mirror.apply(JobStatus(spec.id, state))
    return spec.id


@pytest.fixture
def mirror() -> Mirror:
    made = Mirror()
    add_node(made, "n1", {"cpu": 8000, "memory": 16 * GIB, "licence": 4})
    return made


def test_needs_that_are_not_given_have_the_built_in_defaults(mirror: Mirror) -> None:
    spec = submitted(mirror)

    assert (spec.needs, spec.observed) == ({"cpu": 1000}, {})
    assert spec.origins == {"cpu": "default", "memory": "default"}


def test_defaults_of_the_namespace_apply_where_a_job_gives_none(mirror: Mirror) -> None:
    mirror.apply(NamespaceRecord("team", defaults={"cpu": 2000, "memory": GIB, "licence": 1}))
    default = submitted(mirror, namespace="team")
    explicit = submitted(mirror, namespace="team", cpu=0.5, memory=0, resources={"licence": 0})
    elsewhere = submitted(mirror)

    assert list(default.needs.items()) == [("cpu", 2000), ("memory", GIB), ("licence", 1)]
    assert set(default.origins.values()) == {"namespace"}
    assert (explicit.needs, set(explicit.origins.values())) == ({"cpu": 500}, {"explicit"})
    assert elsewhere.needs == {"cpu": 1000}


def test_a_repeated_submit_is_the_same_job_though_the_defaults_changed(mirror: Mirror) -> None:
    first = submitted(mirror, "key", namespace="team")
    mirror.apply(NamespaceRecord("team", defaults={"memory": GIB}))
    ended_job(mirror, namespace="team", peak_kib=2**20)
    again = submitted(mirror, "key", namespace="team")

    assert again is first
    assert "memory" not in again.needs
    with pytest.raises(Conflict):
        submitted(mirror, "key", namespace="team", memory="1g")


def test_observed_use_of_the_last_job_of_the_name_is_assessed_not_reserved(mirror: Mirror) -> None:
    ended_job(mirror, peak_kib=2 * 2**20, ran_us=10 * SECOND_US, cpu_us=34 * SECOND_US)
    spec = submitted(mirror)

    assert spec.needs == {"cpu": 1000}
    assert spec.observed == {"cpu": 4000, "memory": 2458 * MIB}
    assert with_observed_needs(spec).needs == {"cpu": 4000, "memory": 2458 * MIB}
    shown = job_spec.needs_json(spec)
    assert shown["cpu"] == {"reserved": 1.0, "assessed": 4.0, "origin": "observed"}
    assert shown["memory"] == {"reserved": 0, "assessed": 2458 * MIB, "origin": "observed"}


def test_an_explicit_need_or_a_namespace_default_overrides_observed_use(mirror: Mirror) -> None:
    mirror.apply(NamespaceRecord("team", defaults={"memory": GIB}))
    for namespace in ("default", "team"):
        ended_job(mirror, namespace=namespace, peak_kib=2 * 2**20)

    assert submitted(mirror, memory=0).observed == {}
    assert submitted(mirror, namespace="team").observed == {}
    assert list(submitted(mirror).observed) == ["memory"]


def test_other_names_other_namespaces_failures_and_deleted_jobs_are_ignored(mirror: Mirror) -> None:
    ended_job(mirror, name="other", peak_kib=2 * 2**20)
    ended_job(mirror, namespace="other", peak_kib=2 * 2**20)
    ended_job(mirror, JobState.FAILED, peak_kib=2 * 2**20)
    assert submitted(mirror).observed == {}

    last = ended_job(mirror, peak_kib=2 * 2**20)
    assert submitted(mirror).observed != {}
    mirror.forget(mirror.jobs[last].spec.key)
    assert submitted(mirror).observed == {}
    assert all(job in mirror.jobs for job in mirror.ended_jobs.last_succeeded.values())


def test_only_the_last_job_counts_and_it_is_found_again_after_a_restart(mirror: Mirror) -> None:
    ended_job(mirror, peak_kib=4 * 2**20)
    ended_job(mirror, peak_kib=2**20)
    records = [
        record
        for job in mirror.jobs.values()
        for record in (job.status, *job.statuses.values(), *job.attempts.values(), job.spec)
        if record is not None
    ]
    again = Mirror()
    again.load(reversed(records))
    add_node(again, "n1", {"cpu": 8000, "memory": 16 * GIB})

    assert again.ended_jobs.last_succeeded == mirror.ended_jobs.last_succeeded
    assert submitted(mirror).observed == {"memory": 1229 * MIB}
    assert submitted(again, key=None).observed == {"memory": 1229 * MIB}


@pytest.mark.parametrize(
    ("used", "found"),
    [
        ({"peak_kib": 1024}, {}),  # too little to matter
        ({"peak_kib": 54 * 1024}, {"memory": 65 * MIB}),
        ({"ran_us": 10 * SECOND_US, "cpu_us": SECOND_US}, {}),  # never less than one core
        ({"ran_us": 10 * SECOND_US, "cpu_us": 11 * SECOND_US}, {}),
        ({"ran_us": 10 * SECOND_US, "cpu_us": 12 * SECOND_US}, {"cpu": 2000}),
        ({"ran_us": SECOND_US // 10, "cpu_us": SECOND_US}, {}),  # too short to measure
    ],
)
def test_small_observed_use_is_ignored(mirror: Mirror, used: dict[str, int], found: dict[str, int]) -> None:
    assert used_by(mirror.jobs[ended_job(mirror, JobState.SUCCEEDED, tasks=1, **used)]) == found


def test_assessed_needs_are_capped_by_the_largest_node(mirror: Mirror) -> None:
    ended_job(mirror, peak_kib=15 * 2**20, ran_us=10 * SECOND_US, cpu_us=900 * SECOND_US)

    assert submitted(mirror).observed == {"cpu": 8000, "memory": 16 * GIB}


def test_only_the_last_blocks_of_a_large_job_are_read(mirror: Mirror) -> None:
    job = ended_job(mirror, tasks=BLOCK_TASKS * (OBSERVED_BLOCKS + 1), peak_kib=2**20)
    entry = mirror.jobs[job]
    first = reported(entry.statuses[0], [0], AttemptState.SUCCEEDED, peak_kib=8 * 2**20)
    entry.statuses[0] = first

    assert used_by(entry) == {"memory": 1229 * MIB}


def test_an_update_makes_a_need_explicit_and_null_resets_it(mirror: Mirror) -> None:
    mirror.apply(NamespaceRecord("team", defaults={"memory": GIB}))
    job = submitted(mirror, namespace="team").id
    mirror.apply(JobStatus(job, JobState.ACTIVE))

    def update(**fields: Any) -> JobSpec:
        applied(mirror, update_job(mirror, job, UpdateRequest(fields), ADA, at(0)))
        return mirror.jobs[job].spec

    own = update(memory="2g")
    assert (own.needs["memory"], own.origins) == (2 * GIB, {"cpu": "default", "memory": "explicit"})
    mirror.apply(NamespaceRecord("team", defaults={"memory": 3 * GIB, "cpu": 2000}))
    other = update(priority=60)
    assert (other.needs, other.origins) == (own.needs, own.origins)
    back = update(memory=None)
    assert (back.needs, back.origins["memory"]) == ({"cpu": 1000, "memory": 3 * GIB}, "namespace")


def test_each_run_of_a_cron_is_assessed_again(mirror: Mirror) -> None:
    body = {"name": "nightly", "schedule": "0 2 * * *", "job": {"command": ["train"], "cpu": 1}}
    applied(mirror, crons.create(mirror, body, ADA, zone, at(0)))
    mirror.apply(NamespaceRecord("default", defaults={"memory": GIB, "cpu": 4000}))
    ref = ("default", "nightly")

    def run(ms: int) -> JobSpec:
        plan = applied(mirror, crons.run(mirror, ref, ADA, at(ms)))
        assert isinstance(plan.answer, SubmitResult)
        mirror.apply(JobStatus(plan.answer.job, JobState.SUCCEEDED))
        return mirror.jobs[plan.answer.job].spec

    assert run(0).needs == {"cpu": 1000, "memory": GIB}
    mirror.apply(NamespaceRecord("default", defaults={"memory": 2 * GIB, "cpu": 4000}))
    assert run(1000).needs == {"cpu": 1000, "memory": 2 * GIB}
    assert crons.create(mirror, body, ADA, zone, at(0)).puts == ()  # the same cron exists
    assert mirror.ended_jobs.last_succeeded["default", "nightly"] == "2"


def test_old_records_without_origins_can_be_read() -> None:
    namespace = NamespaceRecord("team", {"cpu": 1000}, 2)
    raw = msgspec.msgpack.encode({"name": "team", "quota": {"cpu": 1000}, "weight": 2})
    read = msgspec.msgpack.decode(raw, type=NamespaceRecord)
    spec = JobSpec(JobId("1"), "a", ("true",), 0, needs={"cpu": 1000})

    assert read == namespace
    assert codec.decode(namespace.key, codec.encode(namespace)) == namespace
    assert job_spec.needs_json(spec) == {}
    assert with_observed_needs(spec) is spec


def test_defaults_that_are_left_out_stay_and_an_empty_table_removes_them() -> None:
    mirror = Mirror()
    asked = {"cpu": 2, "memory": "4g", "gpu": 0.5, "licence": 1, "disk": 0}
    applied(mirror, namespaces.set_namespace(mirror, "team", {"defaults": asked}, ADA))
    kept = mirror.namespaces["team"].defaults
    applied(mirror, namespaces.set_namespace(mirror, "team", {"weight": 3}, ADA))

    assert kept == {"cpu": 2000, "gpu": 500, "licence": 1, "memory": 4 * GIB}
    assert mirror.namespaces["team"].defaults == kept
    applied(mirror, namespaces.set_namespace(mirror, "team", {"defaults": {}}, ADA))
    assert mirror.namespaces["team"].defaults == {}


@pytest.mark.parametrize(
    ("defaults", "field"),
    [
        (7, "defaults"),
        ({"cpu": 0}, "defaults.cpu"),
        ({"memory": "lots"}, "defaults.memory"),
        ({"gpu": 1.5}, "defaults.gpu"),
        ({"tasks": 3}, "defaults.tasks"),
        ({"licence": -1}, "defaults.licence"),
    ],
)
def test_an_invalid_default_is_refused_by_its_field(defaults: object, field: str) -> None:
    with pytest.raises(Rejected) as refused:
        namespaces.set_namespace(Mirror(), "team", {"defaults": defaults}, ADA)

    assert isinstance(refused.value, BadField)
    assert refused.value.field == field
