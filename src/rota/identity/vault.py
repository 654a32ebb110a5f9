"""The tokens of a cluster, hashed, in one file; a change is durable before its caller is answered."""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from rota.identity import files, last_use, tokens
from rota.identity.errors import AlreadyExists, IdentityRefused, JoinRefused, NameTaken, NoSuchToken, Unsafe
from rota.identity.last_use import LastUses
from rota.identity.tokens import ApiToken, JoinedWatcher, JoinRole, Role, StoredJoinToken
from rota.model.limits import WATCHERS_MAX

DIRECTORY = "vault"  # in a server's data directory
FILE = "vault.json"
Publish = Callable[[bytes], None]
VERSION = 1
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
JOIN_TOKEN_LIFE_MS = 30 * MINUTE_MS
RETAIN_EXPIRED_MS = DAY_MS  # so that a late user sees "expired" or "used", not "not known"
MAX_TOKENS = 10_000  # of each kind: every change rewrites the file
REVOKED_KEPT = 1_000  # so that a delayed request does not create one of them again
MAX_FILE_BYTES = 64 * 1024 * 1024


class VaultContents(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the vault file."""

    version: int = VERSION
    api_tokens: tuple[ApiToken, ...] = ()
    join_tokens: tuple[StoredJoinToken, ...] = ()
    revoked: tuple[str, ...] = ()  # digests, the newest last
    watchers: tuple[JoinedWatcher, ...] = ()


class StoredToken(NamedTuple):
    """A token that was stored, now or before."""

    token: ApiToken
    is_new: bool  # False: it was made before with the same secret


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The content of the file, and the stamp that shows whether the file has changed since."""

    stamp: tuple[int, int, int] | None
    contents: VaultContents
    by_digest: Mapping[str, ApiToken]
    by_id: Mapping[str, ApiToken]


class Vault:
    """Safe to share between threads, and between processes on one machine. Changes are durable on return."""

    def __init__(self, path: Path, publish: Publish | None = None) -> None:
        self._path = path
        self._publish = publish
        self._snapshot = _read(path)
        self.last_uses = LastUses(path.with_name(last_use.FILE), lambda: self._current().by_id)

    @classmethod
    def open(cls, directory: Path, publish: Publish | None = None) -> "Vault":
        """`publish` is called with each change, for the other servers, before it takes effect here."""
        files.own_directory(directory)
        return cls(directory / FILE, publish)

    def make_join_token(
        self,
        now_ms: int,
        *,
        labels: Mapping[str, str],
        cluster: str,
        valid_ms: int = JOIN_TOKEN_LIFE_MS,
        role: JoinRole = JoinRole.NODE,
        addresses: Sequence[str] = (),
    ) -> str:
        secret = tokens.new_secret(tokens.JOIN_PREFIX)
        token = StoredJoinToken(
            digest=tokens.digest(secret),
            made_at_ms=now_ms,
            expires_at_ms=now_ms + valid_ms,
            labels=dict(labels),
            cluster=cluster,
            role=role,
            addresses=tuple(addresses),
        )
        with self._changing() as change:
            change.drop_old(now_ms)
            change.join_tokens.append(token)
        return secret

    def use_join_token(self, secret: str, node_id: str, now_ms: int) -> StoredJoinToken:
        """Use up the token and return it; it has the node's labels and cluster. Raises JoinRefused."""
        with self._changing() as change:
            # Race: of two nodes with one token, the lock lets exactly one find it unused.
            index = _position(change.join_tokens, secret)
            token = change.join_tokens[index]
            if token.revoked:
                raise JoinRefused("join token was revoked")
            if token.used_by is not None:
                raise JoinRefused("join token was already used")
            if _is_expired(token, now_ms):
                raise JoinRefused(f"join token expired {_ago(now_ms - token.expires_at_ms)} ago")
            used = msgspec.structs.replace(token, used_by=node_id)
            change.join_tokens[index] = used
        return used

    def revoke_join_token(self, token_id: str) -> StoredJoinToken | None:
        """Revoke the token and return it; a used one is returned unchanged. None if there is none."""
        with self._changing() as change:
            for index, token in enumerate(change.join_tokens):
                if token.id == token_id and token.used_by is None:
                    change.join_tokens[index] = msgspec.structs.replace(token, revoked=True)
            return next((token for token in change.join_tokens if token.id == token_id), None)

    def add_watcher(self, watcher: JoinedWatcher) -> None:
        with self._changing() as change:
            change.watchers.append(watcher)

    def remove_watcher(self, ref: str) -> bool:
        """Remove a watcher by its id or name; returns False if there is none."""
        with self._changing() as change:
            kept = [watcher for watcher in change.watchers if ref not in (watcher.id, watcher.name)]
            found = len(kept) < len(change.watchers)
            change.watchers = kept
        return found

    def note_watcher_ca(self, watcher_id: str, ca: str) -> None:
        """Record which CA has signed the certificate that a watcher uses."""
        # Checked without the lock first, because every attach of a watcher calls this.
        if any(watcher.id == watcher_id and watcher.ca != ca for watcher in self.list_watchers()):
            with self._changing() as change:
                change.watchers = [
                    known.signed_by(ca) if known.id == watcher_id else known for known in change.watchers
                ]

    def list_watchers(self) -> tuple[JoinedWatcher, ...]:
        return self._current().contents.watchers

    def has_watcher(self, watcher_id: str) -> bool:
        """Whether the watcher has joined and was not removed."""
        return any(watcher.id == watcher_id for watcher in self.list_watchers())

    def make_api_token(
        self,
        name: str,
        role: Role,
        namespaces: Sequence[str],
        now_ms: int,
        expires_at_ms: int | None = None,
        *,
        replaces: str | None = None,
    ) -> str:
        """Store a new token; returns its secret."""
        secret = tokens.new_secret(tokens.API_PREFIX)
        self.store_api_token(secret, new_token(name, role, namespaces, now_ms, expires_at_ms), replaces)
        return secret

    def make_server_token(self, name: str, now_ms: int) -> str:
        """Make an admin token for the user that a server runs as; returns its secret.

        Servers of one cluster share the vault: each has its own secret, all with the same name and owner.
        """
        before = next((token for token in self.list_api_tokens() if token.name == name), None)
        replaces = before.id if before is not None and not _is_expired(before, now_ms) else None
        return self.make_api_token(name, Role.ADMIN, ("*",), now_ms, replaces=replaces)

    def store_api_token(self, secret: str, requested: ApiToken, replaces: str | None = None) -> StoredToken:
        """Store a token with a secret that the caller has made; idempotent for the same secret.

        Its name must not be that of another valid token, unless it `replaces` the one with this id.
        """
        token = msgspec.structs.replace(requested, digest=tokens.digest(secret))
        with self._changing() as change:
            change.drop_old(token.made_at_ms)
            # Idempotent: a request whose answer was lost is repeated with the same secret.
            before = next((known for known in change.api_tokens if known.digest == token.digest), None)
            if before is None and token.digest in change.revoked:
                raise AlreadyExists("this key has made a token that was revoked")
            if before is None:
                token = change.with_owner(token, replaces)
                change.api_tokens.append(token)
        if before is not None and not before.grants_as(token):
            raise AlreadyExists(f"this key has made token {before.id}, which has other rights")
        return StoredToken(before or token, is_new=before is None)

    def authenticate(self, secret: str, now_ms: int) -> ApiToken | None:
        # Looked up by SHA-256, so its timing reveals nothing about stored secrets.
        token = self._current().by_digest.get(tokens.digest(secret))
        if token is None or _is_expired(token, now_ms):
            return None
        self.last_uses.record(token.id, now_ms)
        return token

    def has_made(self, secret: str) -> bool:
        """Whether a token with this secret exists, or was revoked."""
        snapshot, digest = self._current(), tokens.digest(secret)
        return digest in snapshot.by_digest or digest in snapshot.contents.revoked

    def is_valid(self, token_id: str, now_ms: int) -> bool:
        """Whether the token exists and has not expired. Cheap, as open streams check it every few seconds."""
        token = self._current().by_id.get(token_id)
        return token is not None and not _is_expired(token, now_ms)

    def revoke_api_token(self, token_id: str) -> bool:
        """Revoke a token; returns False if there is none."""
        with self._changing() as change:
            kept = [token for token in change.api_tokens if token.id != token_id]
            found = len(kept) < len(change.api_tokens)
            # Remembered, so that such a repeated request does not create the token again.
            change.revoked += [token.digest for token in change.api_tokens if token.id == token_id]
            change.api_tokens = kept
        return found

    def list_api_tokens(self) -> tuple[ApiToken, ...]:
        return self._current().contents.api_tokens

    def list_join_tokens(self) -> tuple[StoredJoinToken, ...]:
        return self._current().contents.join_tokens

    def _current(self) -> _Snapshot:
        # Another process (an operator's command beside the server) may have written since.
        # One reference, replaced in a single assignment: a thread sees the old snapshot or the new one.
        snapshot = self._snapshot
        if _stamp(self._path) != snapshot.stamp:
            self._snapshot = snapshot = _read(self._path)
        return snapshot

    @contextmanager
    def _changing(self) -> Iterator["_Change"]:
        """Read, change and write under the lock; an exception inside writes nothing.

        Ordering: published first, then written. A crash in between is repaired when the shared copy is read.
        """
        with files.locked(self._path.parent, "vault"):
            # Read under the lock, not from the snapshot: another process may have written since.
            before = _read(self._path).contents
            change = _Change(
                list(before.api_tokens),
                list(before.join_tokens),
                list(before.revoked),
                list(before.watchers),
            )
            yield change
            after = change.contents()
            if after != before:
                content = msgspec.json.encode(after)
                if self._publish is not None:
                    self._publish(content)
                files.write_private(self._path, msgspec.json.format(content))
            self._snapshot = _read(self._path)


@dataclass(slots=True)
class _Change:
    """The lists of the vault while they are changed under the lock."""

    api_tokens: list[ApiToken]
    join_tokens: list[StoredJoinToken]
    revoked: list[str]
    watchers: list[JoinedWatcher]

    def drop_old(self, now_ms: int) -> None:
        long_ago_ms = now_ms - RETAIN_EXPIRED_MS
        self.api_tokens = [token for token in self.api_tokens if not _is_expired(token, long_ago_ms)]
        self.join_tokens = [token for token in self.join_tokens if not _is_expired(token, long_ago_ms)]

    def with_owner(self, token: ApiToken, replaces: str | None) -> ApiToken:
        """The token with its owner. Raises NameTaken or NoSuchToken."""
        valid = [known for known in self.api_tokens if not _is_expired(known, token.made_at_ms)]
        if replaces is None:
            holder = next((known for known in valid if known.name == token.name), None)
            if holder is not None:
                raise NameTaken(f"token {holder.id} is called {token.name} already")
            return token
        before = next((known for known in valid if known.id == replaces), None)
        if before is None:
            raise NoSuchToken("no valid token has this id")
        if before.name != token.name:
            raise NameTaken(f"token {before.id} is called {before.name}, not {token.name}")
        return msgspec.structs.replace(token, owner=before.owned_by)

    def contents(self) -> VaultContents:
        if max(len(self.api_tokens), len(self.join_tokens)) > MAX_TOKENS:
            raise IdentityRefused(
                f"there are {MAX_TOKENS} tokens already; revoke some, or wait until some have expired"
            )
        if len(self.watchers) > WATCHERS_MAX:
            raise IdentityRefused(f"there are {WATCHERS_MAX} watchers already; remove some")
        return VaultContents(
            api_tokens=tuple(self.api_tokens),
            join_tokens=tuple(self.join_tokens),
            revoked=tuple(self.revoked[-REVOKED_KEPT:]),
            watchers=tuple(self.watchers),
        )


def new_token(
    name: str, role: Role, namespaces: Sequence[str], now_ms: int, expires_at_ms: int | None
) -> ApiToken:
    return ApiToken(
        id=secrets.token_hex(8),
        digest="",
        name=name,
        role=role,
        namespaces=tuple(namespaces),
        made_at_ms=now_ms,
        expires_at_ms=expires_at_ms,
    )


def _read(path: Path) -> _Snapshot:
    # Race: the stamp is taken first. If the file is replaced in between, the next call reads it again.
    stamp = _stamp(path)
    if stamp is None:
        return _Snapshot(None, VaultContents(), {}, {})
    try:
        contents = msgspec.json.decode(files.read_private(path, MAX_FILE_BYTES), type=VaultContents)
    except msgspec.MsgspecError as error:
        raise Unsafe(f"{path} is damaged ({error}): restore it from a backup") from error
    if contents.version > VERSION:
        raise Unsafe(
            f"{path} was written by a newer Rota (version {contents.version}, this one reads {VERSION})"
        )
    by_digest = {token.digest: token for token in contents.api_tokens}
    return _Snapshot(stamp, contents, by_digest, {token.id: token for token in contents.api_tokens})


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _is_expired(token: ApiToken | StoredJoinToken, now_ms: int) -> bool:
    return token.expires_at_ms is not None and token.expires_at_ms <= now_ms


def _position(join_tokens: Sequence[StoredJoinToken], secret: str) -> int:
    for index, token in enumerate(join_tokens):
        if tokens.matches(secret, token.digest):
            return index
    raise JoinRefused("join token is not known")


def _ago(elapsed_ms: int) -> str:
    for unit_ms, unit in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min")):
        if elapsed_ms >= unit_ms:
            return f"{elapsed_ms // unit_ms} {unit}"
    return f"{elapsed_ms // 1000} s"
