"""`sandbox` of a submit -> a Sandbox, or an error that names the field."""

from rota.apiserver.spec import fields
from rota.model.container import SandboxSpec
from rota.model.errors import BadField
from rota.model.job import JobSpec
from rota.model.limits import MOUNTS_MAX, SANDBOX_WORDS_MAX

SANDBOX_FIELDS = ("network", "writable")
PATHS_HINT = 'write a list of paths, as ["/data"]'


def parse_sandbox(value: object) -> SandboxSpec | None:
    """True and false will do."""
    if value is None or value is False:
        return None
    if value is True:
        return SandboxSpec()
    if not isinstance(value, dict):
        raise BadField(
            "sandbox", "is neither true nor a table", f"write true, or {', '.join(SANDBOX_FIELDS)}"
        )
    for name in value:
        if name not in SANDBOX_FIELDS:
            field = f"sandbox.{fields.printable(str(name))}"
            raise BadField(field, "is not a known field", f"known: {', '.join(SANDBOX_FIELDS)}")
    paths = fields.texts("sandbox.writable", value.get("writable", []), PATHS_HINT)
    if len(paths) > MOUNTS_MAX:
        raise BadField("sandbox.writable", f"has {len(paths)} entries", f"write at most {MOUNTS_MAX}")
    writable = tuple(_parse_path(f"sandbox.writable[{at}]", path) for at, path in enumerate(paths))
    return SandboxSpec(fields.flag("sandbox.network", value.get("network", False)), writable)


def check_sandbox(spec: JobSpec) -> None:
    if spec.sandbox is None:
        return
    if spec.container is not None:
        raise BadField("sandbox", "a container is one already", "leave image or sandbox out")
    if spec.workdir is not None:
        _parse_path("workdir", spec.workdir)
    for command in (spec.command, *(step.command for step in spec.steps)):
        if len(command) > SANDBOX_WORDS_MAX:
            field, problem = "steps" if spec.steps else "command", f"has {len(command)} words"
            raise BadField(field, problem, f"write at most {SANDBOX_WORDS_MAX} in a sandbox")


def _parse_path(field: str, path: str) -> str:
    fields.path(field, path)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadField(field, f"'{fields.printable(path)}' leads upwards", "write the path without '..'")
    if not parts:
        raise BadField(field, "would leave the whole machine writable", "write a directory below /")
    return "/" + "/".join(parts)
