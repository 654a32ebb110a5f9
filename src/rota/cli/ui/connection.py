"""What every command that talks to a server shares: where it is, and how long to wait for it."""

import functools
import time
from collections.abc import Callable
from typing import Any

import click

from rota.cli.ui.formats import format_duration
from rota.cli.ui.output import print_note
from rota.client.backoff import OnWait
from rota.client.cluster import Cluster
from rota.client.context import resolve
from rota.client.errors import Unavailable
from rota.model.limits import STANDBY_AGE_MS

# Someone who looks wants to know at once that nothing runs; someone who asks for work can wait out a restart,
# or until another server leads.
LOOKING_SECONDS = 2.0
WORKING_SECONDS = 20.0
QUIET_SECONDS = 0.5


def with_cluster(
    patience_seconds: float = LOOKING_SECONDS,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--addr` and `--context` and hands the command an open Cluster as its first argument."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--addr", metavar="URL", help="The server. [default: ROTA_ADDR, or the context's]")
        @click.option("--context", metavar="NAME", help="The context. [default: ROTA_CONTEXT, or local]")
        @functools.wraps(function)
        def command(*args: Any, addr: str | None, context: str | None, **options: Any) -> Any:
            with Cluster(resolve(addr, None, context), patience_seconds, waiting_notice()) as cluster:
                done = function(cluster, *args, **options)
                tell_age(cluster.transport.seen.age_ms)
                return done

        return command

    return decorate


def tell_age(age_ms: int) -> None:
    """Of what was shown, where nobody leads who would know better."""
    if age_ms > STANDBY_AGE_MS:
        print_note(
            f"note: this is {format_duration(age_ms / 1000)} old: it comes from a server that stands by"
        )


def waiting_notice() -> OnWait:
    """Says once, after a moment, that and why the server is waited for."""
    due_at = 0.0
    told = False

    def notice(problem: Unavailable) -> None:
        nonlocal due_at, told
        now = time.monotonic()
        due_at = due_at or now + QUIET_SECONDS
        if not told and now >= due_at:
            told = True
            print_note(f"waiting: {problem}")

    return notice
