"""Stranded jobs move as soon as another cluster can serve them; the search is cheap per job."""

from rota.clusters.assign import Assigner
from rota.engine.state.mirror import Mirror
from rota.model.cluster import DEFAULT, ClusterFit, ClusterIntent, ClusterRecord
from rota.model.ids import JobId, NodeId
from rota.model.job import JobCluster, JobSpec
from rota.model.lifecycle import ClusterState, NodeState
from rota.model.limits import REASSIGN_SEARCH_VISITS, REASSIGN_STEP_MAX
from rota.model.node import Connection, Eligibility, NodeIntent, NodeSpec
from rota.model.plan import Plan, Record
from rota.model.shape import RunMode
from rota.model.view import View
from rota.scheduler.cluster_fit import FitCalculator
from rota.testing.builders import at, job_spec, node_status, where
from rota.testing.stage import Stage, StageMachine

GPU = ClusterIntent("gpu", type="gpu", provider="p", capacity={"cpu": 4000}, max_nodes=2)
WANTS_GPU = {"where": (where("cluster_type", "==", "gpu"),)}


def cluster_of(stage: Stage, job: str) -> str | None:
    assigned = stage.mirror.jobs[JobId(job)].cluster
    return None if assigned is None else assigned.cluster


def parked(jobs: int, nodes: int = 1, **fields: object) -> Mirror:
    """Jobs pending in the default cluster, whose nodes cannot serve them."""
    mirror = Mirror()
    mirror.apply(ClusterRecord(DEFAULT))
    mirror.apply(ClusterRecord("lab"))
    for number in range(nodes):
        node = NodeId(f"n{number}")
        mirror.apply(NodeSpec(node, node, DEFAULT))
        mirror.apply(node_status(node))
        mirror.connect(node, Connection.UP)
    for number in range(1, jobs + 1):
        spec = job_spec(number, **{**WANTS_GPU, **fields})
        mirror.apply(spec)
        mirror.apply(JobCluster(spec.id, DEFAULT))
    return mirror


def apply(mirror: Mirror, *records: Record) -> None:
    for record in records:
        mirror.apply(record)


def steps_of(assigner: Assigner, mirror: Mirror, now_ms: int | None = 0) -> list[Plan]:
    """All steps of a search, each applied before the next."""
    plans: list[Plan] = []
    while now_ms is not None:
        plans.append(assigner.decide(mirror, "stranded", at(now_ms)))
        apply(mirror, *plans[-1].puts)
        assert plans[-1].wake_at_ms is None or plans[-1].wake_at_ms > now_ms
        now_ms = plans[-1].wake_at_ms
    return plans


def moved(plan: Plan) -> int:
    return sum(isinstance(record, JobCluster) for record in plan.puts)


