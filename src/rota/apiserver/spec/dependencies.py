"""The jobs that have to end before a job begins: as its user calls them -> by their ids."""

import msgspec

from rota.apiserver.access import Caller
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields
from rota.model.dependency import Dependency, DependencyCondition
from rota.model.errors import BadField, NotFound
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.limits import AFTER_MAX, NAME_LENGTH_MAX
from rota.model.outlook import PlanOutcome, PlanResult
from rota.model.view import View, state_of

_HINT = "write '12', 'build' or '12:failure', or {job = \"12\", on = \"failure\"}"
_REF_MAX = NAME_LENGTH_MAX + 32  # a name, or a cron's with the instant of one of its runs


def parse_dependencies(field: str, value: object) -> tuple[Dependency, ...]:
    """One, or a list of them."""
    given = [value] if isinstance(value, str | dict) else value
    if not isinstance(given, list):
        raise BadField(field, "is not a list of jobs", _HINT)
    if len(given) > AFTER_MAX:
        raise BadField(field, f"names {len(given)} jobs", f"write at most {AFTER_MAX}")
    return tuple(_parse_dependency(field, one) for one in given)


def resolve_dependencies(view: View, spec: JobSpec, caller: Caller) -> JobSpec:
    """Jobs that are there, by their ids: as all of these are smaller than its own, no circle can arise."""
    if not spec.after:
        return spec
    found = {_resolve_dependency(view, one, caller): None for one in spec.after}
    return msgspec.structs.replace(spec, after=tuple(found))


def dependency_outcome(view: View, spec: JobSpec) -> PlanResult | None:
    """What would become of it because of those it waits for; None: they do not stand in its way."""
    found = [(one, one.is_met(state_of(view, one.job))) for one in spec.after]
    for after, holds in found:
        if holds is False:
            problem = f"it waits for {after.description}, and that ended otherwise"
            return PlanResult(PlanOutcome.NEVER, f"would never start: {problem}")
    waits = [after for after, holds in found if holds is None]
    if not waits:
        return None
    more = f" and {len(waits) - 1} more" if len(waits) > 1 else ""
    return PlanResult(PlanOutcome.WAIT, f"would wait: for {waits[0].description}{more}")


def _resolve_dependency(view: View, after: Dependency, caller: Caller) -> Dependency:
    try:
        return Dependency(find_job(view, after.job, caller).spec.id, after.on)
    except NotFound as problem:
        raise NotFound(problem.detail, field="after", hint="name a job that was submitted before") from None


def _parse_dependency(field: str, value: object) -> Dependency:
    if isinstance(value, str):
        ref, sign, how = fields.text(field, value, _REF_MAX).partition(":")
        said: dict[str, object] = {"job": ref, **({"on": how} if sign else {})}
    else:
        said = dict(fields.known_fields(value, ("job", "on"))) if isinstance(value, dict) else {}
    job_ref: object = said.get("job")
    if isinstance(job_ref, int) and not isinstance(job_ref, bool):
        job_ref = str(job_ref)
    if not isinstance(job_ref, str) or not job_ref:
        raise BadField(field, "names no job", _HINT)
    on = said.get("on", DependencyCondition.SUCCESS)
    if on not in list(DependencyCondition):
        raise BadField(
            field, f"'{fields.printable(str(on))}' is no way to end", "write success, failure or any"
        )
    return Dependency(JobId(fields.text(field, job_ref, _REF_MAX)), DependencyCondition(str(on)))
