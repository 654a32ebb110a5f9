"""A keeper that makes the logs."""

from tests.keeper.conftest import agent, keeper

__all__ = ["agent", "keeper"]
