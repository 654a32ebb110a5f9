"""Stored bytes -> a mirror, without the jobs, nodes and other records that cannot be loaded.

What cannot be decoded or applied is *set aside* with everything that depends on it: of a job its blocks, too.
Its bytes stay in the store, and the loop refuses to write it, so nothing is lost by going on without it.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from rota.engine.state.mirror import Mirror, Unapplied
from rota.model.errors import Damaged
from rota.model.ids import JobId, subject_of
from rota.model.plan import Record
from rota.store import codec

_ESSENTIAL = ("meta", "restored")  # without them numbers would be given twice, or nodes greeted too early


class LoadedMirror(NamedTuple):
    mirror: Mirror
    aside: dict[str, Exception]  # by subject


def load_mirror(
    written: Iterable[tuple[str, bytes]],
    now_ms: int,
    distrusted: dict[str, Exception] | None = None,
    only_granted: frozenset[str] = frozenset(),
) -> LoadedMirror:
    """Raises Damaged if there is no going on without a record that cannot be read."""
    decoded = codec.decode_all(written)
    aside = dict(distrusted or {})
    for key, error in decoded.failed.items():
        if key.partition("/")[0] in _ESSENTIAL:
            raise Damaged(f"the record {key} cannot be read, perhaps a newer version wrote it: {error}")
        aside.setdefault(subject_of(key), error)
    failures = 0
    while True:
        records = [record for record in decoded.records if not aside or subject_of(record.key) not in aside]
        mirror = Mirror(only_granted)
        mirror.now_ms = now_ms
        try:
            mirror.load(records)
        except Unapplied as unapplied:
            aside[unapplied.subject] = unapplied.error
            failures += 1
            if failures > 1:  # there may be many, and each would cost another load
                aside |= _failing_alone(records)
            continue
        mirror.unloadable = frozenset(JobId(name[4:]) for name in aside if name.startswith("job/"))
        return LoadedMirror(mirror, aside)


def _failing_alone(records: list[Record]) -> dict[str, Exception]:
    """The subjects that cannot be loaded even if nothing else is."""
    by_subject: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_subject[subject_of(record.key)].append(record)
    failing: dict[str, Exception] = {}
    for of_one in by_subject.values():
        try:
            Mirror().load(of_one)
        except Unapplied as unapplied:
            failing[unapplied.subject] = unapplied.error
    return failing
