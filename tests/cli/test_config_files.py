"""Settings by precedence: flag, environment, file, default; unknown keys and invalid values are named."""

from pathlib import Path

import pytest

from rota.cli.main import outcome
from rota.config import (
    AgentConfig,
    AgentOptions,
    ConfigError,
    HttpServerConfig,
    ServerConfig,
    ServerOptions,
    agent_config,
    build,
    default_data_dir,
    schema,
    server_config,
    sources,
)


def write(folder: Path, text: str) -> str:
    path = folder / "config.toml"
    path.write_text(text)
    return str(path)


def test_without_settings_the_defaults_apply() -> None:
    config = server_config(ServerOptions(), {"XDG_DATA_HOME": "/data"})

    assert config.http_server == HttpServerConfig("127.0.0.1:3000")
    assert config.grpc_server.addr == "127.0.0.1:50000"
    assert config.agent_server.addr == "127.0.0.1:50001"
    assert (config.store, config.name) == ("sqlite", "default")
    assert config.data_dir == default_data_dir("server", {"XDG_DATA_HOME": "/data"})


def test_precedence_is_flag_environment_file_default(tmp_path: Path) -> None:
    path = write(tmp_path, 'store = "memory"\nname = "file"\ndata_dir = "/file"\n')
    environ = {"ROTA_NAME": "environment", "ROTA_DATA_DIR": "/environment"}
    options = ServerOptions(path, data_dir="/flag")

    config = server_config(options, environ)
    sources_by_key = {item.key: item.source for item in sources(ServerConfig, path, options.flags, environ)}

    assert (config.data_dir, config.name, config.store) == ("/flag", "environment", "memory")
    assert sources_by_key["data_dir"] == "flag"
    assert sources_by_key["name"] == "environment ROTA_NAME"
    assert sources_by_key["store"] == f"file {path}"
    assert sources_by_key["http_server.addr"] == "default"


@pytest.mark.parametrize("said", ["a week", "-1s", "200000h"])
def test_an_invalid_renewal_window_is_named(said: str) -> None:
    with pytest.raises(ConfigError, match=r"certificates\.renewal_window"):
        server_config(ServerOptions(), {"ROTA_CERTIFICATES_RENEWAL_WINDOW": said})


def test_sections_are_read(tmp_path: Path) -> None:
    crt, key = tmp_path / "c", tmp_path / "k"
    crt.touch()
    key.touch()
    settings = f'addr = "0.0.0.0:1"\nuse_tls = true\ncrt_file = "{crt}"\nkey_file = "{key}"\n'

    config = server_config(ServerOptions(write(tmp_path, f"[grpc_server]\n{settings}")), {})

    assert (config.grpc_server.addr, config.grpc_server.use_tls, config.grpc_server.crt_file) == (
        "0.0.0.0:1",
        True,
        str(crt),
    )


def test_allowed_mounts_come_from_file_or_environment(tmp_path: Path) -> None:
    path = write(tmp_path, 'mounts = ["/data", "/cache:ro"]\n')

    assert agent_config(AgentOptions(path), {}).mounts == ["/data", "/cache:ro"]
    assert agent_config(AgentOptions(path), {"ROTA_MOUNTS": "/a,/b:ro"}).mounts == ["/a", "/b:ro"]


@pytest.mark.parametrize("said", ["7", '"/data"', '["/data", 7]'])
def test_mounts_is_a_list_of_strings(tmp_path: Path, said: str) -> None:
    with pytest.raises(ConfigError, match="mounts") as refused:
        agent_config(AgentOptions(write(tmp_path, f"mounts = {said}\n")), {})

    assert refused.value.hint == "write a list of texts"


def test_agent_labels_come_from_file_environment_or_flags(tmp_path: Path) -> None:
    path = write(tmp_path, '[labels]\nregion = "eu"\n')

    assert agent_config(AgentOptions(path), {}).labels == {"region": "eu"}
    assert agent_config(AgentOptions(path), {"ROTA_LABELS": "a=b,c=d"}).labels == {"a": "b", "c": "d"}
    assert agent_config(AgentOptions(path, labels={"x": "y"}), {}).labels == {"x": "y"}


def test_whole_numbers_are_numbers_too(tmp_path: Path) -> None:
    assert agent_config(AgentOptions(write(tmp_path, "cpu = 2\n")), {}).cpu == 2.0


NAMES = "write host names or addresses without a port, as rota.example.org"
PLAIN_TEXT = (
    "name the CA certificate of etcd, or set etcd.allow_plain_text = true: "
    "then the cluster's keys and tokens cross the network unencrypted"
)
TOGETHER = "name both crt_file and key_file, or set use_tls = false"
CONTRACT = (Path(__file__).parents[1] / "gateway" / "worker-gateway.toml").read_text()


