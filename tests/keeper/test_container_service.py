"""Services in containers on a real runtime: restarts and health checks."""

from collections.abc import Iterator
from typing import Any

import pytest

from rota.keeper.container.argv import cgroup_parent
from rota.keeper.container.clear import remove_cgroups
from rota.keeper.protocol import wire
from rota.testing import images
from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.keeper.test_checks import by_command
from tests.keeper.test_service import FOR_EVER, RESTARTS, wait_service
from tests.machine import needs

pytestmark = needs("containers")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    return images.ensure_image(tmp_path_factory.mktemp("image") / "rootfs")


@pytest.fixture
def agent(keeper: Keeper) -> Iterator[Agent]:
    agent = keeper.agent()
    agent.send(op="hello", protocol=wire.PROTOCOL)
    agent.receive_op("state")
    engine = {"kind": "podman", "program": images.engine(), "old_groups": images.old_groups()}
    amounts = {"cpu": 4000, "memory": 1 << 30}
    agent.send(op="configure", node="n1", amounts=amounts, gpus=[], engine=engine)
    mark = (keeper.root / "keeper.id").read_text().strip()
    try:
        yield agent
    finally:
        keeper.kill()
        images.remove(*(name for name in images.containers() if mark[:12] in name))
        remove_cgroups(f"{cgroup_parent(mark)}/*")


def serve(agent: Agent, image: str, script: str, **spec: Any) -> None:
    agent.start("7", "sh", "-c", script, restart=FOR_EVER, container={"image": image}, grace_ms=100, **spec)


def test_each_restart_gets_a_new_container(keeper: Keeper, agent: Agent, image: str) -> None:
    serve(
        agent,
        image,
        "echo start $ROTA_RESTART; test -e /tmp/was-here && echo dirty; touch /tmp/was-here; exit 4",
    )
    wait_service(agent, restarts=2)
    wait_until(lambda: "start 1" in keeper.output("7"), "its second start")

    assert keeper.output("7").startswith("start 0\nstart 1\n")
    agent.stop(["7", 0, 1])
    agent.wait_ended()


def test_a_check_runs_inside_the_container(keeper: Keeper, agent: Agent, image: str) -> None:
    serve(
        agent,
        image,
        "echo yes > /tmp/up; exec sleep 600",
        check=by_command("grep -q yes /tmp/up", after_ms=60_000),
    )

    assert wait_service(agent, health="healthy")[RESTARTS] == 0
    agent.stop(["7", 0, 1])
    agent.wait_ended()


def test_a_check_that_hangs_inside_the_container_is_killed_there(
    keeper: Keeper, agent: Agent, image: str
) -> None:
    check = by_command("exec sleep 987", timeout_ms=10_000, failures=1_000, after_ms=60_000)
    serve(agent, image, "exec sleep 600", check=check)
    wait_until(lambda: bool(hanging(keeper)), "a check that hangs")
    first = hanging(keeper)
    wait_until(lambda: not first & hanging(keeper), "its end")

    agent.stop(["7", 0, 1])
    agent.wait_ended()
    wait_until(lambda: not hanging(keeper), "nobody is left")


def hanging(keeper: Keeper) -> set[int]:
    return keeper.running("sleep", "987")
