"""Results of attempts: reported once, before the end; a reported failure overrides the exit code."""

import re
from pathlib import Path
from typing import Any

import pytest

from rota.apiserver.access import Caller
from rota.apiserver.admission.results import AttemptRef, ResultReported, report_result
from rota.engine.state.mirror import Mirror
from rota.identity.task_tokens import TaskName, TaskTokens
from rota.identity.tokens import Role, mask_secrets
from rota.keeper.protocol.result_endpoint import KeeperResultEndpoint, attempt_token
from rota.model.attempt import OldAttempt
from rota.model.errors import BadField, Conflict, NotAllowed, NotFound, Rejected, StoreFull
from rota.model.ids import NodeId
from rota.model.lifecycle import AttemptState
from rota.model.limits import RESULT_BYTES_MAX, RESULTS_BYTES_MAX
from rota.model.messages import ReportedState
from rota.model.node import Eligibility, NodeIntent, NodeSpec
from rota.model.plan import Plan
from rota.model.result import ResultRecord
from rota.model.view import keys_of
from rota.store.memory import MemoryStore
from tests.apiserver.builders import NOW, attempts, spec, statuses
from tests.apiserver.serving import serving
from tests.watcher.placed_work import ONE, placed, report_state, states, status

GOOD = {"results": {"loss": 0.5, "epochs": 3}}


def running() -> Mirror:
    """Task 0 of job 1 runs in attempt 2 on n1."""
    mirror = Mirror()
    mirror.apply(spec(1, count=2, results=True))
    older = (OldAttempt(0, 1, NodeId("n1"), 0),)
    mirror.apply(attempts("1", 2, number=[2, 0], older=older))
    mirror.apply(statuses("1", 2, number=[2, 0], state=[AttemptState.RUNNING, 0]))
    return mirror


def task(index: int = 0, attempt: int = 2, node: str = "n1", job: str = "1") -> Caller:
    return Caller("a task", Role.VIEWER, (), TaskName(job, index, attempt, node))


def node(name: str) -> Caller:
    return Caller(f"node {name}", Role.VIEWER, (), node=NodeId(name))


def report(
    mirror: Mirror, body: Any = GOOD, caller: Caller | None = None, **name: str
) -> Plan[ResultReported]:
    caller = caller or task()
    own = caller.task or TaskName("1", 0, 2, "")
    named = {"job": own.job, "task": str(own.task), "attempt": str(own.attempt), **name}
    plan = report_result(mirror, AttemptRef(**named), body, caller, NOW)
    for record in plan.puts:
        mirror.apply(record)
    return plan


def test_a_reported_result_is_a_record_and_an_event_for_controllers() -> None:
    mirror = running()
    plan = report(mirror)
    again = report(mirror, {"results": {"epochs": 3, "loss": 0.5}})

    expected = ResultRecord(ONE, 0, 2, b'{"epochs":3,"loss":0.5}', None, NOW.wall_ms)
    assert (plan.puts, plan.answer) == ((expected,), ResultReported(expected, is_new=True))
    assert [(event.kind, event.attempt, event.state, event.result) for event in plan.events] == [
        ("task.reported", 2, "succeeded", '{"results":{"epochs":3,"loss":0.5},"failure":null}')
    ]
    assert (again.puts, again.events, again.fenced) == ((), (), True)
    assert again.answer == ResultReported(expected, is_new=False)
    assert expected.key in keys_of(mirror.jobs[ONE])


def test_a_different_report_is_a_conflict_and_the_first_is_kept() -> None:
    mirror = running()
    report(mirror)

    for other in ({"results": {"loss": 0.4}}, {"failure": "it diverged"}, {}):
        with pytest.raises(Conflict, match="something else already"):
            report(mirror, other)
    assert mirror.jobs[ONE].results[0, 2].results == b'{"epochs":3,"loss":0.5}'


def test_stale_and_ended_attempts_are_too_late_but_may_repeat_a_report() -> None:
    mirror = running()
    report(mirror)
    mirror.apply(statuses("1", 2, number=[2, 0], state=[AttemptState.SUCCEEDED, 0]))

    assert not report(mirror).answer.is_new
    with pytest.raises(Conflict, match="attempt 1 is stale"):
        report(mirror, caller=task(attempt=1))
    fresh = running()
    fresh.apply(statuses("1", 2, number=[2, 0], state=[AttemptState.SUCCEEDED, 0]))
    with pytest.raises(Conflict, match="has ended"):
        report(fresh)


def test_an_unknown_attempt_is_not_found() -> None:
    mirror = running()

    for caller in (task(attempt=3), task(index=1, attempt=1), task(index=2), task(job="9")):
        with pytest.raises(NotFound):
            report(mirror, caller=caller)


def test_a_task_may_report_for_its_own_attempt_only() -> None:
    mirror = running()

    with pytest.raises(NotAllowed, match="may report for"):
        report(mirror, caller=task(), task="1")
    with pytest.raises(NotAllowed, match="on another node"):
        report(mirror, caller=task(node="n2"))


