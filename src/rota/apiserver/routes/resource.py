"""Resource: what the routes of clusters, crons, namespaces and nodes have in common. [I/O]

A route of a resource names the command that it asks of the engine, and nothing else. Here, once for all of
them, the role of a reader is checked, a page and its fields are chosen, a change is guarded by If-Match, the
object is named in the audit log, and it is shown with its ETag as it is after the change. Whether a caller
may change the object is decided by the command itself, in `rota.apiserver.admission`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, etags
from rota.apiserver.access import Action, Caller
from rota.apiserver.responses import api_of, caller_of, json_response, set_audit_target
from rota.apiserver.views import pages
from rota.apiserver.views.pages import Json, PageRequest
from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.model.plan import Instant
from rota.model.view import View

T = TypeVar("T")


class ReadContext(NamedTuple):
    """The caller that reads an object, and the time at which it does."""

    caller: Caller
    now: Instant


@dataclass(frozen=True, slots=True)
class Representation(Generic[T]):
    """An object as JSON: the names that `fields=` may choose, and a function that renders all of them."""

    fields: tuple[str, ...]
    render: Callable[[Mirror, T, ReadContext], Json]


def ref_in_path(request: Request) -> str:
    ref: str = request.path_params["ref"]
    return ref


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One kind of object. A command on it answers with a ref by which `find` finds the object again."""

    name: str  # singular: in the audit log; with an s it is the field of a list
    find: Callable[[View, str, Caller], T]  # raises NotFound, also if the caller may not see the object
    desired: Callable[[View, T], object]  # what the ETag is made of: status is not part of it
    name_of: Callable[[T], str]  # unique and never changed, so that pages neither overlap nor leave out
    shown: Representation[T]
    listed: Representation[T]
    page_max: int
    rank: Callable[[str], Any] = str  # sort key of a name
    ref_of: Callable[[Request], str] = ref_in_path

    def page_request(self, request: Request) -> PageRequest:
        access.require_role(caller_of(request), Action.READ)
        return pages.parse_page_request(request.query_params, self.listed.fields, "name", most=self.page_max)

    def page(
        self, mirror: Mirror, entries: Iterable[T], page_request: PageRequest, context: ReadContext
    ) -> Json:
        found, after = pages.paginate(entries, self.name_of, page_request, self.rank)
        listed = [
            pages.pick_fields(self.listed.render(mirror, entry, context), page_request.only)
            for entry in found
        ]
        return {f"{self.name}s": listed, "next": after}

    async def list_page(self, request: Request, entries: Callable[[Mirror], Iterable[T]]) -> Response:
        """A page of the entries that the caller may see."""
        page_request, context = self.page_request(request), read_context(request)
        page = await api_of(request).engine.read(
            lambda mirror: self.page(mirror, entries(mirror), page_request, context)
        )
        return json_response(page)

    async def show(self, request: Request) -> Response:
        access.require_role(caller_of(request), Action.READ)
        ref, only = self.ref_of(request), pages.chosen_fields(request.query_params, self.shown.fields)
        return await self._respond(request, ref, 200, only)

    async def create(self, request: Request, command: Command[str]) -> Response:
        return await self.act(request, command, 201)

    async def change(self, request: Request, command: Command[str], status: int = 200) -> Response:
        """Run a command if the object is still as If-Match says, and show the object after it."""
        return await self._respond(request, await self.ask_if_match(request, command), status)

    async def act(self, request: Request, command: Command[str], status: int = 200) -> Response:
        """Run a command whatever the object's version, and show the object after it."""
        return await self._respond(request, await self._ask(request, command), status)

    async def ask_if_match(self, request: Request, command: Command[str]) -> str:
        """Run a command if the object is still as If-Match says; the command's answer."""
        ref, caller = self.ref_of(request), caller_of(request)
        guarded = etags.require_match(
            request, lambda view: self._tag(view, self.find(view, ref, caller)), command
        )
        return await self._ask(request, guarded)

    async def _ask(self, request: Request, command: Command[str]) -> str:
        ref = await api_of(request).engine.ask("apiserver", command)
        set_audit_target(request, f"{self.name} {ref}")
        return ref

    async def _respond(
        self, request: Request, ref: str, status: int, only: frozenset[str] | None = None
    ) -> Response:
        context = read_context(request)

        def read(mirror: Mirror) -> tuple[Json, str]:
            found = self.find(mirror, ref, context.caller)
            return self.shown.render(mirror, found, context), self._tag(mirror, found)

        rendered, tag = await api_of(request).engine.read(read)
        return etags.with_tag(json_response(pages.pick_fields(rendered, only), status), tag)

    def _tag(self, view: View, found: T) -> str:
        return etags.tag_of(self.desired(view, found))


def read_context(request: Request) -> ReadContext:
    return ReadContext(caller_of(request), api_of(request).now())
