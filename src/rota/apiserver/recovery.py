"""Who recovers what a job loses with a node -> the fields of its spec, or BadField."""

from collections.abc import Mapping
from typing import Any

from rota.apiserver import fields
from rota.model.amounts import parse_seconds
from rota.model.errors import BadField
from rota.model.job import Recovery
from rota.model.limits import CONTROLLER_WAIT_SECONDS, TIMEOUT_SECONDS_MAX
from rota.model.recovery import Absence

_OF_CONTROLLERS = ("controller", "when_no_controller", "controller_wait")


def recovery(said: Mapping[str, Any]) -> dict[str, Any]:
    owner = fields.one_of("recovery", said.get("recovery", Recovery.SCHEDULER), Recovery)
    if owner is not Recovery.CONTROLLER:
        for field in _OF_CONTROLLERS:
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
            "when_no_controller", said.get("when_no_controller", Absence.WAIT), Absence
        ),
        "controller_wait_seconds": fields.number(
            "controller_wait",
            parse_seconds,
            said.get("controller_wait", CONTROLLER_WAIT_SECONDS),
            TIMEOUT_SECONDS_MAX,
        ),
    }
