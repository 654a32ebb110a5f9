"""Shared by all commands that use a server: its address, and how long to wait for it."""

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

# A command that reads should soon report that no server runs; one that changes something waits for a restart
# or a failover.
READING_SECONDS = 2.0
WORKING_SECONDS = 20.0
QUIET_SECONDS = 0.5


def with_cluster(
    patience_seconds: float = READING_SECONDS,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--addr` and `--context`, and passes an open Cluster to the command as its first argument."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--addr", metavar="URL", help="The server. [default: ROTA_ADDR, or the context's]")
        @click.option("--context", metavar="NAME", help="The context. [default: ROTA_CONTEXT, or local]")
        @functools.wraps(function)
        def command(*args: Any, addr: str | None, context: str | None, **options: Any) -> Any:
            with Cluster(resolve(addr, None, context), patience_seconds, waiting_notice()) as cluster:
                done = function(cluster, *args, **options)
                print_age(cluster.transport.seen.age_ms)
                return done

        return command

    return decorate


def print_age(age_ms: int) -> None:
    """Print how old the answer is if it came from a standby and there is no leader."""
    if age_ms > STANDBY_AGE_MS:
        print_note(f"note: this is {format_duration(age_ms / 1000)} old: it comes from a standby server")


def waiting_notice() -> OnWait:
    """A callback that prints once, after a moment, why the command waits for the server."""
    due_at = 0.0
    printed = False

    def notice(problem: Unavailable) -> None:
        nonlocal due_at, printed
        now = time.monotonic()
        due_at = due_at or now + QUIET_SECONDS
        # After a moment and once: a failover within half a second needs no message.
        if not printed and now >= due_at:
            printed = True
            print_note(f"waiting: {problem}")

    return notice
