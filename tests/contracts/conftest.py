"""Rewrites the asserts of the contract suites, so that their failures show values."""

import pytest

pytest.register_assert_rewrite("rota.testing.store_contract")
