"""`rota why`: every reason as text, counted over nodes, and the smallest change that would start the job."""

import time
from typing import Any

import pytest

from rota.model.columns import Array
from rota.model.container import ContainerSpec
from rota.model.ids import JobId, NodeId
from rota.model.job import JobIntent, JobStatus
from rota.model.lifecycle import JobState, NodeState
from rota.model.limits import NODE_TASKS_MAX
from rota.model.messages import ReportedState
from rota.model.namespace import NamespaceRecord
from rota.model.node import Connection, Eligibility, NodeIntent, NodeLoad, NodeSpec
from rota.model.outlook import Explanation, NearMiss
from rota.model.shape import AffinityTerm, Constraint, Op, SpreadTerm
from rota.scheduler.explain.why import explain_job
from rota.scheduler.placement.board import NodeSlice
from rota.scheduler.placement.rows import Plugins
from rota.testing.builders import GIB, add_job, add_node, at, job_spec, where
from tests.scheduler.rounds import Rounds

ONE_CPU = {"cpu": 1000}


def asked(rounds: Rounds, job: int = 1, ms: int = 0) -> Explanation:
    return explain_job(rounds.mirror, JobId(str(job)), at(ms))


def texts(answer: Explanation) -> list[str]:
    return [reason.text for reason in answer.reasons]


def test_without_nodes_it_says_how_to_join_one() -> None:
    rounds = Rounds()
    add_job(rounds.mirror, job_spec())

    assert asked(rounds).sentence == "waits: no node has joined"
    assert asked(rounds).changes == ("join a node (rota node token)",)


def test_a_job_just_submitted_waits_for_its_first_decision() -> None:
    rounds = Rounds()
    rounds.mirror.apply(job_spec())

    assert asked(rounds) == Explanation(waits=True, sentence="waits: it was submitted just now")


def test_nodes_that_are_too_small_are_distinguished_from_full_ones() -> None:
    rounds = Rounds()
    for node, memory in {"a": 16, "b": 16, "c": 40, "d": 48, "e": 64}.items():
        add_node(rounds.mirror, node, {"cpu": 8000, "memory": memory * GIB})
    for node, free in {"c": 7.26, "d": 3.0, "e": 1.0}.items():
        rounds.mirror.measure(NodeId(node), NodeLoad(memory_free=round(free * GIB)))
    add_job(rounds.mirror, job_spec(needs={"memory": 32 * GIB}))

    answer = asked(rounds)

    assert texts(answer) == [
        "3 of 5 nodes have too little free memory: largest free 7.2 GiB, asked 32.0 GiB",
        "2 of 5 nodes have too little memory in all: largest 16.0 GiB, asked 32.0 GiB",
    ]
    assert answer.sentence == "waits: " + "; ".join(texts(answer))
    assert [(reason.kind, reason.count, reason.of) for reason in answer.reasons] == [
        ("memory", 3, 5),
        ("memory", 2, 5),
    ]
    assert answer.changes == (
        "would start on 2 nodes with memory <= 16.0 GiB",
        "would start on c with memory <= 7.2 GiB",
    )


def test_amounts_that_would_round_to_the_same_text_are_exact() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"memory": 8 * GIB + 1})
    add_job(rounds.mirror, job_spec(needs={"memory": 8 * GIB + 2}))

    assert texts(asked(rounds)) == [
        "1 of 1 nodes has too little memory in all: largest 8,589,934,593, asked 8,589,934,594"
    ]


def test_a_resource_that_no_node_has_is_named() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    add_node(rounds.mirror, "b")
    add_job(rounds.mirror, job_spec(needs={"licence": 2}))

    assert asked(rounds).sentence == "waits: no node has licence"
    assert asked(rounds).changes == ("would start on 2 nodes without licence",)


