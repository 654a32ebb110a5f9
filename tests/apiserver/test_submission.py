"""Requests on jobs and nodes become plans, or are refused with a reason."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.apiserver.access import (
    MINIMUM_ROLE,
    Action,
    Caller,
    can_see,
    require_cluster_wide,
    require_in_namespace,
)
from rota.apiserver.admission import actions, submission
from rota.apiserver.admission.node_actions import delete_node, drain_node, enroll_node, set_node_eligibility
from rota.apiserver.admission.recovery import acknowledge_events
from rota.apiserver.lookup import find_job, find_node
from rota.apiserver.spec.job import SPEC_FIELDS, parse_spec
from rota.engine.state.mirror import Mirror
from rota.identity.tokens import Role
from rota.model import limits
from rota.model.errors import BadField, Conflict, NotAllowed, NotFound, QueueFull, Rejected
from rota.model.ids import JobId, NodeId
from rota.model.job import Counters, JobSpec, JobStatus, SubmitKey
from rota.model.lifecycle import JobState, NodeState
from rota.model.node import Eligibility, NodeIntent, NodeSpec
from rota.model.plan import Plan
from rota.model.shape import Constraint, Op, RunMode
from rota.model.subscriber import Subscriber
from tests.apiserver.builders import ADA, NOW, attempts, node, node_status, spec, statuses, tasks

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def applied(mirror: Mirror, plan: Plan[object]) -> Mirror:
    for record in plan.puts:
        mirror.apply(record)
    for key in plan.deletes:
        mirror.forget(key)
    return mirror


def outcome(body: object) -> str:
    """The refusal, or the parsed spec, as text."""
    try:
        plan = submission.submit_job(Mirror(), body, ADA, "key", NOW)
    except Rejected as refusal:
        return refusal.detail
    applied(Mirror(), plan)
    return plan.why


def with_jobs(*specs: JobSpec) -> Mirror:
    mirror = Mirror()
    for submitted_spec in specs:
        mirror.apply(submitted_spec)
    mirror.apply(Counters(max((int(submitted_spec.id) for submitted_spec in specs), default=0)))
    return mirror


def test_a_command_alone_is_enough() -> None:
    plan = submission.submit_job(Mirror(), {"command": ["/usr/bin/python3", "a.py"]}, ADA, None, NOW)
    made = plan.puts[0]

    assert plan.answer == submission.SubmitResult(JobId("1"), new=True)
    assert isinstance(made, JobSpec)
    assert (made.name, made.namespace, made.user, made.count) == ("python3", "default", "ada", 1)
    assert (made.needs, made.submitted_at_ms) == ({"cpu": 1000}, NOW.wall_ms)
    assert plan.events[0].why == "ada asks for one task of python3, with 1 cpu"


def test_every_field_arrives_in_the_spec() -> None:
    made = parse_spec(
        {
            "name": "train",
            "namespace": "ml",
            "command": ["a", ""],
            "env": {"B": "2", "A": "1"},
            "workdir": "/tmp",
            "count": 7,
            "parallel": 2,
            "cpu": "500m",
            "memory": "1.5GiB",
            "disk": 10,
            "gpu": 1,
            "resources": {"licence": 1},
            "where": [
                "region == eu",
                "arch in x86_64, arm64",
                "gpu_model exists",
                "ram_gb > 8",
                "a not in 'b'",
            ],
            "priority": 0,
            "retries": 3,
            "timeout": "10m",
            "grace": 0,
            "run": "at_most_once",
            "when_unschedulable": "reject",
            "recovery": "none",
            "labels": {"team": "x"},
        }
    )

    assert made.needs == {"cpu": 500, "memory": 1610612736, "disk": 10, "gpu": 1000, "licence": 1}
    assert made.where == (
        Constraint("region", Op.EQUAL, ("eu",)),
        Constraint("arch", Op.IN, ("x86_64", "arm64")),
        Constraint("gpu_model", Op.EXISTS),
        Constraint("ram_gb", Op.MORE, ("8",)),
        Constraint("a", Op.NOT_IN, ("b",)),
    )
    assert (made.timeout_seconds, made.grace_seconds, made.run) == (600, 0, RunMode.AT_MOST_ONCE)
    assert list(made.env) == ["A", "B"]


BAD_VALUES: dict[str, list[Any]] = {
    "command": [None, [], "echo", [""], ["a", 1], ["a\0b"], ["a" * 131072], ["\ud800"]],
    "count": [0, -1, 10**9, 1.5, "many", True, None, "--5", 10**400, "9" * 5000],
    "parallel": [0, -1, "x"],
    "cpu": [0, -1, "x", 10**400, float("nan"), None, "nan", "inf", 0.0001],
    "memory": ["abc", -1, 2**61, "1x", [], None, 10**400],
    "disk": ["1 q", {}],
    "gpu": [-1, 1.5, 0.0001, 10**6, "half"],
    "resources": [[], {"cpu": 1}, {"a b": 1}, {"": 1}],
    "resources.a": [{"a": -1}, {"a": "x"}],
    "name": ["", "a b", "12", "last", "-x", "é", "a" * 129, 5, "a/b"],
    "namespace": ["", "a/b", None, "../x"],
    "env": [[], {"1A": "x"}, {"A=B": "x"}, {"A": 1}, {"A": "\0"}, {"A": "x" * 2**17}],
    "workdir": ["", "relative", "/a\0b", "/" * 5000],
    "where": [
        *("a", [1], ["a"], ["a = b"], ["a >= 1"], ["== b"], ["a =="], ["a > x"], ["a in"]),
        *(["a exists b"], ["a == b\0"], ["a == b"] * 33, [""], ["a in x,,y"]),
    ],
    "priority": [-1, 101, "high"],
    "retries": [-1, 1001],
    "timeout": [0, -1, "soon", 10**400, 1e12],
    "grace": [-1, "1w", 10**9],
    "run": ["twice", 1, None],
    "lease": ["20s", 5],
    "lease_margin": ["3s"],
    "recovery": ["maybe", []],
    "when_unschedulable": ["wait", None],
    "labels": [[], {"a": 1}, {"": "x"}, {"a b": "x"}, {"a": "x" * 300}, {f"a{n}": "x" for n in range(65)}],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param(field, value, id=f"{field}-{place}")
        for field, values in BAD_VALUES.items()
        for place, value in enumerate(values)
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    body = {"command": ["true"], field.partition(".")[0]: value}

    with pytest.raises(BadField) as refused:
        submission.submit_job(Mirror(), body, ADA, None, NOW)

    assert refused.value.field == field
    assert refused.value.hint


def test_an_unknown_field_is_refused_with_the_closest_match() -> None:
    with pytest.raises(BadField) as refused:
        parse_spec({"command": ["a"], "memroy": 1})

    assert (refused.value.field, refused.value.hint) == ("memroy", "did you mean memory?")


@pytest.mark.parametrize(
    ("program", "name"),
    [("./run me.sh", "run-me.sh"), ("/", "job"), ("12", "job-12"), ("last", "job-last"), ("é", "job")],
)
def test_a_default_name_is_derived_from_the_program(program: str, name: str) -> None:
    assert parse_spec({"command": [program]}).name == name


@given(JSON)
def test_any_json_is_accepted_or_rejected(body: object) -> None:
    assert outcome(body)


@given(st.sampled_from(SPEC_FIELDS), JSON)
def test_any_value_in_any_field_is_accepted_or_rejected(field: str, value: object) -> None:
    assert outcome({"command": ["a"], field: value})


def test_a_key_creates_one_job_and_refuses_another_body() -> None:
    mirror = applied(Mirror(), submission.submit_job(Mirror(), {"command": ["a"]}, ADA, "k", NOW))
    again = submission.submit_job(mirror, {"command": ["a"], "count": 1}, ADA, "k", NOW)

    assert again == Plan(answer=submission.SubmitResult(JobId("1"), new=False))
    with pytest.raises(Conflict, match="which has another spec"):
        submission.submit_job(mirror, {"command": ["b"]}, ADA, "k", NOW)
    assert submission.submit_job(mirror, {"command": ["b"], "namespace": "x"}, ADA, "k", NOW).answer.new


def test_a_key_whose_job_was_deleted_creates_no_second_job() -> None:
    mirror = applied(Mirror(), submission.submit_job(Mirror(), {"command": ["a"]}, ADA, "k", NOW))
    mirror.apply(JobStatus(JobId("1"), JobState.SUCCEEDED))
    applied(mirror, submission.delete_job(mirror, "1", ADA))

    with pytest.raises(Conflict, match="was deleted"):
        submission.submit_job(mirror, {"command": ["a"]}, ADA, "k", NOW)


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "x" * 257, "a\n"])
def test_a_key_that_is_no_valid_header_is_refused(key: str) -> None:
    with pytest.raises(BadField, match="Idempotency-Key"):
        submission.submit_job(Mirror(), {"command": ["a"]}, ADA, key, NOW)


def test_a_full_queue_accepts_no_more_but_still_knows_its_keys() -> None:
    mirror = applied(Mirror(), submission.submit_job(Mirror(), {"command": ["a"]}, ADA, "k", NOW))
    mirror.unfinished = limits.JOBS_WAITING_MAX

    with pytest.raises(QueueFull):
        submission.submit_job(mirror, {"command": ["b"]}, ADA, None, NOW)
    assert not submission.submit_job(mirror, {"command": ["a"]}, ADA, "k", NOW).answer.new


def test_a_repeated_cancel_writes_nothing_and_an_ended_job_refuses_it() -> None:
    mirror = with_jobs(spec(1))
    first = actions.cancel(mirror, "1", {}, ADA, NOW)
    applied(mirror, first)

    assert len(first.puts) == 1
    assert actions.cancel(mirror, "1", {}, ADA, NOW) == Plan(answer=JobId("1"), fenced=True)
    mirror.apply(JobStatus(JobId("1"), JobState.CANCELED))
    with pytest.raises(Conflict, match="has ended: canceled"):
        actions.cancel(mirror, "1", {}, ADA, NOW)


def test_deleting_a_job_leaves_nothing_but_its_submit_key() -> None:
    mirror = applied(
        Mirror(), submission.submit_job(Mirror(), {"command": ["a"], "count": 300}, ADA, "k", NOW)
    )
    blocks = (attempts("1", 256), statuses("1", 256), tasks("1", 44, block=1))
    for record in (node(1), node_status(1), *blocks, JobStatus(JobId("1"), JobState.FAILED)):
        mirror.apply(record)
    plan = submission.delete_job(mirror, "1", ADA)

    kept = {
        f"job/1/{part}"
        for part in (
            "spec",
            "wish",
            "cluster",
            "status",
            "verdict",
            "unplaceable",
            "answers",
            "rollout",
            "former",
            "adoption",
        )
    }
    assert set(plan.deletes) == kept | {"attempt/1/0", "status/1/0", "task/1/1"}
    assert mirror.submitted("default", "k") == SubmitKey(
        "default", "k", JobId("1"), next(iter(mirror.submit_keys.values())).digest
    )


def test_a_job_is_found_by_id_then_name() -> None:
    mirror = with_jobs(spec(1), spec(2, name="train"), spec(31, name="train"), spec(32), spec(40))

    assert find_job(mirror, "1", ADA).spec.id == "1"
    assert find_job(mirror, "train", ADA).spec.id == "31"
    assert find_job(mirror, "last", ADA).spec.id == "40"
    for ref in ("5", "trai", "", "x" * 1000):
        with pytest.raises(NotFound):
            find_job(mirror, ref, ADA)


def test_the_id_of_a_deleted_job_never_refers_to_another() -> None:
    mirror = with_jobs(spec(10), spec(31), spec(32))

    for gone in ("1", "3"):
        with pytest.raises(NotFound):
            find_job(mirror, gone, ADA)


def test_a_job_is_deleted_by_its_id_alone() -> None:
    mirror = with_jobs(spec(2, name="train"), spec(3, name="train"))
    for number in ("2", "3"):
        mirror.apply(JobStatus(JobId(number), JobState.FAILED))

    for name in ("train", "last"):
        with pytest.raises(Conflict, match="by its id"):
            submission.delete_job(mirror, name, ADA)


def test_what_a_caller_may_not_see_does_not_exist() -> None:
    mirror = with_jobs(spec(1, namespace="ml"), spec(2, namespace="web"), spec(21, namespace="ml", name="x"))
    guest = Caller("guest", Role.SUBMITTER, ("ml",))

    assert find_job(mirror, "last", guest).spec.id == "21"
    assert find_job(mirror, "sleep", guest).spec.id == "1"
    with pytest.raises(NotFound):
        find_job(mirror, "2", guest)


def test_nodes_are_enrolled_with_unique_names_and_ids() -> None:
    mirror = Mirror()
    made: list[NodeSpec] = []
    for name in ("host", "host", "host", "n1"):
        plan = enroll_node(mirror, name, {"rack": "7"}, "default", NOW)
        applied(mirror, plan)
        made.append(plan.answer)

    assert [(one.id, one.name) for one in made] == [
        ("n1", "host"),
        ("n2", "host-2"),
        ("n3", "host-3"),
        ("n4", "n1-2"),
    ]
    assert find_node(mirror, "host-2").spec.id == "n2"
    with pytest.raises(NotFound, match="no node is called 'hos'"):
        find_node(mirror, "hos")


def test_a_request_without_effect_writes_nothing_and_is_fenced() -> None:
    mirror = Mirror()
    mirror.apply(node(1))
    plan = set_node_eligibility(mirror, "laptop", Eligibility.CORDONED, ADA)
    applied(mirror, plan)

    assert len(plan.puts) == len(plan.events) == 1
    assert set_node_eligibility(mirror, "n1", Eligibility.CORDONED, ADA) == Plan(answer="n1", fenced=True)


@pytest.mark.parametrize("state", list(NodeState))
def test_only_a_node_that_is_lost_or_has_left_can_be_deleted(state: NodeState) -> None:
    mirror = Mirror()
    mirror.apply(node(1))
    mirror.apply(node_status(1, state))

    if state in (NodeState.LOST, NodeState.LEFT):
        assert not applied(mirror, delete_node(mirror, "n1", ADA)).nodes
    else:
        with pytest.raises(Conflict):
            delete_node(mirror, "n1", ADA)


def test_the_cursor_of_a_subscriber_only_grows() -> None:
    known = {"a": Subscriber("a", 5, 1)}

    assert acknowledge_events(known, "a", 5, 0).puts == ()
    assert acknowledge_events(known, "a", 5, 1).puts == ()
    assert acknowledge_events(known, "a", 5, 2).puts == (Subscriber("a", 5, 2),)
    assert acknowledge_events(known, "b", 1, 0).puts == (Subscriber("b", 1, 0),)


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("role", list(Role))
def test_a_role_may_do_what_the_table_says_and_only_in_its_namespaces(action: Action, role: Role) -> None:
    caller = Caller("x", role, ("ml",))
    allowed = list(Role).index(role) >= list(Role).index(MINIMUM_ROLE[action])

    if allowed:
        require_in_namespace(caller, action, "ml")
    else:
        with pytest.raises(NotAllowed):
            require_in_namespace(caller, action, "ml")
    for elsewhere in ("web", "", "m", "ml2", "*"):
        with pytest.raises(NotAllowed):
            require_in_namespace(caller, action, elsewhere)
    with pytest.raises(NotAllowed):
        require_cluster_wide(caller, action)


def test_a_token_without_namespaces_sees_nothing() -> None:
    assert not can_see(Caller("x", Role.ADMIN, ()), "default")


def test_a_drain_has_a_deadline_in_cluster_time_or_none() -> None:
    mirror = Mirror()
    mirror.apply(node(1))

    def drained(body: object) -> NodeIntent:
        intent = applied(mirror, drain_node(mirror, "n1", body, ADA, NOW)).nodes[NodeId("n1")].intent
        assert intent is not None
        return intent

    assert drained({"deadline_seconds": "1m"}).drain_by_ms == NOW.ms + 60_000
    assert drained({}).drain_by_ms is None
    assert drained({"force": True}) == NodeIntent(NodeId("n1"), Eligibility.DRAINING, (), NOW.ms, True)
    opened = (
        applied(mirror, set_node_eligibility(mirror, "n1", Eligibility.OPEN, ADA)).nodes[NodeId("n1")].intent
    )
    assert opened == NodeIntent(NodeId("n1"))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"deadline_seconds": "soon"}, "deadline_seconds"),
        ({"deadline_seconds": -1}, "deadline_seconds"),
        ({"force": "yes"}, "force"),
        ({"dead_line": 1}, "dead_line"),
    ],
)
def test_an_invalid_drain_is_refused_by_its_field(body: object, field: str) -> None:
    mirror = Mirror()
    mirror.apply(node(1))

    with pytest.raises(BadField) as refused:
        drain_node(mirror, "n1", body, ADA, NOW)

    assert refused.value.field == field
