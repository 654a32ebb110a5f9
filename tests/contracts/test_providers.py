"""Every provider keeps the contract; a failed one quotes the output of its command."""

import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
import uvloop

from rota.providers.command import CommandProvider
from rota.providers.local import LocalProvider
from rota.providers.protocol import MachineOrder, Provider, ProviderFailed
from rota.testing.provider_contract import ProviderContract
from rota.wiring.provider_setup import LocalNodes

AGENT = """#!/bin/sh
exec env --default-signal=INT sleep 1d
"""
EXAMPLE = Path(__file__).parents[2] / "examples" / "provider"


class TestLocal(ProviderContract):
    def make(self, directory: Path) -> Provider:
        return LocalProvider(directory / "machines", LocalNodes())


class TestCommand(ProviderContract):
    settings: ClassVar[Mapping[str, str]] = {
        verb: str(EXAMPLE / verb) for verb in ("create", "list", "remove")
    }

    @pytest.fixture(autouse=True)
    def rota_that_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put an agent into PATH that only stays alive."""
        agent = tmp_path / "rota"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        monkeypatch.setenv("MACHINES", str(tmp_path / "machines"))
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(self, directory: Path) -> Provider:
        del directory
        return CommandProvider()


def test_machines_of_another_host_are_out_of_reach(tmp_path: Path) -> None:
    local = LocalProvider(tmp_path, LocalNodes())

    assert local.for_place(local.place) is local
    assert local.for_place(f"elsewhere:{tmp_path}") is None


async def test_a_machine_counts_as_created_once_it_is_listed(tmp_path: Path) -> None:
    """Race: a process that was just forked has no command line yet and is not listed."""

    class LateNodes(LocalNodes):
        calls = 0

        def agent_runs(self, directory: Path) -> bool:
            self.calls += 1
            return self.calls > 3 and super().agent_runs(directory)

    late = LateNodes()
    local = LocalProvider(tmp_path, late)
    try:
        await local.create(order())

        assert late.calls > 3
        assert list(await local.list("build", {})) == ["build-1"]
    finally:
        await local.remove("build", "build-1", {})


def order(**settings: str) -> MachineOrder:
    return MachineOrder(
        "build-1", "build", "secret", {"cpu": 2000, "memory": 1024}, {"region": "eu"}, settings
    )


async def test_a_command_that_fails_is_quoted() -> None:
    with pytest.raises(ProviderFailed, match=r"its create command ended with 3$") as failed:
        await CommandProvider().create(order(create="sh -c 'echo no quota left >&2; exit 3'"))

    assert failed.value.said == "no quota left"


async def test_a_missing_command_is_named() -> None:
    with pytest.raises(ProviderFailed, match=r"its create command cannot be run$") as failed:
        await CommandProvider().create(order(create="/no-such-program"))

    assert "no-such-program" in failed.value.said


async def test_an_unparsable_command_line_is_a_failure() -> None:
    with pytest.raises(ProviderFailed, match="its create command cannot be run"):
        await CommandProvider().create(order(create="sh -c 'unclosed"))


async def test_a_command_gets_its_order_in_the_environment(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    await CommandProvider().create(order(create=f"sh -c 'env | grep ^ROTA_ | sort > {environment}'"))

    assert environment.read_text().splitlines() == [
        "ROTA_CLUSTER=build",
        "ROTA_JOIN=secret",
        "ROTA_LABELS=region=eu",
        "ROTA_MACHINE=build-1",
        "ROTA_MACHINE_CPU=2",
        "ROTA_MACHINE_MEMORY=1024",
    ]


async def test_endless_output_of_a_command_is_bounded() -> None:
    with pytest.raises(ProviderFailed, match="printed more than"):
        await CommandProvider().list("build", {"list": "sh -c 'yes x | head -c 20000000'"})
    await CommandProvider().create(order(create="sh -c 'yes x | head -c 20000000'"))


def test_commands_close_no_file_of_another_thread() -> None:
    async def fail_often() -> None:
        for _ in range(120):
            with pytest.raises(ProviderFailed):
                await CommandProvider().create(order(create="false"))

    with ThreadPoolExecutor(8) as others:
        stop = threading.Event()
        opening = [others.submit(open_and_close, stop) for _ in range(8)]
        try:
            uvloop.run(fail_often())
        finally:
            stop.set()

    assert [thread.exception() for thread in opening] == [None] * 8


def open_and_close(stop: threading.Event) -> None:
    while not stop.is_set():
        file = os.open(os.devnull, os.O_RDONLY)
        for _ in range(3):
            os.fstat(file)
        os.close(file)


async def test_a_command_ends_although_its_child_holds_its_output(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    try:
        listed = await CommandProvider().list(
            "build", {"list": f"sh -c 'sleep 1000 & echo $! > {pid}; echo build-1'"}
        )
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)  # raises if it does not run

    assert list(listed) == ["build-1"]