def test_nodes_without_a_device_are_distinguished_from_nodes_whose_devices_are_used() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 8000, "gpu": 2000})
    add_node(rounds.mirror, "b", {"cpu": 8000})
    add_job(rounds.mirror, job_spec(1, needs={"gpu": 1000}))
    add_job(rounds.mirror, job_spec(2, needs={"gpu": 2000}))
    rounds.go()

    assert texts(asked(rounds, 2)) == [
        "1 of 2 nodes has no gpu",
        "1 of 2 nodes has too little free gpu: largest free 1, asked 2",
    ]
    assert asked(rounds, 2).changes == ("would start on b without gpu", "would start on a with gpu <= 1")


def test_a_full_cluster_is_no_reason_to_ask_for_no_cpu() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_job(rounds.mirror, job_spec(1))
    add_job(rounds.mirror, job_spec(2))
    rounds.go()

    assert asked(rounds, 2).sentence == "waits: 1 of 1 nodes has too little free cpu: largest free 0, asked 1"
    assert asked(rounds, 2).changes == ("would start on a new node with room for it (rota node token)",)


def test_each_constraint_says_what_the_nodes_have_instead() -> None:
    rounds = Rounds()
    regions = {"a": "us", "b": "us", "c": "asia", "d": "eu", "e": "eu"}
    for node, region in regions.items():
        add_node(rounds.mirror, node, labels={"region": region})
    wanted = (where("region", "==", "eu"), where("disk", "exists"))
    add_job(rounds.mirror, job_spec(where=wanted))

    answer = asked(rounds)

    assert texts(answer) == [
        "5 of 5 nodes do not satisfy disk exists: they have no disk",
        "3 of 5 nodes do not satisfy region == eu: they have us, asia",
    ]
    assert answer.changes == ("would start on 2 nodes without disk exists",)


def test_an_unusable_podman_is_distinguished_from_none() -> None:
    rounds = Rounds()
    for node, labels in {"a": {}, "b": {"podman": "rootless"}}.items():
        add_node(rounds.mirror, node, labels=labels)
    add_job(rounds.mirror, job_spec(container=ContainerSpec("alpine:3.20")))

    assert texts(asked(rounds)) == [
        "2 of 2 nodes have no container runtime; 1 with a podman that only a root agent could use"
    ]


def test_when_no_single_change_helps_the_cheapest_two_on_one_node_are_advised() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 8000, "memory": 4 * GIB}, labels={"region": "us"})
    add_node(rounds.mirror, "b", {"cpu": 8000, "memory": 6 * GIB}, labels={"region": "us"})
    add_job(rounds.mirror, job_spec(needs={"memory": 8 * GIB}, where=(where("region", "==", "eu"),)))

    assert asked(rounds).changes == ("would start on b without region == eu and with memory <= 6.0 GiB",)


def test_absent_nodes_are_named_with_their_state() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", state=NodeState.SUSPECT)
    add_node(rounds.mirror, "b", state=NodeState.LOST)
    add_node(rounds.mirror, "c", state=NodeState.LOST)
    add_node(rounds.mirror, "d", state=NodeState.LEFT)
    add_node(rounds.mirror, "e", link=Connection.UNKNOWN)
    rounds.mirror.apply(NodeSpec(NodeId("f"), "f"))
    add_job(rounds.mirror, job_spec())

    assert texts(asked(rounds)) == [
        "2 of 6 nodes are lost: b, c",
        "2 of 6 nodes are not connected: e, f",
        "1 of 6 nodes is suspect: a",
        "1 of 6 nodes has left: d",
    ]


def test_a_closed_node_that_would_fit_is_named_with_the_command_that_opens_it() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "n1", {"cpu": 500})
    add_node(rounds.mirror, "n2")
    rounds.mirror.apply(NodeIntent(NodeId("n2"), Eligibility.DRAINING))
    add_job(rounds.mirror, job_spec())

    answer = asked(rounds)

    assert "1 of 2 nodes is draining: n2" in texts(answer)
    assert "would start on n2 if it were opened (rota node open n2)" in answer.changes


def test_a_node_counts_under_every_reason_that_applies_to_it() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 500, "memory": GIB}, labels={"region": "us"})
    rounds.mirror.apply(NodeIntent(NodeId("a"), Eligibility.CORDONED))
    add_job(
        rounds.mirror, job_spec(needs={"cpu": 1000, "memory": 2 * GIB}, where=(where("region", "==", "eu"),))
    )

    assert sorted(reason.kind for reason in asked(rounds).reasons) == [
        "closed",
        "constraint",
        "cpu",
        "memory",
    ]


