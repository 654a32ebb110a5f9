"""Rewrites the asserts of the contract suites, so that they report as much as those of tests."""

import pytest

pytest.register_assert_rewrite("rota.testing.store_contract")
