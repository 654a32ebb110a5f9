"""What `rota dev` is asked for, before anything starts."""

import pytest
from click.testing import CliRunner

from rota.cli.dev import command
from rota.config import ChaosOptions, ConfigError, DevOptions
from rota.devtools import dev_cluster
from rota.devtools.dev_cluster import run_dev


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DevOptions]:
    """Instead of a cluster."""
    given: list[DevOptions] = []
    monkeypatch.setattr(dev_cluster, "run_dev", given.append)
    return given


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("--nodes 5", None),
        ("--nodes 5 --chaos --chaos-seed 3", ChaosOptions(seed=3, pace=1.0)),
        ("--nodes 2 --chaos --chaos-seed 0 --chaos-pace 0.2", ChaosOptions(seed=0, pace=0.2)),
    ],
)
def test_chaos_is_there_only_when_asked_for(
    asked: list[DevOptions], line: str, wanted: ChaosOptions | None
) -> None:
    assert CliRunner().invoke(command, line).exit_code == 0

    assert [options.chaos for options in asked] == [wanted]


def test_without_a_seed_any_is_taken(asked: list[DevOptions]) -> None:
    for _ in range(3):
        assert CliRunner().invoke(command, "--nodes 5 --chaos").exit_code == 0

    assert all(options.chaos is not None for options in asked)
    assert len({options.chaos for options in asked}) > 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--chaos", "--chaos needs 2 nodes or more"),
        ("--chaos --nodes 1", "write --nodes 5"),
        ("--nodes 5 --chaos-seed 1", "--chaos-seed goes with --chaos"),
        ("--nodes 5 --chaos --chaos-pace 0", "0.1<=x<=10"),
        ("--nodes 5 --chaos --chaos-seed -1", "x>=0"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_starts(asked: list[DevOptions], line: str, said: str) -> None:
    refused = CliRunner().invoke(command, line)

    assert refused.exit_code == 2
    assert said in refused.output
    assert asked == []


def test_labels_and_resources_are_of_all_nodes_or_of_one(asked: list[DevOptions]) -> None:
    line = (
        "--nodes 2 --label ssd=yes --label node-1:region=eu --label node-2:region=us --resource node-2:gpu=2"
    )
    assert CliRunner().invoke(command, line).exit_code == 0

    (options,) = asked
    assert options.labels == {"": {"ssd": "yes"}, "node-1": {"region": "eu"}, "node-2": {"region": "us"}}
    assert options.resources == {"node-2": {"gpu": "2"}}


def test_a_label_of_a_node_that_will_not_be_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no node 'node-3'"):
        run_dev(DevOptions(nodes=2, labels={"node-3": {"region": "eu"}}))
