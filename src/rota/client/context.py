"""Resolve the server address, token and CA from arguments, environment and files, with the source of each."""

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rota.client.errors import NotAllowed, NotFound, Rejected

LOCAL = "local"
_TOKEN_FILE_MAX = 64 * 1024  # characters: far more than a token has
_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
SETTINGS = ("context", "namespace", "output")


@dataclass(frozen=True)
class Endpoint:
    """The address of a server, the token for it, and the CA that signs its certificate."""

    addr: str
    token: str = field(repr=False)
    ca: str | None = None
    addr_source: str = "argument"
    token_source: str = "argument"


@dataclass(frozen=True)
class Setting:
    """A value and its source."""

    value: str | None
    source: str


@dataclass(frozen=True)
class _Context:
    path: Path
    values: Mapping[str, Any]

    def get(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise Rejected("bad_field", f"{self.path}: {key} must be text", field=key)
        return value


def resolve(
    addr: str | None = None,
    token: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Endpoint:
    """The endpoint, by precedence: argument, environment, named context, context `local`."""
    known = _context(context, environ)
    explicit = _first(
        (addr, "argument"), *_unless(context, (environ.get("ROTA_ADDR"), "environment ROTA_ADDR"))
    )
    address = explicit if explicit.value else _from(known, "addr")
    if not address.value:
        raise NotFound(
            "not_found",
            "no server is configured",
            hint="start one with `rota dev`, or set ROTA_ADDR and ROTA_TOKEN",
        )
    addr = address.value.rstrip("/")
    # The token of a context is sent only to the servers of that context, even if
    # ROTA_ADDR names another address.
    same_server = known is not None and _addresses(addr) <= _addresses(known.get("addr") or "")
    secret = _token(token, known if same_server else None, environ, named=context is not None)
    ca = known.get("ca") if known is not None and same_server else None
    return Endpoint(addr, str(secret.value), ca, address.source, secret.source)


def _addresses(text: str) -> set[str]:
    """The addresses of several servers, separated by commas."""
    return {address.rstrip("/") for address in text.split(",")}


def setting(name: str, argument: str | None, environ: Mapping[str, str] = os.environ) -> Setting:
    """A user preference (context, namespace, output), by precedence: argument, environment, config file."""
    variable = f"ROTA_{name.upper()}"
    explicit = _first((argument, "argument"), (environ.get(variable), f"environment {variable}"))
    if explicit.value:
        return explicit
    path = config_file(environ)
    value = _toml(path).get(name) if path.exists() else None
    if value is not None and not isinstance(value, str):
        raise Rejected("bad_field", f"{path}: {name} must be text", field=name)
    return Setting(value, f"file {path}") if value else Setting(None, "default")


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    if environ.get("ROTA_CONFIG"):
        return Path(environ["ROTA_CONFIG"])
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".config"
    )
    return Path(home, "rota", "config.toml")


def context_file(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    if not name or "/" in name or name.startswith("."):
        raise Rejected(
            "bad_field", f"context: {name!r} is not a name", field="context", hint="letters, digits, - and _"
        )
    return config_file(environ).parent / "contexts" / f"{name}.toml"


def _context(named: str | None, environ: Mapping[str, str]) -> _Context | None:
    name = setting("context", named, environ).value
    path = context_file(name or LOCAL, environ)
    if path.exists():
        return _Context(path, _toml(path))
    if name is None:
        return None
    existing = sorted(entry.stem for entry in path.parent.glob("*.toml"))
    hint = f"contexts: {', '.join(existing)}" if existing else f"there is no context in {path.parent}"
    raise NotFound("not_found", f"there is no context {name!r}", field="context", hint=hint)


def _token(
    argument: str | None, known: _Context | None, environ: Mapping[str, str], *, named: bool
) -> Setting:
    if argument:
        return Setting(argument, "argument")
    # A context named on the command line has its own token; that of the environment is for another server.
    if not (named and known and known.get("token_file")):
        if environ.get("ROTA_TOKEN"):
            return Setting(environ["ROTA_TOKEN"], "environment ROTA_TOKEN")
        if environ.get("ROTA_TOKEN_FILE"):
            return Setting(_secret(environ["ROTA_TOKEN_FILE"]), "environment ROTA_TOKEN_FILE")
    path = known.get("token_file") if known else None
    if known is None or path is None:
        # A token is never sent to an address other than the one it was stored for.
        raise NotAllowed(
            "unauthenticated", "there is no token for this address", hint="set ROTA_TOKEN or ROTA_TOKEN_FILE"
        )
    return Setting(_secret(str(known.path.parent / path)), f"file {known.path}")


def _from(known: _Context | None, key: str) -> Setting:
    return Setting(known.get(key), f"file {known.path}") if known else Setting(None, "default")


def _first(*candidates: tuple[str | None, str]) -> Setting:
    for value, source in candidates:
        if value:
            return Setting(value, source)
    return Setting(None, "default")


def _unless(named: str | None, candidate: tuple[str | None, str]) -> list[tuple[str | None, str]]:
    return [] if named else [candidate]


def _secret(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            # Of the open file, not of the path: the file could be exchanged between the check and the read.
            status = os.fstat(file.fileno())
            token = file.read(_TOKEN_FILE_MAX).strip()
    except OSError as error:
        raise NotAllowed(
            "unauthenticated",
            f"the token file {path} cannot be read: {error.strerror}",
            hint="is the server set up?",
        ) from None
    except UnicodeDecodeError:
        raise NotAllowed("unauthenticated", f"the token file {path} is not text") from None
    # As ssh does for keys. Files of other users, such as those mounted into a container, are not checked.
    if status.st_uid == os.geteuid() and status.st_mode & _FOR_OTHERS:
        raise NotAllowed(
            "unauthenticated",
            f"the token file {path} is accessible to other users (mode {status.st_mode & 0o777:o})",
            hint=f"chmod 600 {path}; if others may have read it, revoke the token and create another",
        )
    if not token:
        raise NotAllowed("unauthenticated", f"the token file {path} is empty")
    return token


def _toml(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
        # The file decides where tokens are sent and which CA is trusted: only its owner may change it.
        if mode & stat.S_IWOTH:
            raise Rejected("bad_config", f"{path} is writable by every user", hint=f"chmod o-w {path}")
        return tomllib.loads(text)
    except OSError as error:
        raise Rejected("bad_config", f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Rejected("bad_config", f"{path} is not TOML: {error}") from None
