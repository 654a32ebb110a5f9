"""Detection of the container runtime, and refusals without one."""

import asyncio
import os
from pathlib import Path

import pytest

from rota.agent.host.containers import find, labels_of
from rota.agent.plan import HostFacts, veto
from rota.model.container import ContainerSpec
from rota.model.messages import TaskTemplate, task_template
from rota.runtimes.protocol import ContainerEngine
from rota.testing.builders import job_spec


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, and nothing else in the search path but a shell."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("rota.agent.host.containers._ASK_SECONDS", 100.0)  # a busy machine may take its time
    return tmp_path


def install(programs: Path, name: str, script: str) -> str:
    path = programs / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


async def test_without_a_program_there_is_no_runtime(programs: Path) -> None:
    assert await find(None, (), root=False) is None


async def test_podman_is_preferred_to_docker(programs: Path) -> None:
    install(programs, "docker", "echo 27.0")
    podman = install(programs, "podman", "echo systemd v2")

    found = await find(None, ("/data",), root=False)

    assert found is not None
    assert (found.kind, found.program, found.mounts, found.old_groups) == (
        "podman",
        podman,
        ("/data",),
        False,
    )


async def test_podman_is_used_by_root_only(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(programs, "podman", "echo systemd v2")
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    assert await find(None, (), root=False) is None


async def test_an_unused_rootless_podman_is_labelled(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman = install(programs, "podman", "echo systemd v2")
    assert labels_of(await find(None, (), root=False), None) == {"container": "podman"}
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    assert labels_of(None, None) == labels_of(None, podman) == {"podman": "rootless"}
    assert labels_of(None, "none") == labels_of(None, "docker") == labels_of(None, "no-such-podman") == {}


async def test_a_docker_without_an_engine_is_not_used(programs: Path) -> None:
    install(programs, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")

    assert await find(None, (), root=False) is None


async def test_docker_is_used_if_podman_fails(programs: Path) -> None:
    install(programs, "podman", "exit 125")
    docker = install(programs, "docker", "echo 27.0")

    assert await find(None, (), root=True) == ContainerEngine("docker", docker, (), root=True, init=True)


async def test_docker_is_used_if_podman_is_no_program(programs: Path) -> None:
    (programs / "podman").write_bytes(b"\x7fELF of another machine")
    (programs / "podman").chmod(0o755)
    docker = install(programs, "docker", "echo 27.0")

    assert await find(None, (), root=True) == ContainerEngine("docker", docker, (), root=True, init=True)


async def test_a_program_that_is_being_installed_is_retried(programs: Path) -> None:
    podman = install(programs, "podman", "echo systemd v2")
    written = os.open(podman, os.O_WRONLY)
    asyncio.get_running_loop().call_later(0.05, os.close, written)

    assert labels_of(await find(None, (), root=False), None) == {"container": "podman"}


async def test_no_runtime_is_detected_if_none_is_configured(programs: Path) -> None:
    install(programs, "podman", "echo cgroupfs v1")

    assert await find("none", (), root=False) is None


async def test_the_kind_of_a_configured_path_is_taken_from_its_name(programs: Path) -> None:
    path = install(programs, "my-docker", "echo 27.0")

    found = await find(path, (), root=False)

    assert found is not None
    assert (found.kind, found.program) == ("docker", path)


async def test_cgroups_of_version_1_are_detected(programs: Path) -> None:
    install(programs, "podman", "echo cgroupfs v1")

    found = await find("podman", (), root=False)

    assert found is not None
    assert found.old_groups


def test_a_node_without_a_runtime_refuses_containers() -> None:
    work = container_template()

    assert (
        veto(work, HostFacts(frozenset(), leaving=False, has_runtime=False))
        == "this node has no container runtime"
    )
    assert veto(work, HostFacts(frozenset(), leaving=False)) is None


def container_template() -> TaskTemplate:
    return task_template(job_spec(container=ContainerSpec("alpine:3.20")))