def is_gateway_open(folder: Path, text: str, **variables: str) -> bool | None:
    return server_config(ServerOptions(write(folder, text)), variables).worker_gateway.enabled


def test_the_worker_contracts_own_file_is_accepted_and_opens_the_gateway(tmp_path: Path) -> None:
    config = server_config(ServerOptions(write(tmp_path, CONTRACT)), {})

    assert (config.grpc_server.use_tls, config.grpc_server.crt_file) == (False, "server.pem")
    assert not Path("server.pem").exists()
    assert config.worker_gateway.enabled


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", 'name = "mine"\n'),
        ("", "[retention]\njobs_count = 5\n"),
        ("[http_server]", "[http_server]\nuse_tls = false"),
        ('[http_server]\naddr = "127.0.0.1:3000"', ""),
        ('"127.0.0.1:3000"', '"0.0.0.0:3000"'),
        (
            '"127.0.0.1:50000"\nuse_tls = false\ncrt_file = "server.pem"\nkey_file = "server.key"',
            '"0.0.0.0:1"',
        ),
    ],
)
def test_a_file_with_a_further_key_or_an_address_off_loopback_does_not_open_it(
    tmp_path: Path, old: str, new: str
) -> None:
    assert old in CONTRACT

    assert is_gateway_open(tmp_path, CONTRACT.replace(old, new, 1)) is False


def test_an_explicit_gateway_setting_takes_precedence_over_the_form_of_the_file(tmp_path: Path) -> None:
    off, on = "[worker_gateway]\nenabled = false\n", "[worker_gateway]\nenabled = true\n"

    assert is_gateway_open(tmp_path, CONTRACT + off) is False
    assert is_gateway_open(tmp_path, CONTRACT, ROTA_WORKER_GATEWAY_ENABLED="false") is False
    assert is_gateway_open(tmp_path, on) is True
    assert server_config(ServerOptions(), {}).worker_gateway.enabled is False


def test_a_port_by_flag_or_environment_does_not_change_the_gateway_setting(tmp_path: Path) -> None:
    moved = ServerOptions(write(tmp_path, CONTRACT), http_addr="127.0.0.1:0", data_dir="/data")
    elsewhere = ServerOptions(write(tmp_path, CONTRACT), http_addr="0.0.0.0:0")

    assert server_config(moved, {"ROTA_GRPC_SERVER_ADDR": "127.0.0.1:0"}).worker_gateway.enabled
    assert server_config(elsewhere, {}).worker_gateway.enabled is False


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("stor = 'memory'", "stor", "did you mean store?"),
        ("[http_srver]\naddr = 'x'", "[http_srver]", "did you mean http_server?"),
        ("[http_server]\nadr = 'x'", "http_server.adr", "did you mean http_server.addr?"),
        ("http_server = 'x'", "http_server", "write [http_server]"),
        ("store = 3", "store", 'write text, as "…"'),
        ("store = 'etc'", "store", "write one of sqlite, memory, or etcd://host:port,host:port,host:port"),
        ("store = 'etcd://a'", "store", "write host:port, as 127.0.0.1:3000"),
        ("[etcd]\nttl_seconds = 1", "etcd.ttl_seconds", "write 2 to 300 seconds"),
        ("[etcd]\nuser = 'x'", "etcd.password_file", "user and password_file come together"),
        ("name = ''", "name", "leave it out or give the cluster a name of at most 128 characters"),
        ("lost_seconds = 0", "lost_seconds", "write 1 to 86400 seconds"),
        ("[http_server]\nmax_connections = 0", "http_server.max_connections", "write 1 to 1000000"),
        ("[limits]\nrequests_per_second = 0", "limits.requests_per_second", "write 1 to 1000000"),
        ("[limits]\nrequests_at_once = 0", "limits.requests_at_once", "write 1 to 1000000"),
        ("[grpc_server]\nidle_seconds = 9999", "grpc_server.idle_seconds", "write 1 to 3600 seconds"),
        ("[http_server]\nnames = ['a b']", "http_server.names", NAMES),
        ("store = 'etcd://10.0.0.1:2379'", "etcd.ca_file", PLAIN_TEXT),
        ("store = 'etcd://localhost:2379,10.0.0.1:2379'", "etcd.ca_file", PLAIN_TEXT),
        ("[http_server]\nhead_seconds = 0", "http_server.head_seconds", "write 1 to 3600 seconds"),
        ("[grpc_server]\nuse_tls = 'yes'", "grpc_server.use_tls", "write true or false"),
        ("[http_server]\naddr = '3000'", "http_server.addr", "write host:port, as 127.0.0.1:3000"),
        ("[agent_server]\naddr = 'h:99999'", "agent_server.addr", "write host:port, as 127.0.0.1:3000"),
        ("[http_server]\ncrt_file = 'c'", "http_server.key_file", TOGETHER),
        ("[grpc_server]\nuse_tls = true", "grpc_server.crt_file", TOGETHER),
        ("[http_server]\nuse_tls = true\nkey_file = 'k'", "http_server.crt_file", TOGETHER),
        ("[worker_gateway]\nca_file = '/'", "worker_gateway.ca_file", "name a readable file"),
        ("[worker_gateway]\nenable = true", "worker_gateway.enable", "did you mean worker_gateway.enabled?"),
        ("[worker_gateway]\nenabled = 1", "worker_gateway.enabled", "write true or false"),
        (
            "[http_server]\naddr = '0.0.0.0:1'\nuse_tls = false",
            "http_server.use_tls",
            "remove use_tls = false",
        ),
    ],
)
def test_an_invalid_value_is_named_with_what_would_be_accepted(
    tmp_path: Path, text: str, key: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        server_config(ServerOptions(write(tmp_path, text)), {})

    assert (caught.value.field, caught.value.hint) == (key, hint)


def test_plain_text_to_etcd_outside_loopback_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "store = 'etcd://10.0.0.1:2379'\n[etcd]\nallow_plain_text = true")

    assert outcome(["config", "check", file]) == 0

    printed = capsys.readouterr()
    assert "WARNING: the connection to etcd at 10.0.0.1:2379 is plain text" in printed.out + printed.err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# a remark\n\n[http_server]\nadr = 'x'", 4),
        ("name = 'a'\n[grpc_server]\naddr = '127.0.0.1:1'\nuse_tls = 'yes'", 4),
        ("[http_server]\n[grpc_server]  # TLS\nuse_tls = true", 2),
        ("\n[http_srver]\naddr = 'x'", 2),
        ("[worker_gateway]\nca_file = '/nowhere'", 2),
    ],
)
def test_the_line_of_an_error_is_named(tmp_path: Path, text: str, line: int) -> None:
    path = write(tmp_path, text)

    with pytest.raises(ConfigError, match=f"^{path}, line {line}: "):
        server_config(ServerOptions(path), {})


