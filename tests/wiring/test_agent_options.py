"""Options of an agent that declare its GPUs."""

from pathlib import Path

import pytest

from rota.config import AgentConfig, AgentOptions, ConfigError, agent_config
from rota.wiring.agent import settings_of


def config_of(tmp_path: Path, **options: object) -> AgentConfig:
    return agent_config(AgentOptions(data_dir=str(tmp_path), **options), {"ROTA_SERVER_ADDR": "127.0.0.1:1"})  # type: ignore[arg-type]  # options of several types


def test_devices_are_declared_whole_and_counted_in_thousandths(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, resources={"gpu": "2", "licence": "3"}, gpu_model="A100", labels={"rack": "r1"}
    )
    settings = settings_of(config, tmp_path)

    assert settings.declared == {"gpu": 2000, "licence": 3}
    assert settings.labels == {"rack": "r1", "gpu_model": "A100"}


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"resources": {"gpu": "0.5"}}, "resources.gpu"),
        ({"resources": {"gpu": "65"}}, "resources.gpu"),
        ({"gpu_model": "A100", "labels": {"gpu_model": "T4"}}, "gpu_model"),
        ({"resources": {"tasks": "5"}}, "resources.tasks"),
        ({"resources": {"": "5"}}, "resources."),
        ({"resources": {"a b": "5"}}, "resources.a b"),
        ({"resources": {"licence": "-1"}}, "resources.licence"),
        ({"resources": {"licence": "9" * 5000}}, "resources.licence"),
        ({"resources": {"licence": "²"}}, "resources.licence"),
        ({"resources": {f"r{n}": "1" for n in range(33)}}, "resources"),
        ({"labels": {"a b": "x"}}, "labels.a b"),
        ({"labels": {"a": "x" * 257}}, "labels.a"),
        ({"labels": {f"l{n}": "" for n in range(65)}}, "labels"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"cpu": float("nan")}, "cpu"),
        ({"cpu": float("inf")}, "cpu"),
        ({"cpu": 1e300}, "cpu"),
        ({"cpu": -0.0}, "cpu"),
        ({"memory": "1e400"}, "memory"),
        ({"drain": "1e400"}, "drain"),
    ],
)
def test_an_impossible_option_is_refused_by_name(
    tmp_path: Path, options: dict[str, object], key: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        config_of(tmp_path, **options)

    assert refused.value.field == key
