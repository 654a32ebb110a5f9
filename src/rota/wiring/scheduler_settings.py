"""Configuration of placement and installed plugins -> settings of the scheduler."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rota.config import ConfigError, PlacementConfig
from rota.scheduler.placement.filters import Filter
from rota.scheduler.placement.rows import Plugins
from rota.scheduler.placement.scores import Interference, Score
from rota.scheduler.round import SchedulerSettings

POINTS_MAX = 1000  # ten whole nodes: more would mean never, for which there is `apart`


def settings(config: PlacementConfig) -> SchedulerSettings:
    filters: tuple[Filter, ...] = tuple(_installed("rota.filters", "allows"))
    scores: tuple[Score, ...] = tuple(_installed("rota.scores", "points"))
    return SchedulerSettings(Plugins(filters, scores, interference(config.interference)), config.backfill)


def interference(configured: dict[str, str]) -> Interference:
    """`{"disk/net": "10"}` -> points by pair of kinds, in both directions."""
    found: dict[str, dict[str, int]] = {}
    for pair, points in configured.items():
        kind, slash, other = pair.partition("/")
        key = f"placement.interference.{pair}"
        if not (kind and slash and other):
            raise ConfigError(key, "names no pair", 'write two kinds of noise: "disk/net" = "10"')
        if not points.isdecimal() or int(points) > POINTS_MAX:
            raise ConfigError(key, f"{points!r} is not a number of points", f"write 0 to {POINTS_MAX}")
        found.setdefault(kind, {})[other] = int(points)
        found.setdefault(other, {})[kind] = int(points)
    return found


def _installed(group: str, method: str) -> Iterator[Any]:
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        yield _load(point, group, method)


def _load(point: EntryPoint, group: str, method: str) -> Any:
    """Load a plugin; a class is instantiated, anything else is used as it is."""
    try:
        plugin = point.load()
        loaded = plugin() if isinstance(plugin, type) else plugin
    except Exception as error:  # foreign code may raise anything: name the plugin to the operator
        raise ConfigError(f"{group} plugin {point.name}", f"cannot be loaded: {error!r}") from error
    if not callable(getattr(loaded, method, None)):
        raise ConfigError(f"{group} plugin {point.name}", f"has no method {method}")
    return loaded
