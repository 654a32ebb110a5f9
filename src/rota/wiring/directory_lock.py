"""Whether a data directory is in use, checked before the rest of a server is imported. [I/O]"""

from pathlib import Path

from rota.config import ServerOptions, server_config
from rota.store.lock import AlreadyRunning, DirectoryLock
from rota.wiring.console import explain


def refusal(options: ServerOptions) -> int:
    """The exit code if a server already runs on the directory, else 0.

    A hint to fail fast only: the server acquires the lock itself, since another may start in between.
    """
    directory = Path(str(server_config(options).data_dir))
    if not directory.exists():
        return 0
    try:
        DirectoryLock(directory).release()
    except (AlreadyRunning, OSError) as error:
        return explain(error)
    return 0
