"""`rota why` and the scheduler agree: reported nodes do fit, and following the advice starts the job."""

import re
from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rota.engine.state.mirror import Mirror
from rota.model.amounts import WHOLE_GPU, parse_cpu, parse_seconds, parse_size
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.lifecycle import NodeState
from rota.model.messages import ReportedState
from rota.model.namespace import NamespaceRecord
from rota.model.node import Connection, Eligibility, NodeIntent, NodeLoad
from rota.model.shape import AffinityTerm, Constraint, Op, SpreadTerm
from rota.scheduler.explain.queue_position import count_before
from rota.scheduler.explain.why import analyse_wait, explain_job
from rota.scheduler.order import FairShares, QueueHead, RankedQueue
from rota.testing.builders import add_job, add_node, at, job_spec, placements, where
from tests.scheduler.rounds import Rounds

MIB = 2**20
WEB, DB = Constraint("app", Op.EQUAL, ("web",)), Constraint("app", Op.EQUAL, ("db",))
NODES = st.fixed_dictionaries(
    {
        "cpu": st.integers(0, 4000),
        "memory": st.integers(0, 8000 * MIB),
        "gpus": st.sampled_from([0, 0, 1, 2, 4]),
        "labels": st.fixed_dictionaries(
            {}, optional={"region": st.sampled_from(["eu", "us"]), "rack": st.sampled_from(["r1", "r2"])}
        ),
        "state": st.sampled_from([NodeState.READY] * 8 + list(NodeState)),
        "link": st.sampled_from([Connection.UP] * 8 + list(Connection)),
        "wish": st.sampled_from([Eligibility.OPEN] * 6 + [Eligibility.CORDONED, Eligibility.DRAINING]),
        "taints": st.sampled_from([(), (), (), ("dedicated=ci",), ("gpu", "dedicated=ml")]),
        "memory_free": st.one_of(st.none(), st.integers(0, 9000 * MIB)),
    }
)
NEEDS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(1, 5000),
        "memory": st.integers(1, 9000 * MIB),
        "gpu": st.sampled_from([250, 500, 700, 1000, 2000]),
        "licence": st.just(1),
    },
)
WHERE = st.lists(
    st.sampled_from(
        [
            where("region", "==", "eu"),
            where("region", "exists"),
            where("node", "!=", "n0"),
            where("x", "in", "1"),
        ]
    ),
    max_size=2,
    unique=True,
).map(tuple)
TERMS = st.sampled_from(
    [(), (), (AffinityTerm(WEB),), (AffinityTerm(DB, "rack"),), (AffinityTerm(WEB, "region", 50),)]
)
SPREADS = st.sampled_from(
    [(), (), (SpreadTerm("region"),), (SpreadTerm("rack", 2),), (SpreadTerm("node", 1, 20),)]
)
WISHES = st.fixed_dictionaries(
    {"needs": NEEDS},
    optional={
        "where": WHERE,
        "tolerate": st.sampled_from([("*",), ("dedicated",), ("gpu", "dedicated=ml")]),
        "labels": st.sampled_from([{"app": "web"}, {"app": "db"}]),
        "near": TERMS,
        "apart": TERMS,
        "spread": SPREADS,
        "priority": st.sampled_from([10, 50, 90]),
        "expect_seconds": st.sampled_from([10.0, 1000.0]),
        "count": st.integers(1, 4),
        "gang": st.booleans(),
        "namespace": st.sampled_from(["default", "team"]),
        "user": st.sampled_from(["ada", "bob"]),
    },
)
QUOTAS = st.sampled_from([{}, {}, {"cpu": 3000}, {"tasks": 2}, {"memory": 4000 * MIB, "gpu": WHOLE_GPU}])


@given(st.lists(NODES, max_size=6), st.lists(WISHES, max_size=4), WISHES, QUOTAS)
@settings(max_examples=100, deadline=None)
def test_a_node_is_reported_to_fit_exactly_when_a_round_places_the_task(
    nodes: list[dict[str, Any]], others: list[dict[str, Any]], wishes: dict[str, Any], quota: dict[str, int]
) -> None:
    rounds = cluster(nodes, others, quota)
    job = add_job(rounds.mirror, job_spec(99, **wishes))
    answer = explain_job(rounds.mirror, job, at(0))
    sight = analyse_wait(rounds.mirror, rounds.mirror.jobs[job], at(0)).feasibility
    clear = [not any(one.nodes[node] for one in sight.obstacles) for node in range(len(sight.names))]
    only_others_wait = {reason.kind for reason in answer.reasons} <= {"queue"}

    assert answer.waits
    assert clear == [count > 0 for count in sight.fits.tolist()]
    assert only_others_wait == bool(place(rounds, job)), answer


@given(st.lists(NODES, min_size=1, max_size=6), st.lists(WISHES, max_size=2), WISHES, QUOTAS)
@settings(max_examples=100, deadline=None)
def test_advice_taken_to_the_letter_starts_the_job(
    nodes: list[dict[str, Any]], others: list[dict[str, Any]], wishes: dict[str, Any], quota: dict[str, int]
) -> None:
    rounds = cluster(nodes, others, quota)
    spec = job_spec(99, **wishes)
    answer = explain_job(rounds.mirror, add_job(rounds.mirror, spec), at(0))
    promised = any(reason.kind == "promised" for reason in answer.reasons)
    assume(answer.position == 1 or promised)  # else an earlier job may use what was opened

    for change in answer.changes:
        if "new node" not in change:
            after = cluster(nodes, others, quota)
            assert place(after, add_job(after.mirror, follow(after.mirror, spec, change))), change


