"""Groups of clusters: one more when jobs wait too long, jobs rebalanced, one less when idle."""

from rota.model.cluster import ClusterIntent
from rota.model.ids import JobId
from rota.model.lifecycle import ClusterState
from tests.clusters.provider_stage import Cloud

INTENT = ClusterIntent(
    "build",
    provider="p",
    capacity={"cpu": 2000},
    max_nodes=1,
    idle_seconds=30,
    max_clusters=3,
    wait_seconds=60,
)


def states(cloud: Cloud) -> dict[str, ClusterState]:
    clusters = cloud.stage.mirror.clusters
    return {name: cluster.state for name, cluster in clusters.items() if name.startswith("build")}


def homes(cloud: Cloud, jobs: list[JobId]) -> list[str]:
    known = cloud.stage.mirror.jobs
    return [home.cluster for job in jobs if (home := known[job].cluster) is not None]


def crowded(jobs: int = 6) -> tuple[Cloud, list[JobId]]:
    """Jobs, the first of which uses all capacity."""
    cloud = Cloud(INTENT)
    ids = [cloud.submit(2, cluster="build") for _ in range(jobs)]
    return cloud, ids


def test_long_pending_jobs_get_another_cluster_and_running_ones_stay() -> None:
    cloud, jobs = crowded()
    cloud.wait(55)
    before = states(cloud)
    cloud.wait(30)

    assert list(before) == ["build"]
    assert list(states(cloud)) == ["build", "build.2"]
    assert homes(cloud, jobs) == ["build", "build.2", "build", "build.2", "build", "build.2"]
    assert (
        "cluster build.2 is asked for: of 5 jobs that wait in build the first, 2, does so for 60 s; "
        "there are 1, the limit is 3"
    ) in cloud.events
    assert cloud.nodes == 2


def test_clusters_stay_within_the_limit_and_are_added_one_at_a_time() -> None:
    cloud, _ = crowded(40)
    cloud.makes = True
    seen = []
    for _ in range(60):
        cloud.wait(10)
        seen.append(states(cloud))

    coming = [
        [state for state in states_then.values() if state is ClusterState.REQUESTED] for states_then in seen
    ]
    assert max(map(len, seen)) == 3
    assert all(len(states_then) <= 1 for states_then in coming)


def test_idle_clusters_end_the_first_stays_and_numbers_are_not_reused() -> None:
    cloud, _ = crowded()
    cloud.wait(90)
    while cloud.stage.mirror.machines and any(machine.held for machine in cloud.stage.machines.values()):
        cloud.end_all()
        cloud.wait(1)
    cloud.wait(180)
    after = states(cloud)
    for _ in range(6):
        cloud.submit(2, cluster="build")
    cloud.wait(90)

    assert list(after) == ["build"]
    assert any(
        line.startswith("cluster build.2 ends: nothing has run or waited there") for line in cloud.events
    )
    assert list(states(cloud)) == ["build", "build.3"]


def test_no_cluster_is_added_while_an_existing_one_can_grow() -> None:
    cloud = Cloud(ClusterIntent("build", provider="p", capacity={"cpu": 2000}, max_nodes=8, max_clusters=3))
    cloud.makes = False
    for _ in range(4):
        cloud.submit(1, cluster="build")
    cloud.wait(100)

    assert list(states(cloud)) == ["build"]


def test_the_minimum_of_clusters_exists_without_demand() -> None:
    cloud = Cloud(
        ClusterIntent(
            "build", provider="p", capacity={"cpu": 2000}, max_nodes=1, min_clusters=2, max_clusters=2
        )
    )
    cloud.wait(200)

    assert states(cloud) == {"build": ClusterState.READY, "build.2": ClusterState.READY}


def test_clusters_of_a_group_end_with_the_original() -> None:
    cloud, _ = crowded()
    cloud.wait(90)
    while any(machine.held for machine in cloud.stage.machines.values()):
        cloud.end_all()
        cloud.wait(1)
    ended = ClusterIntent(
        "build", provider="p", capacity={"cpu": 2000}, max_nodes=1, max_clusters=3, drain=True, end=True
    )
    cloud.stage.put(ended)
    cloud.wait(60)

    assert states(cloud) == {}
    assert "build.2" not in cloud.stage.mirror.cluster_intents
    assert [key for key in cloud.stage.records if "build" in key] == []


def test_after_a_restart_scaling_continues_as_before() -> None:
    cloud, jobs = crowded()
    cloud.wait(90)
    before = homes(cloud, jobs)
    cloud.stage.restart()
    for machine in cloud.stage.machines.values():
        cloud.stage.call(machine)
    intent = cloud.stage.mirror.cluster_intents["build.2"]
    cloud.wait(20)

    assert (intent.provider, intent.max_clusters) == ("p", 1)
    assert homes(cloud, jobs) == before
    assert list(states(cloud)) == ["build", "build.2"]
