"""Routes of the store: a backup, and the confirmation of a restored server. [I/O]"""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, responses
from rota.apiserver.access import Action
from rota.apiserver.admission import restore
from rota.apiserver.api import wall_ms
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, set_audit_target
from rota.apiserver.spec.fields import known_fields
from rota.engine.state.mirror import Mirror
from rota.model.node import is_plausible_epoch
from rota.store import backup


async def back_up(request: Request) -> Response:
    """A backup of all records at one revision; commits continue meanwhile."""
    api = api_of(request)
    access.require_cluster_wide(caller_of(request), Action.BACK_UP)
    files = await asyncio.to_thread(api.backup_files)
    origin = backup.BackupOrigin(wall_ms(), api.version, files)

    async def run(write: responses.Write) -> bytes:
        async for chunk in backup.stream(api.engine.store, origin):
            await write(chunk)
        return b""

    set_audit_target(request, "store")
    return responses.StreamingResponse(run, "application/octet-stream")


async def accept_nodes(request: Request) -> Response:
    """Confirm that a restored server may lead the nodes that refuse its epoch.

    The confirmation is durable before the epoch is raised above every one that these nodes have seen: after a
    crash in between, the request can be repeated. Nodes are accepted when they connect next.
    """
    api, caller = api_of(request), caller_of(request)
    known_fields(await json_body(request), ())
    access.require_cluster_wide(caller, Action.RESTORE)
    seen = await api.engine.read(lambda mirror: highest_epoch(mirror, api.engine.epoch))
    set_audit_target(request, "store")
    accepted = await api.engine.ask(
        "apiserver", lambda view, now: restore.accept_nodes(view, caller, seen, api.engine.epoch, now)
    )
    epoch = await api.engine.raise_epoch(seen)
    left_ms = max(0, accepted.open_at_ms - api.engine.now_ms())
    return json_response({"epoch": epoch, "open_in_ms": left_ms})


def highest_epoch(mirror: Mirror, epoch: int) -> int:
    """The highest epoch that refused nodes have seen; implausible ones are ignored, as one node could lie."""
    epochs = (node.refused.epoch_seen for node in mirror.nodes.values() if node.refused)
    return max((seen for seen in epochs if is_plausible_epoch(seen, epoch)), default=0)


ROUTES = [
    responses.route("GET", "/v1/store/backup", back_up),
    responses.route("POST", "/v1/store/accept", accept_nodes),
]
