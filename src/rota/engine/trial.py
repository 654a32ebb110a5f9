"""A plan and a small copy of what it writes about -> the record that cannot be applied or encoded, if any.

A trial costs some milliseconds, where a plan that fails half-way in the real mirror costs reading the whole
store. It sees only the jobs and nodes of the plan, so a failure that depends on others is not foreseen.
"""

from typing import NamedTuple

import msgspec

from rota.engine.mirror import Mirror
from rota.engine.parking import Stage
from rota.model.ids import JobId, Key, NodeId, subject_of
from rota.model.plan import Plan

_ENCODER = msgspec.msgpack.Encoder()  # as the codec of the store has it, which deciding code may not import


class Failed(NamedTuple):
    stage: Stage
    key: Key
    error: Exception


def try_out(mirror: Mirror, plan: Plan) -> Failed | None:
    small = _copy(mirror, plan)
    key, stage = Key(""), Stage.APPLY
    try:
        for record in plan.puts:
            key = record.key
            small.apply(record)
        for key in plan.deletes:
            small.forget(key)
        stage = Stage.ENCODE
        for record in plan.puts:
            key = record.key
            _ENCODER.encode(record)
        key = Key("")
        _ENCODER.encode(plan.events)
    except Exception as error:
        return Failed(stage, key, error)
    return None


def _copy(mirror: Mirror, plan: Plan) -> Mirror:
    """The jobs and nodes that the plan writes about, and the nodes where those jobs are."""
    small = type(mirror)()
    small.now_ms = mirror.now_ms
    subjects = {subject_of(key) for key in (*(record.key for record in plan.puts), *plan.deletes)}
    names = [subject.partition("/") for subject in subjects]
    jobs = [mirror.jobs[JobId(name)] for head, _, name in names if head == "job" and name in mirror.jobs]
    nodes = {NodeId(name): None for head, _, name in names if head == "node"}
    for job in jobs:
        nodes |= dict.fromkeys(node for attempt in job.attempts.values() for node in attempt.nodes)
    records = [record for node in nodes if node in mirror.nodes for record in mirror.nodes[node].records()]
    small.load([*records, *(record for job in jobs for record in job.records())])
    return small
