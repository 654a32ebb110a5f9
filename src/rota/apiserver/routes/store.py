"""Routes of the store itself: a backup, and the word after a restore; one function each, no rules. [I/O]"""

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
    """Everything at one revision, while work goes on."""
    api = api_of(request)
    access.require_cluster_wide(caller_of(request), Action.BACK_UP)
    kept = await asyncio.to_thread(api.backup_files)
    origin = backup.BackupOrigin(wall_ms(), api.version, kept)

    async def run(write: responses.Write) -> bytes:
        async for piece in backup.stream(api.engine.store, origin):
            await write(piece)
        return b""

    set_audit_target(request, "store")
    return responses.StreamingResponse(run, "application/octet-stream")


async def accept_nodes(request: Request) -> Response:
    """On disk first; then the epoch passes all that refused nodes have seen: they come in when they call."""
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
    """That refused nodes have seen; of what cannot be nothing is believed."""
    seen = (node.refused.epoch_seen for node in mirror.nodes.values() if node.refused)
    return max((one for one in seen if is_plausible_epoch(one, epoch)), default=0)


ROUTES = [
    responses.route("GET", "/v1/store/backup", back_up),
    responses.route("POST", "/v1/store/accept", accept_nodes),
]
