"""What may import what, and how large things may be: the one table behind the contracts and the tidy test."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
GENERATED = ("rota.wire.generated", "rota.store.etcd.generated", "rota.gateway.generated")

# Imports go downward only; names on one line never import each other.
LAYERS = (
    ("cli", "sim"),
    ("devtools",),
    ("wiring", "testing", "client"),
    ("apiserver", "controllers", "scheduler", "watcher", "clusters", "agent", "gateway"),
    ("engine",),
    ("store", "runtimes", "providers", "wire", "identity", "keeper"),
    ("config",),
    ("rules",),
    ("model",),
)

# Deciding code: no waiting, no clock, no world.
PURE = (
    "rota.model",
    "rota.rules",
    "rota.engine.state.queues",
    "rota.engine.state.mirror",
    "rota.engine.workqueue",
    "rota.engine.reconciler",
    "rota.engine.leadership",
    "rota.engine.loop",
    "rota.engine.parking",
    "rota.engine.state.what_if",
    "rota.engine.blame",
    "rota.engine.trial",
    "rota.controllers",
    "rota.scheduler",
    "rota.watcher.node_messages",
    "rota.watcher.dispatch",
    "rota.watcher.liveness",
    "rota.watcher.report_interval",
    "rota.clusters.assign",
    "rota.clusters.cluster_groups",
    "rota.clusters.machines",
    "rota.clusters.provider_sync",
    "rota.clusters.machine_transitions",
    "rota.clusters.lifecycle",
    "rota.clusters.scale",
    "rota.agent.plan",
    "rota.gateway.registration",
    "rota.gateway.job_translation",
    "rota.apiserver.admission",
    "rota.apiserver.spec",
    "rota.apiserver.access",
    "rota.apiserver.streams.event_cursor",
    "rota.apiserver.fair_share",
    "rota.keeper.resources.gpus",
    "rota.keeper.resources.reservations",
    "rota.devtools.chaos",
    "rota.devtools.chaos_report",
)
THE_WORLD = (
    "asyncio",
    "threading",
    "subprocess",
    "socket",
    "sqlite3",
    "os",
    "time",
    "random",
    "uuid",
    "logging",
    "pathlib",
    "rota.store",
    "rota.runtimes",
    "rota.providers",
    "rota.wire",
)

# Deciding code may use `datetime` as a type; these of its methods read the clock or the local time zone.
CLOCK_METHODS = ("now", "today", "utcnow", "fromtimestamp")

# Everything in these packages is concrete, but for the modules named here.
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
# Others may use the arrays and records they are given, by their methods.
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

# The outermost edges: an error nobody foresaw is met here, so that it harms one key, request or caller only.
EDGES = {
    "rota.engine.loop": "a decision that fails parks its key, a command is refused, a plan is thrown away",
    "rota.engine.trial": "a plan that fails on trial is not applied",
    "rota.engine.state.mirror": "what could not be applied is named, so that the rest can be loaded",
    "rota.store.codec": "a record that cannot be decoded is set aside, the rest is read",
    "rota.watcher.agent_service": "orders that cannot be computed cost one node its connection",
    "rota.watcher.watcher_service": "a session that fails costs one node its connection, not its watcher",
    "rota.wiring.scheduler_settings": "a plugin that cannot be loaded is named to the operator",
    "rota.apiserver.http": "a request that fails is answered with 500",
    "rota.apiserver.grpc.service": "a call that fails is answered with INTERNAL",
    "rota.engine.run": "what a reader, a listener or a commit of the leader raised costs that one only",
    "rota.gateway.run": "a stand-in that fails harms its own worker only, and begins anew",
    "rota.agent.run": "an order that fails is refused for its job; a connection that fails is made again",
    "rota.keeper.threads.server": "an order that fails costs the attempts it would have started",
    "rota.keeper.supervisor": "an attempt that cannot be started ends, and no other with it",
    "rota.keeper.threads.checker": "a check that cannot be made has failed",
    "rota.keeper.journal": "a line that cannot be read is left out",
    "rota.clusters.provider_calls": "a provider that fails in a way of its own has failed",
    "rota.cli.main": "no traceback reaches a user",
    "rota.cli.ui.job_feed": "the top of a thread hands its error to the main one",
    "rota.cli.ui.read_ahead": "the top of a thread hands its error to the main one",
    "rota.client.aio.threads": "the top of a thread hands its error to the main one",
}

FUNCTION_LINES = 60
FILE_LINES = 800
PARAMETERS = 7
BANNED_SUFFIXES = ("Manager", "Handler", "Helper", "Util", "Utils", "Base", "Impl", "Info")


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(source: Path) -> dict[str, Path]:
    """Every module of ours below `source`, by its dotted name."""
    found = {module_name(path, source): path for path in sorted((source / "rota").rglob("*.py"))}
    return {name: path for name, path in found.items() if not within(name, GENERATED)}


def within(module: str, packages: tuple[str, ...]) -> bool:
    """Whether the module is one of these or lies below one of them."""
    return any(_below(module.split("."), package.split(".")) for package in packages)


def _below(module: list[str], package: list[str]) -> bool:
    return len(module) >= len(package) and all(
        wanted in ("*", name) for name, wanted in zip(module, package, strict=False)
    )
