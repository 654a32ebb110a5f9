"""The traceback of a failed decision -> the waiting job that it was working on.

Some keys stand for the whole cluster: one scheduling round serves all jobs. When such a decision fails it
matters which job it was working on, and deciding code keeps no record of that. The frames of the traceback
do: the outermost one with exactly one waiting job among its local variables names it. A wrong guess costs
little: a job is parked for a while although another one is to blame, and the decision fails again and names
the next one.
"""

from types import TracebackType

from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId


def blamed_job(error: Exception, mirror: Mirror) -> JobId | None:
    step: TracebackType | None = error.__traceback__
    while step is not None:
        found = {
            value.spec.id
            for value in step.tb_frame.f_locals.values()
            # Only jobs in a queue and in this mirror: frames may
            # hold entries of ended jobs or of what-if copies.
            if isinstance(value, JobEntry) and value.queue and mirror.jobs.get(value.spec.id) is value
        }
        if len(found) == 1:
            return found.pop()
        step = step.tb_next
    return None
