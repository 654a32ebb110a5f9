"""A requirement that no node satisfies now is a warning; one that none ever could is an error."""

from typing import Any

import pytest

from rota.apiserver.admission import submission
from rota.engine.state.mirror import Mirror
from rota.model.errors import BadField
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import JobCluster, JobStatus
from rota.model.lifecycle import JobState
from rota.model.node import NodeIntent, NodeSpec
from rota.testing.builders import GIB, node_status
from tests.apiserver.builders import ADA, NOW, RUNNING, attempts, statuses

LARGE = {"cpu": 8000, "memory": 16 * GIB, "gpu": 2000}


def cluster() -> Mirror:
    """Two nodes: a large one in eu with two GPUs, a small one in us for CI only."""
    mirror = Mirror()
    for number, labels, capacity, taints in (
        (1, {"region": "eu", "ssd": "yes"}, LARGE, ()),
        (2, {"region": "us"}, {"cpu": 2000, "memory": 32 * GIB}, ("dedicated=ci",)),
    ):
        node = NodeId(f"n{number}")
        mirror.apply(NodeSpec(node, f"node-{number}", labels=labels))
        mirror.apply(NodeIntent(node, taints=taints))
        mirror.apply(node_status(node, capacity))
    return mirror


def warned(mirror: Mirror | None = None, **body: Any) -> list[tuple[str, str]]:
    given = cluster() if mirror is None else mirror
    answer = submission.submit_job(given, {"command": ["true"], **body}, ADA, None, NOW).answer
    assert isinstance(answer, submission.SubmitResult)
    return [(warning.field, warning.text) for warning in answer.warnings]


def submitted(mirror: Mirror, **body: Any) -> JobId:
    """A job that is admitted and waits for a node."""
    plan = submission.submit_job(mirror, {"command": ["true"], **body}, ADA, None, NOW)
    for record in plan.puts:
        mirror.apply(record)
    job: JobId = plan.answer.job
    mirror.apply(JobCluster(job, "default"))
    mirror.apply(JobStatus(job, JobState.ACTIVE))
    return job


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"region": "eu", "prefer": "ssd exists weight 5", "spread": "region", "gpu": 2},
        {"where": ["region == us", "ssd != yes"], "tolerate": "dedicated", "cpu": 2},
        {"gang": True, "count": 8},
        {"gang": True, "count": 4, "gpu": 0.5},
        {"gang": True, "count": 10, "tolerate": "*"},
        {"near": "job == db over region", "on": "node-1"},
    ],
)
def test_a_requirement_that_some_node_satisfies_brings_no_warning(body: dict[str, Any]) -> None:
    assert warned(**body) == []


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"where": "regoin == eu"}, "where", "no node has the label regoin now; did you mean region?"),
        ({"where": "region == asia"}, "where", "no node satisfies 'region == asia' now: region is eu, us"),
        ({"region": "asia"}, "region", "no node satisfies 'region == asia' now: region is eu, us"),
        ({"on": "node-7"}, "on", "there is no node node-7 now; did you mean node-2?"),
        ({"where": "node == zebra"}, "where", "there is no node zebra now"),
        ({"gpu_model": "A100"}, "gpu_model", "no node has the label gpu_model now"),
        ({"prefer": "hdd exists weight 5"}, "prefer", "no node has the label hdd now, so it has no effect"),
        ({"near": "app == web over rack"}, "near", "no node has the label rack now"),
        ({"apart": "app == web over rack weight 5"}, "apart", "no node has the label rack now"),
        ({"spread": "zone"}, "spread", "no node has the label zone now"),
        ({"cpu": 64}, "cpu", "no node has 64 cpu in all; the largest has 8 cpu"),
        ({"gpu": 4}, "gpu", "no node has 4 gpu in all; the largest has 2 gpu"),
        ({"resources": {"licence": 1}}, "resources", "no node has any licence now"),
        ({"cpu": 4, "memory": "20g"}, "cpu", "no node has 4 cpu and 20.0 GiB at once"),
        (
            {"region": "us", "where": "ssd exists"},
            "where",
            "no node satisfies all of its constraints now, though",
        ),
        (
            {"region": "us"},
            "tolerate",
            "each node it could run on has a taint it does not tolerate: dedicated=ci",
        ),
        ({"region": "us", "tolerate": "dedicated=x"}, "tolerate", "taint it does not tolerate: dedicated=ci"),
        ({"region": "us", "tolerate": "*", "cpu": 4}, "where", "no node that it may use is large enough now"),
        (
            {"gang": True, "count": 9},
            "gang",
            "its 9 tasks start together; all nodes it may use hold 8 of them",
        ),
        ({"gang": True, "count": 5, "cpu": 0.1, "gpu": 0.4}, "gang", "all nodes it may use hold 4 of them"),
    ],
)
def test_a_requirement_that_no_node_satisfies_is_warned_of(
    body: dict[str, Any], field: str, text: str
) -> None:
    ((about, warning),) = warned(**body)

    assert about == field
    assert text in warning


