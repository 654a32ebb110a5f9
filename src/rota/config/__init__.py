"""Configuration of servers, agents and dev clusters: flag > environment > file > default."""

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rota.config.etcd import SCHEME, EtcdConfig, check_etcd, endpoints
from rota.config.keys import ConfigError as ConfigError
from rota.config.keys import Key as Key
from rota.config.keys import Sourced as Sourced
from rota.config.keys import at_its_line as at_its_line
from rota.config.keys import build as build
from rota.config.keys import keys_in as keys_in
from rota.config.keys import read_toml as read_toml
from rota.config.keys import schema as schema
from rota.config.keys import sources as sources
from rota.model.amounts import CPU, DISK, GPU, MEMORY, parse_count, parse_cpu, parse_seconds, parse_size
from rota.model.errors import BadField
from rota.model.limits import (
    AMOUNT_MAX,
    BODY_SECONDS,
    CONNECTIONS_LIMIT,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_MAX,
    DRAIN_SECONDS_MAX,
    GPUS_MAX,
    GRPC_CONNECTIONS_MAX,
    GRPC_IDLE_SECONDS,
    HEAD_SECONDS,
    IDLE_SECONDS,
    JOBS_AGE_MS,
    JOBS_KEPT,
    JOBS_KEPT_MAX,
    KEEP_SECONDS_MAX,
    LABEL_VALUE_MAX,
    LABELS_MAX,
    NAME_LENGTH_MAX,
    RENEWAL_WINDOW_SECONDS,
    RENEWAL_WINDOW_SECONDS_MAX,
    REPORT_LEAST_MS,
    REPORT_MOST_MS,
    REQUEST_SECONDS_MAX,
    REQUESTS_AT_ONCE,
    REQUESTS_PER_SECOND,
    REQUESTS_PER_SECOND_MAX,
    RESOURCES_MAX,
    TIMEOUT_SECONDS_MAX,
)
from rota.model.names import NAME_HINT, is_label, is_loopback, is_name, is_port, is_resource
from rota.rules.node_labels import PREFIX

HOST_NAME = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)
STORES = ("sqlite", "memory")
HTTP_PORT, GRPC_PORT, AGENT_PORT = 3000, 50000, 50001
GPU_MODEL = "gpu_model"  # a label
CONTRACT_KEYS = frozenset(  # keys of a configuration file as the worker contract defines it
    {"grpc_server.addr", "grpc_server.use_tls", "grpc_server.crt_file", "grpc_server.key_file"}
    | {"http_server.addr"}
)

T = TypeVar("T")


@dataclass(frozen=True)
class HttpServerConfig:
    """The HTTP port for users: `/v1` and enrolment. `use_tls` unset: off on loopback, on elsewhere.

    A TLS handshake and the head of a request have `head_seconds` to arrive, a body has `body_seconds`; a
    connection without a request is closed after `idle_seconds`. Responses have no time limit.
    """

    addr: str = f"127.0.0.1:{HTTP_PORT}"
    use_tls: bool | None = None
    crt_file: str | None = None
    key_file: str | None = None
    names: list[str] = field(default_factory=list)  # further host names that requests may use
    max_connections: int = CONNECTIONS_MAX
    max_connections_per_address: int = CONNECTIONS_PER_ADDRESS_MAX
    head_seconds: float = HEAD_SECONDS
    body_seconds: float = BODY_SECONDS
    idle_seconds: float = IDLE_SECONDS


@dataclass(frozen=True)
class GrpcServerConfig:
    """The gRPC port for external controllers. `use_tls` unset: off on loopback, on elsewhere.

    A connection without a call is closed after `idle_seconds`.
    """

    addr: str = f"127.0.0.1:{GRPC_PORT}"
    use_tls: bool | None = None
    crt_file: str | None = None
    key_file: str | None = None
    max_connections: int = GRPC_CONNECTIONS_MAX
    idle_seconds: float = GRPC_IDLE_SECONDS


@dataclass(frozen=True)
class AgentServerConfig:
    """The port for agents; a client certificate is always required there."""

    addr: str = f"127.0.0.1:{AGENT_PORT}"


@dataclass(frozen=True)
class WorkerGatewayConfig:
    """Workers written by others: they register at `grpc_server`, and are dialled; `ca_file` verifies them.

    `enabled` unset: on if the file has only keys of the worker contract, and both addresses are loopback.
    """

    enabled: bool | None = None
    ca_file: str | None = None


