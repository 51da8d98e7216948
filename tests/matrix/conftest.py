from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.tree import make_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The root of a declaration tree that a test may change."""
    return make_tree(tmp_path)
