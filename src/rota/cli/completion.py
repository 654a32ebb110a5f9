"""`rota completion`: print the shell completion script for commands and flags."""

import click
from click.shell_completion import get_completion_class

from rota.cli.main import COMPLETING, cli
from rota.cli.ui.output import print_data

LINES = {
    "bash": 'eval "$(rota completion bash)"          # in ~/.bashrc',
    "zsh": 'eval "$(rota completion zsh)"           # in ~/.zshrc, after compinit',
    "fish": "rota completion fish | source          # in ~/.config/fish/config.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(LINES.values()))
@click.argument("shell", type=click.Choice(list(LINES)))
def command(shell: str) -> None:
    """Print the completion script for a shell."""
    found = get_completion_class(shell)
    assert found is not None, "click completes bash, zsh and fish"
    print_data(found(cli, {}, "rota", COMPLETING).source())
