"""When a token was used last: kept through a restart, for tokens that there are."""

from pathlib import Path

from rota.identity.tokens import Role
from rota.identity.vault import Vault

MINUTE_MS = 60_000
NOON_MS = 12 * 60 * MINUTE_MS


def test_the_last_use_survives_a_restart_and_is_deleted_with_the_token(tmp_path: Path) -> None:
    vault = Vault.open(tmp_path)
    used, unused, revoked = (vault.make_api_token(name, Role.VIEWER, ("*",), 0) for name in ("a", "b", "c"))
    ids = {token.name: token.id for token in vault.list_api_tokens()}
    for secret in (used, revoked, "rota_wrong"):
        vault.authenticate(secret, NOON_MS + 1234)
    vault.revoke_api_token(ids["c"])
    vault.last_uses.write()
    again = Vault.open(tmp_path).last_uses

    assert unused
    assert [again.get(ids[name]) for name in "abc"] == [NOON_MS, None, None]


def test_a_damaged_file_loses_the_times_of_use_only(tmp_path: Path) -> None:
    vault = Vault.open(tmp_path)
    secret = vault.make_api_token("a", Role.VIEWER, ("*",), 0)
    (tmp_path / "last-used.json").write_text("{")
    (tmp_path / "last-used.json").chmod(0o600)

    again = Vault.open(tmp_path)
    assert again.authenticate(secret, NOON_MS) is not None
