"""why() and the scheduler never disagree: what is said to fit is placed, and advice taken helps."""

import re
from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rota.engine.mirror import Mirror
from rota.model.amounts import parse_cpu, parse_size
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.lifecycle import NodeState
from rota.model.node import Eligibility, Link, Load, NodeWish
from rota.scheduler.explain import look, why
from rota.scheduler.plan import ROUND, Round
from rota.testing.builders import add_job, add_node, apply, at, job_spec, placements, where

MIB = 2**20
MAYBE_GPU = st.sampled_from([{}, {"gpu": 1}, {"gpu": 4}])
NODES = st.fixed_dictionaries(
    {
        "cpu": st.integers(0, 4000),
        "memory": st.integers(0, 8000 * MIB),
        "more": MAYBE_GPU,
        "region": st.sampled_from(["eu", "us", None]),
        "state": st.sampled_from([NodeState.READY] * 5 + list(NodeState)),
        "link": st.sampled_from([Link.UP] * 5 + list(Link)),
        "wish": st.sampled_from(
            [None, None, None, Eligibility.OPEN, Eligibility.CORDONED, Eligibility.DRAINING]
        ),
        "memory_free": st.one_of(st.none(), st.integers(0, 9000 * MIB)),
    }
)
NEEDS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(1, 5000),
        "memory": st.integers(1, 9000 * MIB),
        "gpu": st.integers(1, 4),
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


@given(st.lists(NODES, max_size=6), st.lists(NEEDS, max_size=3), NEEDS, WHERE)
@settings(max_examples=100, deadline=None)
def test_a_node_is_said_to_fit_exactly_when_a_round_places_the_task(
    nodes: list[dict[str, Any]], others: list[dict[str, int]], needs: dict[str, int], wanted: tuple[Any, ...]
) -> None:
    mirror = cluster(nodes, others)
    job = add_job(mirror, job_spec(99, needs=needs, where=wanted))
    answer = why(mirror, job, at(0))
    sight = look(mirror, mirror.jobs[job].spec.shape, at(0))
    clear = [not any(one.nodes[node] for one in sight.obstacles) for node in range(len(sight.names))]
    others_wait = {reason.kind for reason in answer.reasons} <= {"queue"}

    assert answer.waits
    assert clear == [count > 0 for count in sight.fits.tolist()]
    assert others_wait == any(clear)
    assert others_wait == bool(place(mirror, job))


@given(st.lists(NODES, min_size=1, max_size=6), st.lists(NEEDS, max_size=2), NEEDS, WHERE)
@settings(max_examples=100, deadline=None)
def test_advice_taken_to_the_letter_starts_the_job(
    nodes: list[dict[str, Any]], others: list[dict[str, int]], needs: dict[str, int], wanted: tuple[Any, ...]
) -> None:
    mirror = cluster(nodes, others)
    spec = job_spec(99, needs=needs, where=wanted)
    answer = why(mirror, add_job(mirror, spec), at(0))
    assume(answer.position == 1)  # else a job before it may take what was opened

    for change in answer.changes:
        if "new node" not in change:
            after = cluster(nodes, others)
            assert place(after, add_job(after, follow(after, spec, change))), change


@given(st.lists(NODES, max_size=5), st.integers(1, 12), st.sampled_from([None, 1, 3, 20]))
@settings(deadline=None)
def test_after_a_round_every_task_that_still_waits_has_a_reason(
    nodes: list[dict[str, Any]], count: int, parallel: int | None
) -> None:
    mirror = cluster(nodes, [])
    job = add_job(mirror, job_spec(99, count=count, parallel=parallel))
    place(mirror, job)
    answer = why(mirror, job, at(0))

    assert answer.waits == (mirror.jobs[job].tally.pending > 0)
    assert bool(answer.reasons) == answer.waits


def cluster(nodes: list[dict[str, Any]], others: list[dict[str, int]]) -> Mirror:
    """Nodes as drawn, and other jobs that already took what room they could get."""
    mirror = Mirror()
    for number, drawn in enumerate(nodes):
        labels = {} if drawn["region"] is None else {"region": drawn["region"]}
        capacity = {"cpu": drawn["cpu"], "memory": drawn["memory"], **drawn["more"]}
        node = add_node(mirror, f"n{number}", capacity, drawn["link"], state=drawn["state"], labels=labels)
        if drawn["wish"] is not None:
            mirror.apply(NodeWish(node, drawn["wish"]))
        mirror.measure(node, Load(memory_free=drawn["memory_free"]))
    for number, needs in enumerate(others):
        add_job(mirror, job_spec(number + 1, needs=needs))
    apply(mirror, Round().decide(mirror, ROUND, at(0)))
    return mirror


def place(mirror: Mirror, job: JobId) -> dict[int, str]:
    apply(mirror, Round().decide(mirror, ROUND, at(0)))
    return placements(mirror, job)


def follow(mirror: Mirror, spec: JobSpec, change: str) -> JobSpec:
    """Do what the sentence says, reading nothing but the sentence."""
    needs, wanted = dict(spec.needs), list(spec.where)
    if opened := re.search(r"\(rota node open (\w+)\)", change):
        mirror.apply(NodeWish(NodeId(opened[1]), Eligibility.OPEN))
    for resource, amount in re.findall(r"with (\w+) <= ([0-9.]+(?: [KMGT]?i?B)?)", change):
        match resource:
            case "cpu":
                needs[resource] = parse_cpu(resource, amount)
            case "memory":
                needs[resource] = parse_size(resource, amount)
            case _:
                needs[resource] = int(amount)
    for resource in list(needs):
        if f"without {resource}" in change:
            del needs[resource]
    wanted = [one for one in wanted if f"without {one}" not in change]
    return msgspec.structs.replace(spec, needs=needs, where=tuple(wanted))
