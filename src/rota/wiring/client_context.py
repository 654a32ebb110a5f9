"""The local context of the command line: a token, and a file with the addresses of the servers. [I/O]"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from rota.identity.authority import CertificateAuthority
from rota.identity.token_files import read_token, write_token
from rota.identity.vault import Vault


@dataclass(frozen=True)
class ClientContext:
    """Written by a server for the user it runs as, so that `rota` works there without a login."""

    vault: Vault
    directory: Path
    url: str
    authority: CertificateAuthority | None  # clients trust its roots; None: plain HTTP

    def write(self, urls: list[str]) -> None:
        directory = self.directory.absolute()  # the file is read from other working directories
        token_file = directory / "token"
        now_ms = time.time_ns() // 1_000_000
        try:
            known = self.vault.authenticate(read_token(token_file), now_ms) is not None
        except (OSError, ValueError):
            known = False
        if not known:
            write_token(token_file, self.vault.make_server_token("local", now_ms))
        lines = [f'addr = "{",".join(urls)}"', f'token_file = "{token_file}"']
        if self.authority is not None:
            partial = directory / "ca.crt.new"  # replaced atomically, as clients may read it at any moment
            partial.write_bytes(self.authority.bundle.roots_pem)
            partial.replace(directory / "ca.crt")
            lines.append(f'ca = "{directory / "ca.crt"}"')
        write_token(_context_file(), "\n".join(lines))


def _context_file() -> Path:
    config_file = os.environ.get("ROTA_CONFIG")
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "rota"
    return (Path(config_file).parent if config_file else home) / "contexts" / "local.toml"
