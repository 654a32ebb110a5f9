"""Stored bytes -> a mirror, without the jobs, nodes and other records that cannot be loaded.

A record that cannot be decoded or applied is *set aside* together with its subject: for a job, all its blocks
too. The bytes stay in the store, and the loop refuses to write to that subject, so no data is lost by running
without it. A later version that can read the bytes loads them again.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from rota.engine.state.mirror import Mirror, Unapplied
from rota.model.errors import Damaged
from rota.model.ids import JobId, subject_of
from rota.model.plan import Record
from rota.store import codec

# Without these records job numbers would be given twice, or nodes admitted to a restored server too early.
_ESSENTIAL = ("meta", "restored")


class LoadedMirror(NamedTuple):
    mirror: Mirror
    aside: dict[str, Exception]  # by subject


def load_mirror(
    written: Iterable[tuple[str, bytes]],
    now_ms: int,
    distrusted: dict[str, Exception] | None = None,
    only_granted: frozenset[str] = frozenset(),
) -> LoadedMirror:
    """Load a mirror. Raises Damaged if a record cannot be read without which the server must not run."""
    decoded = codec.decode_all(written)
    aside = dict(distrusted or {})
    for key, error in decoded.failed.items():
        if key.partition("/")[0] in _ESSENTIAL:
            raise Damaged(f"the record {key} cannot be read, perhaps a newer version wrote it: {error}")
        aside.setdefault(subject_of(key), error)
    failures = 0
    while True:
        # Filtered by subject, not by record: a job without one of its records would be decided on wrongly.
        records = [record for record in decoded.records if not aside or subject_of(record.key) not in aside]
        # A new mirror each time: one on which a record failed
        # has half-updated derived state (invariant of Mirror).
        mirror = Mirror(only_granted)
        mirror.now_ms = now_ms
        try:
            mirror.load(records)
        except Unapplied as unapplied:
            aside[unapplied.subject] = unapplied.error
            failures += 1
            if failures > 1:  # there may be many, and each would cost another full load
                aside |= _failing_alone(records)
            continue
        mirror.unloadable = frozenset(JobId(name[4:]) for name in aside if name.startswith("job/"))
        return LoadedMirror(mirror, aside)


def _failing_alone(records: list[Record]) -> dict[str, Exception]:
    """The subjects that cannot be loaded even on their own."""
    by_subject: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_subject[subject_of(record.key)].append(record)
    failing: dict[str, Exception] = {}
    for of_subject in by_subject.values():
        try:
            Mirror().load(of_subject)
        except Unapplied as unapplied:
            failing[unapplied.subject] = unapplied.error
    return failing