def test_a_refusal_quotes_the_reason_of_the_node() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    add_job(rounds.mirror, job_spec())
    rounds.go()
    rounds.report("a", 1, ReportedState.REFUSED, (0, 1), reason="no such directory")

    assert asked(rounds).sentence == "waits: 1 of 1 nodes refused it lately: a (no such directory)"
    assert asked(rounds, ms=30_000).reasons == ()


def test_a_node_with_too_many_tasks_is_full() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    rounds.mirror.node_table.held[0] = NODE_TASKS_MAX
    add_job(rounds.mirror, job_spec(needs={}))

    assert asked(rounds).sentence == "waits: 1 of 1 nodes holds 10000 tasks, the most a node takes"


def test_many_nodes_are_not_all_named() -> None:
    rounds = Rounds()
    for number in range(9):
        add_node(rounds.mirror, f"n{number}", state=NodeState.LOST)
    add_job(rounds.mirror, job_spec())

    assert texts(asked(rounds)) == ["9 of 9 nodes are lost: n0, n1, n2, n3 and 5 more"]


# ---- the job's own reasons


def test_a_job_at_its_own_limit_says_so_and_blames_no_node() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    add_job(rounds.mirror, job_spec(count=5, parallel=2))
    rounds.go()

    answer = asked(rounds)

    assert answer.sentence == "3 of 5 tasks wait: 2 of its tasks are under way, and parallel allows 2"
    assert [reason.kind for reason in answer.reasons] == ["parallel"]
    assert answer.changes == ("would start with parallel > 2",)


def test_backoff_after_a_failure_says_when_it_ends() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    add_job(rounds.mirror, job_spec(count=4, retries=3))
    rounds.go()
    rounds.report("a", 1, ReportedState.EXITED, (3, 1), exit_code=1)
    sentence = asked(rounds, ms=1).sentence
    rounds.report("a", 1, ReportedState.EXITED, (2, 1), ms=500, exit_code=1)

    assert sentence == "1 of 4 tasks waits: task 3 is tried again in 1 s"
    assert asked(rounds, ms=500).sentence == (
        "2 of 4 tasks wait: 2 tasks back off after a failure: task 3 is tried again in 1 s"
    )


def test_backoff_is_the_first_reason_only_when_no_other_task_could_be_placed() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    add_job(rounds.mirror, job_spec(1, count=3, retries=3))
    add_job(rounds.mirror, job_spec(2, count=4, retries=3, priority=60))
    rounds.go()
    rounds.report("a", 2, ReportedState.EXITED, (1, 1), exit_code=1, ran_us=10**6)
    rounds.go(ms=1)
    some = asked(rounds, 2, ms=1)
    rounds.report("a", 2, ReportedState.EXITED, (0, 1), (2, 1), ms=1, exit_code=0, ran_us=10**6)
    rounds.go(ms=1)

    assert [reason.kind for reason in some.reasons] == ["cpu", "pause"]
    assert [reason.kind for reason in asked(rounds, 2, ms=1).reasons] == ["pause", "cpu"]


def test_the_queue_position_counts_all_jobs_before_it() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 500})
    add_job(rounds.mirror, job_spec(1))
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 2000}, priority=10))
    add_job(rounds.mirror, job_spec(3))
    add_job(rounds.mirror, job_spec(4, needs={"cpu": 700}, priority=99))

    assert [asked(rounds, job).position for job in (4, 1, 3, 2)] == [1, 2, 3, 4]
    assert texts(asked(rounds, 1))[-1] == "1 other job is before it in the queue"
    assert texts(asked(rounds, 3))[-1] == "2 other jobs are before it in the queue"


def test_a_job_that_fits_has_no_reason_to_wait() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    add_job(rounds.mirror, job_spec())

    assert asked(rounds) == Explanation(True, "waits: 1 of 1 nodes fits, its turn is next", (), (), 1)


# ---- taints, rules, devices, quotas, the queue


