"""What a server that stands by says."""

import json
from typing import Any, NamedTuple

import pytest

from rota.apiserver.standby import WhoLeads, make_standby_app
from rota.model.errors import Unavailable


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


async def nobody() -> str | None:
    return None


async def nobody_knows() -> str | None:
    raise Unavailable("etcd does not answer")


async def other() -> str | None:
    return "http://10.0.0.2:3000"


async def ask(who_leads: WhoLeads, method: str, path: str) -> Answer:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await make_standby_app(who_leads)(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, json.loads(sent[1]["body"]))


async def test_it_is_alive() -> None:
    assert (await ask(other, "GET", "/healthz")).status == 200


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/readyz"), ("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("DELETE", "/v1/x/y")]
)
async def test_whatever_it_is_asked_it_names_the_one_that_leads(method: str, path: str) -> None:
    answer = await ask(other, method, path)

    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["rota-leader"] == "http://10.0.0.2:3000"
    assert answer.body["detail"] == "this server stands by; http://10.0.0.2:3000 leads"


@pytest.mark.parametrize("who_leads", [nobody, nobody_knows])
async def test_it_names_nobody_when_nobody_leads(who_leads: WhoLeads) -> None:
    answer = await ask(who_leads, "GET", "/readyz")

    assert answer.status == 503
    assert "rota-leader" not in answer.headers
    assert answer.body["detail"] == "this server stands by, and nobody leads now"