def test_deleted_nodes_are_ignored() -> None:
    mirror = cluster()
    mirror.forget(Key("node/n1/spec"))

    assert [field for field, _ in warned(mirror, where="ssd exists", gpu=1)] == ["where", "gpu"]
    assert warned(mirror, region="us", tolerate="*", cpu=2) == []


def test_before_the_first_node_joins_there_are_no_warnings() -> None:
    assert warned(Mirror(), region="eu", cpu=64) == []


def test_a_repeated_submit_is_warned_again() -> None:
    mirror, body = cluster(), {"command": ["true"], "region": "asia"}
    first = submission.submit_job(mirror, body, ADA, "k", NOW)
    for record in first.puts:
        mirror.apply(record)
    again = submission.submit_job(mirror, body, ADA, "k", NOW)

    assert not again.answer.new
    assert again.answer.warnings == first.answer.warnings != ()


def test_two_jobs_that_wait_for_each_other_are_refused() -> None:
    mirror = cluster()
    submitted(mirror, name="a", near="job == b")

    with pytest.raises(BadField) as refused:
        submitted(mirror, name="b", near="job == a")

    assert refused.value.field == "near"
    assert "waits for job 1 to run, which waits for this one" in str(refused.value)
    assert refused.value.hint


def test_a_longer_cycle_is_found_too() -> None:
    mirror = cluster()
    submitted(mirror, name="a", near="job == b")
    submitted(mirror, name="b", near="job == c")

    with pytest.raises(BadField, match="waits for job 1 to run"):
        submitted(mirror, name="c", near="job == a over region")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"name": "a", "near": "job == b"}, {"name": "b"}),
        ({"name": "a", "near": "job == b weight 5"}, {"name": "b", "near": "job == a"}),
        ({"name": "a", "near": "job == b"}, {"name": "b", "near": "job == a weight 5"}),
        ({"name": "a", "near": "job in a,b"}, {"name": "b", "near": "job == a"}),
        ({"name": "a", "near": "job == b"}, {"name": "b", "near": "job == c"}),
        ({"name": "a", "near": "job == b"}, {"name": "b", "near": "job == a", "namespace": "other"}),
    ],
)
def test_jobs_without_a_cycle_are_accepted(first: dict[str, Any], second: dict[str, Any]) -> None:
    mirror = cluster()
    submitted(mirror, **first)

    assert submitted(mirror, **second) == "2"


def test_a_running_partner_makes_no_cycle() -> None:
    mirror = cluster()
    job = submitted(mirror, name="a", near="job in a,b")
    mirror.apply(attempts(job, 1, number=[1]))
    mirror.apply(statuses(job, 1, number=[1], state=[RUNNING]))
    submitted(mirror, name="c", near="job == b")

    assert submitted(mirror, name="b", near="job == a") == "3"
