"""User requests on a Stage, for jobs that exist."""

from rota.apiserver.access import Caller
from rota.apiserver.admission import actions, update
from rota.apiserver.admission.move import move_admission
from rota.apiserver.admission.rerun import RerunSelection, rerun_job
from rota.identity.tokens import Role
from rota.model.ids import JobId
from rota.model.job import Counters
from rota.scheduler.explain.move_check import why_not_moved
from rota.testing.stage import Stage

USER = Caller("user", Role.ADMIN, ("*",))


def resize(stage: Stage, job: JobId, count: int) -> None:
    """Set the number of tasks; running ones are otherwise left alone."""
    request = update.UpdateRequest({"count": count})
    stage.ask("apiserver", lambda view, now: update.update_job(view, job, request, USER, now))
    stage.run_to_quiescence()


def pause(stage: Stage, job: JobId, *, stop: bool) -> None:
    body = {"stop": stop}
    stage.ask("apiserver", lambda view, now: actions.pause(view, job, body, USER, now))
    stage.run_to_quiescence()


def resume(stage: Stage, job: JobId) -> None:
    stage.ask("apiserver", lambda view, now: actions.resume(view, job, {}, USER, now))
    stage.run_to_quiescence()


def rerun(stage: Stage, job: JobId, *, failed: bool) -> None:
    """Rerun a job; with `failed`, only tasks that have not succeeded."""
    stage.put(Counters(jobs=max(map(int, stage.mirror.jobs))))  # scripts number their jobs themselves
    selection = RerunSelection({"failed": failed})
    stage.ask("apiserver", lambda view, now: rerun_job(view, job, selection, USER, now))
    stage.run_to_quiescence()


def move(stage: Stage, job: JobId, indices: list[int] | None, to: str | None) -> None:
    """Move tasks; raises what refuses it."""
    admit = move_admission(why_not_moved)
    body = {"indices": indices, "to": to}
    stage.ask("apiserver", lambda view, now: admit(view, job, body, USER, now))
    stage.run_to_quiescence()
