"""Isolation of a task: `image` and `container` of a submit -> ContainerSpec, `sandbox` -> SandboxSpec."""

import re
from collections.abc import Mapping
from typing import Any

from rota.apiserver.spec import fields
from rota.model.amounts import GPU
from rota.model.container import ContainerNetwork, ContainerSpec, MountSpec, PullPolicy, SandboxSpec
from rota.model.errors import BadField
from rota.model.job import JobSpec
from rota.model.limits import CONTAINER_ENV_BYTES_MAX, IMAGE_LENGTH_MAX, MOUNTS_MAX, SANDBOX_WORDS_MAX
from rota.model.shape import RunMode

IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
USER = re.compile(r"[0-9]{1,9}(:[0-9]{1,9})?")
CONTAINER_FIELDS = ("user", "network", "mounts", "workdir", "pull")
CONTAINER_HINT = f"write an object with {', '.join(CONTAINER_FIELDS)}, or some of these"
MOUNT_FIELDS = ("source", "target", "read_only")
MOUNT_HINT = 'write "SOURCE:TARGET" or "SOURCE:TARGET:ro", or an object of source and target'
SANDBOX_FIELDS = ("network", "writable")
SANDBOX_HINT = 'write true, or {"network": true, "writable": ["/data"]}'
WRITABLE_HINT = 'write a list of paths, as ["/data"]'
UNSUPPORTED_CHARACTERS = ",\"'\n"  # separators and quotes in the options of container runtimes


def parse_container(body: Mapping[str, Any]) -> ContainerSpec | None:
    table = body.get("container")
    if body.get("image") is None:
        if table is not None:
            raise BadField("container", "has no effect without an image", "add image, or leave it out")
        return None
    settings = {} if table is None else fields.table("container", table, CONTAINER_FIELDS, CONTAINER_HINT)
    user, workdir = settings.get("user"), settings.get("workdir")
    return ContainerSpec(
        image=_parse_image(body["image"]),
        user=None if user is None else _parse_user(user),
        network=fields.one_of(
            "container.network", settings.get("network", ContainerNetwork.NONE), ContainerNetwork
        ),
        mounts=_parse_mounts(settings.get("mounts", [])),
        workdir=None if workdir is None else _parse_path("container.workdir", workdir),
        pull=fields.one_of("container.pull", settings.get("pull", PullPolicy.NEVER), PullPolicy),
    )


def check_container(spec: JobSpec) -> None:
    """Refuse fields of a spec that have no effect in a container, or cannot be guaranteed there."""
    if spec.container is None:
        return
    if spec.run is RunMode.ONE_AT_A_TIME:
        raise BadField("run", "one_at_a_time cannot be guaranteed in a container", "leave image or run out")
    if spec.needs.get(GPU):
        raise BadField("gpu", "GPUs are not supported in containers yet", "leave image or gpu out")
    if spec.files and spec.container.workdir is not None:
        problem = (
            "are written into the job's own directory, which is not the one that container.workdir names"
        )
        raise BadField("files", problem, "leave container.workdir out")
    if spec.workdir is not None:
        _parse_path("workdir", spec.workdir)
    _check_env("env", spec.env)
    for number, step in enumerate(spec.steps):
        _check_env(f"steps[{number}].env", step.env)


