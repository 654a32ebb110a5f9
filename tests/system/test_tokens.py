"""Tokens from the command line: made, used, listed and revoked."""

import json

import pytest

from rota.testing.cluster import LocalCluster

pytestmark = pytest.mark.system


def test_a_token_is_made_used_and_revoked(shared: LocalCluster) -> None:
    made = shared.rota("token", "make", "ci", "--role", "submitter", "--namespace", "ci", "--valid", "1h")
    secret = made.out.strip()
    own = shared.rota("run", "--namespace", "ci", "--no-workdir", "--", "true", ROTA_TOKEN=secret)
    elsewhere = shared.rota("run", "--", "true", ROTA_TOKEN=secret)
    more = shared.rota("token", "make", "mallory", "--role", "admin", ROTA_TOKEN=secret)
    listed = json.loads(shared.rota("token", "ls", "-o", "json").out)
    shown = shared.rota("token", "ls").out
    (ours,) = [token for token in listed["tokens"] if token["name"] == "ci"]
    revoked = shared.rota("token", "revoke", ours["id"])
    refused = shared.rota("ls", ROTA_TOKEN=secret)

    assert made.code == 0, made
    assert f"rota token revoke {ours['id']}" in made.err
    assert own.code == 0, own
    assert (elsewhere.code, more.code) == (5, 5)
    assert secret not in shown
    assert "submitter" in shown
    assert "LAST USED" in shown
    assert ours["last_used_at_ms"] >= ours["made_at_ms"] - 60_000  # to the minute
    assert (revoked.code, refused.code) == (0, 5)


def test_an_unknown_role_is_refused(shared: LocalCluster) -> None:
    wrong = shared.rota("token", "make", "ci", "--role", "king")

    assert wrong.code == 2
    assert "viewer" in wrong.err
