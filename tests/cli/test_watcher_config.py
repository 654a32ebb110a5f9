"""Settings of `rota watcher`: an invalid value is rejected by its key."""

import pytest

from rota.config import ConfigError
from rota.config.watcher import AGENT_ADDR, WatcherOptions, watcher_config


def test_flags_take_precedence_over_variables_and_defaults() -> None:
    environ = {"ROTA_NAME": "edge-1", "ROTA_SERVER_ADDR": "10.0.0.1:50001,10.0.0.2:50001"}
    config = watcher_config(WatcherOptions(name="edge-2"), environ)

    assert (config.name, config.agent_addr) == ("edge-2", AGENT_ADDR)
    assert config.server_addr == environ["ROTA_SERVER_ADDR"]
    assert config.data_dir


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (WatcherOptions(join="10.0.0.1:3000"), "join"),
        (WatcherOptions(name="two words"), "name"),
        (WatcherOptions(agent_addr="0.0.0.0:50002"), "agent_addr"),
        (WatcherOptions(agent_addr="10.0.0.1:0"), "agent_addr"),
        (WatcherOptions(agent_addr="10.0.0.1"), "agent_addr"),
    ],
)
def test_an_invalid_value_is_rejected_by_its_key(options: WatcherOptions, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        watcher_config(options, {})

    assert refused.value.field == key