def _check_env(field: str, env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if "\n" in value or "\r" in value:
            raise BadField(
                field,
                f"the value of {name} has several lines",
                "put it in a file: container runtimes read one line per variable",
            )
        if len(value.encode()) > CONTAINER_ENV_BYTES_MAX:
            hint = f"write at most {CONTAINER_ENV_BYTES_MAX} bytes, or put it in a file"
            raise BadField(field, f"the value of {name} is too long for a container", hint)


def _parse_image(value: object) -> str:
    given = fields.text("image", value, IMAGE_LENGTH_MAX)
    if IMAGE.fullmatch(given) is None:
        raise BadField(
            "image", f"'{fields.printable(given)}' is not an image", "write name:tag, as alpine:3.20"
        )
    return given


def _parse_user(value: object) -> str:
    given = str(value) if type(value) is int else value
    if not isinstance(given, str) or USER.fullmatch(given) is None:
        raise BadField(
            "container.user", "is not the number of a user", 'write 1000, or "1000:1000" with a group'
        )
    return given


def _parse_mounts(value: object) -> tuple[MountSpec, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list):
        raise BadField(
            "container.mounts", "is not a list", 'write ["/data:/data:ro"], or tables of source and target'
        )
    if len(given) > MOUNTS_MAX:
        raise BadField("container.mounts", f"has {len(given)} entries", f"write at most {MOUNTS_MAX}")
    mounts = tuple(_parse_mount(f"container.mounts[{at}]", mount) for at, mount in enumerate(given))
    targets = [mount.target for mount in mounts]
    for target in targets:
        if targets.count(target) > 1:
            raise BadField(
                "container.mounts", f"two are mounted at {target}", "give each a target of its own"
            )
    return mounts


def _parse_mount(field: str, value: object) -> MountSpec:
    if isinstance(value, str):
        source, _, rest = value.partition(":")
        target, _, mode = rest.partition(":")
        if not target or mode not in ("", "ro", "rw"):
            raise BadField(
                field,
                f"'{fields.printable(value)}' is not a mount",
                MOUNT_HINT,
            )
        value = {"source": source, "target": target, "read_only": mode == "ro"}
    table = fields.table(field, value, MOUNT_FIELDS, MOUNT_HINT)
    for name in ("source", "target"):
        if table.get(name) is None:
            raise BadField(f"{field}.{name}", "is missing", "write a path, as /data")
    source, target = (_parse_path(f"{field}.{name}", table[name]) for name in ("source", "target"))
    if target.strip("/") == "":
        raise BadField(f"{field}.target", "would hide the whole image", "write a directory below /")
    return MountSpec(source, target, fields.flag(f"{field}.read_only", table.get("read_only", False)))


def _parse_path(field: str, value: object) -> str:
    given = fields.path(field, value)
    if any(letter in given for letter in UNSUPPORTED_CHARACTERS):
        raise BadField(
            field,
            "holds a comma, a quote or a line break",
            "choose another path: container runtimes accept none of these",
        )
    return given


def parse_sandbox(value: object) -> SandboxSpec | None:
    """A table of settings, or true for a sandbox with the default ones."""
    if value is None or value is False:
        return None
    if value is True:
        return SandboxSpec()
    if not isinstance(value, dict):
        raise BadField("sandbox", "is neither true nor an object", SANDBOX_HINT)
    table = fields.table("sandbox", value, SANDBOX_FIELDS, SANDBOX_HINT)
    paths = fields.texts("sandbox.writable", table.get("writable", []), WRITABLE_HINT)
    if len(paths) > MOUNTS_MAX:
        raise BadField("sandbox.writable", f"has {len(paths)} entries", f"write at most {MOUNTS_MAX}")
    writable = tuple(_parse_writable_path(f"sandbox.writable[{at}]", path) for at, path in enumerate(paths))
    return SandboxSpec(fields.flag("sandbox.network", table.get("network", False)), writable)


def check_sandbox(spec: JobSpec) -> None:
    """Refuse fields that a sandbox cannot be combined with."""
    if spec.sandbox is None:
        return
    if spec.container is not None:
        raise BadField("sandbox", "a container is isolated already", "leave image or sandbox out")
    if spec.workdir is not None:
        _parse_writable_path("workdir", spec.workdir)
    for command in (spec.command, *(step.command for step in spec.steps)):
        if len(command) > SANDBOX_WORDS_MAX:
            field, problem = "steps" if spec.steps else "command", f"has {len(command)} arguments"
            raise BadField(field, problem, f"write at most {SANDBOX_WORDS_MAX} in a sandbox")


def _parse_writable_path(field: str, path: str) -> str:
    fields.path(field, path)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadField(field, f"'{fields.printable(path)}' leads upwards", "write the path without '..'")
    if not parts:
        raise BadField(field, "would make the whole machine writable", "write a directory below /")
    return "/" + "/".join(parts)