@dataclass(frozen=True)
class PlacementConfig:
    """Placement. `interference` is the score penalty between kinds of noise, as `disk/net = "10"`.

    Labels named in `granted_labels` have an effect only where a join token or an operator granted them.
    """

    backfill: bool = True
    granted_labels: list[str] = field(default_factory=list)
    interference: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportSecondsConfig:
    """Bounds between which the server chooses the load report interval of nodes."""

    least: float = REPORT_LEAST_MS / 1000
    most: float = REPORT_MOST_MS / 1000


@dataclass(frozen=True)
class RetentionConfig:
    """Retention of ended jobs, by age and by count; a job's own `keep` overrides the age."""

    jobs_age: str = f"{JOBS_AGE_MS // 3_600_000}h"
    jobs_count: int = JOBS_KEPT

    @property
    def age_seconds(self) -> float:
        try:
            return parse_seconds("retention.jobs_age", self.jobs_age, KEEP_SECONDS_MAX)
        except BadField as error:
            raise ConfigError("retention.jobs_age", f"{self.jobs_age!r} cannot be used", error.hint) from None


@dataclass(frozen=True)
class Limits:
    """Rate limit of one token, and its burst above that rate, over HTTP and gRPC together."""

    requests_per_second: float = REQUESTS_PER_SECOND
    requests_at_once: int = REQUESTS_AT_ONCE


@dataclass(frozen=True)
class CertificatesConfig:
    """How long after its expiry a node may renew its certificate; later it has to join again."""

    renewal_window: str = f"{RENEWAL_WINDOW_SECONDS // 3600}h"


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of a server; a node is lost after `lost_seconds` of silence.

    With `never_lead` it is a standby that is never elected: it answers reads and forwards the others.
    """

    http_server: HttpServerConfig = HttpServerConfig()
    grpc_server: GrpcServerConfig = GrpcServerConfig()
    agent_server: AgentServerConfig = AgentServerConfig()
    worker_gateway: WorkerGatewayConfig = WorkerGatewayConfig()
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    report_seconds: ReportSecondsConfig = ReportSecondsConfig()
    retention: RetentionConfig = RetentionConfig()
    limits: Limits = Limits()
    certificates: CertificatesConfig = CertificatesConfig()
    etcd: EtcdConfig = field(default_factory=EtcdConfig)
    data_dir: str | None = None
    store: str = "sqlite"
    name: str = "default"
    lost_seconds: float = 30.0
    never_lead: bool = False


@dataclass(frozen=True)
class AgentConfig:
    """Configuration of an agent; `join` is needed once, and amounts replace what the machine has.

    On SIGTERM the node leaves and its tasks are stopped; with `drain` they have that long to end before. With
    `keep_work` only the agent ends, and the next one attaches to the tasks.
    `notice` is a command that exits with 0 when the machine is about to be terminated.
    """

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
    mounts: list[str] = field(default_factory=list)  # paths that containers may mount; `:ro`: read-only
    container_root: bool = False
    drain: str | None = None
    keep_work: bool = False
    notice: str | None = None
    log_bytes: str = "256m"
    logs_bytes: str = "10g"
    logs_age: str = "720h"
    run_as: str | None = None  # unset: own, or self where the agent is not root
    pids_max: int | None = None
    no_new_privs: bool = True
    output_bytes: str = "1Gi"


@dataclass(frozen=True)
class ChaosOptions:
    """Faults of a dev cluster: `seed` decides which and in which order, `pace` scales their intervals."""

    seed: int
    pace: float = 1.0


@dataclass(frozen=True)
class DevOptions:
    """Options of `rota dev`; port 0 means any free one."""

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
    elastic: tuple[int, int] | None = None  # minimum and maximum size of an elastic cluster


@dataclass(frozen=True)
class ServerOptions:
    """Options of `rota server`: a file, and flags that override it."""

    config_file: str | None = None
    data_dir: str | None = None
    store: str | None = None
    name: str | None = None
    http_addr: str | None = None
    grpc_addr: str | None = None
    agent_addr: str | None = None
    never_lead: bool = False

    @property
    def flags(self) -> dict[str, Any]:
        return {
            "never_lead": self.never_lead or None,
            "data_dir": self.data_dir,
            "store": self.store,
            "name": self.name,
            "http_server.addr": self.http_addr,
            "grpc_server.addr": self.grpc_addr,
            "agent_server.addr": self.agent_addr,
        }


@dataclass(frozen=True)
class AgentOptions:
    """Options of `rota agent`: a file, and flags that override it."""

    config_file: str | None = None
    join: str | None = None
    data_dir: str | None = None
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    cpu: float | None = None
    memory: str | None = None
    gpu_model: str | None = None
    drain: str | None = None
    keep_work: bool | None = None
    notice: str | None = None
    run_as: str | None = None
    pids_max: int | None = None

    @property
    def flags(self) -> dict[str, Any]:
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "config_file"}
        return {**given, "labels": dict(self.labels) or None, "resources": dict(self.resources) or None}


def server_config(options: ServerOptions, environ: Mapping[str, str] = os.environ) -> ServerConfig:
    """The server's configuration, checked; its data directory is always set."""
    with at_its_line(options.config_file, options.flags, environ):
        config = build(ServerConfig, sources(ServerConfig, options.config_file, options.flags, environ))
        check_server(config)
    gateway = config.worker_gateway
    if gateway.enabled is None:
        is_contract = _is_contract_file(keys_in(ServerConfig, options.config_file))
        gateway = replace(gateway, enabled=is_contract and _is_loopback_only(config))
    data_dir = config.data_dir or default_data_dir("server", environ)
    return replace(config, worker_gateway=gateway, data_dir=data_dir)


