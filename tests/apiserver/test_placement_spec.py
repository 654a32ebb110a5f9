"""Placement fields of a spec: parsed, or refused with what would be accepted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.apiserver.admission import submission
from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views import job_spec
from rota.engine.state.mirror import Mirror
from rota.model.errors import BadField, Conflict
from rota.model.job import JobSpec
from rota.model.plan import Instant
from rota.model.shape import AffinityTerm, Constraint, Op, Policy, Preference, SpreadTerm
from tests.apiserver.builders import ADA, NOW

HOUR_MS = 3_600_000
WEB = Constraint("app", Op.EQUAL, ("web",))


def parsed(**body: Any) -> JobSpec:
    return parse_spec({"command": ["true"], **body}, NOW.wall_ms)


def refusal(**body: Any) -> BadField:
    with pytest.raises(BadField) as refused:
        parsed(**body)
    assert refused.value.hint
    return refused.value


def test_preferences_are_constraints_with_a_weight() -> None:
    made = parsed(prefer=["ssd exists weight 20", "zone in a, b weight -100"])

    assert made.prefer == (
        Preference(Constraint("ssd", Op.EXISTS), 20),
        Preference(Constraint("zone", Op.IN, ("a", "b")), -100),
    )


def test_affinity_terms_have_a_domain_and_a_weight() -> None:
    made = parsed(near="job == db", apart=["app == web over rack", "app == web over region weight 50"])

    assert made.near == (AffinityTerm(Constraint("job", Op.EQUAL, ("db",)), "node"),)
    assert made.apart == (AffinityTerm(WEB, "rack"), AffinityTerm(WEB, "region", 50))


def test_spreads_have_a_skew_or_a_weight() -> None:
    made = parsed(spread=["region", "rack skew 2", "zone weight 30"])

    assert made.spread == (SpreadTerm("region"), SpreadTerm("rack", 2), SpreadTerm("zone", 1, 30))


def test_short_fields_stand_for_constraints() -> None:
    made = parsed(region="eu", on="node-1", gpu_model="A100", where="ssd exists")

    assert [str(one) for one in made.where] == [
        "ssd exists",
        "region == eu",
        "node == node-1",
        "gpu_model == A100",
    ]


def test_the_other_placement_fields_are_parsed() -> None:
    made = parsed(
        tolerate=["dedicated", "dedicated=ci", "*"],
        gang=True,
        policy="pack",
        noise="disk",
        preemptible=False,
        expect="10m",
        gpu=0.5,
    )

    assert made.tolerate == ("dedicated", "dedicated=ci", "*")
    assert (made.gang, made.policy, made.noise, made.preemptible) == (True, Policy.PACK, "disk", False)
    assert (made.expect_seconds, made.needs["gpu"]) == (600, 500)


@pytest.mark.parametrize(
    "text", ["job == db over node", "app in a,b over rack weight 5", "app exists over region"]
)
def test_a_term_is_shown_as_it_can_be_submitted(text: str) -> None:
    assert [str(one) for one in parsed(near=text).near] == [text]


BAD: dict[str, list[Any]] = {
    "where": [7, "cuda > x", "cuda > 1.", "cuda > nan", "a == b" + "c" * 9000, ["a == b", 1]],
    "prefer": [
        *("ssd exists", "ssd exists weight 0", "ssd exists weight 101", "ssd exists weight -101"),
        *("ssd exists weight", "weight 5", "ssd exists weight 5 weight 6", "ssd exists weight 1.5", 3),
    ],
    "near": ["db", "job == db over", "job == db over a!b", "job == db weight 0", "job == db weight -5", {}],
    "apart": ["over rack", "job == db weight 101", "job = db", ["job == db"] * 33],
    "spread": ["", "region skew 0", "region skew 1001", "region rack", "region weight 0", "region skew x"],
    "tolerate": ["", "a b", "dedicated=", 1, "=ci"],
    "region": ["", " ", 5, ["eu"], "x" * 300],
    "on": ["", {}],
    "gpu_model": [""],
    "gang": ["yes", 1, None],
    "policy": ["fullest", None],
    "noise": ["", "a b", 5],
    "preemptible": ["no", 0],
    "results": ["yes", "AGENT", 1, None, ["agent"], {}],
    "evict_at_most": [-1, 2, "few"],
    "expect": [0, "soon", -1],
    "deadline": [
        *(
            0,
            -5,
            "soon",
            True,
            [],
            "0s",
            "99999d",
            "2026-12-01",
            "2026-12-01T08:00:00",
            "2020-01-01T00:00:00Z",
        ),
        *(
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-12-01T24:00:00Z",
            "2026-12-01T08:00:00+25:00",
        ),
        *("0001-01-01T00:00:00Z", "2026-12-01T08:00:00Z or so"),
    ],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param(field, value, id=f"{field}-{place}")
        for field, values in BAD.items()
        for place, value in enumerate(values)
    ],
)
def test_an_invalid_placement_field_is_refused_by_its_name(field: str, value: Any) -> None:
    assert refusal(**{field: value}).field == field


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        (["region == eu", "region == us"], "'region == eu' and 'region == us' cannot both hold"),
        (["region == eu", "region != eu"], "cannot both hold"),
        (["region in a,b", "region in c,d"], "cannot both hold"),
        (["region in a,b", "region not in a,b"], "cannot both hold"),
        (["cuda > 12", "cuda < 11.9"], "cannot both hold"),
        (["cuda > 12", "cuda < 12"], "cannot both hold"),
        (["cuda == 11", "cuda > 12"], "cannot both hold"),
        (["r in a,b", "r != a", "r != b"], "'r in a,b' and 'r != a' and 'r != b' cannot hold together"),
    ],
)
def test_constraints_that_exclude_each_other_are_refused(where: list[str], problem: str) -> None:
    refused = refusal(where=where)

    assert refused.field == "where"
    assert problem in str(refused)


@pytest.mark.parametrize(
    "where",
    [
        ["region != eu", "region != us"],
        ["region in a,b", "region in b,c"],
        ["cuda > 1.9", "cuda < 1.10"],
        ["region exists", "region == eu"],
        ["cuda == 12.4", "cuda > 12"],
        ["region == eu", "zone == us"],
    ],
)
def test_constraints_that_can_hold_together_are_accepted(where: list[str]) -> None:
    assert len(parsed(where=where).where) == len(where)


def test_a_short_field_that_contradicts_a_constraint_is_refused() -> None:
    assert "'region == us' and 'region == eu'" in str(refusal(region="eu", where="region == us"))


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ({"near": "app == web", "apart": "app == web weight 5"}, "apart", "is in near as well as in apart"),
        (
            {"gang": True, "count": 4, "parallel": 2},
            "gang",
            "its 4 tasks start together, and parallel allows 2",
        ),
        ({"evict_at_most": 5, "count": 4}, "evict_at_most", "5 is more than its 4 tasks"),
        ({"evict_at_most": 1, "preemptible": False}, "evict_at_most", "preemptible = false allows none"),
        ({"expect": "20m", "timeout": "10m"}, "expect", "1200 s is longer than its timeout of 600 s"),
        ({"expect": "2h", "deadline": "1h"}, "deadline", "by its expect a task may take 7200 s"),
        ({"timeout": "2h", "deadline": "1h"}, "deadline", "by its timeout a task may take 7200 s"),
    ],
)
def test_contradicting_fields_are_refused(body: dict[str, Any], field: str, problem: str) -> None:
    refused = refusal(**body)

    assert refused.field == field
    assert problem in str(refused)


def test_near_and_apart_over_different_labels_are_no_contradiction() -> None:
    made = parsed(near="app == web over region", apart="app == web", gang=True, count=4, parallel=4)

    assert (len(made.near), len(made.apart)) == (1, 1)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2h", NOW.wall_ms + 2 * HOUR_MS),
        (90, NOW.wall_ms + 90_000),
        ("2026-12-01T08:00:00+01:00", 1_796_108_400_000),
        ("2026-12-01T07:00Z", 1_796_108_400_000),
        ("2026-12-01 02:00:00.250-0500", 1_796_108_400_250),
    ],
)
def test_a_deadline_is_a_time_or_counted_from_now(text: object, at_ms: int) -> None:
    assert parsed(deadline=text).deadline_at_ms == at_ms


def test_a_relative_deadline_is_fixed_at_the_submit_and_its_key_stays_valid() -> None:
    mirror, body = Mirror(), {"command": ["true"], "deadline": "2h"}
    plan = submission.submit_job(mirror, body, ADA, "k", NOW)
    made = plan.puts[0]
    for record in plan.puts:
        mirror.apply(record)
    later = Instant(NOW.ms + HOUR_MS, NOW.wall_ms + HOUR_MS)

    assert isinstance(made, JobSpec)
    assert made.deadline_at_ms == NOW.wall_ms + 2 * HOUR_MS
    assert not submission.submit_job(mirror, body, ADA, "k", later).answer.new
    with pytest.raises(Conflict):
        submission.submit_job(mirror, {**body, "deadline": "3h"}, ADA, "k", later)


NAMES = st.sampled_from(["region", "app", "job", "gpu_model", "node"])
VALUES = st.sampled_from(["eu", "us", "12.1", "7", "over", "x-1"])
CONDITIONS = st.one_of(
    st.builds("{} exists".format, NAMES),
    st.builds("{} {} {}".format, NAMES, st.sampled_from(["==", "!=", "<", ">", "in", "not in"]), VALUES),
    st.builds("{} in {},{}".format, NAMES, VALUES, VALUES),
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "where": st.lists(CONDITIONS, max_size=3),
        "prefer": st.lists(st.builds("{} weight {}".format, CONDITIONS, st.integers(-101, 101)), max_size=2),
        "near": st.lists(CONDITIONS, max_size=2),
        "apart": st.lists(st.builds("{} over {} weight {}".format, CONDITIONS, NAMES, st.integers(0, 101))),
        "spread": st.lists(st.builds("{} skew {}".format, NAMES, st.integers(0, 5)), max_size=2),
        "tolerate": st.lists(st.sampled_from(["*", "a", "a=b", "a=", ""]), max_size=2),
        "gpu": st.sampled_from([0, 0.25, 1, 1.5, 2]),
        "gang": st.booleans(),
        "count": st.integers(1, 3),
        "parallel": st.integers(1, 3),
        "evict_at_most": st.integers(0, 3),
        "preemptible": st.booleans(),
        "policy": st.sampled_from(list(Policy)),
        "expect": st.sampled_from(["1m", 90.5]),
        "timeout": st.sampled_from(["2m", "1h"]),
        "deadline": st.sampled_from(["5m", "1h", "2026-12-01T08:00:00.125+01:00"]),
    },
)


@given(BODIES)
def test_a_shown_spec_parses_to_the_same_spec(body: dict[str, Any]) -> None:
    made = spec_or_refusal(body)

    if isinstance(made, BadField):
        assert made.field in body
        assert made.hint
    else:
        assert parse_spec(job_spec.spec_json(made) | {"command": list(made.command)}, NOW.wall_ms) == made


def spec_or_refusal(body: dict[str, Any]) -> JobSpec | BadField:
    try:
        return parsed(**body)
    except BadField as refused:
        return refused
