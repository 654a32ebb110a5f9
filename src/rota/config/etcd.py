"""Configuration of the connection to etcd, and of the leader lease."""

from dataclasses import dataclass

from rota.config.keys import ConfigError
from rota.model.limits import LEADER_TTL_SECONDS, LEADER_TTL_SECONDS_MAX, LEADER_TTL_SECONDS_MIN
from rota.model.names import is_loopback

SCHEME = "etcd://"


@dataclass(frozen=True)
class EtcdConfig:
    """For `store = "etcd://host:port,…"`. TLS is used with `ca_file`; the password is read from a file."""

    prefix: str = "rota/"
    ttl_seconds: int = LEADER_TTL_SECONDS
    ca_file: str | None = None
    crt_file: str | None = None
    key_file: str | None = None
    user: str | None = None
    password_file: str | None = None
    allow_plain_text: bool = False  # off loopback


def plain_text_endpoint(config: EtcdConfig, store: str) -> str | None:
    """The first endpoint of etcd off this machine that is used without TLS; None: there is none."""
    if config.ca_file is not None:
        return None
    hosts = ((endpoint, endpoint.rpartition(":")[0].strip("[]")) for endpoint in endpoints(store))
    return next((endpoint for endpoint, host in hosts if not is_loopback(host)), None)


def check_etcd(config: EtcdConfig, store: str) -> None:
    endpoint = plain_text_endpoint(config, store)
    if endpoint is not None and not config.allow_plain_text:
        raise ConfigError(
            "etcd.ca_file",
            f"is missing: plain text is refused off loopback ({endpoint})",
            "name the CA certificate of etcd, or set etcd.allow_plain_text = true: "
            "then the cluster's keys and tokens cross the network unencrypted",
        )
    low, high = LEADER_TTL_SECONDS_MIN, LEADER_TTL_SECONDS_MAX
    if not low <= config.ttl_seconds <= high:
        raise ConfigError(
            "etcd.ttl_seconds", f"{config.ttl_seconds} cannot be used", f"write {low} to {high} seconds"
        )
    if not config.prefix.endswith("/"):
        raise ConfigError("etcd.prefix", f"{config.prefix!r} cannot be used", "end it with a slash, as rota/")
    if (config.crt_file is None) != (config.key_file is None):
        lacking = "crt_file" if config.crt_file is None else "key_file"
        raise ConfigError(f"etcd.{lacking}", "is missing", "crt_file and key_file come together")
    if config.crt_file is not None and config.ca_file is None:
        raise ConfigError("etcd.ca_file", "is missing", "name the CA certificate of etcd")
    if (config.user is None) != (config.password_file is None):
        lacking = "user" if config.user is None else "password_file"
        raise ConfigError(f"etcd.{lacking}", "is missing", "user and password_file come together")


def endpoints(store: str) -> tuple[str, ...]:
    """`etcd://a:1,b:2` -> a:1 and b:2; none for other stores."""
    return tuple(store.removeprefix(SCHEME).split(",")) if store.startswith(SCHEME) else ()
