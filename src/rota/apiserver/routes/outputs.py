"""The route of output files: those that a task left on its node, as a list or as a tar archive. [I/O]"""

from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.lookup import find_job
from rota.apiserver.responses import api_of, caller_of
from rota.apiserver.views.job_spec import node_name
from rota.apiserver.views.tasks import attempts_of
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.errors import BadField, Conflict, NotFound
from rota.model.ids import NodeId
from rota.model.lifecycle import AttemptState
from rota.model.messages import OutputsRequest

PATHS_MAX = 100
PATH_BYTES_MAX = 4096


async def read_outputs(request: Request) -> Response:
    api, query = api_of(request), request.query_params
    form = query.get("format", "tar")
    if form not in ("tar", "list"):
        raise BadField("format", f"'{form[:20]}' is not a format", "write list or tar")
    paths = tuple(query.getlist("path"))
    if len(paths) > PATHS_MAX or any(len(path.encode()) > PATH_BYTES_MAX for path in paths):
        raise BadField("path", "is given too often, or is too long", f"name at most {PATHS_MAX} paths")

    def read(mirror: Mirror) -> tuple[NodeId, OutputsRequest]:
        job = find_job(mirror, request.path_params["ref"], caller_of(request)).spec
        responses.audit_foreign_read(request, job)
        index = responses.int_parameter(query, "index", 0, 0, job.count - 1)
        node = _output_node(mirror, mirror.jobs[job.id], index)
        return node, OutputsRequest(job.id, index, paths, names_only=form == "list")

    node, outputs_request = await api.engine.read(read)

    async def run(write: responses.Write) -> bytes:
        async with aclosing(api.outputs.outputs(node, outputs_request)) as chunks:
            async for data in chunks:
                await write(data)
        return b""

    kind, ending = ("x-ndjson", "ndjson") if outputs_request.names_only else ("x-tar", "tar")
    return responses.StreamingResponse(
        run, f"application/{kind}", file_name=f"job-{outputs_request.job}-outputs.{ending}"
    )


def _output_node(mirror: Mirror, entry: JobEntry, index: int) -> NodeId:
    """The node where the newest attempt that started has left its files."""
    for placed in reversed(attempts_of(entry, index)):
        if AttemptState.RUNNING <= placed.state < AttemptState.REFUSED:
            if placed.node not in mirror.nodes:
                reason = f"node {node_name(mirror, placed.node)} was removed, and with it the task's files"
                raise NotFound(reason, hint="run the job again")
            return placed.node
    raise Conflict(f"task {entry.spec.id}.{index} has not started", hint="wait until it has ended: rota wait")


ROUTES = [responses.route("GET", "/v1/jobs/{ref}/outputs", read_outputs)]
