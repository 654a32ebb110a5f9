"""`rota job` and its subcommands."""

from rota.cli.job.group import command as command