def test_a_taint_that_is_not_tolerated_is_named_with_what_would_help() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    add_node(rounds.mirror, "b")
    for node in "ab":
        rounds.mirror.apply(NodeIntent(NodeId(node), taints=("dedicated=ci",)))
    add_job(rounds.mirror, job_spec(1))
    add_job(rounds.mirror, job_spec(2, tolerate=("dedicated",)))

    assert asked(rounds).sentence == (
        "waits: 2 of 2 nodes have a taint that it does not tolerate: dedicated=ci"
    )
    assert asked(rounds).changes == ("would start on 2 nodes if it tolerated dedicated=ci",)
    assert "taint" not in {reason.kind for reason in asked(rounds, 2).reasons}


WEB = Constraint("app", Op.EQUAL, ("web",))


@pytest.mark.parametrize(
    ("rules", "kind", "text"),
    [
        ({"near": (AffinityTerm(WEB, "rack"),)}, "near", "1 of 2 nodes is not near app == web over rack"),
        ({"apart": (AffinityTerm(WEB),)}, "apart", "1 of 2 nodes is not apart from app == web over node"),
    ],
)
def test_each_rule_is_counted_over_nodes(rules: dict[str, Any], kind: str, text: str) -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000}, labels={"rack": "r1"})
    add_node(rounds.mirror, "b", {"cpu": 1000}, labels={"rack": "r2"})
    add_job(rounds.mirror, job_spec(1, labels={"app": "web"}))
    rounds.go()
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 9000}, **rules))

    answer = asked(rounds, 2)

    assert {reason.kind for reason in answer.reasons} == {"cpu", kind}
    assert text in texts(answer)


def test_anti_affinity_of_other_jobs_is_a_reason() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    add_job(rounds.mirror, job_spec(1, apart=(AffinityTerm(WEB),)))
    rounds.go()
    add_job(rounds.mirror, job_spec(2, labels={"app": "web"}))

    assert asked(rounds, 2).sentence == (
        "waits: 1 of 1 nodes holds jobs that stay apart from app == web over node"
    )


def test_a_spread_that_would_be_violated_is_a_reason() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 9000}, labels={"region": "eu"})
    add_node(rounds.mirror, "b", {"cpu": 1000}, labels={"region": "us"})
    add_job(rounds.mirror, job_spec(count=4, spread=(SpreadTerm("region"),)))
    rounds.go()

    answer = asked(rounds)

    assert answer.sentence.startswith("1 of 4 tasks waits: ")
    assert "1 of 2 nodes would break spread region skew 1" in texts(answer)
    assert answer.changes[0] == "would start on a without spread region skew 1"


def test_shares_of_devices_are_distinguished_from_whole_devices() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 8000, "gpu": 2000})
    add_job(rounds.mirror, job_spec(1, count=2, needs={"gpu": 600}))
    rounds.go()
    add_job(rounds.mirror, job_spec(2, needs={"gpu": 500}))

    assert asked(rounds, 2).sentence == (
        "waits: 1 of 1 nodes has no device with 0.5 free: largest 0.4, asked 0.5"
    )
    assert asked(rounds, 2).changes == ("would start on a with gpu <= 0.4",)


def test_a_quota_reason_names_usage_and_limit() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 64_000})
    rounds.mirror.apply(NamespaceRecord("team", {"cpu": 8000, "tasks": 100}))
    add_job(rounds.mirror, job_spec(1, needs={"cpu": 6000}, namespace="team"))
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 4000}, namespace="team"))
    rounds.go()

    answer = asked(rounds, 2)

    assert texts(answer) == ["namespace team holds 6 of the 8 cpu of its quota, a task asks for 4"]
    assert answer.changes == ("would start with a larger quota (rota namespace set team cpu=10)",)


def test_a_reservation_is_a_reason_and_says_which_expected_time_would_fit() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    add_job(rounds.mirror, job_spec(1, expect_seconds=60.0))
    rounds.go()
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1))
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 2000}))
    add_job(rounds.mirror, job_spec(3, expect_seconds=600.0))
    rounds.go()

    answer = asked(rounds, 3)

    assert answer.sentence == "waits: 1 of 1 nodes is reserved for job 2, the head of the queue"
    assert answer.changes == ("would start on a with expect <= 60s",)
    assert answer.starts_at_ms is None