def test_operators_may_report_in_their_namespaces_and_submitters_may_not() -> None:
    mirror = running()

    with pytest.raises(NotAllowed, match="may not report the results of tasks: its role is submitter"):
        report(mirror, caller=Caller("eve", Role.SUBMITTER, ("*",)))
    with pytest.raises(NotFound):
        report(mirror, caller=Caller("eve", Role.OPERATOR, ("elsewhere",)))
    assert report(mirror, caller=Caller("ops", Role.OPERATOR, ("default",))).answer.is_new
    assert not report(mirror, caller=Caller("root", Role.ADMIN, ("*",))).answer.is_new


def test_a_node_reports_for_the_attempts_that_were_placed_on_it() -> None:
    mirror = running()
    mirror.apply(NodeSpec(NodeId("n1"), "one"))
    mirror.apply(NodeSpec(NodeId("n2"), "two"))

    with pytest.raises(NotAllowed, match="on another node"):
        report(mirror, caller=node("n2"))
    with pytest.raises(NotAllowed, match="node n9 is not known here"):
        report(mirror, caller=node("n9"))
    with pytest.raises(NotFound):
        report(mirror, caller=node("n1"), job="7")
    assert report(mirror, caller=node("n1")).answer.is_new
    with pytest.raises(Conflict, match="stale"):
        report(mirror, caller=node("n1"), attempt="1")


def test_a_revoked_node_and_its_tasks_may_not_report() -> None:
    mirror = running()
    mirror.apply(NodeSpec(NodeId("n1"), "one"))
    mirror.apply(NodeIntent(NodeId("n1"), Eligibility.REVOKED))

    for caller in (node("n1"), task()):
        with pytest.raises(NotAllowed, match="node one was revoked"):
            report(mirror, caller=caller)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"results": [1]}, "results"),
        ({"results": {"x": "x" * RESULT_BYTES_MAX}}, "results"),
        ({"failure": ""}, "failure"),
        ({"failure": 7}, "failure"),
        ({"result": {}}, "result"),
    ],
)
def test_bad_input_names_the_field(body: Any, field: str) -> None:
    with pytest.raises(BadField) as refused:
        report(running(), body)
    assert refused.value.field == field


def test_results_that_are_nested_too_deeply_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"in": deep}

    with pytest.raises(Rejected, match="nested"):
        report(running(), {"results": deep})


def test_the_results_of_a_job_are_bounded_and_a_full_disk_accepts_none() -> None:
    full, short = running(), running()
    full.jobs[ONE].results_bytes = RESULTS_BYTES_MAX
    short.disk_low = True

    with pytest.raises(Conflict, match="more than"):
        report(full)
    with pytest.raises(StoreFull):
        report(short)


def test_a_reported_failure_overrides_exit_0_and_a_success_overrides_no_other_exit() -> None:
    mirror = placed(3)
    mirror.apply(ResultRecord(ONE, 0, 1, failure="it diverged"))
    mirror.apply(ResultRecord(ONE, 1, 1))
    report_state(mirror, ReportedState.EXITED, (0, 1), (2, 1), exit_code=0)
    report_state(mirror, ReportedState.EXITED, (1, 1), exit_code=7)

    assert states(mirror) == [AttemptState.FAILED, AttemptState.FAILED, AttemptState.SUCCEEDED]
    assert status(mirror).reasons == {0: "it reported a failure: it diverged"}


def test_a_node_creates_tokens_for_its_own_attempts_only() -> None:
    tokens = TaskTokens(lambda: [b"secret"])
    key = tokens.key_for("12", "n1")
    made = attempt_token(KeeperResultEndpoint("", key, "n1", ""), ("12", 3, 4))

    assert tokens.authenticate(made) == TaskName("12", 3, 4, "n1")
    assert tokens.authenticate(attempt_token(KeeperResultEndpoint("", key, "n2", ""), ("12", 3, 4))) is None
    assert tokens.authenticate(attempt_token(KeeperResultEndpoint("", key, "n1", ""), ("13", 3, 4))) is None
    assert tokens.authenticate(made.replace(".4.", ".5.")) is None
    assert TaskTokens(lambda: [b"another"]).authenticate(made) is None
    assert not re.search("[0-9a-f]{64}", mask_secrets(f"Bearer {made}"))


async def test_the_token_of_a_task_gives_access_to_its_own_result_only(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        job = await server.submit(results=True)
        await server.put("scheduler", attempts(job, 1, number=[1]))
        key = server.api.authority.task_tokens().key_for(job, "n1")
        bearer = {
            "Authorization": f"Bearer {attempt_token(KeeperResultEndpoint('', key, 'n1', ''), (job, 0, 1))}"
        }
        path = f"/v1/jobs/{job}/tasks/0/attempts/1/result"
        nothing = await server.call("GET", path)
        first = await server.call("POST", path, GOOD, **bearer)
        again = await server.call("POST", path, GOOD, **bearer)
        other = await server.call("POST", path, {"failure": "no"}, **bearer)
        closed = [
            (await server.call(method, there, **bearer)).status
            for method, there in (("GET", path), ("GET", "/v1/jobs"), ("POST", f"/v1/jobs/{job}/cancel"))
        ]
        read = await server.call("GET", path)
        shown = await server.call("GET", f"/v1/jobs/{job}/tasks/0")

    assert [nothing.status, first.status, again.status, other.status] == [404, 201, 200, 409]
    assert closed == [403, 403, 403]
    assert (
        read.json == first.json == again.json == shown.json["result"] == shown.json["attempts"][0]["result"]
    )
    assert read.json["results"] == GOOD["results"]
