"""Forged: placements against eligibility, taints, constraints, affinity, quotas or capacity."""

from collections.abc import Callable
from typing import Any

import msgspec

from rota.model.attempt import AttemptBlock
from rota.model.ids import JobId, NodeId
from rota.model.job import JobCluster, JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.namespace import NamespaceRecord
from rota.model.node import Eligibility, NodeIntent, NodeSpec
from rota.model.plan import Record
from rota.model.shape import AffinityTerm, Constraint, Op, SpreadTerm
from rota.sim.checks import disk_low
from rota.sim.world.network import SimNetwork
from rota.sim.world.store import SimStore
from rota.sim.world.virtual_time import World
from rota.store import codec
from rota.store.protocol import Batch
from rota.testing.builders import job_spec, node_status
from rota.testing.records import placed
from tests.sim.check_stage import ATTEMPTS, ONE, CheckStage

WEB = Constraint("app", Op.EQUAL, ("web",))
TWO = AttemptBlock.new(JobId("2"), 0, 1)


def stage_of(**fields: Any) -> CheckStage:
    """A job of two tasks, and two nodes in two zones."""
    stage = CheckStage(job_spec(1, count=2, **fields))
    for name, zone in (("n1", "a"), ("n2", "b")):
        status = node_status(name, {"cpu": 4000, "gpu": 2000}, labels={"zone": zone})
        stage.write(NodeSpec(NodeId(name), name), status)
    return stage


def other(**fields: Any) -> JobSpec:
    """Job 2, of one task."""
    return job_spec(2, **fields)


def with_gpus(*masks: int) -> AttemptBlock:
    """Both tasks on n1, with these GPUs."""
    return msgspec.structs.replace(placed(ATTEMPTS, [0, 1], "n1"), gpus=dict(enumerate(masks)))


def a_task_is_placed_on_a_cordoned_node() -> None:
    stage = stage_of()
    stage.write(NodeIntent(NodeId("n1"), Eligibility.CORDONED))
    stage.write(placed(ATTEMPTS, [0], "n1"))


def a_task_is_placed_in_another_cluster() -> None:
    stage = stage_of()
    stage.write(JobCluster(ONE, "cloud"), placed(ATTEMPTS, [0], "n1"))


def a_taint_is_ignored() -> None:
    stage = stage_of(tolerate=("kept=b",))
    stage.write(NodeIntent(NodeId("n1"), taints=("kept=a",)))
    stage.write(placed(ATTEMPTS, [0], "n1"))


def a_constraint_is_ignored() -> None:
    stage_of(where=(Constraint("zone", Op.EQUAL, ("a",)),)).write(placed(ATTEMPTS, [0], "n2"))


def a_quota_is_exceeded() -> None:
    stage = stage_of()
    stage.write(NamespaceRecord("default", {"cpu": 1500}))
    stage.write(placed(ATTEMPTS, [0, 1], "n1"))


def a_gpu_is_missing() -> None:
    stage_of(needs={"gpu": 2000}).write(with_gpus(0b01, 0b10))


def a_gpu_is_overcommitted() -> None:
    stage_of(needs={"gpu": 600}).write(with_gpus(0b10, 0b10))


def a_gang_is_placed_in_part() -> None:
    stage_of(gang=True).write(placed(ATTEMPTS, [0], "n1"))


def anti_affinity_is_violated() -> None:
    stage = stage_of(labels={"app": "web"})
    stage.write(
        placed(ATTEMPTS, [0], "n1"), other(apart=(AffinityTerm(WEB),)), JobStatus(JobId("2"), JobState.ACTIVE)
    )
    stage.write(placed(TWO, [0], "n1"))


def affinity_is_violated() -> None:
    stage = stage_of(labels={"app": "web"})
    stage.write(placed(ATTEMPTS, [0], "n1"), other(near=(AffinityTerm(WEB, "zone"),)))
    stage.write(placed(TWO, [0], "n2"))


def affinity_over_a_missing_label() -> None:
    stage_of(near=(AffinityTerm(WEB, "rack"),)).write(placed(ATTEMPTS, [0], "n1"))


def a_spread_is_uneven() -> None:
    stage_of(spread=(SpreadTerm("zone"),)).write(placed(ATTEMPTS, [0, 1], "n1"))


def a_spread_over_a_missing_label() -> None:
    stage_of(spread=(SpreadTerm("rack"),)).write(placed(ATTEMPTS, [0], "n1"))


def written_while_disk_low(record: Record) -> None:
    world = World(0)
    store = SimStore(world, SimNetwork(world))
    store.disk_low_since_ms = 0
    world.run(disk_low.KNOWN_MS)
    disk_low.check_commit(store, {}, Batch(1, 0, 0, 0, [(str(record.key), codec.encode(record))], (), None))


def a_job_is_accepted_while_the_disk_is_low() -> None:
    written_while_disk_low(job_spec(1))


def tasks_are_placed_while_the_disk_is_low() -> None:
    written_while_disk_low(placed(ATTEMPTS, [0], "n1"))


FORGED: dict[Callable[[], None], str] = {
    a_task_is_placed_on_a_cordoned_node: "task 0 of job 1 was placed on n1, which is cordoned",
    a_task_is_placed_in_another_cluster: "task 0 of job 1, for cluster cloud, was placed on n1 of default",
    a_taint_is_ignored: "task 0 of job 1 was placed on n1 and does not tolerate kept=a",
    a_constraint_is_ignored: "task 0 of job 1 was placed on n2, where 'zone == a' does not hold",
    a_quota_is_exceeded: "namespace default holds 2000 of 1500 cpu",
    a_gpu_is_missing: "task 0 of job 1 asks for 2000 of GPUs and was given [0] of 2",
    a_gpu_is_overcommitted: "with task 0 of job 1 1200 thousandths of GPU 1 of n1 are taken",
    a_gang_is_placed_in_part: "of the gang of job 1 some tasks were placed, and task 1 waits",
    anti_affinity_is_violated: "job 2 was placed on n1 beside job 1: apart app == web over node",
    affinity_is_violated: "of job 2 on n2 1 have no match: near app == web over zone",
    affinity_over_a_missing_label: (
        "job 1 was placed on n1, which has no such label: near app == web over rack"
    ),
    a_spread_is_uneven: "job 1 has 2 tasks in a, 0 in b: zone skew 1",
    a_spread_over_a_missing_label: "job 1 was placed on n1, which has no such label: spread over rack skew 1",
    a_job_is_accepted_while_the_disk_is_low: "job 1 was accepted while the disk was low",
    tasks_are_placed_while_the_disk_is_low: "tasks of job 1 were placed while the disk was low",
}


def a_placement_that_satisfies_all_rules() -> None:
    """Not a forgery: a gang near itself; its first task may be anywhere."""
    stage = stage_of(
        labels={"app": "web"}, near=(AffinityTerm(WEB, "zone"),), gang=True, spread=(SpreadTerm("node", 2),)
    )
    stage.write(NamespaceRecord("default", {"tasks": 2}), NodeIntent(NodeId("n2"), taints=("kept",)))
    stage.write(placed(ATTEMPTS, [0, 1], "n1"))


def a_spread_over_the_nodes_of_its_own_cluster() -> None:
    """Not a forgery: a node of another cluster does not count."""
    stage = stage_of(spread=(SpreadTerm("zone"),))
    stage.write(NodeSpec(NodeId("n2"), "n2", "cloud"))
    stage.write(placed(ATTEMPTS, [0, 1], "n1"))