def test_a_job_behind_a_reservation_is_expected_to_start_when_the_head_has_ended() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    add_job(rounds.mirror, job_spec(1, expect_seconds=60.0))
    rounds.go()
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1), started_at_ms=at(0).wall_ms)
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 2000}, expect_seconds=60.0))
    add_job(rounds.mirror, job_spec(3))
    rounds.go()

    assert asked(rounds, 2).starts_at_ms == at(60_000).wall_ms
    assert asked(rounds, 3).starts_at_ms == at(120_000).wall_ms


def test_without_backfill_no_job_passes_the_head_of_line() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_node(rounds.mirror, "b", ONE_CPU, labels={"region": "eu"})
    add_job(rounds.mirror, job_spec(1, where=(where("node", "==", "a"),), expect_seconds=60.0))
    rounds.go()
    add_job(rounds.mirror, job_spec(2, where=(where("node", "==", "a"),)))
    job = add_job(rounds.mirror, job_spec(3))

    answer = explain_job(rounds.mirror, job, at(0), backfill=False)

    assert explain_job(rounds.mirror, job, at(0)).sentence == "waits: 1 of 2 nodes fits, its turn is next"
    assert answer.sentence == "waits: 2 of 2 nodes are reserved for job 2, the head of the queue"


def test_the_head_of_line_of_another_namespace_is_not_named() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    add_job(rounds.mirror, job_spec(1, expect_seconds=60.0, namespace="third"))
    rounds.go()
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 2000}, namespace="other"))
    add_job(rounds.mirror, job_spec(3))

    assert asked(rounds, 3).sentence == "waits: 1 of 1 nodes is reserved for the head of the queue"


def test_no_larger_quota_is_advised_to_a_gang_that_would_not_fit() -> None:
    rounds = Rounds()
    rounds.mirror.apply(NamespaceRecord("team", quota={"tasks": 2}))
    add_node(rounds.mirror, "a", {"cpu": 2000})
    add_job(rounds.mirror, job_spec(namespace="team", count=3, gang=True, needs=ONE_CPU))

    answer = asked(rounds)

    assert [reason.kind for reason in answer.reasons] == ["quota", "gang"]
    assert answer.changes == ()


def test_a_gang_says_how_many_of_its_tasks_fit() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 3000})
    add_job(rounds.mirror, job_spec(count=5, gang=True))
    rounds.go()

    assert asked(rounds).sentence.startswith(
        "5 of 5 tasks wait: its 5 tasks start at once, and there is room for 3"
    )
    assert asked(rounds).changes == ("would start without gang, as far as there is room",)


def test_a_deadline_that_cannot_be_met_comes_first() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    add_job(rounds.mirror, job_spec(deadline_at_ms=at(1000).wall_ms, expect_seconds=5.0))

    assert asked(rounds).sentence == "waits: it can no longer be over by its deadline"


def test_preemption_in_progress_is_a_reason() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_job(rounds.mirror, job_spec(1, priority=10))
    rounds.go()
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1))
    add_job(rounds.mirror, job_spec(2, priority=90))
    rounds.go()

    assert "work of lower priority gives way to it on a" in texts(asked(rounds, 2))


def test_the_nodes_that_lack_least_are_named_with_what_they_lack() -> None:
    rounds = Rounds()
    for name, cpu, region in (("a", 1000, "eu"), ("b", 3000, "eu"), ("c", 3500, "us"), ("d", 100, "us")):
        add_node(rounds.mirror, name, {"cpu": cpu}, labels={"region": region})
    add_job(rounds.mirror, job_spec(needs={"cpu": 4000}, where=(where("region", "==", "eu"),)))

    assert asked(rounds).misses == (
        NearMiss("b", ("3 cpu in all, asked 4",)),
        NearMiss("a", ("1 cpu in all, asked 4",)),
        NearMiss("c", ("region == eu: has us", "3.5 cpu in all, asked 4")),
    )


