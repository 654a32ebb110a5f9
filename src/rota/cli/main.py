"""`rota`: find and run a command; every outcome becomes an exit code, never a traceback."""

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from rota import __version__
from rota.cli.ui.terminal import harmless

BROKEN_PIPE = 141
INTERRUPTED = 130
COMPLETING = "_ROTA_COMPLETE"

# The texts are repeated here so that `rota --help` imports no command; a test keeps them equal.
SECTIONS: dict[str, dict[str, str]] = {
    "Work": {
        "run": "Submit a job, follow it and return its exit code.",
        "ls": "List jobs, newest first.",
        "show": "Show a job or one of its tasks.",
        "why": "Explain why a job waits and what would let it start.",
        "plan": "Show where and when a job would start, without submitting it.",
        "logs": "Print the output of a job.",
        "get": "Download the files in the ROTA_OUTPUT_DIR of a job.",
        "wait": "Wait for jobs and return their exit code.",
        "cancel": "Cancel jobs.",
        "kill": "Cancel jobs without a grace period, or send a signal.",
        "rerun": "Submit an ended job again as a new one; do not wait.",
        "pause": "Start no more tasks of jobs.",
        "resume": "Resume paused jobs.",
        "job": "List, show, change, restart, move, release, cancel and delete jobs.",
        "cron": "Submit jobs on a schedule.",
    },
    "Cluster": {
        "top": "Watch nodes and jobs: requested, used and available resources.",
        "cluster": "List, create and resize clusters, and explain why they grew.",
        "node": "List nodes, let them join, and take them out of service.",
        "namespace": "Show and set quotas and limits of groups of jobs.",
        "event": "List and watch events.",
        "token": "Create, list and revoke API tokens.",
        "ca": "Show and rotate the cluster's certificate authority.",
        "store": "Back up, restore, check and migrate the store of the server.",
    },
    "Start": {
        "dev": "Start a whole cluster on this machine.",
        "server": "Start the control plane, or show its status.",
        "agent": "Make this machine a node.",
        "watcher": "Hold connections of agents for the leader, or list watchers.",
    },
    "Other": {
        "config": "Show and check settings.",
        "completion": "Print the completion script for a shell.",
        "version": "Print the versions of client and server.",
    },
}
COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}


class LazyGroup(click.Group):
    """A group that imports the module of a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"rota.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command {args[0]!r}" + nearest(args[0], COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Try it: `rota dev` in one terminal, `rota run -- echo hello` in another.",
)
@click.version_option(__version__, message="rota %(version)s")
def cli() -> None:
    """Rota runs jobs on a cluster of machines, or on this one."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the `rota` program."""
    sys.exit(outcome(arguments))


def outcome(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; errors are printed on stderr and become the exit code."""
    try:
        code = _invoke(sys.argv[1:] if arguments is None else list(arguments))
        # Inside the try: that a pipe was closed shows only at the flush, and must not end in a traceback.
        sys.stdout.flush()
    except click.exceptions.Exit as requested:
        return requested.exit_code
    except BrokenPipeError:
        return _on_broken_pipe()
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.ClickException as error:
        return _explain_usage(error)
    except Exception as error:  # the outermost edge: no traceback reaches a user
        return _explain(error)
    return code if isinstance(code, int) else 0


def _invoke(arguments: list[str]) -> object:
    if COMPLETING in os.environ:
        return cli.main(args=arguments, prog_name="rota", complete_var=COMPLETING)
    # Not `cli.main`: it turns a broken pipe into exit code 1.
    with cli.make_context("rota", arguments) as context:
        return cli.invoke(context)


def nearest(word: str, known: Any) -> str:
    """A suggestion for a mistyped name. Dashes are ignored: all options start with them."""
    bare = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), list(bare), n=1, cutoff=0.5)
    return f"; did you mean {bare[near[0]]!r}?" if near else ""


def _no_option(name: str, context: click.Context | None) -> str:
    """The message for an unknown option; users of commands that take NAME=VALUE often write --name value."""
    parameters = [] if context is None else context.command.params
    takes_pairs = any(
        "=" in (parameter.metavar or "") for parameter in parameters if isinstance(parameter, click.Argument)
    )
    meant = nearest(name, [flag for option in parameters for flag in option.opts if flag.startswith("-")])
    if takes_pairs and not meant:
        meant = f"; did you mean '{name.lstrip('-')}=...'?"
    return f"there is no option {name!r}{meant}"


def print_error(code: str, message: str, hint: str | None = None) -> None:
    for line in (f"{_red('error:')} {code}: {message}", *([f"hint: {hint}"] if hint else [])):
        click.echo(harmless(line) if sys.stderr.isatty() else line, err=True)


def _explain_usage(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help" if context is not None else None
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        message = _no_option(error.option_name, context)
    print_error("usage", message, hint)
    return error.exit_code


def _explain(error: Exception) -> int:
    if os.environ.get("ROTA_DEBUG"):
        traceback.print_exc()
    code = getattr(error, "code", None)
    # By attribute, not by type: errors of the client and of the server's own code both have a code, and
    # importing both would cost start-up time.
    if isinstance(code, str):
        exit_code = getattr(error, "exit_code", 1)
        print_error(code, str(error), getattr(error, "hint", None))
        return exit_code if isinstance(exit_code, int) else 1
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        print_error("system", f"{where}{error.strerror}")
        return 1
    print_error(
        "internal", f"{type(error).__name__}: {error}", "ROTA_DEBUG=1 shows the details; please report this"
    )
    return 1


def _on_broken_pipe() -> int:
    """`rota … | head`: end quietly, as programs killed by SIGPIPE do."""
    # The interpreter flushes stdout once more at its exit, which would raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _red(text: str) -> str:
    return (
        click.style(text, fg="red", bold=True)
        if sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        else text
    )


if __name__ == "__main__":
    main()
