"""A new job is assigned to a cluster once; the default cluster always exists."""

from typing import Any

from rota.clusters import assign
from rota.clusters.assign import Assigner
from rota.engine.state.mirror import Mirror
from rota.model.cluster import DEFAULT, ClusterIntent, ClusterRecord
from rota.model.ids import JobId, NodeId
from rota.model.job import JobCluster, JobSpec, JobStatus, Recovery
from rota.model.lifecycle import ClusterState
from rota.model.node import Connection, NodeSpec
from rota.model.plan import NO_CHANGE, Plan
from rota.model.shape import AffinityTerm, Preference, RunMode
from rota.scheduler.cluster_fit import FitCalculator
from rota.testing.builders import GIB, add_node, at, job_spec, node_status, where


def decide(mirror: Mirror, key: str) -> Plan:
    return Assigner(FitCalculator().cluster_fit).decide(mirror, key, at(0))


def with_clusters(*names: str) -> Mirror:
    """Clusters with one node of 4 CPUs each."""
    mirror = Mirror()
    for name in names:
        mirror.apply(ClusterRecord(name))
        node = NodeId(f"in-{name}")
        mirror.apply(NodeSpec(node, node, name, {"region": name}))
        mirror.apply(node_status(node))
        mirror.connect(node, Connection.UP)
    return mirror


def chosen(mirror: Mirror, **fields: Any) -> str | None:
    spec = job_spec(1, **fields)
    mirror.apply(spec)
    homes = [record.cluster for record in decide(mirror, spec.id).puts if isinstance(record, JobCluster)]
    return homes[0] if homes else None


def test_the_default_cluster_is_created_at_the_first_start_only() -> None:
    mirror = Mirror()
    (first,) = decide(mirror, "default").puts
    mirror.apply(first)

    assert first == ClusterRecord(DEFAULT, ClusterState.UNAVAILABLE)
    assert decide(mirror, "default") is NO_CHANGE


def test_detected_labels_count_when_no_machine_is_left() -> None:
    mirror = with_clusters("default")
    intent = ClusterIntent("cloud", provider="local", capacity={"cpu": 8000}, max_nodes=1)
    mirror.apply(intent)
    asks = {"needs": {"cpu": 8000}, "run": RunMode.ONE_AT_A_TIME}
    homes = []
    for found in (None, {}, {"leases": "pid-namespace"}):
        mirror.apply(ClusterRecord("cloud", found=found))
        homes.append(chosen(mirror, **asks))

    assert homes == ["cloud", "default", "cloud"]


def test_a_job_is_assigned_to_the_only_cluster() -> None:
    mirror = Mirror()
    spec = job_spec()
    mirror.apply(spec)
    plan = decide(mirror, spec.id)

    assert plan.puts == (JobCluster(spec.id, DEFAULT),)
    assert plan.why == "job 1 is for the only cluster there is"


def test_a_job_keeps_the_cluster_it_has() -> None:
    mirror = Mirror()
    spec = job_spec()
    mirror.apply(spec)
    mirror.apply(JobCluster(spec.id, "other"))

    assert decide(mirror, spec.id).puts == ()


def test_a_key_of_an_unknown_job_is_ignored() -> None:
    assert decide(Mirror(), "7") is NO_CHANGE


def test_a_new_spec_and_a_changed_cluster_wake_it() -> None:
    spec = job_spec()

    assert list(assign.WAKES[JobSpec](spec)) == ["1"]
    assert list(assign.WAKES[ClusterRecord](ClusterRecord("eu"))) == ["clusters/eu", "stranded"]
    assert list(assign.WAKES[ClusterIntent](ClusterIntent("eu"))) == ["stranded"]
    assert JobStatus not in assign.WAKES


def test_after_a_restart_the_default_and_every_unassigned_job_are_decided() -> None:
    mirror = Mirror()
    for number in (1, 2):
        mirror.apply(job_spec(number))
    mirror.apply(JobCluster(job_spec(1).id, DEFAULT))

    assert list(assign.start(mirror)) == ["default", "2", "stranded"]


def test_a_job_is_assigned_where_its_constraints_hold() -> None:
    mirror = with_clusters(DEFAULT, "eu", "us")

    assert chosen(mirror, where=(where("region", "==", "us"),)) == "us"


def test_a_job_is_assigned_where_it_fits_now() -> None:
    mirror = with_clusters(DEFAULT, "eu")
    mirror.node_table.reserved[
        mirror.node_table.rows["cpu"], mirror.node_table.slot[NodeId("in-default")]
    ] = 4000

    assert chosen(mirror) == "eu"


def test_of_equal_clusters_the_preferred_one_is_chosen() -> None:
    mirror = with_clusters(DEFAULT, "eu")
    mirror.apply(ClusterIntent("eu", region="eu"))

    assert chosen(mirror, prefer=(Preference(where("region", "==", "eu"), 10),)) == "eu"


