"""An agent may be configured to connect to another address than the server names."""

import pytest

from rota.config import AgentOptions, ConfigError, agent_config


def test_the_address_comes_from_the_environment() -> None:
    config = agent_config(AgentOptions(), {"ROTA_SERVER_ADDR": "127.0.0.1:4000", "HOME": "/tmp"})

    assert config.server_addr == "127.0.0.1:4000"


@pytest.mark.parametrize("addr", ["nowhere", "host:", ":1", "host:99999"])
def test_an_invalid_address_is_refused(addr: str) -> None:
    with pytest.raises(ConfigError, match="server_addr"):
        agent_config(AgentOptions(), {"ROTA_SERVER_ADDR": addr, "HOME": "/tmp"})
