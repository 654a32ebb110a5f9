"""posix_spawn of the C library: a child in a session of its own, with its directory and output files."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rota.keeper.process import fast_syscalls
from rota.keeper.process import starter as starters
from rota.keeper.process.starter import MOUNTS_FD, STATUS_FD, ProcessContext, await_exec

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
OUTPUT = APPEND | os.O_NOFOLLOW
OPENED = OUTPUT | os.O_CLOEXEC
# Signals ignored by Python, by the keeper, or by a shell or nohup that started it: reset in children.
RESET = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGIO,
)

# os.posix_spawn holds the GIL while it waits for the child's exec, which is most of a start, and cannot set a
# working directory. With the C function several threads spawn in parallel.
SETSIGDEF, SETSIGMASK, SETSID = 0x04, 0x08, 0x80
OPAQUE_BYTES = 1024  # more than the spawn attributes, file actions or signal set of any C library
_waiting = ctypes.CDLL(None)  # releases the GIL
_quick = ctypes.PyDLL(None)  # keeps the GIL: the calls take less time than handing it over would


@dataclass(frozen=True, slots=True)
class Launch:
    program: bytes
    argv: ctypes.Array[ctypes.c_char_p]
    env: ctypes.Array[ctypes.c_char_p]
    cwd: str
    context: ProcessContext
    passed: Mapping[int, int]  # further descriptors: number in the child -> ours


def start(launch: Launch, output: bytes, attributes: ctypes.Array[ctypes.c_char]) -> tuple[int, int]:
    """Spawn; return the pid and 0, or 0 and the errno. Without `output`, output goes to /dev/null."""
    with _actions(output, launch.passed) as actions:
        _quick.posix_spawn_file_actions_addchdir_np(actions, os.fsencode(launch.cwd))
        return _spawn(launch.program, actions, attributes, launch.argv, launch.env)


def start_in_context(
    starter: bytes, launch: Launch, output: bytes, attributes: ctypes.Array[ctypes.c_char]
) -> tuple[int, int]:
    """The same by the starter program, which enters the context first; CannotEnter if it cannot."""
    argv = [part for part in launch.argv if part is not None]
    starter_args = c_strings(starters.starter_argv(launch.context, launch.cwd, launch.program, argv))
    mounts_fd = launch.context.mounts_fd
    read_fd, write_fd = fast_syscalls.pipe()
    try:
        try:
            passed = {**launch.passed, STATUS_FD: write_fd}
            passed |= {} if mounts_fd is None else {MOUNTS_FD: mounts_fd}
            with _actions(output, passed) as actions:
                pid, error = _spawn(starter, actions, attributes, starter_args, launch.env)
        finally:
            # Before the wait: the read ends when the child's copy is closed by its exec, and only then.
            fast_syscalls.close(write_fd)
        error = error or await_exec(pid, read_fd)
        return (0, error) if error else (pid, 0)
    finally:
        fast_syscalls.close(read_fd)


def make_attributes() -> ctypes.Array[ctypes.c_char]:
    """Spawn attributes: a session of its own, no signal blocked, none ignored."""
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


def c_strings(parts: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(parts) + 1))(*parts, None)


@contextlib.contextmanager
def _actions(output: bytes, passed: Mapping[int, int]) -> Iterator[ctypes.Array[ctypes.c_char]]:
    """File actions of a child. It opens its output as the keeper's user, the only one that can reach it."""
    actions = ctypes.create_string_buffer(OPAQUE_BYTES)
    _quick.posix_spawn_file_actions_init(actions)
    try:
        for number, end in ((1, b".out"), (2, b".err")):
            file = (output + end, OUTPUT, 0o600) if output else (b"/dev/null", os.O_WRONLY, 0)
            _quick.posix_spawn_file_actions_addopen(actions, number, *file)
        for number, fd in passed.items():
            _quick.posix_spawn_file_actions_adddup2(actions, fd, number)
        yield actions
    finally:
        _quick.posix_spawn_file_actions_destroy(actions)


def _spawn(
    program: bytes,
    actions: ctypes.Array[ctypes.c_char],
    attributes: ctypes.Array[ctypes.c_char],
    argv: ctypes.Array[ctypes.c_char_p],
    env: ctypes.Array[ctypes.c_char_p],
) -> tuple[int, int]:
    pid = ctypes.c_int(0)
    error = _waiting.posix_spawn(ctypes.byref(pid), program, actions, attributes, argv, env)
    return pid.value, error
