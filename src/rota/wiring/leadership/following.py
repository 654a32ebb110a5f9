"""A standby's mirror: it replays what the leader commits, and knows how old its state is. [I/O]

Commits arrive by a watch on etcd. A watch may fall silent without an error, so once a second a quorum read
confirms how far the leader is; a watch that stays behind that is restarted.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog

from rota.engine.run import Engine
from rota.identity.authority import CertificateAuthority
from rota.model.errors import StoreFull, Unavailable
from rota.store.etcd.leader_lease import boot_ms
from rota.store.etcd.store import EtcdStore
from rota.store.etcd.watch import SharedChange, WatchStep
from rota.store.protocol import CommitChange, Snapshot
from rota.wiring.server_record import ServerRecord, from_bytes
from rota.wiring.shared_identity import adopt_vault, apply_shared, follow_authority

log = structlog.get_logger("rota.standby")

_RETRY_SECONDS = 0.5
_CONFIRM_SECONDS = 1.0  # between two quorum reads of the leader's revision
_STALL_SECONDS = 3.0  # a watch that is behind for this long is restarted
_FIRST_READ_SECONDS = 120.0
_FINISH_SECONDS = 5.0


class Following:
    """Fills the mirror of the engine, which decides nothing until it leads."""

    def __init__(
        self, engine: Engine, store: EtcdStore, directory: Path, authority: CertificateAuthority
    ) -> None:
        self._engine = engine
        self._authority = authority
        self._store = store
        self._directory = directory
        self._commits = store.watch()
        self._is_read = asyncio.Event()
        self._changed = asyncio.Condition()
        self._leader_changed = asyncio.Condition()
        self._applying = asyncio.Lock()  # held while a step is applied, which may await
        self._is_over = False
        self._leader_record: bytes | None = None
        self._epoch = 0
        self._confirmed_at_ms = 0
        self._watch: asyncio.Timeout | None = None
        self._is_whole = True  # the last step was applied entirely

    # ---- what is known

    def leader(self) -> str | None:
        return None if (record := self.leader_record()) is None else record.url

    def leader_record(self) -> ServerRecord | None:
        """The addresses of the leader, if it is known."""
        return from_bytes(self._leader_record) if self._leader_record else None

    async def leader_changes(self, has_changed: Callable[[], bool]) -> None:
        """Wait until `has_changed` returns True; it is called again whenever the leader changes."""
        async with self._leader_changed:
            await self._leader_changed.wait_for(has_changed)

    def epoch(self) -> int:
        return self._epoch

    def age_ms(self) -> int | None:
        return max(0, boot_ms() - self._confirmed_at_ms) if self._confirmed_at_ms else None

    async def wait_for_revision(self, revision: int) -> None:
        # Before the lock: most reads ask for a revision that was replayed long ago.
        if self._engine.revision >= revision:
            return
        async with self._changed:
            await self._changed.wait_for(lambda: self._engine.revision >= revision)

    async def caught_up(self) -> bool:
        """Whether the mirror has every commit. Called once this server leads, so that no other commits.

        Stops following: later steps of the watch are not applied.
        """
        try:
            # Final, because this server leads: no other can commit any more.
            last = (await self._store.read_state()).revision
            async with asyncio.timeout(_FIRST_READ_SECONDS):
                await self._is_read.wait()
            async with asyncio.timeout(_FINISH_SECONDS):
                await self.wait_for_revision(last)
            await self._store.resume_from(self._commits)
        except (TimeoutError, Unavailable, StoreFull) as error:
            log.warning("full reload", error=str(error))
            last = -1
        # Waits for a step in progress: nothing may be replayed once the engine starts to lead.
        async with self._applying:
            self._is_over = True
        # Compared after the lock: a step that was in progress may have been applied meanwhile.
        return self._engine.revision == last

    # ---- the watch

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if self._is_over:
            # The last campaign ended after `caught_up` had stopped
            # the replay, so the watch may have skipped steps.
            self._is_over = False
            self._restart()
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(self._follow()), tasks.create_task(self._confirm())]
            try:
                yield
            finally:
                for task in working:
                    task.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                # Not a fixed timeout: an idle cluster has no commits.
                # `_reaches` expires it when commits are missing.
                async with asyncio.timeout(None) as self._watch:
                    await self._listen()
            except (TimeoutError, Unavailable, StoreFull) as error:
                log.warning("watch restarted", error=str(error) or "it was silent")
            finally:
                self._watch = None
            # A step that was cut off may be applied in part: start again from a snapshot.
            if not self._is_whole:
                self._restart()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self) -> None:
        async with contextlib.aclosing(self._commits.steps()) as steps:
            async for step in steps:
                async with self._applying:
                    # Race: the engine may have started to lead while this step waited for the lock.
                    if not self._is_over:
                        # Cleared first: a cancellation within `_apply` leaves
                        # it False, and the watch starts over from a snapshot.
                        self._is_whole = False
                        await self._apply(step)
                        self._is_whole = True
                async with self._changed:
                    self._changed.notify_all()

    def _restart(self) -> None:
        self._commits = self._store.watch()
        self._is_whole = True
        self._confirmed_at_ms = 0
        self._is_read.clear()

    async def _apply(self, step: WatchStep) -> None:
        match step:
            case Snapshot():
                # Tokens and CA first: the standby serves requests as soon as its mirror is filled.
                await adopt_vault(self._store, self._directory)
                await follow_authority(self._store, self._authority)
                await self._engine.follow(step)
                self._is_read.set()
            case CommitChange():
                self._engine.replay(step)
            case SharedChange():
                shared = (step.name, step.value, self._directory, self._authority)
                await asyncio.to_thread(apply_shared, *shared)

    async def _confirm(self) -> None:
        """Confirm once a second, by a quorum read, that the watch has delivered everything."""
        while True:
            # Before the read: the state is at least as new as that, and its age counts from then.
            asked_at_ms = boot_ms()
            with contextlib.suppress(Unavailable, StoreFull):
                state = await self._store.read_state()
                await self._see_leader(state.server_record, state.epoch)
                # A confirmed age counts only if the mirror has the revision that the quorum read named.
                if self._is_read.is_set() and await self._reaches(state.revision):
                    self._confirmed_at_ms = asked_at_ms
            await asyncio.sleep(_CONFIRM_SECONDS)

    async def _see_leader(self, record: bytes | None, epoch: int) -> None:
        has_changed = record != self._leader_record
        self._leader_record, self._epoch = record, epoch
        if has_changed:
            async with self._leader_changed:
                self._leader_changed.notify_all()

    async def _reaches(self, revision: int) -> bool:
        try:
            async with asyncio.timeout(_STALL_SECONDS):
                await self.wait_for_revision(revision)
        except TimeoutError:
            if self._watch is not None:
                # A watch can hang without an error, as on an etcd
                # member that lost its quorum: end it, and read again.
                self._watch.reschedule(asyncio.get_running_loop().time())
            return False
        return True
