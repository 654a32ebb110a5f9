"""Steps in containers: one container each, one directory for all."""

from pathlib import Path
from typing import Any

from rota.testing import images
from tests.keeper.conftest import wait_until
from tests.keeper.test_containers import (
    EXIT_CODE,
    REASON,
    STATE,
    ContainerAgent,
    container_agent,
    image,
    pytestmark,
)
from tests.keeper.test_steps import codes

__all__ = ["container_agent", "image", "pytestmark"]  # fixtures

KEY = ("1", 0, 1)


def run(container_agent: ContainerAgent, *scripts: str, **spec: Any) -> list[Any]:
    start(container_agent, *scripts, **spec)
    return container_agent.agent.wait_ended()[0]


def start(container_agent: ContainerAgent, *scripts: str, **spec: Any) -> None:
    steps = [
        {"name": f"s{number}", "argv": ["sh", "-c", script]} for number, script in enumerate(scripts, start=1)
    ]
    container_agent.agent.start(
        "1", "not-used", steps=steps, container={"image": container_agent.image}, **spec
    )


def test_steps_share_their_directory_and_nothing_else(container_agent: ContainerAgent) -> None:
    row = run(
        container_agent,
        "echo $ROTA_STEP_NAME > it; touch /tmp/it; echo one",
        "cat it; [ -e /tmp/it ] || echo two",
    )

    assert row[STATE : EXIT_CODE + 1] == ["exited", 0]
    assert container_agent.output() == "one\ns1\ntwo\n"
    assert codes(container_agent.agent.steps[KEY]) == [0, 0]
    assert container_agent.containers() == []


def test_the_first_failed_step_is_the_last(container_agent: ContainerAgent) -> None:
    row = run(container_agent, "true", "exit 7", "echo never")

    assert row[EXIT_CODE] == 7
    assert row[REASON] == "step 2 of 3, s2: exit 7"
    assert codes(container_agent.agent.steps[KEY]) == [0, 7]
    assert container_agent.output() == ""


def test_out_of_memory_names_its_step(container_agent: ContainerAgent) -> None:
    row = run(container_agent, "true", "tail /dev/zero", limits={"memory": 16 << 20})

    assert row[REASON].startswith("step 2 of 2, s2: out of memory: limit 16 MiB")


def test_a_stop_in_the_second_container_starts_no_third(container_agent: ContainerAgent) -> None:
    start(container_agent, "true", "echo here; exec sleep 600", "echo never", grace_ms=100)
    container_agent.agent.wait_started()
    wait_until(lambda: "here" in container_agent.output(), "the second step")
    container_agent.agent.stop(list(KEY))
    row = container_agent.agent.wait_ended()[0]

    assert row[STATE] == "stopped"
    assert len(container_agent.agent.steps[KEY]) == 2
    assert container_agent.containers() == []


def test_a_step_is_retried_while_the_runtime_fails(container_agent: ContainerAgent, tmp_path: Path) -> None:
    """The runtime fails between the first and the second step."""
    broken, tried = tmp_path / "broken", tmp_path / "tried"
    program = tmp_path / "podman-at-times"
    real = images.engine()
    program.write_text(
        f'#!/bin/sh\n[ "$1" = run ] && [ -e {broken} ] && touch {tried} && exit 125\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    container_agent.agent = container_agent.attach(str(program))
    start(container_agent, "echo here; until [ -e go ]; do sleep 0.05; done", "echo two")
    container_agent.agent.wait_started()
    wait_until(lambda: "here" in container_agent.output(), "the first step")
    broken.touch()
    (container_agent.keeper.root / "work" / "1" / "go").touch()
    wait_until(tried.exists, "a second step that cannot be started")
    broken.unlink()
    row = container_agent.agent.wait_ended()[0]

    assert row[STATE : EXIT_CODE + 1] == ["exited", 0]
    assert container_agent.output() == "here\ntwo\n"