def agent_config(options: AgentOptions, environ: Mapping[str, str] = os.environ) -> AgentConfig:
    """The agent's configuration, checked; its data directory is always set."""
    with at_its_line(options.config_file, options.flags, environ):
        config = build(AgentConfig, sources(AgentConfig, options.config_file, options.flags, environ))
        check_agent(config)
    return replace(config, data_dir=config.data_dir or default_data_dir("agent", environ))


def _is_contract_file(keys: frozenset[str]) -> bool:
    """Whether a file has both sections of the worker contract's configuration and no other key."""
    sections = {key.rpartition(".")[0] for key in keys}
    return sections == {"grpc_server", "http_server"} and keys <= CONTRACT_KEYS


def _is_loopback_only(config: ServerConfig) -> bool:
    addresses = (config.http_server.addr, config.grpc_server.addr)
    return all(is_loopback(addr.rpartition(":")[0].strip("[]")) for addr in addresses)


def check_server(config: ServerConfig) -> None:
    """Raise ConfigError for values that are well formed but cannot be used, or not together."""
    check_store(config)
    if not config.name.strip() or len(config.name) > NAME_LENGTH_MAX or not config.name.isprintable():
        hint = f"leave it out or give the cluster a name of at most {NAME_LENGTH_MAX} characters"
        raise ConfigError("name", f"{config.name[:60]!r} cannot be used", hint)
    if not 1 <= config.lost_seconds <= 86400:
        raise ConfigError("lost_seconds", f"{config.lost_seconds} cannot be used", "write 1 to 86400 seconds")
    check_reports(config.report_seconds)
    check_file("worker_gateway.ca_file", config.worker_gateway.ca_file)
    count = config.retention.jobs_count
    if config.retention.age_seconds < 0 or not 0 <= count <= JOBS_KEPT_MAX:
        hint = f"write 0 to {JOBS_KEPT_MAX}"
        raise ConfigError("retention.jobs_count", "is out of range", hint)
    renewal_window(config.certificates)
    check_granted_labels(config.placement.granted_labels)
    for name, listener in (("http_server", config.http_server), ("grpc_server", config.grpc_server)):
        check_listener(name, listener)
    check_names(config.http_server.names)
    check_connections(config)
    check_limits(config.limits)
    check_address("agent_server.addr", config.agent_server.addr)


def check_names(names: list[str]) -> None:
    """Raise ConfigError unless all are host names or addresses without a port."""
    for name in names:
        if not HOST_NAME.fullmatch(name):
            hint = "write host names or addresses without a port, as rota.example.org"
            raise ConfigError("http_server.names", f"{name[:60]!r} is not a host name", hint)


def check_connections(config: ServerConfig) -> None:
    """Check the limits of listeners on connections, and their timeouts."""
    http, grpc = config.http_server, config.grpc_server
    counts = {
        "http_server.max_connections": http.max_connections,
        "http_server.max_connections_per_address": http.max_connections_per_address,
        "grpc_server.max_connections": grpc.max_connections,
    }
    timeouts = {
        "http_server.head_seconds": http.head_seconds,
        "http_server.body_seconds": http.body_seconds,
        "http_server.idle_seconds": http.idle_seconds,
        "grpc_server.idle_seconds": grpc.idle_seconds,
    }
    for key, count in counts.items():
        if not 1 <= count <= CONNECTIONS_LIMIT:
            raise ConfigError(key, f"{count} cannot be used", f"write 1 to {CONNECTIONS_LIMIT}")
    for key, seconds in timeouts.items():
        if not 1 <= seconds <= REQUEST_SECONDS_MAX:
            hint = f"write 1 to {REQUEST_SECONDS_MAX:g} seconds"
            raise ConfigError(key, f"{seconds:g} cannot be used", hint)


