"""Tokens given out: a join token works once, over threads, processes, restarts and kill -9."""

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest

from rota.identity import vault as vault_module
from rota.identity.errors import AlreadyExists, IdentityRefused, JoinRefused, Unsafe
from rota.identity.tokens import Role, new_secret
from rota.identity.vault import DAY_MS, HOUR_MS, MINUTE_MS, Vault, new_token

NOW = 1_800_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "vault"


@pytest.fixture
def vault(directory: Path) -> Vault:
    return Vault.open(directory)


def join_secret(vault: Vault) -> str:
    return vault.make_join_token(NOW, labels={"rack": "r1"}, cluster="main")


def test_a_join_token_has_the_nodes_labels_and_cluster(vault: Vault) -> None:
    token = vault.use_join_token(join_secret(vault), "n-1", NOW + 1)

    assert (token.labels, token.cluster, token.used_by) == ({"rack": "r1"}, "main", "n-1")


def test_a_join_token_works_once(vault: Vault) -> None:
    secret = join_secret(vault)
    vault.use_join_token(secret, "n-1", NOW)

    with pytest.raises(JoinRefused, match=r"^join token was already used$"):
        vault.use_join_token(secret, "n-2", NOW)


def test_a_join_token_works_once_over_a_restart(vault: Vault, directory: Path) -> None:
    secret = join_secret(vault)
    Vault.open(directory).use_join_token(secret, "n-1", NOW)

    with pytest.raises(JoinRefused, match="already used"):
        Vault.open(directory).use_join_token(secret, "n-2", NOW)


def test_a_join_token_works_once_over_kill_9_right_after_the_answer(vault: Vault, directory: Path) -> None:
    secret = join_secret(vault)
    program = (
        "import os, signal, sys; from pathlib import Path; from rota.identity.vault import Vault\n"
        f"Vault.open(Path(sys.argv[1])).use_join_token(sys.argv[2], 'n-1', {NOW})\n"
        "os.write(1, b'used'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", program, str(directory), secret]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=60, check=False)

    assert (child.returncode, child.stdout) == (-signal.SIGKILL, b"used")
    with pytest.raises(JoinRefused, match="already used"):
        vault.use_join_token(secret, "n-2", NOW)


def test_of_many_threads_using_one_join_token_exactly_one_wins(vault: Vault, directory: Path) -> None:
    secret = join_secret(vault)
    vaults = [vault, vault, Vault.open(directory), Vault.open(directory)]
    start = Barrier(len(vaults))

    def use(number: int) -> str:
        start.wait()
        try:
            return str(vaults[number].use_join_token(secret, f"n-{number}", NOW).used_by)
        except JoinRefused:
            return "refused"

    with ThreadPoolExecutor(len(vaults)) as pool:
        answers = list(pool.map(use, range(len(vaults))))

    winners = [answer for answer in answers if answer != "refused"]
    assert len(winners) == 1
    assert [token.used_by for token in vault.list_join_tokens()] == winners


@pytest.mark.parametrize(
    ("late_ms", "expected"),
    [(0, "0 s"), (59_999, "59 s"), (3 * MINUTE_MS, "3 min"), (2 * HOUR_MS, "2 h"), (3 * DAY_MS, "3 d")],
)
def test_an_expired_join_token_is_refused_with_its_age(vault: Vault, late_ms: int, expected: str) -> None:
    secret = join_secret(vault)

    with pytest.raises(JoinRefused, match=f"^join token expired {expected} ago$"):
        vault.use_join_token(secret, "n-1", NOW + 30 * MINUTE_MS + late_ms)


def test_a_join_token_works_until_its_last_millisecond(vault: Vault) -> None:
    secret = join_secret(vault)

    assert vault.use_join_token(secret, "n-1", NOW + 30 * MINUTE_MS - 1).used_by == "n-1"


@pytest.mark.parametrize("secret", ["", "join_x", f"join_{43 * 'A'}", "\udcff"])
def test_a_wrong_join_token_is_refused_as_unknown(vault: Vault, secret: str) -> None:
    join_secret(vault)

    with pytest.raises(JoinRefused, match=r"^join token is not known$"):
        vault.use_join_token(secret, "n-1", NOW)


def test_an_api_token_does_not_join(vault: Vault) -> None:
    secret = vault.make_api_token("ci", Role.ADMIN, ["*"], NOW)

    with pytest.raises(JoinRefused, match="not known"):
        vault.use_join_token(secret, "n-1", NOW)


def test_join_tokens_are_removed_a_day_after_they_expired(vault: Vault) -> None:
    join_secret(vault)
    end = NOW + 30 * MINUTE_MS + DAY_MS
    vault.make_join_token(end - 1, labels={}, cluster="main")
    assert len(vault.list_join_tokens()) == 2

    vault.make_join_token(end, labels={}, cluster="main")

    assert [token.made_at_ms for token in vault.list_join_tokens()] == [end - 1, end]


def test_an_api_token_is_authenticated_by_its_secret(vault: Vault, directory: Path) -> None:
    secret = vault.make_api_token("ci", Role.SUBMITTER, ["ml", "web"], NOW)

    for known in (vault.authenticate(secret, NOW), Vault.open(directory).authenticate(secret, NOW)):
        assert known is not None
        assert (known.name, known.role, known.namespaces) == ("ci", Role.SUBMITTER, ("ml", "web"))


