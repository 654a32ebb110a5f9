"""Options of `rota dev`, checked before anything starts."""

import pytest
from click.testing import CliRunner

from rota.cli.dev import command
from rota.config import ChaosOptions, ConfigError, DevOptions
from rota.devtools import dev_cluster
from rota.devtools.dev_cluster import run_dev


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DevOptions]:
    """The options that would start a cluster."""
    given: list[DevOptions] = []
    monkeypatch.setattr(dev_cluster, "run_dev", given.append)
    return given


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--nodes 5", None),
        ("--nodes 5 --chaos --chaos-seed 3", ChaosOptions(seed=3, pace=1.0)),
        ("--nodes 2 --chaos --chaos-seed 0 --chaos-pace 0.2", ChaosOptions(seed=0, pace=0.2)),
    ],
)
def test_chaos_is_off_unless_requested(
    asked: list[DevOptions], line: str, expected: ChaosOptions | None
) -> None:
    assert CliRunner().invoke(command, line).exit_code == 0

    assert [options.chaos for options in asked] == [expected]


def test_without_a_seed_a_random_one_is_used(asked: list[DevOptions]) -> None:
    for _ in range(3):
        assert CliRunner().invoke(command, "--nodes 5 --chaos").exit_code == 0

    assert all(options.chaos is not None for options in asked)
    assert len({options.chaos for options in asked}) > 1


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--chaos", "--chaos needs 2 nodes or more"),
        ("--chaos --nodes 1", "write --nodes 5"),
        ("--nodes 5 --chaos-seed 1", "--chaos-seed goes with --chaos"),
        ("--nodes 5 --chaos --chaos-pace 0", "0.1<=x<=10"),
        ("--nodes 5 --chaos --chaos-seed -1", "x>=0"),
    ],
)
def test_impossible_options_are_refused_before_anything_starts(
    asked: list[DevOptions], line: str, error: str
) -> None:
    refused = CliRunner().invoke(command, line)

    assert refused.exit_code == 2
    assert error in refused.output
    assert asked == []


def test_labels_and_resources_apply_to_all_nodes_or_to_one(asked: list[DevOptions]) -> None:
    line = (
        "--nodes 2 --label ssd=yes --label node-1:region=eu --label node-2:region=us --resource node-2:gpu=2"
    )
    assert CliRunner().invoke(command, line).exit_code == 0

    (options,) = asked
    assert options.labels == {"": {"ssd": "yes"}, "node-1": {"region": "eu"}, "node-2": {"region": "us"}}
    assert options.resources == {"node-2": {"gpu": "2"}}


def test_a_label_of_a_node_that_will_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no node 'node-3'"):
        run_dev(DevOptions(nodes=2, labels={"node-3": {"region": "eu"}}))
