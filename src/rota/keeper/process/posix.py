"""posix_spawn of the C library: a child in a session and a directory of its own, its output in files."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rota.keeper.process.users import User, worn

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
OPENED = APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
# What Python ignores, what the keeper ignores, and what a shell or nohup may have made it ignore.
RESET = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGIO,
)

# os.posix_spawn keeps the interpreter's lock while it waits for the child's exec, which is most of a start,
# and has no working directory to give. With the C function threads start side by side.
SETSIGDEF, SETSIGMASK, SETSID = 0x04, 0x08, 0x80
OPAQUE_BYTES = 1024  # more than any C library's spawn attributes, file actions or signal set
_waiting = ctypes.CDLL(None)  # calls let other threads run
_quick = ctypes.PyDLL(None)  # calls do not: they take less time than the handing over would


@dataclass(frozen=True, slots=True)
class Launch:
    program: bytes
    argv: ctypes.Array[ctypes.c_char_p]
    env: ctypes.Array[ctypes.c_char_p]
    cwd: str
    user: User | None  # None: the keeper's own
    passed: Mapping[int, int]  # descriptors that it is given besides: its number -> ours


def start(launch: Launch, output: bytes, attributes: ctypes.Array[ctypes.c_char]) -> tuple[int, int]:
    """The new pid and 0, or 0 and the number of the error. Without `output` it writes to nowhere."""
    actions = ctypes.create_string_buffer(OPAQUE_BYTES)
    pid = ctypes.c_int(0)
    _quick.posix_spawn_file_actions_init(actions)
    _quick.posix_spawn_file_actions_addchdir_np(actions, os.fsencode(launch.cwd))
    for number, fd in launch.passed.items():
        _quick.posix_spawn_file_actions_adddup2(actions, fd, number)
    given = (launch.program, actions, attributes, launch.argv, launch.env)
    try:
        if not output:
            for number in (1, 2):
                _quick.posix_spawn_file_actions_addopen(actions, number, b"/dev/null", os.O_WRONLY, 0)
            with worn(launch.user):
                error = _waiting.posix_spawn(ctypes.byref(pid), *given)
        elif launch.user:
            with _opened(actions, output), worn(launch.user):
                error = _waiting.posix_spawn(ctypes.byref(pid), *given)
        else:
            _quick.posix_spawn_file_actions_addopen(actions, 1, output + b".out", APPEND, 0o600)
            _quick.posix_spawn_file_actions_addopen(actions, 2, output + b".err", APPEND, 0o600)
            error = _waiting.posix_spawn(ctypes.byref(pid), *given)
    finally:
        _quick.posix_spawn_file_actions_destroy(actions)
    return pid.value, error


def make_attributes() -> ctypes.Array[ctypes.c_char]:
    """A session of its own, no signal blocked, none ignored."""
    attributes = ctypes.create_string_buffer(OPAQUE_BYTES)
    signals = ctypes.create_string_buffer(OPAQUE_BYTES)
    _quick.posix_spawnattr_init(attributes)
    _quick.sigemptyset(signals)
    _quick.posix_spawnattr_setsigmask(attributes, signals)
    for signum in RESET:
        _quick.sigaddset(signals, int(signum))
    _quick.posix_spawnattr_setsigdefault(attributes, signals)
    _quick.posix_spawnattr_setflags(attributes, ctypes.c_short(SETSIGDEF | SETSIGMASK | SETSID))
    return attributes


def strings(parts: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(parts) + 1))(*parts, None)


@contextlib.contextmanager
def _opened(actions: ctypes.Array[ctypes.c_char], output: bytes) -> Iterator[None]:
    """Its files, opened for work that cannot come near them."""
    with contextlib.ExitStack() as files:
        for number, end in ((1, b".out"), (2, b".err")):
            fd = os.open(output + end, OPENED, 0o600)
            files.callback(os.close, fd)
            _quick.posix_spawn_file_actions_adddup2(actions, fd, number)
        yield