class CountingSurvey:
    """A fit calculator that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._surveyor = FitCalculator()

    def look(self, view: View, spec: JobSpec, cluster: str) -> ClusterFit:
        self.calls += 1
        return self._surveyor.cluster_fit(view, spec, cluster)


def test_a_node_change_does_not_test_each_of_many_stranded_jobs() -> None:
    survey = CountingSurvey()
    assigner, mirror = Assigner(survey.look), parked(jobs=5_000)
    first = assigner.decide(mirror, "stranded", at(0))
    mirror.apply(NodeIntent(NodeId("n0"), Eligibility.CORDONED))
    second = assigner.decide(mirror, "stranded", at(1000))

    assert (moved(first), moved(second)) == (0, 0)
    assert survey.calls < 20
    assert second.wake_at_ms is None


def test_nothing_is_searched_when_nothing_has_changed() -> None:
    survey = CountingSurvey()
    assigner, mirror = Assigner(survey.look), parked(jobs=10)
    assigner.decide(mirror, "stranded", at(0))
    before = survey.calls
    assigner.decide(mirror, "stranded", at(1000))

    assert survey.calls == before


def test_a_reloaded_mirror_is_searched_although_its_versions_are_equal() -> None:
    assigner, first, again = Assigner(FitCalculator().cluster_fit), parked(jobs=1), parked(jobs=1)
    for mirror in (first, again):
        apply(mirror, GPU, ClusterRecord("gpu"))
    assigner.decide(first, "stranded", at(0))

    assert first.node_table.feasibility_version == again.node_table.feasibility_version
    assert moved(assigner.decide(again, "stranded", at(1))) == 1


def test_many_jobs_move_in_steps_that_are_committed_one_by_one() -> None:
    assigner, mirror = Assigner(FitCalculator().cluster_fit), parked(jobs=2 * REASSIGN_STEP_MAX + 1)
    apply(mirror, GPU, ClusterRecord("gpu"))
    steps = steps_of(assigner, mirror)

    assert [moved(step) for step in steps] == [REASSIGN_STEP_MAX, REASSIGN_STEP_MAX, 1]
    assert set(mirror.jobs_by_cluster) == {"gpu"}


def test_a_long_search_is_delayed_and_continues_where_it_stopped() -> None:
    nodes = 50
    mirror = parked(jobs=0, nodes=nodes)
    for number in range(1, REASSIGN_SEARCH_VISITS // nodes + 100):
        mirror.apply(job_spec(number, needs={"cpu": 100_000 + number}))
        mirror.apply(JobCluster(JobId(str(number)), DEFAULT))
    last = job_spec(1_000_000, **WANTS_GPU)
    apply(mirror, last, JobCluster(last.id, DEFAULT), GPU, ClusterRecord("gpu"))
    assigner = Assigner(FitCalculator().cluster_fit)
    first = assigner.decide(mirror, "stranded", at(0))
    too_soon = assigner.decide(mirror, "stranded", at(1))
    assert first.wake_at_ms is not None
    second = assigner.decide(mirror, "stranded", at(first.wake_at_ms))

    assert (first.puts, too_soon.puts) == ((), ())
    assert too_soon.wake_at_ms == first.wake_at_ms
    assert second.puts == (JobCluster(last.id, "gpu", moved=True),)


def test_a_change_during_a_search_leads_to_another_one() -> None:
    assigner, mirror = Assigner(FitCalculator().cluster_fit), parked(jobs=REASSIGN_STEP_MAX + 1)
    large = job_spec(5_000, needs={"cpu": 64_000})
    apply(mirror, large, JobCluster(large.id, DEFAULT), GPU, ClusterRecord("gpu"))
    first = assigner.decide(mirror, "stranded", at(0))
    big = ClusterIntent("big", provider="p", capacity={"cpu": 64_000}, max_nodes=1)
    apply(mirror, *first.puts, big, ClusterRecord("big"))
    steps_of(assigner, mirror, first.wake_at_ms)

    assert large.id in next(iter(mirror.jobs_by_cluster["big"].values()))


def test_a_job_with_a_leased_task_moves_when_the_lease_has_ended() -> None:
    stage = Stage()
    stage.put(ClusterIntent("lab", fail_after_seconds=0.0))
    stage.join(StageMachine("a", {"cpu": 4000}, {"leases": "yes"}), "lab")
    stage.submit(job_spec(1, run=RunMode.ONE_AT_A_TIME, lease_seconds=120.0))
    stage.join(StageMachine("b", {"cpu": 4000}, {"leases": "yes"}))
    stage.cut(stage.machines["a"])
    stage.wait(40_000)
    while_it_may_run = cluster_of(stage, "1"), stage.mirror.clusters["lab"].state
    stage.wait(120_000)

    assert while_it_may_run == ("lab", ClusterState.UNAVAILABLE)
    assert cluster_of(stage, "1") == DEFAULT
    assert stage.mirror.nodes_in("lab")[NodeState.LOST] == 1


def test_a_job_bound_to_its_cluster_stays_there() -> None:
    stage = Stage()
    stage.put(ClusterIntent("lab"))
    stage.join(StageMachine("a", {"cpu": 4000}, {}))
    stage.submit(job_spec(1, cluster="lab"))
    stage.submit(job_spec(2, cluster="lab", move_pending=False))
    stage.put(ClusterIntent("other"))

    assert (cluster_of(stage, "1"), cluster_of(stage, "2")) == ("lab", "lab")


def test_the_reason_why_no_cluster_serves_a_job_names_what_is_missing() -> None:
    events: list[str] = []
    stage = Stage(events.append)
    stage.put(ClusterIntent("lab"))
    stage.submit(job_spec(1))
    stage.join(StageMachine("a", {"cpu": 4000}, {"zone": "x"}))
    stage.join(StageMachine("b", {"cpu": 16_000}, {"zone": "y"}), "lab")
    stage.submit(job_spec(2, where=(where("zone", "==", "z"),)))
    stage.submit(job_spec(3, needs={"cpu": 32_000}))
    stage.submit(job_spec(4, needs={"cpu": 16_000}, where=(where("zone", "==", "x"),)))
    stage.put(ClusterIntent("lab", drain=True))
    stage.submit(job_spec(5, needs={"cpu": 16_000}))

    assert [one for one in events if one.startswith("no cluster serves")] == [
        "no cluster serves job 1: no node of any cluster takes work; it waits in default",
        "no cluster serves job 2: no node of any cluster satisfies 'zone == z'; it waits in default",
        "no cluster serves job 3: no node of any cluster has 32 cpu; it waits in default",
        "no cluster serves job 4: no node of any cluster has all of 16 cpu, 'zone == x'; it waits in default",
        "no cluster serves job 5: cluster lab, which could, is draining; it waits in default",
    ]
