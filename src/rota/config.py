"""Flag > environment > file > default: what a server, an agent or a dev cluster is told, and by whom."""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rota.model.addresses import is_loopback
from rota.model.amounts import GPU
from rota.model.limits import GPUS_MAX

STORES = ("sqlite", "memory")
HTTP_PORT = 3000
GRPC_PORT = 50000
AGENT_PORT = 50001
GPU_MODEL = "gpu_model"  # the label


class ConfigError(ValueError):
    """The user's: a key that is unknown or has a value that cannot be used."""

    code = "bad_config"
    exit_code = 2

    def __init__(self, key: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.field = key or None
        self.hint = hint


@dataclass(frozen=True)
class HttpServer:
    """The door for users: `/v1`, the dashboard, enrolment. `use_tls` unset: off on loopback, on elsewhere."""

    addr: str = f"127.0.0.1:{HTTP_PORT}"
    use_tls: bool | None = None
    crt_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True)
class GrpcServer:
    """The door for controllers from outside. `use_tls` unset: off on loopback, on elsewhere."""

    addr: str = f"127.0.0.1:{GRPC_PORT}"
    use_tls: bool | None = None
    crt_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True)
class AgentServer:
    """The door for agents; a client certificate is always required there."""

    addr: str = f"127.0.0.1:{AGENT_PORT}"


@dataclass(frozen=True)
class Placement:
    """How tasks get their nodes. `interference` is what neighbours cost each other, as `disk/net = "10"`."""

    backfill: bool = True
    interference: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerConfig:
    """All a server is told; a node is lost after `lost_seconds` of silence."""

    http_server: HttpServer = HttpServer()
    grpc_server: GrpcServer = GrpcServer()
    agent_server: AgentServer = AgentServer()
    placement: Placement = field(default_factory=Placement)
    data_dir: str | None = None
    store: str = "sqlite"
    name: str = "default"
    lost_seconds: float = 30.0


@dataclass(frozen=True)
class AgentConfig:
    """All an agent is told; `join` is needed once, the amounts replace what the machine has."""

    data_dir: str | None = None
    name: str | None = None
    join: str | None = None
    server_addr: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    cpu: float | None = None
    memory: str | None = None
    gpu_model: str | None = None
    container: str | None = None  # podman, docker, none, or the path of one
    mounts: list[str] = field(default_factory=list)  # what containers may see; `:ro`: for reading only
    container_root: bool = False


@dataclass(frozen=True)
class ChaosOptions:
    """Which acts a dev cluster suffers, in which order, and how fast; the pace scales pauses and outages."""

    seed: int
    pace: float = 1.0


@dataclass(frozen=True)
class DevOptions:
    """What `rota dev` was asked for; port 0 means any free one."""

    nodes: int = 1
    listen: str | None = None
    http_port: int = HTTP_PORT
    grpc_port: int = GRPC_PORT
    agent_port: int = AGENT_PORT
    data_dir: str | None = None
    store: str = "sqlite"
    chaos: ChaosOptions | None = None
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by node; "" is every node
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerOptions:
    """What `rota server` was asked for: a file, and values that win over it."""

    config_file: str | None = None
    data_dir: str | None = None
    store: str | None = None
    name: str | None = None
    http_addr: str | None = None
    grpc_addr: str | None = None
    agent_addr: str | None = None

    @property
    def flags(self) -> dict[str, Any]:
        return {
            "data_dir": self.data_dir,
            "store": self.store,
            "name": self.name,
            "http_server.addr": self.http_addr,
            "grpc_server.addr": self.grpc_addr,
            "agent_server.addr": self.agent_addr,
        }


@dataclass(frozen=True)
class AgentOptions:
    """What `rota agent` was asked for: a file, and values that win over it."""

    config_file: str | None = None
    join: str | None = None
    data_dir: str | None = None
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    cpu: float | None = None
    memory: str | None = None
    gpu_model: str | None = None

    @property
    def flags(self) -> dict[str, Any]:
        said = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "config_file"}
        return {**said, "labels": dict(self.labels) or None, "resources": dict(self.resources) or None}


