"""The endpoint by precedence: argument, environment, named context, context `local`."""

from pathlib import Path

import pytest

from rota.client.context import config_file, resolve, setting
from rota.client.errors import NotAllowed, NotFound, Rejected
from tests.client.secret_files import write_secret

HERE = "http://127.0.0.1:3000"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "rota" / "contexts"
    folder.mkdir(parents=True)
    write_secret(folder / "token", "local-token\n")
    (folder / "local.toml").write_text(f'addr = "{HERE}"\ntoken_file = "{folder / "token"}"\nca = "ca.pem"\n')
    write_secret(folder / "prod", "prod-token")
    (folder / "prod.toml").write_text('addr = "https://prod:3000"\ntoken_file = "prod"\n')
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_the_local_context_is_found(environ: dict[str, str]) -> None:
    found = resolve(environ=environ)

    assert (found.addr, found.token, found.ca) == (HERE, "local-token", "ca.pem")
    assert found.addr_source.endswith("contexts/local.toml")


def test_the_environment_takes_precedence_over_the_context(environ: dict[str, str]) -> None:
    found = resolve(environ={**environ, "ROTA_ADDR": "https://other:1", "ROTA_TOKEN": "t"})

    assert (found.addr, found.token, found.ca) == ("https://other:1", "t", None)
    assert (found.addr_source, found.token_source) == ("environment ROTA_ADDR", "environment ROTA_TOKEN")


def test_a_named_context_takes_precedence_over_the_environment(environ: dict[str, str]) -> None:
    around = {**environ, "ROTA_ADDR": "https://other:1", "ROTA_TOKEN": "t"}

    found = resolve(context="prod", environ=around)

    assert (found.addr, found.token) == ("https://prod:3000", "prod-token")


def test_the_context_of_the_environment_is_used(environ: dict[str, str]) -> None:
    assert resolve(environ={**environ, "ROTA_CONTEXT": "prod"}).addr == "https://prod:3000"


def test_arguments_take_precedence_over_everything(environ: dict[str, str]) -> None:
    found = resolve("https://mine:1", "mine", environ={**environ, "ROTA_ADDR": "https://other:1"})

    assert (found.addr, found.token) == ("https://mine:1", "mine")


def test_a_token_file_of_the_environment_is_read(environ: dict[str, str], tmp_path: Path) -> None:
    write_secret(tmp_path / "t", "from-file\n")

    assert resolve(environ={**environ, "ROTA_TOKEN_FILE": str(tmp_path / "t")}).token == "from-file"


def test_a_token_is_never_sent_to_another_address(environ: dict[str, str]) -> None:
    with pytest.raises(NotAllowed, match="no token for this address"):
        resolve(environ={**environ, "ROTA_ADDR": "https://other:1"})


def test_without_any_context_the_error_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        resolve(environ={"XDG_CONFIG_HOME": str(tmp_path)})

    assert "rota dev" in str(caught.value.hint)
    assert caught.value.exit_code == 4


def test_an_unknown_context_lists_the_known_ones(environ: dict[str, str]) -> None:
    with pytest.raises(NotFound) as caught:
        resolve(context="prodd", environ=environ)

    assert caught.value.hint == "contexts: local, prod"


def test_a_context_is_a_name_not_a_path(environ: dict[str, str]) -> None:
    with pytest.raises(Rejected, match="is not a name"):
        resolve(context="../local", environ=environ)


def test_an_unreadable_token_file_is_rejected(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "rota" / "contexts" / "token").unlink()

    with pytest.raises(NotAllowed, match="cannot be read"):
        resolve(environ=environ)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_token_file_accessible_to_other_users_is_rejected(
    environ: dict[str, str], tmp_path: Path, mode: int
) -> None:
    write_secret(tmp_path / "t", "from-file\n")
    (tmp_path / "t").chmod(mode)

    with pytest.raises(NotAllowed, match=f"accessible to other users .mode {mode:o}") as refused:
        resolve(environ={**environ, "ROTA_TOKEN_FILE": str(tmp_path / "t")})

    assert str(refused.value.hint).startswith(f"chmod 600 {tmp_path / 't'}")


def test_a_token_file_that_is_not_text_is_rejected(environ: dict[str, str], tmp_path: Path) -> None:
    write_secret(tmp_path / "t", "")
    (tmp_path / "t").write_bytes(b"\xff\xfe")

    with pytest.raises(NotAllowed, match="is not text"):
        resolve(environ={**environ, "ROTA_TOKEN_FILE": str(tmp_path / "t")})


@pytest.mark.parametrize("name", ["config.toml", "contexts/local.toml"])
def test_a_file_that_every_user_can_write_is_refused(
    environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    """The file decides which server gets the token."""
    path = next(tmp_path.rglob("contexts")).parent / name
    path.touch()
    path.chmod(0o666)

    with pytest.raises(Rejected, match="is writable by every user") as refused:
        resolve(environ=environ)

    assert refused.value.hint == f"chmod o-w {path}"


def test_the_token_is_not_shown(environ: dict[str, str]) -> None:
    assert "local-token" not in repr(resolve(environ=environ))


def test_rota_config_names_the_file_and_with_it_the_folder(tmp_path: Path) -> None:
    assert config_file({"ROTA_CONFIG": str(tmp_path / "my.toml")}) == tmp_path / "my.toml"


def test_a_preference_comes_from_argument_environment_or_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('output = "wide"\n')
    environ = {"ROTA_CONFIG": str(tmp_path / "config.toml")}

    assert setting("output", None, environ).value == "wide"
    assert setting("output", None, {**environ, "ROTA_OUTPUT": "json"}).value == "json"
    assert setting("output", "id", {**environ, "ROTA_OUTPUT": "json"}).value == "id"
    assert setting("namespace", None, environ).source == "default"


def test_a_config_file_that_is_not_toml_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("output =")

    with pytest.raises(Rejected, match="is not TOML"):
        setting("output", None, {"ROTA_CONFIG": str(tmp_path / "config.toml")})
