"""Settings of placement: interference, and installed plugins."""

from importlib.metadata import EntryPoint

import pytest

from rota.config import ConfigError, PlacementConfig
from rota.wiring import scheduler_settings


class Fine:
    name = "fine"

    def allows(self, nodes: object) -> object:
        return nodes


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no licence")


def test_interference_of_a_pair_applies_in_both_directions() -> None:
    assert scheduler_settings.interference({"disk/net": "10", "disk/disk": "0"}) == {
        "disk": {"net": 10, "disk": 0},
        "net": {"disk": 10},
    }


@pytest.mark.parametrize(
    ("pair", "points", "message"),
    [
        ("disk", "10", "names no pair"),
        ("disk/", "10", "names no pair"),
        ("disk/net", "-1", "is not a number of points"),
        ("disk/net", "1001", "is not a number of points"),
        ("disk/net", "much", "is not a number of points"),
    ],
)
def test_invalid_interference_is_refused_by_its_key(pair: str, points: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"placement.interference.{pair}: .*{message}"):
        scheduler_settings.interference({pair: points})


def install(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    found = EntryPoint("mine", f"tests.wiring.test_scheduler_settings:{target}", "rota.filters")
    monkeypatch.setattr(
        scheduler_settings, "entry_points", lambda group: [found] if group == "rota.filters" else []
    )


def test_an_installed_filter_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "Fine")

    found = scheduler_settings.settings(PlacementConfig()).plugins.filters

    assert [plugin.name for plugin in found] == [Fine.name]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("Broken", "rota.filters plugin mine: cannot be loaded: RuntimeError\\('no licence'\\)"),
        ("Missing", "rota.filters plugin mine: cannot be loaded: AttributeError"),
        ("install", "rota.filters plugin mine: has no method allows"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, target: str, message: str
) -> None:
    install(monkeypatch, target)

    with pytest.raises(ConfigError, match=message):
        scheduler_settings.settings(PlacementConfig())
