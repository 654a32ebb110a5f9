"""Machine code -> an executable of one page in memory, executed by its descriptor. [I/O]"""

import errno
import os
import platform
import struct
from collections.abc import Mapping

_MFD_EXEC = 0x10  # since Linux 6.3, which may be configured to require it
_ELF_MACHINES = {"x86_64": 62}
_BASE = 0x400000


def load(name: str, code: Mapping[str, bytes]) -> int | None:
    """Create the executable; the descriptor has to stay open. None: there is no code for this CPU."""
    machine = platform.machine()
    if machine not in code:
        return None
    return _create(name, _executable(code[machine], _ELF_MACHINES[machine]))


def path_of(fd: int) -> bytes:
    return b"/proc/self/fd/%d" % fd


def _executable(code: bytes, machine: int) -> bytes:
    """A minimal ELF file: one read-only segment that includes the header."""
    header_bytes, segment_bytes = 64, 56
    entry = header_bytes + segment_bytes
    size = entry + len(code)
    identity = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(identity, 2, machine, 1, _BASE + entry, header_bytes, 0, 0),
        *(header_bytes, segment_bytes, 1, 0, 0, 0),
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code


def _create(name: str, content: bytes) -> int:
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(fd, content)
    return fd
