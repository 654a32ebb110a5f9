"""Configuration of `rota watcher`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rota.config import ConfigError, check_address, default_data_dir
from rota.config.keys import at_its_line, build, sources
from rota.model.names import NAME_HINT, is_name

AGENT_ADDR = "127.0.0.1:50002"


@dataclass(frozen=True)
class WatcherConfig:
    """Configuration of a watcher; `join` is needed once."""

    data_dir: str | None = None
    name: str | None = None
    join: str | None = None
    agent_addr: str = AGENT_ADDR  # the address that agents connect to, host:port
    server_addr: str | None = None  # agent ports of the only servers to use; unset: as the leader lists them


@dataclass(frozen=True)
class WatcherOptions:
    """Options of `rota watcher`: a file, and flags that override it."""

    config_file: str | None = None
    join: str | None = None
    data_dir: str | None = None
    name: str | None = None
    agent_addr: str | None = None

    @property
    def flags(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "config_file"}


def watcher_config(options: WatcherOptions, environ: Mapping[str, str] = os.environ) -> WatcherConfig:
    """The watcher's configuration, checked; its data directory is always set."""
    with at_its_line(options.config_file, options.flags, environ):
        config = build(WatcherConfig, sources(WatcherConfig, options.config_file, options.flags, environ))
        _check(config)
    return replace(config, data_dir=config.data_dir or default_data_dir("watcher", environ))


def _check(config: WatcherConfig) -> None:
    if config.join is not None and not config.join.startswith("rota://"):
        hint = "`rota watcher token` prints one: rota://host:port?token=…&ca=…"
        raise ConfigError("join", "is not a join line", hint)
    if config.name is not None and not is_name(config.name):
        raise ConfigError("name", f"{config.name[:60]!r} is not a name", NAME_HINT)
    check_address("agent_addr", config.agent_addr)
    host = config.agent_addr.rpartition(":")[0].strip("[]")
    if config.agent_addr.endswith(":0") or host in ("0.0.0.0", "::"):
        problem = f"agents cannot find this watcher at {config.agent_addr}"
        raise ConfigError("agent_addr", problem, "name its host and port")
    for addr in [] if config.server_addr is None else config.server_addr.split(","):
        check_address("server_addr", addr)