def check_limits(limits: Limits) -> None:
    counts = {
        "limits.requests_per_second": limits.requests_per_second,
        "limits.requests_at_once": limits.requests_at_once,
    }
    for key, count in counts.items():
        if not 1 <= count <= REQUESTS_PER_SECOND_MAX:
            raise ConfigError(key, f"{count:g} cannot be used", f"write 1 to {REQUESTS_PER_SECOND_MAX}")


def check_granted_labels(keys: list[str]) -> None:
    if len(keys) > LABELS_MAX:
        hint = f"write at most {LABELS_MAX}"
        raise ConfigError("placement.granted_labels", f"has {len(keys)} entries", hint)
    for key in keys:
        if not is_label(key) or key.startswith(PREFIX):
            hint = f"name labels as nodes declare them, without {PREFIX!r}: pool"
            raise ConfigError("placement.granted_labels", f"{key[:60]!r} is not a label's name", hint)


def renewal_window(certificates: CertificatesConfig) -> timedelta:
    key, window = "certificates.renewal_window", certificates.renewal_window
    try:
        return timedelta(seconds=parse_seconds(key, window, RENEWAL_WINDOW_SECONDS_MAX))
    except BadField as error:
        raise ConfigError(key, f"{window!r} cannot be used", error.hint) from None


def check_listener(name: str, listener: HttpServerConfig | GrpcServerConfig) -> None:
    host = check_address(f"{name}.addr", listener.addr)
    if listener.use_tls is not False:  # without TLS the certificate files are not read
        check_certificate_files(name, listener)
    elif not is_loopback(host):
        raise ConfigError(
            f"{name}.use_tls",
            f"plain text is refused off loopback ({listener.addr})",
            "remove use_tls = false",
        )


def check_certificate_files(name: str, listener: HttpServerConfig | GrpcServerConfig) -> None:
    crt_file, key_file = listener.crt_file, listener.key_file
    if (crt_file is None) != (key_file is None) or (listener.use_tls and crt_file is None):
        missing = "crt_file" if crt_file is None else "key_file"
        hint = "name both crt_file and key_file, or set use_tls = false"
        raise ConfigError(f"{name}.{missing}", "is missing", hint)
    for part, path in (("crt_file", crt_file), ("key_file", key_file)):
        check_file(f"{name}.{part}", path)


def check_file(key: str, path: str | None) -> None:
    try:
        if path is not None:
            open(path, "rb").close()
    except OSError as error:
        raise ConfigError(key, f"{path} cannot be read: {error.strerror}", "name a readable file") from None


def check_store(config: ServerConfig) -> None:
    for endpoint in endpoints(config.store):
        check_address("store", endpoint)
    if config.store not in STORES and not config.store.startswith(SCHEME):
        known = f"write one of {', '.join(STORES)}, or {SCHEME}host:port,host:port,host:port"
        raise ConfigError("store", f"{config.store!r} is no store", known)
    if config.never_lead and config.store in STORES:
        raise ConfigError(
            "never_lead", f"no other server can lead on {config.store}", f"write store = {SCHEME}host:port"
        )
    check_etcd(config.etcd, config.store)


def check_reports(interval: ReportSecondsConfig) -> None:
    low, high = interval.least, interval.most
    for name, seconds in (("least", low), ("most", high)):
        if not REPORT_LEAST_MS <= seconds * 1000 <= REPORT_MOST_MS:
            hint = f"write {REPORT_LEAST_MS / 1000:g} to {REPORT_MOST_MS / 1000:g} seconds"
            raise ConfigError(f"report_seconds.{name}", f"{seconds} cannot be used", hint)
    if low > high:
        raise ConfigError(
            "report_seconds.least", f"{low} is above most, {high}", "write the smaller one here"
        )


def check_agent(config: AgentConfig) -> None:
    if config.join is not None and not config.join.startswith("rota://"):
        raise ConfigError(
            "join", "is not a join line", "`rota node token` prints one: rota://host:port?token=…&ca=…"
        )
    for addr in [] if config.server_addr is None else config.server_addr.split(","):
        check_address("server_addr", addr)
    if config.name is not None and not is_name(config.name):
        raise ConfigError("name", f"{config.name[:60]!r} is not a name", NAME_HINT)
    check_resources(config.resources)
    check_labels(config)
    check_amounts(config)
    drain_seconds(config)
    check_notice(config.notice)
    check_mounts(config.mounts)


