"""python -m rota.keeper DIR: run the keeper of this directory."""

import contextlib
import os
import signal
import sys

from rota.keeper.run import DirectoryInUse, run_keeper

EXIT_TRY_AGAIN = 75


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m rota.keeper DIR", file=sys.stderr)
        return 2
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGIO):  # SIGIO: a file lease was broken
        signal.signal(signum, signal.SIG_IGN)
    _close_descriptors_on_exec()
    try:
        run_keeper(os.path.abspath(sys.argv[1]))
    except DirectoryInUse as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_TRY_AGAIN
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _close_descriptors_on_exec() -> None:
    """Let attempts inherit 0 to 2 only: stdin is /dev/null, and each attempt has output files of its own."""
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
                os.set_inheritable(int(name), False)


sys.exit(main())
