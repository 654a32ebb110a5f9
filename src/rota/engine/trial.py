"""A plan applied to a small copy of its subjects -> the record that cannot be applied or encoded, if any.

A trial costs some milliseconds; a plan that fails half-way in the real mirror costs reading the whole store.
It copies only the jobs and nodes that the plan writes about, so failures that depend on others are missed.
"""

from typing import NamedTuple

import msgspec

from rota.engine.parking import FaultStage
from rota.engine.state.mirror import Mirror
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.ids import JobId, Key, NodeId, subject_of
from rota.model.job import JobSpec
from rota.model.plan import Plan
from rota.model.task import TaskBlock

Block = TaskBlock | AttemptBlock | StatusBlock
_ENCODER = msgspec.msgpack.Encoder()  # as rota.store.codec uses it, which deciding code may not import


class TrialFailure(NamedTuple):
    stage: FaultStage
    key: Key
    error: Exception


def try_plan(mirror: Mirror, plan: Plan[object]) -> TrialFailure | None:
    small = _copy_of_subjects(mirror, plan)
    key, stage = Key(""), FaultStage.APPLY
    try:
        for record in plan.puts:
            key = record.key
            small.apply(record)
        for key in plan.deletes:
            small.forget(key)
        # Encoded as well: a record that applies and cannot be encoded taints the mirror just the same.
        stage = FaultStage.ENCODE
        for record in plan.puts:
            key = record.key
            _ENCODER.encode(record)
        key = Key("")
        _ENCODER.encode(plan.events)
    except Exception as error:
        return TrialFailure(stage, key, error)
    return None


def _copy_of_subjects(mirror: Mirror, plan: Plan[object]) -> Mirror:
    """A mirror of the jobs and nodes that the plan writes about, with the blocks that it may change."""
    small = type(mirror)()
    small.now_ms = mirror.now_ms
    subjects = {subject_of(key) for key in (*(record.key for record in plan.puts), *plan.deletes)}
    names = [subject.partition("/") for subject in subjects]
    jobs = [mirror.jobs[JobId(name)] for head, _, name in names if head == "job" and name in mirror.jobs]
    nodes = {NodeId(name): None for head, _, name in names if head == "node"}
    blocks = _blocks(mirror, plan)
    for block in blocks:
        nodes |= dict.fromkeys(block.nodes if isinstance(block, AttemptBlock) else ())
    records = [record for node in nodes if node in mirror.nodes for record in mirror.nodes[node].records()]
    small.load([*records, *(part for job in jobs for part in job.parts()), *blocks])
    return small


def _blocks(mirror: Mirror, plan: Plan[object]) -> list[Block]:
    """The blocks that the plan changes, and all blocks of a job whose spec it changes."""
    found: dict[Key, Block] = {}
    for record in plan.puts:
        match record:
            case TaskBlock() | AttemptBlock() | StatusBlock() if record.job in mirror.jobs:
                job, numbers = mirror.jobs[record.job], [record.block]
            case JobSpec() if record.id in mirror.jobs:
                job = mirror.jobs[record.id]
                numbers = list({*job.tasks, *job.attempts, *job.statuses})
            case _:
                continue
        for columns in (job.tasks, job.attempts, job.statuses):
            found |= {columns[number].key: columns[number] for number in numbers if number in columns}
    return list(found.values())