@dataclass(frozen=True)
class Sourced:
    """One value and where it came from."""

    key: str
    value: Any
    source: str


Config = TypeVar("Config", ServerConfig, AgentConfig)


def server_config(options: ServerOptions, environ: Mapping[str, str] = os.environ) -> ServerConfig:
    """The server's configuration, checked; its data directory is always set."""
    config = build(ServerConfig, sources(ServerConfig, options.config_file, options.flags, environ))
    check_server(config)
    return replace(config, data_dir=config.data_dir or default_data_dir("server", environ))


def agent_config(options: AgentOptions, environ: Mapping[str, str] = os.environ) -> AgentConfig:
    """The agent's configuration, checked; its data directory is always set."""
    config = build(AgentConfig, sources(AgentConfig, options.config_file, options.flags, environ))
    check_agent(config)
    return replace(config, data_dir=config.data_dir or default_data_dir("agent", environ))


def sources(
    kind: type[Config], path: str | None, flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> list[Sourced]:
    """Every key with its value and where that was said."""
    known = schema(kind)
    said_in_file = _flat(read_toml(path), known) if path else {}
    return [_source(key, known[key], flags, environ, (path, said_in_file)) for key in known]


def build(kind: type[Config], values: list[Sourced]) -> Config:
    """Values by key -> the configuration."""
    tree: dict[str, Any] = {}
    for sourced in values:
        section, _, name = sourced.key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = sourced.value
    hints = get_type_hints(kind)
    said = {
        name: hints[name](**value) if is_dataclass(hints[name]) else value for name, value in tree.items()
    }
    return kind(**said)


def schema(kind: type[Any], prefix: str = "") -> dict[str, "Key"]:
    """Every key a configuration has, as `section.name`."""
    known: dict[str, Key] = {}
    hints = get_type_hints(kind)
    for item in fields(kind):
        hint = hints[item.name]
        if isinstance(hint, type) and is_dataclass(hint):
            known |= schema(hint, f"{item.name}.")
        else:
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            known[prefix + item.name] = Key(prefix + item.name, hint, default)
    return known


@dataclass(frozen=True)
class Key:
    """A key's type and default, and the environment variable that sets it."""

    name: str
    hint: Any
    default: Any

    @property
    def variable(self) -> str:
        return "ROTA_" + self.name.replace(".", "_").upper()

    @property
    def kind(self) -> type:
        """The type a value must have; `None` is said by leaving the key out."""
        options = get_args(self.hint) if isinstance(self.hint, UnionType) else (self.hint,)
        plain: type = next(option for option in options if option is not type(None))
        return get_origin(plain) or plain


def check_server(config: ServerConfig) -> None:
    """Values that are each well formed but cannot be used, or not together."""
    if config.store not in STORES:
        raise ConfigError("store", f"{config.store!r} is no store", f"write one of {', '.join(STORES)}")
    if not config.name.strip():
        raise ConfigError("name", "is empty", "leave it out or give the cluster a name")
    if not 1 <= config.lost_seconds <= 86400:
        raise ConfigError("lost_seconds", f"{config.lost_seconds} cannot be used", "write 1 to 86400 seconds")
    for name, door in (("http_server", config.http_server), ("grpc_server", config.grpc_server)):
        host = check_address(f"{name}.addr", door.addr)
        if (door.crt_file is None) != (door.key_file is None):
            lacking = "crt_file" if door.crt_file is None else "key_file"
            raise ConfigError(f"{name}.{lacking}", "is missing", "crt_file and key_file come together")
        if door.use_tls is False and not is_loopback(host):
            raise ConfigError(
                f"{name}.use_tls",
                f"plain text is refused off loopback ({door.addr})",
                "remove use_tls = false",
            )
    check_address("agent_server.addr", config.agent_server.addr)


def check_agent(config: AgentConfig) -> None:
    if config.join is not None and not config.join.startswith("rota://"):
        raise ConfigError(
            "join", "is not a join line", "`rota node token` prints one: rota://host:port?token=…&ca=…"
        )
    if config.server_addr is not None:
        check_address("server_addr", config.server_addr)
    for name, amount in config.resources.items():
        if name in ("cpu", "memory", "disk") or not amount.isdecimal():
            raise ConfigError(
                f"resources.{name}",
                f"{amount!r} cannot be used",
                "name a resource of your own, or gpu, and a whole number of it: licence=3",
            )
    if int(config.resources.get(GPU, 0)) > GPUS_MAX:
        raise ConfigError(f"resources.{GPU}", "is more than a node can have", f"write at most {GPUS_MAX}")
    if config.gpu_model is not None and config.labels.get(GPU_MODEL, config.gpu_model) != config.gpu_model:
        raise ConfigError("gpu_model", f"differs from the label {GPU_MODEL}", "say it once")
    for mount in config.mounts:
        if not mount.startswith("/"):
            raise ConfigError("mounts", f"{mount!r} is no absolute path", "write /data, or /data:ro")
    if config.cpu is not None and config.cpu <= 0:
        raise ConfigError("cpu", f"{config.cpu} is not a number of cores", "write a number above 0")


def check_address(key: str, addr: str) -> str:
    """`host:port` -> host, or an error that says what would be accepted."""
    host, _, port = addr.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(key, f"{addr!r} is not an address", "write host:port, as 127.0.0.1:3000")
    return host.strip("[]")


def default_data_dir(role: str, environ: Mapping[str, str] = os.environ) -> str:
    """Where `server`, `agent` or `dev` keeps its files unless told otherwise."""
    if os.geteuid() == 0:
        return f"/var/lib/rota/{role}"
    home = environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(home, "rota", role)


def read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("", f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("", f"{path} is not TOML: {error}") from None


def _source(
    key: str,
    known: Key,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file: tuple[str | None, dict[str, Any]],
) -> Sourced:
    path, said_in_file = file
    if flags.get(key) is not None:
        return Sourced(key, _checked(known, flags[key]), "flag")
    if environ.get(known.variable):
        return Sourced(key, _parsed(known, environ[known.variable]), f"environment {known.variable}")
    if key in said_in_file:
        return Sourced(key, _checked(known, said_in_file[key]), f"file {path}")
    return Sourced(key, known.default, "default")


def _flat(tree: Mapping[str, Any], known: Mapping[str, Key]) -> dict[str, Any]:
    """`{section: {name: value}}` -> `{section.name: value}`; what is not known is refused."""
    sections = {key.rpartition(".")[0] for key in known} - {""}
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if name in sections:
            if not isinstance(value, dict):
                raise ConfigError(name, "must be a section", f"write [{name}]")
            flat |= {f"{name}.{inner}": said for inner, said in value.items()}
        elif isinstance(value, dict) and name not in known:
            raise ConfigError(f"[{name}]", "there is no such section", _nearest(name, sections))
        else:
            flat[name] = value
    for key in flat:
        if key not in known:
            raise ConfigError(key, "there is no such key", _nearest(key, known))
    return flat


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"


_WORDS = {bool: "true or false", str: 'text, as "…"', float: "a number", dict: "a table of texts"}
_WORDS[list] = "a list of texts"


def _checked(known: Key, value: Any) -> Any:
    kind = known.kind
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is list and not all(isinstance(one, str) for one in value)):
        raise ConfigError(known.name, f"{value!r} cannot be used", f"write {_WORDS[kind]}")
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(inner, str):
                raise ConfigError(f"{known.name}.{name}", f"{inner!r} cannot be used", f"write {_WORDS[str]}")
    return value


def _parsed(known: Key, text: str) -> Any:
    """A value out of the environment, where all is text."""
    kind = known.kind
    if kind is bool:
        return _checked(known, {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text))
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(known.variable, f"{text!r} cannot be used", f"write {_WORDS[float]}") from None
    if kind is list:
        return text.split(",")
    if kind is dict:
        pairs = [pair.partition("=") for pair in text.split(",")]
        if not all(name and sign for name, sign, _ in pairs):
            raise ConfigError(known.variable, f"{text!r} cannot be used", "write name=value,name=value")
        return {name: value for name, _, value in pairs}
    return text
