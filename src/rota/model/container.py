"""Isolation of a job: the container image its tasks run in, or the sandbox around their processes."""

from enum import StrEnum

import msgspec

from rota.model.shape import Constraint, Op

RUNTIME = Constraint("container", Op.EXISTS)  # the label of nodes that have a runtime is its name
ROOTLESS = ("podman", "rootless")  # the label of nodes that have one which only a root agent could use


class ContainerNetwork(StrEnum):
    NONE = "none"
    HOST = "host"


class PullPolicy(StrEnum):
    """Whether a node fetches an image."""

    NEVER = "never"
    MISSING = "missing"  # when it does not have it


class MountSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A directory or file of the node, as it is found in the container."""

    source: str
    target: str
    read_only: bool = False


class ContainerSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    image: str
    user: str | None = None  # numbers: user, or user:group; none: an unprivileged one
    network: ContainerNetwork = ContainerNetwork.NONE
    mounts: tuple[MountSpec, ...] = ()
    workdir: str | None = None  # in the container
    pull: PullPolicy = PullPolicy.NEVER

    @property
    def wants(self) -> tuple[str, ...]:
        """What a node's owner may not allow: what is refused to one with these is refused to all."""
        mounts = sorted(f"{one.source}{':ro' if one.read_only else ''}" for one in self.mounts)
        return (f"user {self.user}", *mounts) if self.user else tuple(mounts)


SANDBOX = Constraint("sandbox", Op.EXISTS)  # the label of nodes on which one can be made


class SandboxSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    network: bool = False
    writable: tuple[str, ...] = ()  # paths of the node, beside its own directories
