"""Whether a directory is free, before the rest of a server is loaded: a second is refused at once. [I/O]"""

from pathlib import Path

from rota.config import ServerOptions, server_config
from rota.store.lock import AlreadyRunning, DirectoryLock
from rota.wiring.console import explain


def refusal(options: ServerOptions) -> int:
    """Its exit code, or 0. That it is free now proves nothing: whoever serves takes the lock for itself."""
    directory = Path(str(server_config(options).data_dir))
    if not directory.exists():
        return 0
    try:
        DirectoryLock(directory).release()
    except (AlreadyRunning, OSError) as error:
        return explain(error)
    return 0
