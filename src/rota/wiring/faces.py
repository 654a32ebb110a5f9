"""What a server's faces need of it: of one that leads, and of one that stands by. [I/O]"""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rota import __version__
from rota.apiserver.api import Addresses, Api, BeforeToken, OutputSource, Stance, Workers, at_once
from rota.apiserver.fanout import Shared
from rota.apiserver.logs import Logs, LogSource, TailSource
from rota.apiserver.rates import Rates
from rota.apiserver.watch import Changes
from rota.config import Limits
from rota.engine.run import Engine
from rota.identity.audit import AuditLog
from rota.identity.authority import Authority
from rota.identity.expiry import Expiry
from rota.identity.vault import Vault
from rota.model.errors import Unavailable
from rota.model.ids import NodeId
from rota.model.sync import LogPiece, LogRequest, OutputsRequest
from rota.scheduler.ahead import Known
from rota.scheduler.explain import why
from rota.scheduler.move_check import why_not_moved
from rota.scheduler.round import Settings
from rota.scheduler.what_if import foresee
from rota.scheduler.what_moves import displace
from rota.wiring.cards import Card
from rota.wiring.keepsakes import read_keepsakes


@dataclass(frozen=True)
class Sources:
    """What comes from nodes, and who else serves them."""

    logs: LogSource
    outputs: OutputSource
    tails: TailSource | None
    servers: Callable[[], list[Card]]
    workers: Workers | None = None  # of the worker gateway, where it is open
    watchers: Callable[[], list[str]] = list  # agent addresses of watchers


@dataclass(frozen=True)
class Own:
    """By what a server is known, and where it is."""

    directory: Path
    authority: Authority
    vault: Vault
    addresses: Addresses
    expiries: Callable[[], list[Expiry]]
    audit: AuditLog
    limits: Limits
    before_token: BeforeToken = at_once


def make_api(
    engine: Engine,
    own: Own,
    settings: Settings,
    sources: Sources,
    stance: Stance | None = None,
    *,
    known: Callable[[], Known | None] = lambda: None,
) -> Api:
    changes = Changes(engine)
    return Api(
        engine=engine,
        changes=changes,
        logs=Logs(engine, changes, Shared(sources.logs), sources.tails),
        outputs=sources.outputs,
        vault=own.vault,
        authority=own.authority,
        audit=own.audit,
        explain=partial(why, plugins=settings.plugins, backfill=settings.backfill, known=known),
        foresee=partial(foresee, settings=settings),
        displace=partial(displace, settings=settings),
        why_not_moved=partial(why_not_moved, plugins=settings.plugins),
        addresses=own.addresses,
        version=__version__,
        keepsakes=partial(read_keepsakes, own.directory),
        agent_addresses=lambda: _agent_addresses(own, sources),
        controller_addresses=lambda: [card.controller for card in sources.servers()],
        stance=stance,
        workers=sources.workers,
        expiries=own.expiries,
        before_token=own.before_token,
        rates=Rates(own.limits.requests_per_second, own.limits.requests_at_once),
    )


def _agent_addresses(own: Own, sources: Sources) -> list[str]:
    """For an agent that joins: watchers first, in an order of chance, so that they share the agents."""
    watchers = sources.watchers()
    random.shuffle(watchers)
    return [*watchers, own.addresses.agent, *(card.agent for card in sources.servers())]


class Elsewhere:
    """Nodes talk to the one that leads."""

    def open(self, node: NodeId, wanted: LogRequest) -> AsyncIterator[LogPiece]:
        del node, wanted
        raise _stands_by()

    def outputs(self, node: NodeId, wanted: OutputsRequest) -> AsyncGenerator[bytes, None]:
        del node, wanted
        raise _stands_by()


def _stands_by() -> Unavailable:
    return Unavailable("this server stands by: the one that leads has it")