@given(st.lists(NODES, max_size=5), st.integers(1, 12), st.sampled_from([None, 1, 3, 20]))
@settings(deadline=None)
def test_every_task_pending_after_a_round_has_a_reason(
    nodes: list[dict[str, Any]], count: int, parallel: int | None
) -> None:
    rounds = cluster(nodes, [], {})
    job = add_job(rounds.mirror, job_spec(99, count=count, parallel=parallel))
    place(rounds, job)
    answer = explain_job(rounds.mirror, job, at(0))

    assert answer.waits == (rounds.mirror.jobs[job].task_counts.pending > 0)
    assert bool(answer.reasons) == answer.waits


@given(st.lists(NODES, min_size=1, max_size=4), st.lists(WISHES, min_size=1, max_size=8))
@settings(deadline=None)
def test_the_queue_position_equals_the_order_in_which_a_round_tries_jobs(
    nodes: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    mirror = cluster(nodes, others, {}).mirror
    turns = RankedQueue(
        FairShares(mirror), [QueueHead(jobs[0], 0, line, jobs) for line, jobs in mirror.pending_queues()]
    )
    order = []
    while (head := turns.pop()) is not None:
        order.append(head.job)
        turns.advance(head, goes_on=True)

    assert [count_before(mirror, mirror.jobs[job].spec) for job in order] == list(range(len(order)))


def cluster(nodes: list[dict[str, Any]], others: list[dict[str, Any]], quota: dict[str, int]) -> Rounds:
    """The drawn nodes, and other jobs that were placed before as far as they fit; every second one runs."""
    rounds = Rounds()
    mirror = rounds.mirror
    for number, drawn in enumerate(nodes):
        capacity = {"cpu": drawn["cpu"], "memory": drawn["memory"]}
        capacity |= {"gpu": drawn["gpus"] * WHOLE_GPU} if drawn["gpus"] else {}
        node = add_node(
            mirror, f"n{number}", capacity, drawn["link"], state=drawn["state"], labels=drawn["labels"]
        )
        mirror.apply(NodeIntent(node, drawn["wish"], drawn["taints"]))
        mirror.measure(node, NodeLoad(memory_free=drawn["memory_free"]))
    if quota:
        mirror.apply(NamespaceRecord("team", quota))
    for number, wishes in enumerate(others):
        add_job(mirror, job_spec(number + 1, **wishes))
    rounds.go()
    for number in range(1, len(others) + 1, 2):
        for index, name in placements(mirror, JobId(str(number))).items():
            rounds.report(name, number, ReportedState.RUNNING, (index, 1))
    rounds.go()
    return rounds


def place(rounds: Rounds, job: JobId) -> dict[int, str]:
    rounds.go()
    return placements(rounds.mirror, job)


def follow(mirror: Mirror, spec: JobSpec, change: str) -> JobSpec:
    """Apply the advice using nothing but its text."""
    operate(mirror, change)
    fields: dict[str, Any] = {"needs": asking_less(spec.needs, change)}
    if brief := re.search(r"with expect <= (\w+)", change):
        fields["expect_seconds"] = parse_seconds("expect", brief[1], 1e9)
    if "(expect)" in change:
        fields["expect_seconds"] = 60.0
    if tolerated := re.search(r"if it tolerated ([\w=, ]+?)(?: and |$)", change):
        fields["tolerate"] = (*spec.tolerate, *tolerated[1].split(", "))
    fields["where"] = tuple(one for one in spec.where if f"without {one}" not in change)
    for name in ("near", "apart", "spread"):
        fields[name] = tuple(one for one in getattr(spec, name) if f"without {name} {one}" not in change)
    fields["gang"] = spec.gang and "without gang" not in change
    return msgspec.structs.replace(spec, **fields)


def operate(mirror: Mirror, change: str) -> None:
    """Apply the advice to an operator."""
    if opened := re.search(r"\(rota node open (\w+)\)", change):
        intent = mirror.nodes[NodeId(opened[1])].intent
        assert intent is not None
        mirror.apply(msgspec.structs.replace(intent, eligibility=Eligibility.OPEN))
    if larger := re.search(r"\(rota namespace set (\w+) (.*)\)", change):
        more = dict(one.split("=") for one in larger[2].split())
        quota = mirror.namespaces[larger[1]].quota | {name: read(name, text) for name, text in more.items()}
        mirror.apply(NamespaceRecord(larger[1], quota))


def asking_less(needs: dict[str, int], change: str) -> dict[str, int]:
    limits = dict(re.findall(r"with (\w+) <= ([0-9.]+(?: [KMGT]?i?B)?)", change))
    less = {name: read(name, limits[name]) if name in limits else amount for name, amount in needs.items()}
    return {name: amount for name, amount in less.items() if f"without {name}" not in change}


def read(resource: str, text: str) -> int:
    match resource:
        case "cpu":
            return parse_cpu(resource, text)
        case "memory":
            return parse_size(resource, text)
        case "gpu":
            return round(float(text) * WHOLE_GPU)
        case _:
            return int(text)
