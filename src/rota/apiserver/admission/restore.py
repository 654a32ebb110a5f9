"""Restore: records of a backup -> the records that the server starts with; and the operator's confirmation.

What happened after the backup is unknown: jobs were submitted, tasks placed, results reported. Two invariants
must hold all the same. No id is used twice, so the counters jump ahead. No at_most_once task starts twice, so
such jobs are paused until a user resumes them.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.model.adoption import Restored
from rota.model.errors import Conflict
from rota.model.ids import Key
from rota.model.job import Counters, JobIntent, JobSpec, JobStatus
from rota.model.limits import RESTORE_NUMBERS
from rota.model.plan import EventRecord, Instant, Plan, Record
from rota.model.shape import RunMode
from rota.model.view import View

_WHY = "restored from a backup: it may have been started since"


def restored_records(records: Iterable[Record], taken_at_ms: int, now: Instant) -> list[Record]:
    """All records of the backup, with counters ahead of any id in use and at_most_once jobs paused."""
    known = {record.key: record for record in records}
    counters = known.get(Counters().key, Counters())
    assert isinstance(counters, Counters)
    changed: list[Record] = [
        # A gap: after the backup the old server has given out numbers that are not
        # in it, and nodes know them.
        Counters(counters.jobs + RESTORE_NUMBERS, counters.nodes + RESTORE_NUMBERS),
        Restored(taken_at_ms, now.wall_ms),
        *_paused_intents(known, now),
    ]
    return [*(known | {record.key: record for record in changed}).values()]


def accept_nodes(view: View, caller: Caller, seen_epoch: int, epoch: int, now: Instant) -> Plan[Restored]:
    """The operator's confirmation that no other server leads these nodes: they may follow this one.

    Tasks may still run under leases of the previous leader. They end by themselves; no handshake of a node is
    accepted before the longest of these leases has expired.
    """
    access.require_cluster_wide(caller, Action.RESTORE)
    before = view.restored
    # Or a copied directory whose nodes have seen a higher epoch elsewhere: the same confirmation applies.
    is_waiting = before is not None and not before.accepted
    if not is_waiting and seen_epoch <= epoch:
        hint = "`rota server status` names the nodes that are refused, and why"
        raise Conflict("no node waits to follow this server", hint=hint)
    why = f"{caller.name} confirms that nodes may follow this server"
    if before is None:
        before = Restored(0, now.wall_ms)
    accepted = msgspec.structs.replace(before, accepted=True, open_at_ms=now.ms + _longest_lease_ms(view))
    return Plan((accepted,), events=(EventRecord("store.accepted", why),), why=why, answer=accepted)


def _longest_lease_ms(view: View) -> int:
    specs = [view.jobs[job].spec for job in view.leased]
    return max(((spec.lease_ms or 0) + spec.lease_margin_ms for spec in specs), default=0)


def _paused_intents(known: Mapping[Key, Record], now: Instant) -> Iterator[JobIntent]:
    for record in known.values():
        if isinstance(record, JobSpec) and record.run is RunMode.AT_MOST_ONCE:
            status = known.get(Key(f"job/{record.id}/status"))
            if isinstance(status, JobStatus) and status.ended:
                continue
            intent = known.get(Key(f"job/{record.id}/wish")) or JobIntent(record.id)
            assert isinstance(intent, JobIntent)
            yield msgspec.structs.replace(intent, paused=True, reason=intent.reason or _WHY, at_ms=now.ms)
