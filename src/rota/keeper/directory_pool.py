"""Directories made ahead: what starts now waits for a rename, not for the disk to find room for new files."""

import errno
import itertools
import os
import shutil
from collections import deque
from collections.abc import Callable

from rota.keeper.process import fast_syscalls

MOST = 32  # whoever needs more of them within a second waits for the disk


class DirectoryPool:
    """One thread fills the stock, any may take from it, for this directory."""

    def __init__(self, home: str, directory: str, make: Callable[[str], None]) -> None:
        self._home = home
        self._directory = directory
        self._make = make
        self._numbers = itertools.count()
        self._stock: deque[str] = deque()
        self._is_ready = False

    def allocate(self, name: str) -> bool:
        """Put one there under this name; False if there is none, or if something has that name already.

        An empty directory that has the name stays, too: it may be the working directory of a running task.
        """
        try:
            spare = self._stock.popleft()
        except IndexError:
            return False
        try:
            fast_syscalls.rename_new(spare, f"{self._directory}/{name}")
        except OSError as error:
            if error.errno == errno.EEXIST:
                self._stock.append(spare)
            return False
        return True

    def refill(self) -> None:
        """OSError if the disk does not take them: then there are fewer."""
        if not self._is_ready:
            shutil.rmtree(self._home, ignore_errors=True)  # of an earlier keeper, and perhaps half made
            self._is_ready = True
        for path in (self._home, self._directory):
            os.makedirs(path, mode=0o700, exist_ok=True)
        while len(self._stock) < MOST:
            spare = f"{self._home}/{next(self._numbers)}"
            self._make(spare)
            self._stock.append(spare)
