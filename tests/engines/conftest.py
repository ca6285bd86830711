"""Shared test functions live outside test modules: their assertions are to be explained all the same."""

import pytest

pytest.register_assert_rewrite("attached", "conformance", "conformance_models", "conformance_ours", "rig")
