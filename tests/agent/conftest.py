"""The keeper fixtures, for tests that read its logs."""

from tests.keeper.conftest import agent, keeper

__all__ = ["agent", "keeper"]
