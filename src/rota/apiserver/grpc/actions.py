"""Actions of outside controllers on jobs and nodes, admitted by the same functions as over HTTP. [I/O]"""

from collections.abc import Mapping
from typing import Any

import msgspec

from rota.apiserver.access import Caller
from rota.apiserver.admission import actions, node_actions, restart
from rota.apiserver.admission.actions import AdmitAction
from rota.apiserver.admission.idempotency import idempotent
from rota.apiserver.admission.move import move_admission
from rota.apiserver.api import Api
from rota.apiserver.dry_run import dry_run_job
from rota.apiserver.spec.fields import decode_json
from rota.apiserver.views import jobs
from rota.apiserver.views.nodes import node_eligibility
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.wire.controller import plan_to_wire
from rota.wire.generated import controller_pb2 as pb

JobActionRequest = pb.PauseRequest | pb.ResumeRequest | pb.RestartRequest | pb.MoveRequest


async def act_on_job(api: Api, caller: Caller, request: JobActionRequest) -> pb.OrderReply:
    admit, body = _admission(api, request)
    admit = idempotent(admit, request.idempotency_key or None)
    job = await api.engine.ask("apiserver", lambda view, now: admit(view, request.job, body, caller, now))

    def read(mirror: Mirror) -> pb.OrderReply:
        if job not in mirror.jobs:
            raise NotFound(f"job {job} was deleted")
        return pb.OrderReply(job=job, state=jobs.state_of(mirror.jobs[job]).value)

    return await api.engine.read(read)


def _admission(api: Api, request: JobActionRequest) -> tuple[AdmitAction, Mapping[str, Any]]:
    match request:
        case pb.PauseRequest():
            return actions.pause, {"stop": request.stop}
        case pb.ResumeRequest():
            return actions.resume, {}
        case pb.RestartRequest():
            return restart.restart_tasks, {"indices": list(request.indices) or None}
        case pb.MoveRequest():
            body = {"indices": list(request.indices) or None, "to": request.to or None}
            return move_admission(api.why_not_moved), body


async def drain_node(api: Api, caller: Caller, request: pb.DrainRequest) -> pb.DrainReply:
    deadline_seconds = request.deadline_ms / 1000 if request.HasField("deadline_ms") else None
    body = {"deadline_seconds": deadline_seconds, "force": request.force}
    node = await api.engine.ask(
        "apiserver", lambda view, now: node_actions.drain_node(view, request.node, body, caller, now)
    )

    def read(mirror: Mirror) -> pb.DrainReply:
        entry = mirror.nodes[node]
        running = len(entry.assigned) - int(mirror.node_table.queued[mirror.node_table.slot[node]])
        return pb.DrainReply(node=node, eligibility=node_eligibility(entry).value, running=running)

    return await api.engine.read(read)


async def plan_job(api: Api, caller: Caller, request: pb.PlanRequest) -> pb.PlanReply:
    plan = await dry_run_job(api, caller, decode_json(request.spec_json.encode()))
    return plan_to_wire(plan, msgspec.json.encode(plan).decode())
