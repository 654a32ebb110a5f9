"""Deaths of keepers + the tasks present at each -> the task to blame.

Everything that runs on a node dies with its keeper, so one task that kills keepers drags its neighbours
along. A task is suspect after QUARANTINE_KEEPER_DEATHS deaths at which it, and no other job, was present each
time. The backoff after a fault of the cluster differs from task to task, so neighbours come back at other
times than the culprit and miss some of its deaths. Of jobs that were present at the very same deaths, the one
that started last is blamed once there were QUARANTINE_KEEPER_DEATHS_TIED of them. A death at which a held
task was present is explained, and counts against nothing else.
"""

from collections.abc import Iterator
from typing import NamedTuple

from rota.controllers.recovery import BlockRecords
from rota.model.columns import ints
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptState, TaskState
from rota.model.limits import BLAME_MS, QUARANTINE_KEEPER_DEATHS, QUARANTINE_KEEPER_DEATHS_TIED
from rota.model.plan import Instant
from rota.model.recovery import EndCause
from rota.model.task import KeeperDeath
from rota.model.view import JobView, View

_HELD, _LOST = int(TaskState.HELD), AttemptState.LOST
_DeathKey = tuple[NodeId, int]  # node, and when its next keeper recorded the death


class DeathEvaluation(NamedTuple):
    """What one more death means for a task."""

    deaths: tuple[KeeperDeath, ...]  # that count against it from now on
    is_suspect: bool = False


class _OtherJob(NamedTuple):
    """Another job with tasks that were present at deaths of keepers."""

    deaths: frozenset[_DeathKey]
    is_held: bool  # one of these tasks is in quarantine
    started_at_ms: int  # the latest start among its tasks that died with the keeper last


def evaluate_death(view: View, block: BlockRecords, position: int, now: Instant) -> DeathEvaluation:
    """Record the death that ended a task's current attempt, and decide whether it is suspect."""
    task, job = block.task, block.task.job
    node = block.attempt.nodes[ints(block.attempt, "node")[position]]
    # Old deaths lapse: a service that runs for months meets three dead keepers without being their cause.
    known = (death for death in task.deaths.get(position, ()) if death.ms > now.ms - BLAME_MS)
    deaths = (*known, KeeperDeath(node, ints(block.status, "ended_at_ms")[position], now.ms))
    # Cheap test first: the comparison with other jobs scans all of them.
    if len(deaths) < QUARANTINE_KEEPER_DEATHS:
        return DeathEvaluation(deaths)
    others = list(_other_jobs(view, job))
    # The culprit of these deaths is in quarantine already. Counting them would hold its neighbours, too.
    explained = frozenset[_DeathKey]().union(*(other.deaths for other in others if other.is_held))
    left = tuple(death for death in deaths if _death_key(death) not in explained)
    if len(left) < QUARANTINE_KEEPER_DEATHS:
        return DeathEvaluation(left)
    tied = [other for other in others if other.deaths.issuperset(map(_death_key, left))]
    # Another job was present at exactly the same deaths. The backoff restarts the two at different times, so
    # the next deaths are likely to separate them.
    if tied and len(left) < QUARANTINE_KEEPER_DEATHS_TIED:
        return DeathEvaluation(left)
    started_at_ms = ints(block.status, "started_at_ms")[position]
    # The backoff did not separate them, as on the only node of a cluster. The one that started last is
    # blamed, so that one job is held and not all of them.
    return DeathEvaluation(left, is_suspect=all(other.started_at_ms <= started_at_ms for other in tied))


def describe_deaths(view: View, deaths: tuple[KeeperDeath, ...]) -> str:
    nodes = dict.fromkeys(death.node for death in deaths)
    names = [view.nodes[node].spec.name if node in view.nodes else node for node in nodes]
    return f"the keeper died {len(deaths)} times while it ran there: on {', '.join(names)}"


def _other_jobs(view: View, job: JobId) -> Iterator[_OtherJob]:
    """Every other unfinished job with deaths. Rarely computed: only when a task may go into quarantine."""
    for other, entry in view.jobs.items():
        is_over = entry.status is not None and entry.status.ended
        if other != job and not is_over and any(task.deaths for task in entry.tasks.values()):
            yield _other_job(entry)


def _other_job(entry: JobView) -> _OtherJob:
    """Deaths of one job, including losses that its statuses report and that are not processed yet."""
    deaths: set[_DeathKey] = set()
    is_held, started_at_ms = False, 0
    for number, task in entry.tasks.items():
        status, attempt = entry.statuses.get(number), entry.attempts.get(number)
        for position, known in task.deaths.items():
            deaths.update(map(_death_key, known))
            is_held |= task.state[position] == _HELD
            if status is None or attempt is None or status.causes.get(position) != EndCause.KEEPER_DIED:
                continue
            # Blocks are decided one after another: the other job may not have recorded this last death yet.
            if status.state[position] == _LOST:
                node = attempt.nodes[ints(attempt, "node")[position]]
                deaths.add((node, ints(status, "ended_at_ms")[position]))
                started_at_ms = max(started_at_ms, ints(status, "started_at_ms")[position])
    return _OtherJob(frozenset(deaths), is_held, started_at_ms)


def _death_key(death: KeeperDeath) -> _DeathKey:
    return death.node, death.ended_at_ms
