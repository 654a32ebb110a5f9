"""`rota node` and its subcommands."""

from rota.cli.node.group import command as command
