"""A server attached to the real SGLang captures just the same."""

from __future__ import annotations

import pytest
from attached import *  # noqa: F403

pytestmark = pytest.mark.sglang
