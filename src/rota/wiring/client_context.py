"""The token, and the file by which the command line of this user finds this cluster's servers. [I/O]"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from rota.identity.authority import CertificateAuthority
from rota.identity.token_files import read_token, write_token
from rota.identity.vault import Vault


@dataclass(frozen=True)
class Context:
    vault: Vault
    directory: Path
    url: str
    authority: CertificateAuthority | None  # whose roots the users of an HTTPS server trust; None: plain text

    def write(self, urls: list[str]) -> None:
        directory = self.directory.absolute()  # it is read from elsewhere
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
            partial = directory / "ca.crt.new"  # clients read it at any moment
            partial.write_bytes(self.authority.bundle.roots_pem)
            partial.replace(directory / "ca.crt")
            lines.append(f'ca = "{directory / "ca.crt"}"')
        write_token(_context_file(), "\n".join(lines))


def _context_file() -> Path:
    said = os.environ.get("ROTA_CONFIG")
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "rota"
    return (Path(said).parent if said else home) / "contexts" / "local.toml"
