"""How etcd is reached, and how long a leader that is silent still leads."""

from dataclasses import dataclass

from rota.config.keys import ConfigError
from rota.model.limits import LEADER_TTL_SECONDS, LEADER_TTL_SECONDS_MAX, LEADER_TTL_SECONDS_MIN
from rota.model.names import is_loopback

SCHEME = "etcd://"


@dataclass(frozen=True)
class EtcdConfig:
    """For `store = "etcd://host:port,…"`. With `ca_file` TLS is spoken; the password is read from a file."""

    prefix: str = "rota/"
    ttl_seconds: int = LEADER_TTL_SECONDS
    ca_file: str | None = None
    crt_file: str | None = None
    key_file: str | None = None
    user: str | None = None
    password_file: str | None = None
    allow_plain_text: bool = False  # off loopback


def plain_text_beyond(said: EtcdConfig, store: str) -> str | None:
    """The first member of etcd off this machine that is spoken to in plain text; None: there is none."""
    if said.ca_file is not None:
        return None
    hosts = ((one, one.rpartition(":")[0].strip("[]")) for one in endpoints(store))
    return next((one for one, host in hosts if not is_loopback(host)), None)


def check_etcd(said: EtcdConfig, store: str) -> None:
    beyond = plain_text_beyond(said, store)
    if beyond is not None and not said.allow_plain_text:
        raise ConfigError(
            "etcd.ca_file",
            f"is missing: plain text is refused off loopback ({beyond})",
            "name the certificate that vouches for etcd, or set etcd.allow_plain_text = true: "
            "then the cluster's keys and tokens cross the network for all to read",
        )
    low, high = LEADER_TTL_SECONDS_MIN, LEADER_TTL_SECONDS_MAX
    if not low <= said.ttl_seconds <= high:
        raise ConfigError(
            "etcd.ttl_seconds", f"{said.ttl_seconds} cannot be used", f"write {low} to {high} seconds"
        )
    if not said.prefix.endswith("/"):
        raise ConfigError("etcd.prefix", f"{said.prefix!r} cannot be used", "end it with a slash, as rota/")
    if (said.crt_file is None) != (said.key_file is None):
        lacking = "crt_file" if said.crt_file is None else "key_file"
        raise ConfigError(f"etcd.{lacking}", "is missing", "crt_file and key_file come together")
    if said.crt_file is not None and said.ca_file is None:
        raise ConfigError("etcd.ca_file", "is missing", "name the certificate that vouches for etcd")
    if (said.user is None) != (said.password_file is None):
        lacking = "user" if said.user is None else "password_file"
        raise ConfigError(f"etcd.{lacking}", "is missing", "user and password_file come together")


def endpoints(store: str) -> tuple[str, ...]:
    """`etcd://a:1,b:2` -> a:1 and b:2; of other stores none."""
    return tuple(store.removeprefix(SCHEME).split(",")) if store.startswith(SCHEME) else ()
