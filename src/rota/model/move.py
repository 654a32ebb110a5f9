"""MoveOrder: an order to run a task on another node. Agents import it with the job, so it needs no NumPy."""

import msgspec

from rota.model.ids import NodeId


class MoveOrder(msgspec.Struct, frozen=True, array_like=True):
    """The attempt that leaves its node, and where the task may go. Part of a JobIntent."""

    attempt: int  # the attempt that is stopped
    tries: int  # the try that this attempt serves
    source: NodeId  # the node that the task leaves
    target: NodeId | None  # the node that it goes to; None: any node but the one it leaves
    at_ms: int  # cluster time of the order
    leaves: bool = True  # False: a task of a gang that is stopped because another one leaves its node