def test_an_error_in_a_flag_or_variable_names_no_line_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[http_server]\naddr = '127.0.0.1:1'\n[grpc_server]\naddr = '127.0.0.1:2'")

    with pytest.raises(ConfigError, match=r"^http_server\.addr: "):
        server_config(ServerOptions(path, http_addr="x"), {})
    with pytest.raises(ConfigError, match=r"^grpc_server\.addr: "):
        server_config(ServerOptions(path), {"ROTA_GRPC_SERVER_ADDR": "x"})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("join = 'http://x'", "join"),
        ("cpu = 0", "cpu"),
        ("cpu = true", "cpu"),
        ("labels = {a = 1}", "labels.a"),
    ],
)
def test_an_agents_file_is_checked_too(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        agent_config(AgentOptions(write(tmp_path, text)), {})

    assert caught.value.field == key


@pytest.mark.parametrize(("variable", "value"), [("ROTA_CPU", "two"), ("ROTA_LABELS", "region")])
def test_a_wrong_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        agent_config(AgentOptions(), {variable: value})


@pytest.mark.parametrize("text", ["store =", "\x00"])
def test_a_file_that_is_not_toml_is_rejected(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="is not TOML"):
        server_config(ServerOptions(write(tmp_path, text)), {})


def test_the_defaults_build_the_default_configuration() -> None:
    assert build(ServerConfig, sources(ServerConfig, None, {}, {})) == ServerConfig()
    assert build(AgentConfig, sources(AgentConfig, None, {}, {})) == AgentConfig()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("report_seconds = {least = 0.5}", "report_seconds.least"),
        ("report_seconds = {most = 61}", "report_seconds.most"),
        ("report_seconds = {least = 5, most = 4}", "report_seconds.least"),
        ("[report_seconds]\nleast = 'often'", "report_seconds.least"),
    ],
)
def test_invalid_report_interval_bounds_are_named(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        server_config(ServerOptions(write(tmp_path, text)), {})

    assert caught.value.field == key


def test_an_invalid_drain_time_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        agent_config(AgentOptions(drain="soon"), {})

    assert caught.value.field == "drain"


def test_no_two_keys_share_an_environment_variable() -> None:
    variables = [key.variable for key in schema(ServerConfig).values()]

    assert len(variables) == len(set(variables)) == 42
