"""Steps in containers: one container each, one directory for all."""

from pathlib import Path
from typing import Any

from rota.testing import images
from tests.keeper.conftest import wait_until
from tests.keeper.test_containers import (
    EXIT_CODE,
    REASON,
    STATE,
    Boxed,
    boxed,
    image,
    pytestmark,
)
from tests.keeper.test_steps import codes

__all__ = ["boxed", "image", "pytestmark"]  # fixtures

KEY = ("1", 0, 1)


def run(boxed: Boxed, *scripts: str, **spec: Any) -> list[Any]:
    start(boxed, *scripts, **spec)
    return boxed.agent.wait_ended()[0]


def start(boxed: Boxed, *scripts: str, **spec: Any) -> None:
    steps = [
        {"name": f"s{number}", "argv": ["sh", "-c", script]} for number, script in enumerate(scripts, start=1)
    ]
    boxed.agent.start("1", "not-used", steps=steps, container={"image": boxed.image}, **spec)


def test_steps_share_their_directory_and_nothing_else(boxed: Boxed) -> None:
    row = run(
        boxed, "echo $ROTA_STEP_NAME > it; touch /tmp/it; echo one", "cat it; [ -e /tmp/it ] || echo two"
    )

    assert row[STATE : EXIT_CODE + 1] == ["exited", 0]
    assert boxed.output() == "one\ns1\ntwo\n"
    assert codes(boxed.agent.steps[KEY]) == [0, 0]
    assert boxed.containers() == []


def test_the_first_failed_step_is_the_last(boxed: Boxed) -> None:
    row = run(boxed, "true", "exit 7", "echo never")

    assert row[EXIT_CODE] == 7
    assert row[REASON] == "step 2 of 3, s2: exit 7"
    assert codes(boxed.agent.steps[KEY]) == [0, 7]
    assert boxed.output() == ""


def test_out_of_memory_names_its_step(boxed: Boxed) -> None:
    row = run(boxed, "true", "tail /dev/zero", limits={"memory": 16 << 20})

    assert row[REASON].startswith("step 2 of 2, s2: out of memory: limit 16 MiB")


def test_a_stop_in_the_second_container_starts_no_third(boxed: Boxed) -> None:
    start(boxed, "true", "echo here; exec sleep 600", "echo never", grace_ms=100)
    boxed.agent.wait_started()
    wait_until(lambda: "here" in boxed.output(), "the second step")
    boxed.agent.stop(list(KEY))
    row = boxed.agent.wait_ended()[0]

    assert row[STATE] == "stopped"
    assert len(boxed.agent.steps[KEY]) == 2
    assert boxed.containers() == []


def test_a_step_is_retried_while_the_runtime_fails(boxed: Boxed, tmp_path: Path) -> None:
    """Between the first step and the second it can start nothing."""
    broken, tried = tmp_path / "broken", tmp_path / "tried"
    program = tmp_path / "podman-at-times"
    real = images.engine()
    program.write_text(
        f'#!/bin/sh\n[ "$1" = run ] && [ -e {broken} ] && touch {tried} && exit 125\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    boxed.agent = boxed.attach(str(program))
    start(boxed, "echo here; until [ -e go ]; do sleep 0.05; done", "echo two")
    boxed.agent.wait_started()
    wait_until(lambda: "here" in boxed.output(), "the first step")
    broken.touch()
    (boxed.keeper.root / "work" / "1" / "go").touch()
    wait_until(tried.exists, "a second step that cannot be started")
    broken.unlink()
    row = boxed.agent.wait_ended()[0]

    assert row[STATE : EXIT_CODE + 1] == ["exited", 0]
    assert boxed.output() == "here\ntwo\n"
