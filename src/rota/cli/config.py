"""`rota config`: what is set, who said so, and whether a file can be used."""

from dataclasses import dataclass
from typing import Any

import click

from rota import config as settings
from rota.cli.ui.output import TableColumn, TableListing, emit, output_option, print_data, print_note
from rota.client.context import SETTINGS, config_file, resolve, setting
from rota.client.errors import RotaError
from rota.config.etcd import plain_text_endpoint


@dataclass(frozen=True)
class SettingRow:
    """One setting as it is printed."""

    key: str
    value: Any
    source: str

    @property
    def raw(self) -> dict[str, Any]:
        return {"key": self.key, "value": self.value, "source": self.source}


ROWS: TableListing[SettingRow] = TableListing(
    "settings",
    [
        TableColumn("KEY", lambda row: row.key),
        TableColumn("VALUE", lambda row: "-" if row.value is None else row.value),
        TableColumn("SOURCE", lambda row: row.source),
    ],
    lambda row: row.key,
)
DEFAULTS = {"context": "local", "namespace": "default", "output": "table"}


@click.group("config")
def command() -> None:
    """Show and check settings."""


@command.command("show")
@click.argument("file", required=False)
@click.option("--agent", is_flag=True, help="FILE is for an agent. [default: by its keys]")
@click.option("--addr", metavar="URL", help="As given to other commands.")
@click.option("--context", metavar="NAME", help="As given to other commands.")
@output_option
def show(file: str | None, agent: bool, addr: str | None, context: str | None, output: str) -> None:
    """Print each setting of this client, or of a server or agent started with FILE, and who said so."""
    emit(output, ROWS, _file_rows(file, agent=agent) if file else _client_rows(addr, context))


@command.command("check")
@click.argument("file")
@click.option("--agent", is_flag=True, help="FILE is for an agent. [default: by its keys]")
def check(file: str, agent: bool) -> None:
    """Say whether a server or an agent can be started with FILE."""
    if agent or _is_for_agent(file):
        settings.agent_config(settings.AgentOptions(file), {})
    else:
        config = settings.server_config(settings.ServerOptions(file), {})
        if (beyond := plain_text_endpoint(config.etcd, config.store)) is not None:
            print_note(
                f"WARNING: etcd at {beyond} is spoken to in plain text: keys and tokens can be read underway"
            )
    print_note(f"{file}: good")


@command.command("path")
def path() -> None:
    """Print where this client's config file is, or would be."""
    print_data(str(config_file()))


def _client_rows(addr: str | None, context: str | None) -> list[SettingRow]:
    rows = []
    try:
        endpoint = resolve(addr, None, context)
        rows += [
            SettingRow("addr", endpoint.addr, endpoint.addr_source),
            SettingRow("token", "***", endpoint.token_source),
            SettingRow("ca", endpoint.ca, endpoint.addr_source if endpoint.ca else "default"),
        ]
    except RotaError as error:
        rows.append(SettingRow("addr", None, str(error)))
    for name in SETTINGS:
        said = setting(name, context if name == "context" else None)
        rows.append(SettingRow(name, said.value or DEFAULTS[name], said.source))
    return rows


def _file_rows(file: str, *, agent: bool) -> list[SettingRow]:
    if agent or _is_for_agent(file):
        sourced = settings.sources(settings.AgentConfig, file, {})
    else:
        sourced = settings.sources(settings.ServerConfig, file, {})
    return [
        SettingRow(item.key, "***" if item.key == "join" and item.value else item.value, item.source)
        for item in sourced
    ]


def _is_for_agent(file: str) -> bool:
    """An agent's file has keys that no server's has."""
    only_agent = {"join", "labels", "cpu", "memory"}
    return bool(only_agent & settings.read_toml(file).keys())
