"""A file's text, and errors that say which file and where in it. [I/O]"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rota.model.errors import BadField, Rejected


class BadWorkload(Rejected):
    """A workload file that cannot be used: which one, which field, and what would be accepted."""

    code = "bad_workload"

    def __init__(self, path: Path, error: Rejected) -> None:
        super().__init__(f"{path}: {error.detail}", field=error.field, hint=error.hint)


def read_text(path: Path, *, errors: str = "strict") -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode(errors=errors)
    except UnicodeDecodeError as error:
        raise Rejected(f"is not UTF-8: its byte {error.start} is wrong") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise Rejected("is not what gzip writes", hint="leave .gz out of its name if it is plain") from None
    except OSError as error:
        raise Rejected(f"cannot be read: {error.strerror}") from None


@contextmanager
def place(name: str) -> Iterator[None]:
    """Prefix the field of a BadField raised in the block with `name`."""
    try:
        yield
    except BadField as error:
        problem = error.detail.removeprefix(f"{error.field}: ")
        raise BadField(f"{name}.{error.field}", problem, error.hint) from None
