"""What is configured of placement, and the plugins that are installed -> the scheduler's settings."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rota.config import ConfigError, PlacementConfig
from rota.scheduler.placement.filters import Filter
from rota.scheduler.placement.rows import Plugins
from rota.scheduler.placement.scores import Interference, Score
from rota.scheduler.round import SchedulerSettings

POINTS_MAX = 1000  # ten whole nodes: more is a way to say never, which is what `apart` is for


def settings(config: PlacementConfig) -> SchedulerSettings:
    filters: tuple[Filter, ...] = tuple(_installed("rota.filters", "allows"))
    scores: tuple[Score, ...] = tuple(_installed("rota.scores", "points"))
    return SchedulerSettings(Plugins(filters, scores, interference(config.interference)), config.backfill)


def interference(said: dict[str, str]) -> Interference:
    """`{"disk/net": "10"}` -> the same by kind; what is said of one is true of the other."""
    found: dict[str, dict[str, int]] = {}
    for pair, points in said.items():
        kind, slash, other = pair.partition("/")
        key = f"placement.interference.{pair}"
        if not (kind and slash and other):
            raise ConfigError(key, "names no pair", 'write two kinds of noise: "disk/net" = "10"')
        if not points.isdecimal() or int(points) > POINTS_MAX:
            raise ConfigError(key, f"{points!r} is not a number of points", f"write 0 to {POINTS_MAX}")
        found.setdefault(kind, {})[other] = int(points)
        found.setdefault(other, {})[kind] = int(points)
    return found


def _installed(group: str, does: str) -> Iterator[Any]:
    for found in sorted(entry_points(group=group), key=lambda one: one.name):
        yield _made(found, group, does)


def _made(found: EntryPoint, group: str, does: str) -> Any:
    """A class is made once; anything else is taken as it is."""
    try:
        plugin = found.load()
        made = plugin() if isinstance(plugin, type) else plugin
    except Exception as error:  # it is not our code: whatever it raises, the operator is told which one
        raise ConfigError(f"{group} plugin {found.name}", f"cannot be loaded: {error!r}") from error
    if not callable(getattr(made, does, None)):
        raise ConfigError(f"{group} plugin {found.name}", f"has no method {does}")
    return made
