"""A data directory has one server or one agent; a second one exits immediately with the reason."""

import pytest

from rota.testing.cluster import LocalCluster

pytestmark = pytest.mark.system


def test_a_second_server_on_the_same_directory_exits_immediately(shared: LocalCluster) -> None:
    addresses = [f"--{door}-addr=127.0.0.1:0" for door in ("http", "grpc", "agent")]

    ran = shared.rota("server", "--data-dir", str(shared.directory / "server"), *addresses)

    assert ran.code == 75
    assert ran.err.startswith("error: already_running: ")
    assert str(shared.directory / "server") in ran.err
    assert shared.rota("run", "--", "true").code == 0, "the first one goes on"


def test_a_second_agent_on_the_same_directory_exits_immediately(shared: LocalCluster) -> None:
    ran = shared.rota("agent", "--data-dir", str(shared.node_directory(1)))

    assert ran.code == 75
    assert ran.err.startswith("error: already_running: ")
    assert shared.rota("run", "--", "true").code == 0, "the first one goes on"


def test_a_second_server_on_the_same_port_names_it(shared: LocalCluster) -> None:
    other = str(shared.directory / "other-server")

    ran = shared.rota(
        "server", "--data-dir", other, "--http-addr", shared.http, ROTA_CONFIG=f"{other}/config.toml"
    )

    assert ran.code == 2
    assert f"http_server.addr: {shared.http}" in ran.err
