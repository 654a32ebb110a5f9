"""The contract suites' asserts are to say as much as those of the tests here."""

import pytest

pytest.register_assert_rewrite("rota.testing.store_contract")
