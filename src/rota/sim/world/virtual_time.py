"""Virtual time: a heap of events, simulated clocks and processes, and the trace of a run."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

Act = Callable[[], None]
WALL_MS = 1_700_000_000_000


class World:
    """An event heap with a virtual clock.

    Time jumps to the next event. Events due at the same millisecond run in the order in which they were
    scheduled, so that a run depends on nothing but its seed.
    """

    def __init__(self, seed: int, *, keep_trace: bool = True) -> None:
        self.seed = seed
        self.now_ms = 0
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()  # occurrences of each fault and each rare branch
        self.steps = 0
        self._keep_trace = keep_trace
        self._heap: list[tuple[int, int, Act]] = []
        self._n = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def rng(self, name: str) -> Random:
        """Return a generator for one purpose: leaving out one fault or job changes no other draw."""
        return Random(f"{self.seed}/{name}")

    def after(self, delay_ms: float, act: Act) -> None:
        self._n += 1
        # The counter breaks ties: callbacks cannot be compared, and equal times must run in a fixed order.
        heapq.heappush(self._heap, (self.now_ms + max(0, round(delay_ms)), self._n, act))

    def run(self, until_ms: int, is_done: Callable[[], bool] = lambda: False) -> None:
        """Run events until `until_ms`, until none is left, or until `is_done` returns True."""
        while self._heap and self._heap[0][0] <= until_ms and not is_done():
            at_ms, _, act = heapq.heappop(self._heap)
            self.now_ms = at_ms
            self.steps += 1
            act()
        if not is_done():
            self.now_ms = max(self.now_ms, until_ms)

    def record(self, source: str, sentence: str) -> None:
        line = f"{self.now_ms / 1000:10.3f}  {source}: {sentence}"
        # Hashed even if the trace is not kept: two runs of a seed are compared by their digests.
        self._hash.update(line.encode())
        if self._keep_trace:
            self.trace.append(line)

    def count(self, what: str) -> None:
        self.counts[what] += 1

    @property
    def digest(self) -> str:
        """Hash of the trace; equal for two runs that did the same."""
        return self._hash.hexdigest()


class SimClock:
    """A machine's two clocks: a monotonic one, which may drift, and a wall clock, which may jump."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rate = 1.0
        self._base_ms = 0.0
        self._since_ms = 0
        self._wall_offset_ms = 0

    def boot_ms(self) -> int:
        return round(self._exact_ms())

    def wall_ms(self) -> int:
        return WALL_MS + self._wall_offset_ms + self.boot_ms()

    def run_at(self, rate: float) -> None:
        # The time so far is kept as a base: a changed rate must not move the clock.
        self._base_ms, self._since_ms, self._rate = self._exact_ms(), self._world.now_ms, rate

    def jump(self, by_ms: int) -> None:
        self._wall_offset_ms += by_ms

    def real_ms(self, own_ms: float) -> float:
        """Return the virtual time that passes while this clock advances by `own_ms`."""
        return own_ms / self._rate

    def _exact_ms(self) -> float:
        return self._base_ms + (self._world.now_ms - self._since_ms) * self._rate


class SimProcess:
    """A process that can be killed, frozen and resumed.

    A callback belongs to the life in which it was scheduled: after a restart, callbacks of earlier lives are
    dropped. Callbacks that come due while the process is frozen run when it is resumed, in order.
    """

    def __init__(self, world: World, name: str, clock: SimClock) -> None:
        self.world = world
        self.name = name
        self.clock = clock
        self.alive = False
        self.frozen = False
        self.life = 0  # number of starts
        self.on_end_hooks: list[Act] = []
        self._backlog: list[tuple[int, Act]] = []

    @property
    def runs(self) -> bool:
        return self.alive and not self.frozen

    def start_life(self) -> None:
        self.alive = True
        self.frozen = False
        self.life += 1

    def end(self) -> None:
        self.alive = False
        # A killed process never runs what was due while it was frozen.
        self._backlog.clear()
        # Swapped first: a hook may add to the list while the hooks run.
        acts, self.on_end_hooks = self.on_end_hooks, []
        for act in acts:
            act()

    def after(self, delay_ms: float, act: Act) -> None:
        """Run `act` after `delay_ms` of the process's own clock, unless it dies before."""
        # The life is bound now: a callback must not reach the process after a restart.
        life = self.life
        self.world.after(self.clock.real_ms(delay_ms), lambda: self.do(life, act))

    def do(self, life: int, act: Act) -> None:
        if not self.alive or life != self.life:
            return
        if self.frozen:
            self._backlog.append((life, act))
        else:
            act()

    def freeze(self) -> None:
        self.frozen = True

    def resume(self) -> None:
        self.frozen = False
        # A callback may freeze the process again; `do` then puts the later ones back into the new backlog.
        backlog, self._backlog = self._backlog, []
        for life, act in backlog:
            self.do(life, act)

    def trace(self, sentence: str) -> None:
        self.world.record(self.name, sentence)
