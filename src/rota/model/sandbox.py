"""Sandbox: of its node a job reads much and writes little, and it sees the network only if it asks to."""

import msgspec

from rota.model.shape import Constraint, Op

SANDBOX = Constraint("sandbox", Op.EXISTS)  # the label of nodes on which one can be made


class SandboxSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    network: bool = False
    writable: tuple[str, ...] = ()  # paths of the node, beside its own directories
