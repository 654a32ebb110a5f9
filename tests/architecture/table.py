"""Which module may import what, and size limits: the one table behind the contracts and the tidy test."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
GENERATED = ("rota.wire.generated", "rota.store.etcd.generated", "rota.gateway.generated")

# Imports go downward only; names on one line never import each other.
LAYERS = (
    ("cli", "sim"),
    ("devtools",),
    ("wiring", "testing", "client"),
    ("reconcilers",),
    ("apiserver", "controllers", "scheduler", "watcher", "clusters", "agent", "gateway"),
    ("engine",),
    ("store", "runtimes", "providers", "wire", "identity", "keeper"),
    ("config",),
    ("rules",),
    ("model",),
)

# Deciding code: no waiting, no clock, no world. A module of these packages is pure, unless the first line of
# its docstring ends with [I/O]. A marker that is not needed, or a name below that does not exist, fails a
# test.
DECIDING = (
    "rota.model",
    "rota.rules",
    "rota.engine",
    "rota.controllers",
    "rota.scheduler",
    "rota.watcher",
    "rota.clusters",
    "rota.agent",
    "rota.gateway",
    "rota.apiserver",
    "rota.reconcilers",
)
# Deciding code within packages that otherwise touch the world.
PURE_ELSEWHERE = (
    "rota.keeper.resources.gpus",
    "rota.keeper.resources.reservations",
    "rota.devtools.chaos",
    "rota.devtools.chaos_report",
)
IO_MARKER = "[I/O]"
THE_WORLD = (
    "asyncio",
    "threading",
    "subprocess",
    "socket",
    "sqlite3",
    "os",
    "time",
    "random",
    "zoneinfo",
    "uuid",
    "zoneinfo",  # reads the tz database of this machine
    "logging",
    "pathlib",
    "zoneinfo",
    "rota.wire",  # and every concrete module of the ports' packages
)

# Deciding code may use `datetime` as a type; these of its methods read the clock or the local time zone.
CLOCK_METHODS = ("now", "today", "utcnow", "fromtimestamp")

# Everything in these packages is concrete, except the modules named here, which are pure.
PORTS = {
    "rota.store": ("protocol", "codec", "backup"),
    "rota.runtimes": ("protocol",),
    "rota.providers": ("protocol",),
}
NAME_CONCRETE_CLASSES = ("rota.wiring", "rota.devtools", "rota.sim", "rota.testing")

# The SDK and the command line reach the cluster through its public API.
OUTSIDE = ("rota.client", "rota.cli")
BEHIND_THE_API = (
    "rota.apiserver",
    "rota.controllers",
    "rota.scheduler",
    "rota.watcher",
    "rota.clusters",
    "rota.agent",
    "rota.gateway",
    "rota.engine",
    "rota.store",
    "rota.runtimes",
    "rota.providers",
    "rota.keeper",
)

# Which of our modules may import a third-party package; `*` stands for one name.
# Other modules may use arrays and records that they are given, through their methods.
THIRD_PARTY = {
    "click": ("rota.cli",),
    "cryptography": ("rota.identity",),
    "google": ("rota.wire",),
    "grpc": (
        "rota.wire",
        "rota.store.etcd",
        "rota.*.run",
        "rota.apiserver.grpc",
        "rota.client.controller",
        "rota.agent",
        "rota.gateway",
        "rota.watcher",
        "rota.wiring",
    ),
    "httptools": ("rota.apiserver", "rota.wiring"),
    "msgspec": (
        "rota.model",
        "rota.rules",
        "rota.engine",
        "rota.scheduler",
        "rota.wire",
        "rota.store",
        "rota.apiserver",
        "rota.identity",
        "rota.config",
    ),
    "numpy": ("rota.model", "rota.rules", "rota.scheduler"),
    "prometheus_client": ("rota.apiserver",),
    "psutil": ("rota.agent",),
    "rich": ("rota.cli",),
    "starlette": ("rota.apiserver", "rota.wiring"),
    "structlog": ("rota.*.run", "rota.apiserver", "rota.gateway", "rota.watcher", "rota.wiring"),
    "typing_extensions": ("rota.model",),  # defaults of type variables, in typing from 3.13 on
    "uvicorn": ("rota.apiserver", "rota.wiring"),
    "uvloop": ("rota.wiring",),
    "yaml": ("rota.cli", "rota.client", "rota.config"),
}

# The outermost edges: an unforeseen error is caught here, so that it affects one key, request or caller only.
EDGES = {
    "rota.engine.loop": "a decision that fails parks its key, a command is refused, a plan is discarded",
    "rota.engine.trial": "a plan that fails on trial is not applied",
    "rota.engine.state.mirror": "a record that cannot be applied is named, so that the others can be loaded",
    "rota.store.codec": "a record that cannot be decoded is set aside, the others are read",
    "rota.watcher.node_sessions": "orders that cannot be computed cost one node its connection",
    "rota.watcher.relay.watcher_service": "a failing session costs one node its connection, not its watcher",
    "rota.wiring.scheduler_settings": "a plugin that cannot be loaded is named to the operator",
    "rota.apiserver.http": "a request that fails is answered with 500",
    "rota.apiserver.grpc.service": "a call that fails is answered with INTERNAL",
    "rota.engine.run": "an error of a reader, a commit hook or a replayed commit affects that one only",
    "rota.gateway.run": "a proxy node that fails affects its own worker only, and restarts",
    "rota.agent.run": "an order that fails is refused for its job; a failed connection is opened again",
    "rota.keeper.threads.server": "a failed order costs the attempts it would have started",
    "rota.keeper.supervisor": "an attempt that cannot be started ends, and no other",
    "rota.keeper.threads.checker": "a check that cannot be run has failed",
    "rota.keeper.journal": "a line that cannot be parsed is left out",
    "rota.clusters.provider_calls": "any error of a provider plugin counts as a failed call",
    "rota.cli.main": "no traceback reaches a user",
    "rota.cli.ui.job_feed": "the top of a thread passes its error to the main thread",
    "rota.cli.ui.read_ahead": "the top of a thread passes its error to the main thread",
    "rota.client.aio.threads": "the top of a thread passes its error to the main thread",
}

FUNCTION_LINES = 60
FILE_LINES = 700
PARAMETERS = 7
BANNED_SUFFIXES = ("Manager", "Handler", "Helper", "Util", "Utils", "Base", "Impl", "Info")


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(source: Path) -> dict[str, Path]:
    """Every module of ours below `source`, by its dotted name."""
    found = {module_name(path, source): path for path in sorted((source / "rota").rglob("*.py"))}
    return {name: path for name, path in found.items() if not within(name, GENERATED)}


def is_pure(module: str, docstring: str | None) -> bool:
    """Whether the module is deciding code: by its place in the tree and by the marker in its docstring."""
    ports = tuple(f"{package}.{port}" for package, ports in PORTS.items() for port in ports)
    return within(module, (*DECIDING, *PURE_ELSEWHERE, *ports)) and not is_marked(docstring)


def is_marked(docstring: str | None) -> bool:
    """Whether the first line of a docstring ends with the marker; elsewhere in it the marker is prose."""
    return (docstring or "").partition("\n")[0].endswith(IO_MARKER)


def within(module: str, packages: tuple[str, ...]) -> bool:
    """Whether the module is one of these or lies below one of them."""
    return any(_below(module.split("."), package.split(".")) for package in packages)


def _below(module: list[str], package: list[str]) -> bool:
    return len(module) >= len(package) and all(
        wanted in ("*", name) for name, wanted in zip(module, package, strict=False)
    )
