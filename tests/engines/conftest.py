"""Shared test functions live outside test modules: their assertions are to be explained all the same."""

import pytest

pytest.register_assert_rewrite("attached", "rig")
pytest.register_assert_rewrite("conformance", "conformance_adapters", "conformance_models", "conformance_ours")
