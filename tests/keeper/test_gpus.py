"""GPUs in the environment of tasks: their devices and the share of each."""

import pytest

from tests.keeper.conftest import Agent, Keeper, Row

SAY = ("sh", "-c", "echo $ROTA_GPUS/$CUDA_VISIBLE_DEVICES/${ROTA_GPU_SHARE-whole}")
HOLD = ("sleep", "600")


@pytest.fixture
def gpus(keeper: Keeper) -> Agent:
    return attach(keeper)


def attach(keeper: Keeper) -> Agent:
    agent = keeper.agent()
    agent.hello(amounts={"cpu": 4000, "gpu": 2000}, gpus=["5", "6"])
    return agent


def start(agent: Agent, job: str, amount: int, *command: str, mask: int | None = None) -> None:
    row: Row = [0, 1, 1] if mask is None else [0, 1, 1, mask]
    agent.start(job, *command, needs={"gpu": amount}, tasks=[row])


def test_whole_devices_are_in_the_environment_of_their_task(keeper: Keeper, gpus: Agent) -> None:
    start(gpus, "7", 2000, *SAY, mask=0b11)
    gpus.wait_ended()
    start(gpus, "8", 1000, *SAY, mask=0b10)
    gpus.wait_ended(2)

    assert keeper.output("7") == "5,6/5,6/whole\n"
    assert keeper.output("8") == "6/6/whole\n"


def test_a_fraction_of_a_device_is_in_the_environment_with_its_share(keeper: Keeper, gpus: Agent) -> None:
    start(gpus, "7", 500, *SAY, mask=0b10)
    start(gpus, "8", 125, *SAY, mask=0b10)
    gpus.wait_ended(2)

    assert keeper.output("7") == "6/6/0.5\n"
    assert keeper.output("8") == "6/6/0.125\n"


def test_an_order_that_names_no_devices_gets_whole_ones(keeper: Keeper, gpus: Agent) -> None:
    start(gpus, "7", 300, *HOLD, mask=0b1)
    start(gpus, "8", 1000, *SAY)
    gpus.wait_ended()

    assert keeper.output("8") == "6/6/whole\n"


def test_a_device_that_is_not_free_is_refused_with_the_reason(gpus: Agent) -> None:
    start(gpus, "7", 600, *HOLD, mask=0b1)
    gpus.wait_started()
    start(gpus, "8", 500, *HOLD, mask=0b1)

    assert gpus.wait_refused() == [["8", 0, 1, "GPU 5 has 0.4 free, asked 0.5"]]


def test_a_device_is_free_again_once_its_attempt_has_ended(keeper: Keeper, gpus: Agent) -> None:
    start(gpus, "7", 600, *HOLD, mask=0b1)
    gpus.wait_started()
    gpus.stop(["7", 0, 1])
    gpus.wait_ended()
    start(gpus, "8", 1000, *SAY, mask=0b1)
    gpus.wait_ended(2)

    assert keeper.output("8") == "5/5/whole\n"


def test_a_command_that_cannot_start_releases_its_device(keeper: Keeper, gpus: Agent) -> None:
    start(gpus, "7", 1000, "no-such-command", mask=0b1)
    gpus.wait_ended()
    start(gpus, "8", 1000, *SAY, mask=0b1)
    gpus.wait_ended(2)

    assert keeper.output("8") == "5/5/whole\n"


def test_gpu_allocations_outlive_the_agent(keeper: Keeper, gpus: Agent) -> None:
    start(gpus, "7", 600, *HOLD, mask=0b1)
    gpus.wait_started()
    gpus.close()
    back = attach(keeper)
    start(back, "8", 500, *HOLD, mask=0b1)
    start(back, "9", 400, *SAY, mask=0b1)

    assert back.wait_refused() == [["8", 0, 1, "GPU 5 has 0.4 free, asked 0.5"]]
    back.wait_ended()
    assert keeper.output("9") == "5/5/0.4\n"


def test_after_a_restart_of_the_keeper_devices_are_free_and_bounded_again(
    keeper: Keeper, gpus: Agent
) -> None:
    start(gpus, "7", 600, *HOLD, mask=0b1)
    gpus.wait_started()
    keeper.kill()
    keeper.start()
    back = attach(keeper)
    assert keeper.work() == []
    back.send(op="start", job="7", spec=None, tasks=[[0, 2, 1, 0b1]])  # its spec is in the journal
    back.wait_started()
    start(back, "8", 600, *HOLD, mask=0b1)

    assert back.wait_refused() == [["8", 0, 1, "GPU 5 has 0.4 free, asked 0.6"]]