def test_the_start_is_estimated_from_running_tasks_and_earlier_jobs() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    for number in (1, 2, 3):
        add_job(rounds.mirror, job_spec(number, expect_seconds=60.0))
    rounds.go()
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1), started_at_ms=at(0).wall_ms)

    assert asked(rounds, 2, ms=1000).starts_at_ms == at(60_000).wall_ms
    assert asked(rounds, 3, ms=1000).starts_at_ms == at(120_000).wall_ms


def test_without_expected_run_times_there_is_no_start_estimate() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    add_job(rounds.mirror, job_spec(1))
    add_job(rounds.mirror, job_spec(2))
    rounds.go()

    assert asked(rounds, 2).starts_at_ms is None


def test_the_owner_with_the_smaller_share_ranks_first() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 4000})
    add_job(rounds.mirror, job_spec(1, needs={"cpu": 3000}, namespace="large"))
    rounds.go()
    add_job(rounds.mirror, job_spec(2, needs={"cpu": 2000}, namespace="large"))
    add_job(rounds.mirror, job_spec(3, needs={"cpu": 2000}, namespace="small"))

    assert [asked(rounds, job).position for job in (2, 3)] == [2, 1]


def test_a_filter_plugin_is_named_as_a_reason() -> None:
    class Odd:
        name = "odd"

        def allows(self, nodes: NodeSlice) -> Array:
            odd: Array = nodes.slots % 2 == 1
            return odd

    rounds = Rounds()
    add_node(rounds.mirror, "a")
    job = add_job(rounds.mirror, job_spec())

    answer = explain_job(rounds.mirror, job, at(0), Plugins(filters=(Odd(),)))

    assert answer.sentence == "waits: 1 of 1 nodes is ruled out by the filter odd"


# ---- jobs that do not wait


def test_a_running_job_says_where() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a")
    add_job(rounds.mirror, job_spec())
    rounds.go()
    offered = asked(rounds)
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1))

    assert offered == Explanation(waits=False, sentence="is offered to a")
    assert asked(rounds) == Explanation(waits=False, sentence="runs on a")


def test_a_running_array_says_how_many_run_where() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 2000})
    add_node(rounds.mirror, "b", {"cpu": 2000})
    add_job(rounds.mirror, job_spec(count=4))
    rounds.go()
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=0)
    rounds.report("a", 1, ReportedState.RUNNING, (2, 1))
    rounds.report("b", 1, ReportedState.RUNNING, (1, 1))

    assert asked(rounds).sentence == "1 of 4 tasks have ended; 1 task is offered to b; 2 tasks run on a, b"


def test_a_job_being_canceled_says_what_is_left_to_stop() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", ONE_CPU)
    job = add_job(rounds.mirror, job_spec(count=2))
    rounds.go()
    rounds.mirror.apply(JobIntent(job, cancel=True))
    rounds.mirror.apply(JobStatus(job, JobState.CANCELING))

    assert asked(rounds) == Explanation(waits=False, sentence="is being canceled: 1 task is offered to a")


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED])
def test_an_ended_job_says_how(state: JobState) -> None:
    rounds = Rounds()
    job = add_job(rounds.mirror, job_spec())
    rounds.mirror.apply(JobStatus(job, state, "exit 7"))

    assert asked(rounds) == Explanation(waits=False, sentence=f"{state}: exit 7")


def test_five_thousand_nodes_are_explained_in_fifty_milliseconds() -> None:
    rounds = Rounds()
    for number in range(5000):
        memory = (1 + number % 16) * GIB
        add_node(
            rounds.mirror, f"n{number}", {"cpu": 4000, "memory": memory}, labels={"region": f"r{number % 9}"}
        )
    wanted = (where("region", "==", "eu"), where("region", "exists"))
    add_job(rounds.mirror, job_spec(needs={"cpu": 2000, "memory": 32 * GIB}, where=wanted))
    took: list[float] = []
    for _ in range(5):
        began = time.process_time()
        asked(rounds)
        took.append(time.process_time() - began)

    assert min(took) < 0.05
