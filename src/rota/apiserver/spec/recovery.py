"""Who recovers what a job loses with a node -> the fields of its spec, or BadField."""

from collections.abc import Mapping
from typing import Any

import msgspec

from rota.apiserver.access import Caller
from rota.apiserver.spec import fields
from rota.model.amounts import parse_seconds
from rota.model.errors import BadField
from rota.model.job import JobKind, JobSpec, Recovery
from rota.model.limits import CONTROLLER_WAIT_SECONDS, TIMEOUT_SECONDS_MAX
from rota.model.plan import Instant
from rota.model.recovery import WhenControllerAbsent
from rota.model.subscriber import names_of
from rota.model.view import View

_CONTROLLER_FIELDS = ("controller", "when_no_controller", "controller_wait")


def with_named_controller(body: object) -> object:
    """The body of a submit over controller.proto: one that names a controller need not say `recovery`."""
    if not isinstance(body, dict) or "recovery" in body or body.get("controller") is None:
        return body
    return {**body, "recovery": Recovery.CONTROLLER.value}


def default_controller(view: View, body: object, caller: Caller, now: Instant) -> str | None:
    """The subscriber that owns a job of controller.proto which names no owner; None: the scheduler.

    It is the only name under which the caller is connected. Right after the start of a server, controllers
    may not have reconnected yet: then the only name whose position is kept counts.
    """
    if isinstance(body, dict) and "recovery" in body:
        return None
    names = view.presence.connected(caller.name)
    if not names and view.presence.is_young(now.ms, round(CONTROLLER_WAIT_SECONDS * 1000)):
        known = view.subscribers
        names = names_of(caller.name, (name for name in known if known[name].belongs_to(caller.owner)))
    return names[0] if len(names) == 1 else None


def with_controller(spec: JobSpec, controller: str | None) -> JobSpec:
    """The spec with that controller as its recovery owner, unless the scheduler alone can own it."""
    if controller is None or spec.is_service or spec.kind is JobKind.SYSTEM:
        return spec
    return msgspec.structs.replace(spec, recovery=Recovery.CONTROLLER, controller=controller)


def parse_recovery(said: Mapping[str, Any]) -> dict[str, Any]:
    owner = fields.one_of("recovery", said.get("recovery", Recovery.SCHEDULER), Recovery)
    if owner is not Recovery.CONTROLLER:
        for field in _CONTROLLER_FIELDS:
            if said.get(field) is not None:
                raise BadField(
                    field, f"counts for nothing: {owner} recovers it", "write recovery = controller"
                )
        return {"recovery": owner}
    if said.get("controller") is None:
        hint = "write the name under which it watches events, such as controller = ci"
        raise BadField("controller", "is missing: which controller recovers it?", hint)
    return {
        "recovery": owner,
        "controller": fields.name("controller", said["controller"]),
        "when_no_controller": fields.one_of(
            "when_no_controller",
            said.get("when_no_controller", WhenControllerAbsent.WAIT),
            WhenControllerAbsent,
        ),
        "controller_wait_seconds": fields.number(
            "controller_wait",
            parse_seconds,
            said.get("controller_wait", CONTROLLER_WAIT_SECONDS),
            TIMEOUT_SECONDS_MAX,
        ),
    }