def test_a_job_that_has_to_be_near_another_goes_to_its_cluster() -> None:
    mirror = with_clusters(DEFAULT, "eu")
    mirror.apply(job_spec(2, name="db"))
    mirror.apply(JobCluster(JobId("2"), "eu"))

    assert chosen(mirror, near=(AffinityTerm(where("job", "==", "db")),)) == "eu"


def test_a_job_bound_to_a_cluster_waits_there_though_it_is_full() -> None:
    mirror = with_clusters(DEFAULT, "eu")
    mirror.node_table.reserved[mirror.node_table.rows["cpu"], mirror.node_table.slot[NodeId("in-eu")]] = 4000

    assert chosen(mirror, cluster="eu") == "eu"


def test_a_cluster_that_could_provision_a_fitting_node_gets_the_job() -> None:
    mirror = with_clusters(DEFAULT)
    mirror.apply(ClusterRecord("gpu"))
    mirror.apply(ClusterIntent("gpu", provider="p", capacity={"cpu": 2000, "gpu": 1000}, max_nodes=2))

    assert chosen(mirror, needs={"cpu": 1000, "gpu": 1000}) == "gpu"


def test_a_job_that_only_a_requested_cluster_can_serve_waits_for_it_with_an_event() -> None:
    mirror = with_clusters(DEFAULT)
    mirror.apply(ClusterRecord("gpu", ClusterState.PROVISIONING))
    mirror.apply(ClusterIntent("gpu", provider="p", capacity={"cpu": 2000, "gpu": 1000}, max_nodes=2))
    spec = job_spec(1, needs={"cpu": 1000, "gpu": 1000})
    mirror.apply(spec)
    before = decide(mirror, "1")
    mirror.apply(ClusterRecord("gpu"))
    after = decide(mirror, "stranded")

    assert before.puts == ()
    assert before.why == "job 1 waits for a cluster: none that can serve it is ready, gpu to come"
    assert after.puts == (JobCluster(spec.id, "gpu"),)


def test_a_task_is_never_placed_on_a_node_of_another_cluster() -> None:
    mirror = with_clusters("eu")
    add_node(mirror, "big", {"cpu": 64_000})
    spec = job_spec(1, count=100)
    mirror.apply(spec)
    mirror.apply(JobCluster(spec.id, "eu"))
    fit = FitCalculator().cluster_fit(mirror, spec, "eu")

    assert (fit.able, fit.free) == (1, 4)
    assert mirror.jobs[spec.id].spec.shape.cluster == "eu"


def failed(*, alike: bool, **fields: Any) -> list[JobCluster]:
    """The outcome of a pending job of a failed cluster, with another cluster beside it."""
    mirror = with_clusters(DEFAULT)
    mirror.apply(ClusterRecord("gone", ClusterState.FAILED, reason="no quota left"))
    if alike:
        mirror.apply(ClusterRecord("gone.2", like="gone"))
        mirror.apply(NodeSpec(NodeId("n9"), "n9", "gone.2"))
        mirror.apply(node_status(NodeId("n9")))
        mirror.connect(NodeId("n9"), Connection.UP)
    mirror.apply(job_spec(1, **fields))
    mirror.apply(JobCluster(JobId("1"), "gone"))
    plan = Assigner(FitCalculator().cluster_fit).decide(mirror, "clusters/gone", at(0))
    return [record for record in plan.puts if isinstance(record, JobCluster)]


def test_pending_jobs_of_a_failed_cluster_move_if_they_may() -> None:
    assert failed(alike=False) == [JobCluster(JobId("1"), DEFAULT, moved=True)]
    assert failed(alike=True, cluster="gone") == [JobCluster(JobId("1"), "gone.2", moved=True)]


def test_jobs_that_may_not_move_from_a_failed_cluster_end() -> None:
    ended = [JobCluster(JobId("1"), "gone", failed="cluster-failed: gone, no quota left")]

    assert failed(alike=False, cluster="gone") == ended
    assert failed(alike=True, move_pending=False) == ended
    assert failed(alike=True, recovery=Recovery.CANCEL) == ended


def small_and_large() -> Mirror:
    mirror = with_clusters("default", "large")
    mirror.apply(node_status("in-large", {"cpu": 16_000, "memory": 64 * GIB}))
    return mirror


def test_usage_of_the_previous_job_of_its_name_chooses_the_cluster() -> None:
    mirror = small_and_large()
    spec = job_spec(1, observed={"memory": 20 * GIB})
    mirror.apply(spec)
    plan = decide(mirror, spec.id)

    assert plan.puts == (JobCluster(spec.id, "large"),)
    used = "by what the last of its name used: 20.0 GiB"
    assert plan.why == f"job 1 is assigned to cluster large: only large can serve it, {used}"
    assert chosen(small_and_large()) == "default"


def test_observed_usage_excludes_no_cluster_that_satisfies_the_request() -> None:
    mirror = small_and_large()
    assert chosen(mirror, observed={"memory": 100 * GIB}) == "default"

    to_come = small_and_large()
    to_come.apply(ClusterRecord("large", ClusterState.PROVISIONING))
    assert chosen(to_come, observed={"memory": 20 * GIB}) == "default"
