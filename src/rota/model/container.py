"""Isolation of a job: the container image its tasks run in, or the sandbox around their processes."""

from enum import StrEnum

import msgspec

from rota.model.shape import Constraint, Op

RUNTIME = Constraint("container", Op.EXISTS)  # nodes with a container runtime have it as a label
ROOTLESS = ("podman", "rootless")  # label of nodes with podman whose agent is not root


class ContainerNetwork(StrEnum):
    NONE = "none"
    HOST = "host"


class PullPolicy(StrEnum):
    """Whether a node pulls an image."""

    NEVER = "never"
    MISSING = "missing"  # if it does not have it


class MountSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A directory or file of the node that is mounted into the container."""

    source: str
    target: str
    read_only: bool = False


class ContainerSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    image: str
    user: str | None = None  # numeric UID or UID:GID; None: an unprivileged one
    network: ContainerNetwork = ContainerNetwork.NONE
    mounts: tuple[MountSpec, ...] = ()
    workdir: str | None = None  # in the container
    pull: PullPolicy = PullPolicy.NEVER

    @property
    def wants(self) -> tuple[str, ...]:
        """What the owner of a node may forbid: a refusal holds for all containers with the same values."""
        mounts = sorted(f"{mount.source}{':ro' if mount.read_only else ''}" for mount in self.mounts)
        return (f"user {self.user}", *mounts) if self.user else tuple(mounts)


SANDBOX = Constraint("sandbox", Op.EXISTS)  # label of nodes that can create sandboxes


class SandboxSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sandbox around plain processes: files of the node are read-only, and there is no network."""

    network: bool = False
    writable: tuple[str, ...] = ()  # paths of the node, beside the task's own directories
