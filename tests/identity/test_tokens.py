"""Secrets, roles, and the line an operator pastes on a new machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.identity.errors import IdentityRefused
from rota.identity.tokens import JoinLine, Role, digest, mask_secrets, matches, new_secret

TOKEN = "join_" + "a" * 43
CA = "sha256:" + "0f" * 32


def test_secrets_hold_256_bits_and_say_what_they_are_for() -> None:
    made = {new_secret("rota_") for _ in range(100)}

    assert len(made) == 100
    assert all(secret.startswith("rota_") and len(secret) == 5 + 43 for secret in made)


def test_only_the_secret_itself_matches_its_digest() -> None:
    secret = new_secret("rota_")

    assert matches(secret, digest(secret))
    assert not matches(secret + "x", digest(secret))
    assert not matches("", digest(secret))
    assert len(digest("lone surrogate \udcff")) == 64


def test_roles_are_ordered_by_what_they_may_do() -> None:
    assert sorted(Role, reverse=True) == [Role.ADMIN, Role.OPERATOR, Role.SUBMITTER, Role.VIEWER]
    assert Role.ADMIN > Role.VIEWER
    assert Role.VIEWER < Role.SUBMITTER
    assert Role.OPERATOR >= Role.OPERATOR
    assert not Role.SUBMITTER >= Role.OPERATOR
    assert Role.SUBMITTER <= Role.OPERATOR


def test_roles_compare_with_their_names_in_the_same_order() -> None:
    assert Role.ADMIN > "viewer"
    assert max("viewer", Role.ADMIN, "operator") == "admin"
    with pytest.raises(ValueError, match="boss"):
        assert Role.ADMIN > "boss"


def test_a_join_line_looks_as_the_documentation_says() -> None:
    assert JoinLine("10.0.0.5", 3000, TOKEN, CA).render() == f"rota://10.0.0.5:3000?token={TOKEN}&ca={CA}"


@given(
    host=st.one_of(
        st.ip_addresses().map(str), st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,50}[a-z0-9])?", fullmatch=True)
    ),
    port=st.integers(1, 65535),
)
def test_a_join_line_read_back_is_the_same(host: str, port: int) -> None:
    line = JoinLine(host, port, new_secret("join_"), CA)

    assert JoinLine.parse(f"  {line.render()}\n") == line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "expected rota://HOST:PORT"),
        (f"https://h:1?token={TOKEN}&ca={CA}", "expected rota://HOST:PORT"),
        (f"rota://h:1?token={TOKEN}\n&ca={CA}", "broken while pasting"),
        (f"rota://?token={TOKEN}&ca={CA}", "expected HOST:PORT"),
        (f"rota://u@h:1?token={TOKEN}&ca={CA}", "expected HOST:PORT"),
        (f"rota://[::1?token={TOKEN}&ca={CA}", "expected HOST:PORT"),
        (f"rota://h?token={TOKEN}&ca={CA}", "expected a port"),
        (f"rota://h:0?token={TOKEN}&ca={CA}", "expected a port"),
        (f"rota://h:70000?token={TOKEN}&ca={CA}", "port from 1 to 65535"),
        (f"rota://h:x?token={TOKEN}&ca={CA}", "port from 1 to 65535"),
        (f"rota://h:1/x?token={TOKEN}&ca={CA}", "right after HOST:PORT"),
        (f"rota://h:1?token={TOKEN}&ca={CA}#x", "nothing after the ca"),
        ("rota://h:1", "token is missing"),
        ("rota://h:1?join", "expected ?token="),
        (f"rota://h:1?ca={CA}", "token is missing"),
        (f"rota://h:1?token=&ca={CA}", "token is missing"),
        (f"rota://h:1?token={TOKEN[:-1]}&ca={CA}", "token is cut or changed"),
        (f"rota://h:1?token=rota_{'a' * 43}&ca={CA}", "token is an API token"),
        (f"rota://h:1?token={TOKEN}", "ca is missing"),
        (f"rota://h:1?token={TOKEN}&ca={CA[:-2]}", "ca is cut or changed"),
        (f"rota://h:1?token={TOKEN}&ca=md5:00", "ca is cut or changed"),
        (f"rota://h:1?token={TOKEN}&ca={CA}&force=1", "got 'force'"),
        (f"rota://h:1?token={TOKEN}&ca={CA}&token={TOKEN}", "token is given more than once"),
    ],
)
def test_a_bad_join_line_is_refused_by_its_bad_part(line: str, expected: str) -> None:
    with pytest.raises(IdentityRefused) as caught:
        JoinLine.parse(line)

    assert expected in str(caught.value)
    assert "a" * 30 not in str(caught.value)


@given(st.text())
def test_any_text_is_a_join_line_or_is_refused(text: str) -> None:
    for line in (text, "rota://" + text, f"rota://h:1?{text}"):
        with pytest.raises(IdentityRefused):
            JoinLine.parse(line)


def test_a_join_line_does_not_print_its_token() -> None:
    assert TOKEN not in repr(JoinLine("h", 1, TOKEN, CA))


def test_secrets_in_a_text_are_masked() -> None:
    text = f"GET /x?t={new_secret('rota_')}&u={new_secret('join_')} rota_short"

    assert mask_secrets(text) == "GET /x?t=rota_***&u=join_*** rota_short"
