"""Events as the API shows them."""

import msgspec

from rota.apiserver.views.job_spec import node_name
from rota.apiserver.views.jobs import Json
from rota.engine.state.mirror import Mirror
from rota.model.plan import EventRecord


def event_json(mirror: Mirror, sequence: str, at_ms: int, happened: EventRecord) -> Json:
    tasks = sum(last - first + 1 for first, last in happened.indices) or 1
    code = happened.exit_code
    return {
        "seq": sequence,
        "at_ms": at_ms,
        "kind": happened.kind,
        "job": happened.job,
        "node": None if happened.node is None else node_name(mirror, happened.node),
        "indices": happened.indices or None,
        "attempts": happened.attempt,
        "exit_codes": None if code is None else {str(code): tasks},
        "state": happened.state,
        "cluster": happened.cluster,
        "namespace": happened.namespace,
        "step": happened.step,
        "result": None if happened.result is None else msgspec.Raw(happened.result.encode()),
        "counts": happened.counts or None,
        "why": happened.why,
    }