def check_resources(resources: Mapping[str, str]) -> None:
    if len(resources) > RESOURCES_MAX:
        raise ConfigError("resources", f"has {len(resources)} entries", f"write at most {RESOURCES_MAX}")
    for name, amount in resources.items():
        if name in (CPU, MEMORY, DISK) or not is_resource(name):
            hint = "name a resource of your own, or gpu, and a whole number of it: licence=3"
            raise ConfigError(f"resources.{name[:60]}", "is not a name for a resource", hint)
        most = GPUS_MAX if name == GPU else AMOUNT_MAX
        usable(f"resources.{name}", partial(parse_count, low=0, high=most), amount)


def check_labels(config: AgentConfig) -> None:
    if len(config.labels) > LABELS_MAX:
        raise ConfigError("labels", f"has {len(config.labels)} entries", f"write at most {LABELS_MAX}")
    for name, value in config.labels.items():
        if not is_label(name):
            hint = "use letters, digits, '.', '_', '-' and '/'"
            raise ConfigError(f"labels.{name[:60]}", "is not a label's name", hint)
        if name.startswith(PREFIX):
            hint = "a node cannot grant itself labels: rota node label, or rota node token --label"
            raise ConfigError(f"labels.{name}", "is not a label that a node declares", hint)
        if len(value) > LABEL_VALUE_MAX or "\0" in value:
            hint = f"write at most {LABEL_VALUE_MAX} characters"
            raise ConfigError(f"labels.{name}", f"{value[:60]!r} cannot be used", hint)
    if config.gpu_model is not None and config.labels.get(GPU_MODEL, config.gpu_model) != config.gpu_model:
        raise ConfigError("gpu_model", f"differs from the label {GPU_MODEL}", "say it once")


def check_amounts(config: AgentConfig) -> None:
    if config.cpu is not None and usable("cpu", parse_cpu, config.cpu) == 0:
        raise ConfigError("cpu", f"{config.cpu} is not a number of cores", "write a number above 0")
    for key in ("memory", "log_bytes", "logs_bytes", "output_bytes"):
        if (value := getattr(config, key)) is not None:
            usable(key, parse_size, value)
    usable("logs_age", partial(parse_seconds, high=TIMEOUT_SECONDS_MAX), config.logs_age)


def usable(key: str, parse: Callable[[str, object], T], value: object) -> T:
    """The value parsed by a function of rota.model.amounts; raises ConfigError, with the key, if it fails."""
    try:
        return parse(key, value)
    except BadField as error:
        raise ConfigError(key, str(error).removeprefix(f"{key}: "), error.hint) from None


def check_notice(command: str | None) -> None:
    if command is None:
        return
    try:
        words = shlex.split(command)
    except ValueError:
        raise ConfigError("notice", "has a quote that is not closed", "close it") from None
    if not words:
        raise ConfigError("notice", "is empty", "write a command, as cat /run/taken-away, or leave it out")


def check_mounts(mounts: list[str]) -> None:
    for mount in mounts:
        if not mount.startswith("/"):
            raise ConfigError("mounts", f"{mount!r} is no absolute path", "write /data, or /data:ro")


def drain_seconds(config: AgentConfig) -> float | None:
    """How long tasks may take to end by themselves when the node leaves; None: they are stopped at once."""
    if config.drain is None:
        return None
    if config.keep_work:
        raise ConfigError("drain", "has no effect with keep_work", "leave out drain, or keep_work")
    return usable("drain", partial(parse_seconds, high=DRAIN_SECONDS_MAX), config.drain)


def check_address(key: str, addr: str) -> str:
    """`host:port` -> host; raises ConfigError if it is no address."""
    host, _, port = addr.rpartition(":")
    if not host or not is_port(port):
        raise ConfigError(key, f"{addr[:300]!r} is not an address", "write host:port, as 127.0.0.1:3000")
    return host.strip("[]")


def machines_dir(data_dir: Path) -> Path:
    """The directory of the machines that a server creates on its own machine.

    As root it is beside the data directory: tasks run as users of their own there, which may not enter it.
    """
    server_dir = data_dir.absolute()
    if os.geteuid() == 0:
        return server_dir.with_name(f"{server_dir.name}-machines")
    return server_dir / "machines"


def default_data_dir(role: str, environ: Mapping[str, str] = os.environ) -> str:
    """The default data directory of `server`, `agent`, `watcher` or `dev`."""
    if os.geteuid() == 0:
        return f"/var/lib/rota/{role}"
    home = environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(home, "rota", role)
