"""What the API of a server needs: the same for a leader and for a standby. [I/O]"""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rota import __version__
from rota.apiserver.api import Addresses, Api, BeforeToken, OutputSource, ServerRole, Workers, no_precondition
from rota.apiserver.rate_limits import RateLimits
from rota.apiserver.streams.event_hub import EventHub
from rota.apiserver.streams.fanout import SharedLogSource
from rota.apiserver.streams.logs import Logs, LogSource, TailSource
from rota.config import Limits
from rota.engine.run import Engine
from rota.identity.audit import AuditLog
from rota.identity.authority import CertificateAuthority
from rota.identity.expiry import Expiry
from rota.identity.vault import Vault
from rota.model.errors import Unavailable
from rota.model.ids import NodeId
from rota.model.messages import LogPiece, LogRequest, OutputsRequest
from rota.scheduler.drain_preview import preview_drain
from rota.scheduler.explain.move_check import why_not_moved
from rota.scheduler.explain.queue_position import QueueSnapshot
from rota.scheduler.explain.why import explain_job
from rota.scheduler.round import SchedulerSettings
from rota.scheduler.what_if import plan_job
from rota.wiring.backup_files import read_backup_files
from rota.wiring.server_record import ServerRecord


@dataclass(frozen=True)
class ApiSources:
    """Logs, outputs and tails of nodes, and the other servers and watchers."""

    logs: LogSource
    outputs: OutputSource
    tails: TailSource | None
    servers: Callable[[], list[ServerRecord]]
    workers: Workers | None = None  # of the worker gateway, where it is open
    watchers: Callable[[], list[str]] = list  # agent addresses of watchers


@dataclass(frozen=True)
class ServerIdentity:
    """A server's directory, addresses, CA, tokens and audit log."""

    directory: Path
    authority: CertificateAuthority
    vault: Vault
    addresses: Addresses
    expiries: Callable[[], list[Expiry]]
    audit: AuditLog
    limits: Limits
    before_token: BeforeToken = no_precondition


def make_api(
    engine: Engine,
    own: ServerIdentity,
    settings: SchedulerSettings,
    sources: ApiSources,
    standby_role: ServerRole | None = None,
    *,
    known: Callable[[], QueueSnapshot | None] = lambda: None,
) -> Api:
    event_hub = EventHub(engine)
    return Api(
        engine=engine,
        event_hub=event_hub,
        logs=Logs(engine, event_hub, SharedLogSource(sources.logs), sources.tails),
        outputs=sources.outputs,
        vault=own.vault,
        authority=own.authority,
        audit=own.audit,
        explain=partial(explain_job, plugins=settings.plugins, backfill=settings.backfill, known=known),
        plan_job=partial(plan_job, settings=settings),
        preview_drain=partial(preview_drain, settings=settings),
        why_not_moved=partial(why_not_moved, plugins=settings.plugins),
        addresses=own.addresses,
        version=__version__,
        backup_files=partial(read_backup_files, own.directory),
        agent_addresses=lambda: _agent_addresses(own, sources),
        controller_addresses=lambda: [record.controller for record in sources.servers()],
        standby_role=standby_role,
        workers=sources.workers,
        expiries=own.expiries,
        before_token=own.before_token,
        rates=RateLimits(own.limits.requests_per_second, own.limits.requests_at_once),
    )


def _agent_addresses(own: ServerIdentity, sources: ApiSources) -> list[str]:
    """For an agent that joins: watchers first, in random order, so that they share the agents."""
    watchers = sources.watchers()
    random.shuffle(watchers)
    return [*watchers, own.addresses.agent, *(record.agent for record in sources.servers())]


class StandbySources:
    """Logs and outputs of a standby: unavailable, since nodes are connected to the leader."""

    def open(self, node: NodeId, request: LogRequest) -> AsyncIterator[LogPiece]:
        del node, request
        raise _stands_by()

    def outputs(self, node: NodeId, request: OutputsRequest) -> AsyncGenerator[bytes, None]:
        del node, request
        raise _stands_by()


def _stands_by() -> Unavailable:
    return Unavailable("this server is a standby: ask the leader")
