"""What is known of the attempts on a worker, and what of it the control plane has not heard or stored yet."""

import asyncio

from rota.model.ids import JobId
from rota.model.sync import SAID_FIRST_END, Claim, JobClaims

Name = tuple[JobId, int, int]  # of an attempt: job, index, number


class Desk:
    """The newest word on each attempt counts; an end is kept until it is stored."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._claims: dict[Name, Claim] = {}
        self._unsent: dict[Name, None] = {}
        self._said: dict[int, list[Name]] = {}  # ends, by the number of the word that told them

    def note(self, name: Name, claim: Claim) -> None:
        self._claims[name] = claim
        self._unsent[name] = None
        self.changed.set()

    def inventory(self, n: int) -> list[JobClaims]:
        """Everything, for a hello."""
        self._said.clear()
        self._unsent = dict.fromkeys(self._claims)
        return self.take(n)

    def take(self, n: int) -> list[JobClaims]:
        """What is to be told, in word n."""
        names, self._unsent = list(self._unsent), {}
        self.changed.clear()
        ended = [name for name in names if self._claims[name].said >= SAID_FIRST_END]
        if ended:
            self._said[n] = ended
        jobs: dict[JobId, JobClaims] = {}
        for name in names:
            jobs.setdefault(name[0], JobClaims(name[0], [])).claims.append(self._claims[name])
        return list(jobs.values())

    def stored(self, n: int) -> None:
        """Word n is on disk: the ends it told need not be remembered."""
        for said in [said for said in self._said if said <= n]:
            for name in self._said.pop(said):
                if name not in self._unsent:
                    self._claims.pop(name, None)