def test_a_wrong_secret_a_digest_and_a_join_token_are_refused(vault: Vault) -> None:
    vault.make_api_token("ci", Role.ADMIN, ["ml"], NOW)
    stored = vault.list_api_tokens()[0].digest

    for wrong in ("", new_secret("rota_"), stored, join_secret(vault)):
        assert vault.authenticate(wrong, NOW) is None


def test_an_api_token_is_refused_after_its_expiry_and_removed_a_day_later(vault: Vault) -> None:
    secret = vault.make_api_token("ci", Role.ADMIN, ["ml"], NOW, expires_at_ms=NOW + 1000)
    assert vault.authenticate(secret, NOW + 999) is not None
    assert vault.authenticate(secret, NOW + 1000) is None

    vault.make_join_token(NOW + 1000 + DAY_MS, labels={}, cluster="main")

    assert vault.list_api_tokens() == ()


def test_a_revoked_api_token_is_refused_immediately_and_after_a_restart(
    vault: Vault, directory: Path
) -> None:
    secret = vault.make_api_token("ci", Role.ADMIN, ["ml"], NOW)
    other = vault.make_api_token("cd", Role.ADMIN, ["ml"], NOW)

    assert vault.revoke_api_token(vault.list_api_tokens()[0].id)
    assert vault.authenticate(secret, NOW) is None
    assert Vault.open(directory).authenticate(secret, NOW) is None
    assert vault.authenticate(other, NOW) is not None


def test_one_secret_makes_one_token_and_none_once_that_was_revoked(vault: Vault, directory: Path) -> None:
    secret, later = new_secret("rota_"), NOW + 5000
    first = vault.store_api_token(secret, new_token("ci", Role.VIEWER, ["ml"], NOW, NOW + DAY_MS))
    again = Vault.open(directory).store_api_token(
        secret, new_token("ci", Role.VIEWER, ["ml"], later, later + DAY_MS)
    )

    assert (first.is_new, again.is_new, again.token) == (True, False, first.token)
    for other in (
        new_token("ci", Role.ADMIN, ["ml"], NOW, None),
        new_token("cd", Role.VIEWER, ["ml"], NOW, None),
    ):
        with pytest.raises(AlreadyExists, match=first.token.id):
            vault.store_api_token(secret, other)
    vault.revoke_api_token(first.token.id)
    with pytest.raises(AlreadyExists, match="revoked"):
        Vault.open(directory).store_api_token(secret, new_token("ci", Role.VIEWER, ["ml"], later, None))
    assert vault.list_api_tokens() == ()


def test_the_latest_revoked_tokens_are_remembered(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault_module, "REVOKED_KEPT", 1)
    secrets = [vault.make_api_token(name, Role.VIEWER, ["ml"], NOW) for name in ("ci", "cd")]
    for token in vault.list_api_tokens():
        vault.revoke_api_token(token.id)

    assert vault.store_api_token(secrets[0], new_token("ci", Role.VIEWER, ["ml"], NOW, None)).is_new
    with pytest.raises(AlreadyExists):
        vault.store_api_token(secrets[1], new_token("cd", Role.VIEWER, ["ml"], NOW, None))


def test_revoking_an_unknown_token_returns_false(vault: Vault) -> None:
    assert not vault.revoke_api_token("nobody")


def test_a_change_by_another_process_is_seen_immediately(vault: Vault, directory: Path) -> None:
    beside = Vault.open(directory)
    secret = beside.make_api_token("ci", Role.VIEWER, ["ml"], NOW)
    assert vault.authenticate(secret, NOW) is not None

    beside.revoke_api_token(vault.list_api_tokens()[0].id)

    assert vault.authenticate(secret, NOW) is None


def test_no_secret_is_in_the_file_and_only_the_owner_reads_it(vault: Vault, directory: Path) -> None:
    secrets = [join_secret(vault), vault.make_api_token("ci", Role.ADMIN, ["ml"], NOW)]
    path = directory / "vault.json"

    assert not [secret for secret in secrets if secret in path.read_text()]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_full_disk_refuses_the_change_and_damages_nothing(vault: Vault, directory: Path) -> None:
    secret = join_secret(vault)
    with full_disk(), pytest.raises(OSError, match="File too large"):
        vault.use_join_token(secret, "n-1", NOW)

    assert sorted(path.name for path in directory.iterdir()) == [".vault.lock", "vault.json"]
    assert Vault.open(directory).use_join_token(secret, "n-2", NOW).used_by == "n-2"


def test_there_is_a_limit_to_the_number_of_tokens(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault_module, "MAX_TOKENS", 2)
    join_secret(vault)
    join_secret(vault)

    with pytest.raises(IdentityRefused, match="2 tokens already"):
        join_secret(vault)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"api_tokens": [{}]}', b"\xff"])
def test_a_damaged_vault_is_refused_and_kept(vault: Vault, directory: Path, content: bytes) -> None:
    join_secret(vault)
    (directory / "vault.json").write_bytes(content)

    with pytest.raises(Unsafe, match="damaged"):
        Vault.open(directory)
    assert (directory / "vault.json").read_bytes() == content


def test_a_vault_of_a_newer_version_is_refused(vault: Vault, directory: Path) -> None:
    join_secret(vault)
    (directory / "vault.json").write_bytes(b'{"version": 2}')

    with pytest.raises(Unsafe, match="newer Rota"):
        Vault.open(directory)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may grow beyond 100 bytes."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
