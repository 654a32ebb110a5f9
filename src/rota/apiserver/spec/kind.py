"""What a job is for, and what does not go together with that."""

from collections.abc import Mapping
from typing import Any

from rota.apiserver.spec import fields
from rota.model.errors import BadField
from rota.model.job import JobKind

# Fields that mean nothing for a job with one task on every node, and what to do instead.
_REFUSED_FOR_SYSTEM = {
    "count": "it has a task on every node that fits; choose nodes with where",
    "parallel": "all its tasks run at once",
    "gang": "its tasks come and go with the nodes",
    "spread": "it is on every node anyway",
    "near": "it is on every node anyway; choose nodes with where",
    "apart": "it is on every node anyway; choose nodes with where",
    "retries": "it is started again however it ends",
    "deadline": "it has no end",
    "recovery": "its tasks stay on their nodes",
    "when_unschedulable": "it waits for nodes to come",
}
_DEFAULTS: dict[str, tuple[object, ...]] = {
    "gang": (False,),
    "retries": (0,),
    "when_unschedulable": ("queue",),
    "recovery": ("scheduler",),
}


def parse_kind(said: Mapping[str, Any]) -> JobKind:
    kind = fields.one_of("kind", said.get("kind", JobKind.BATCH), JobKind)
    if kind is JobKind.SYSTEM:
        for field, instead in _REFUSED_FOR_SYSTEM.items():
            given = _given_retries(said) if field == "retries" else said.get(field)
            if given not in (None, [], *_DEFAULTS.get(field, ())):
                raise BadField(field, "does not go with kind = system", f"leave it out: {instead}")
        if said.get("run", "at_least_once") != "at_least_once":
            raise BadField("run", "a system job is started again and again", "write at_least_once")
    return kind


def _given_retries(said: Mapping[str, Any]) -> object:
    """The retries, by either of the two fields that say them."""
    table = said.get("retry")
    return said.get("retries") or (table.get("attempts") if isinstance(table, dict) else None)
