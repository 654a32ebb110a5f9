"""An expected error -> a line on stderr and an exit code. [I/O]"""

import sys

from rota.config import ConfigError
from rota.model.errors import RotaError
from rota.store.lock import AlreadyRunning

TRY_AGAIN = 75
EXPLAINED_ERRORS = (AlreadyRunning, ConfigError, RotaError, ValueError, OSError)
_EXIT_CODES = {"not_found": 4, "not_allowed": 5, "unavailable": TRY_AGAIN, "store_full": TRY_AGAIN}


def explain(error: BaseException) -> int:
    """Print the error and its hint; returns the exit code. Raises errors that are bugs."""
    if not isinstance(error, EXPLAINED_ERRORS):
        raise error
    code = getattr(error, "code", "failed")
    print_line(f"error: {code}: {error}")
    hint = getattr(error, "hint", None)
    if hint:
        print_line(f"hint: {hint}")
    return int(getattr(error, "exit_code", _EXIT_CODES.get(code, 1)))


def print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
