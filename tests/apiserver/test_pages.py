"""Lists: filters, order, fields and pages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.apiserver.views import jobs, pages
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.identity.tokens import Role
from rota.model.errors import BadField
from rota.model.ids import JobId
from rota.model.job import Counters
from rota.model.lifecycle import NodeState
from rota.store.memory import MemoryStore
from tests.apiserver.builders import node, node_status, spec
from tests.apiserver.serving import Serving, serving


async def read_all(server: Serving, path: str, name: str) -> list[list[str]]:
    """The ids or names on each page."""
    found, after = [], ""
    while True:
        reply = await server.call("GET", f"{path}{after}")
        assert reply.status == 200, reply
        found.append([one.get("id", one.get("name")) for one in reply.json[name]])
        if reply.json["next"] is None:
            return found
        after = f"&after={reply.json['next']}"


async def test_jobs_come_newest_first_or_oldest_first(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        for _ in range(5):
            await server.submit()
        newest = await read_all(server, "/v1/jobs?limit=2", "jobs")
        oldest = await read_all(server, "/v1/jobs?limit=2&sort=id", "jobs")
        whole = await read_all(server, "/v1/jobs?limit=5&sort=id", "jobs")

    assert newest == [["5", "4"], ["3", "2"], ["1"]]
    assert oldest == [["1", "2"], ["3", "4"], ["5"]]
    assert whole == [["1", "2", "3", "4", "5"]]


async def test_pages_neither_skip_nor_repeat_while_jobs_come_and_go(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for _ in range(6):
            await server.submit()
        first = await server.call("GET", "/v1/jobs?limit=2")
        await server.submit()
        await server.call("POST", "/v1/jobs/5/cancel")
        await server.call("DELETE", "/v1/jobs/5")
        second = await server.call("GET", f"/v1/jobs?limit=2&after={first.json['next']}")

    assert [job["id"] for job in first.json["jobs"]] == ["6", "5"]
    assert [job["id"] for job in second.json["jobs"]] == ["4", "3"]


async def test_a_page_without_matches_leads_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.apiserver.views.jobs.SCANNED_MAX", 2)
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit(name="rare")
        for _ in range(4):
            await server.submit(name="common")
        newest = await read_all(server, "/v1/jobs?name=rare", "jobs")
        oldest = await read_all(server, "/v1/jobs?name=common&sort=id", "jobs")

    assert newest == [[], [], ["1"]]
    assert oldest == [["2"], ["3", "4"], ["5"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("label=team=web", ["3", "1"]),
        ("label=team", ["3", "2", "1"]),
        ("label=team=web&label=tier=1", ["1"]),
        ("label=nobody", []),
        ("name=b", ["2"]),
        ("kind=batch", ["3", "2", "1"]),
        ("kind=system,service", []),
        ("user=ada", ["3", "2", "1"]),
        ("user=eve", []),
        ("state=canceled", ["3"]),
        ("state=canceled,active", ["3", "2", "1"]),
        ("state=active", ["2", "1"]),
        ("cluster=default&limit=1", ["3"]),
    ],
)
async def test_jobs_are_filtered(tmp_path: Path, query: str, found: list[str]) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit(name="a", labels={"team": "web", "tier": "1"})
        await server.submit(name="b", labels={"team": "db"})
        await server.submit(name="c", labels={"team": "web"})
        await server.call("POST", "/v1/jobs/3/cancel")
        reply = await server.call("GET", f"/v1/jobs?{query}")

    assert [job["id"] for job in reply.json["jobs"]] == found


async def test_nodes_are_paged_sorted_and_filtered(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.put("apiserver", *(node(number, f"n{number}") for number in (1, 2, 10)))
        await server.put("watcher", *(node_status(number) for number in (1, 2)))
        await server.put("watcher", node_status(10, NodeState.LOST))
        await server.call("POST", "/v1/nodes/n2/cordon")
        paged = await read_all(server, "/v1/nodes?limit=2", "nodes")
        backwards = await read_all(server, "/v1/nodes?sort=-name", "nodes")
        lost = await read_all(server, "/v1/nodes?state=lost,suspect", "nodes")
        cordoned = await read_all(server, "/v1/nodes?eligibility=cordoned", "nodes")
        elsewhere = await read_all(server, "/v1/nodes?cluster=elsewhere", "nodes")

    assert paged == [["n1", "n2"], ["n10"]]
    assert backwards == [["n10", "n2", "n1"]]
    assert (lost, cordoned, elsewhere) == ([["n10"]], [["n2"]], [[]])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/jobs", "jobs"),
        ("/v1/jobs/1/tasks", "tasks"),
        ("/v1/nodes", "nodes"),
        ("/v1/namespaces", "namespaces"),
        ("/v1/crons", "crons"),
        ("/v1/tokens", "tokens"),
    ],
)
async def test_only_requested_fields_are_shown(tmp_path: Path, path: str, name: str) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        await server.put("apiserver", node(1, "n1"))
        await server.call("PUT", "/v1/namespaces/team", {"weight": 3})
        cron = {"name": "nightly", "schedule": "0 1 * * *", "job": {"command": ["true"]}}
        await server.call("POST", "/v1/crons", cron)
        whole = (await server.call("GET", path)).json[name][0]
        some = [field for field in whole if field in ("id", "name", "index", "state")]
        chosen = (await server.call("GET", f"{path}?fields={','.join(some)}")).json[name][0]
        wrong = await server.call("GET", f"{path}?fields=nmae")

    assert chosen == {field: whole[field] for field in some} != whole
    assert (wrong.status, wrong.json["field"]) == (400, "fields")
    assert wrong.json["hint"]


async def test_fields_can_be_selected_for_a_single_resource_too(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        job = await server.call("GET", "/v1/jobs/1?fields=state,spec")
        task = await server.call("GET", "/v1/jobs/1/tasks/0?fields=index,attempts")

    assert set(job.json) == {"state", "spec"}
    assert task.json == {"index": 0, "attempts": []}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/jobs?stat=failed", "stat"),
        ("/v1/jobs?state=broken", "state"),
        ("/v1/jobs?sort=name", "sort"),
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=1001", "limit"),
        ("/v1/jobs?after=x", "after"),
        ("/v1/jobs?label=%20", "label"),
        ("/v1/jobs?kind=daemon", "kind"),
        ("/v1/jobs/1?verbose=1", "verbose"),
        ("/v1/jobs/1/tasks?state=broken", "state"),
        ("/v1/jobs/1/tasks?after=-2", "after"),
        ("/v1/nodes?sort=load", "sort"),
        ("/v1/nodes?state=dead", "state"),
        ("/v1/nodes?eligibility=1", "eligibility"),
        ("/v1/namespaces?limit=many", "limit"),
        ("/v1/crons?sort=schedule", "sort"),
        ("/v1/tokens?limit=-1", "limit"),
        ("/v1/events?since=yesterday", "since"),
        ("/v1/events?limit=0", "limit"),
        ("/v1/events?kinds=task", "kinds"),
        ("/v1/server?all=1", "all"),
    ],
)
async def test_a_bad_parameter_is_named_with_what_would_be_accepted(
    tmp_path: Path, path: str, field: str
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        reply = await server.call("GET", path)

    assert (reply.status, reply.json["code"], reply.json["field"]) == (400, "bad_field", field)
    assert reply.json["hint"]


def test_a_page_continues_after_a_deleted_name() -> None:
    request = pages.PageRequest(2, "b", descending=False, only=None)

    assert pages.paginate(["a", "c", "d", "e"], str, request) == (["c", "d"], "d")
    assert pages.paginate(["a", "c"], str, request) == (["c"], None)


def test_a_label_without_a_name_is_refused() -> None:
    with pytest.raises(BadField, match="label"):
        pages.label_filter(["=web"])


def test_the_cost_of_a_page_does_not_depend_on_its_position() -> None:
    """The last page of a hundred thousand jobs is as fast as the first."""
    mirror, looked = Mirror(), Counted()
    for number in range(1, 5_001):
        mirror.apply(spec(number))
    mirror.apply(Counters(jobs=5_000))
    looked.update(mirror.jobs)
    mirror.jobs = looked
    for after in (None, "5000", "2500", "101", "2"):
        looked.times = 0
        request = pages.PageRequest(100, after, descending=True, only=None)
        found = jobs.jobs_page(mirror, request, lambda _: True)

        assert looked.times <= 2 * (len(found["jobs"]) + 1)


def test_a_long_list_does_not_scan_all_jobs_for_each_page() -> None:
    """Only the first page and the last one scan: the others start at a known id."""
    mirror, looked = Mirror(), Counted()
    for number in range(1, 5_001):
        if number % 5:  # some have expired
            mirror.apply(spec(number))
    mirror.apply(Counters(jobs=5_000))
    looked.update(mirror.jobs)
    mirror.jobs = looked
    found: list[str] = []
    after = None
    while True:
        request = pages.PageRequest(100, after, descending=True, only=None)
        page = jobs.jobs_page(mirror, request, lambda _: True)
        found += [job["id"] for job in page["jobs"]]
        after = page["next"]
        if after is None:
            break

    assert found == list(reversed(list(dict.keys(looked))))
    assert looked.walks <= 2


def test_a_rare_match_is_found_anywhere_in_the_list() -> None:
    mirror = Mirror()
    for number in range(1, 3_001):
        mirror.apply(spec(number, priority=90 if number % 1_000 == 1 else 50))
    mirror.apply(Counters(jobs=3_000))
    request = pages.PageRequest(10, "3000", descending=True, only=None)
    page = jobs.jobs_page(mirror, request, lambda entry: entry.spec.priority == 90)

    assert [job["id"] for job in page["jobs"]] == ["2001", "1001", "1"]
    assert page["next"] is None


class Counted(dict[JobId, JobEntry]):
    """A dict that counts lookups."""

    times = 0
    walks = 0

    def __iter__(self) -> Iterator[JobId]:
        self.walks += 1
        return super().__iter__()

    def __getitem__(self, key: JobId) -> JobEntry:
        self.times += 1
        return super().__getitem__(key)


async def test_attempts_have_urls_of_their_own(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        none = await server.call("GET", "/v1/jobs/1/tasks/0/attempts")
        missing = await server.call("GET", "/v1/jobs/1/tasks/0/attempts/1")
        no_task = await server.call("GET", "/v1/jobs/1/tasks/1/attempts")

    assert none.json == {"attempts": []}
    assert (missing.status, no_task.status) == (404, 404)


async def test_tokens_are_created_used_listed_and_revoked(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        body = {"name": "ci", "role": "submitter", "namespaces": ["ci"], "valid_seconds": "1h"}
        made = await server.call("POST", "/v1/tokens", body)
        secret = f"Bearer {made.json['token']}"
        used = await server.call("GET", "/v1/jobs", Authorization=secret)
        not_its_own = await server.call("GET", "/v1/tokens", Authorization=secret)
        listed = await server.call("GET", "/v1/tokens")
        revoked = await server.call("DELETE", f"/v1/tokens/{made.json['id']}")
        again = await server.call("DELETE", f"/v1/tokens/{made.json['id']}")
        refused = await server.call("GET", "/v1/jobs", Authorization=secret)
        written = server.audited()

    assert (made.status, used.status, not_its_own.status) == (201, 200, 403)
    assert {token["name"] for token in listed.json["tokens"]} == {"ada", "ci"}
    assert made.json["token"] not in listed.body.decode()
    assert (revoked.status, again.status, refused.status) == (204, 404, 401)
    assert f"token {made.json['id']} ci" in [line["target"] for line in written]


async def test_a_repeated_request_for_a_token_with_its_key_returns_the_same_one(tmp_path: Path) -> None:
    body = {"name": "ci", "role": "submitter", "valid_seconds": "1h"}
    async with serving(tmp_path, MemoryStore) as server:

        async def make(body: dict[str, str], key: str = "k", **headers: str) -> Any:
            return await server.call("POST", "/v1/tokens", body, **{"Idempotency-Key": key}, **headers)

        first, second = await make(body), await make(body)
        conflict, other, bad = (
            await make({**body, "role": "admin"}),
            await make({**body, "name": "cd"}, "k2"),
            await make(body, "a b"),
        )
        of_another = await make({**body, "name": "ce"}, Authorization=server.token_for(Role.ADMIN, "*"))
        listed = await server.call("GET", "/v1/tokens?fields=id")
        await server.call("DELETE", f"/v1/tokens/{first.json['id']}")
        late = await make(body)

    assert (first.status, second.status, second.json) == (201, 200, first.json)
    assert (conflict.status, conflict.json["code"]) == (409, "conflict")
    assert (bad.status, bad.json["field"]) == (400, "Idempotency-Key")
    assert len({one.json["token"] for one in (first, other, of_another)}) == 3
    assert len(listed.json["tokens"]) == 3 + 2  # and those of the two callers
    assert (late.status, late.json["detail"]) == (409, "this key has made a token that was revoked")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"role": "admin"}, "name"),
        ({"name": "x", "role": "king"}, "role"),
        ({"name": "x"}, "role"),
        ({"name": "x", "role": "viewer", "namespaces": []}, "namespaces"),
        ({"name": "x", "role": "viewer", "namespaces": "ci"}, "namespaces"),
        ({"name": "x", "role": "viewer", "namespaces": [1]}, "namespaces"),
        ({"name": "x", "role": "viewer", "valid_seconds": 0}, "valid_seconds"),
        ({"name": "x", "role": "viewer", "forever": True}, "forever"),
    ],
)
async def test_an_invalid_token_is_refused_by_its_field(
    tmp_path: Path, body: dict[str, object], field: str
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        reply = await server.call("POST", "/v1/tokens", body)
        listed = await server.call("GET", "/v1/tokens")

    assert (reply.status, reply.json["field"]) == (400, field)
    assert len(listed.json["tokens"]) == 1


async def test_each_valid_state_is_named_once(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        hint = (await server.call("GET", "/v1/jobs?state=broken")).json["hint"]

    named = hint.removeprefix("write one of: ").split(", ")
    assert "active" in named
    assert len(named) == len(set(named))


async def test_only_admins_of_all_namespaces_create_tokens(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        operator = server.token_for(Role.OPERATOR, "*")
        narrow = server.token_for(Role.ADMIN, "ci")
        body = {"name": "x", "role": "viewer"}
        replies = [
            await server.call("POST", "/v1/tokens", body, Authorization=who) for who in (operator, narrow)
        ]

    assert [reply.status for reply in replies] == [403, 403]
