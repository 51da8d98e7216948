"""The Chromium of this machine, driven by Playwright. Tests that need it run where one is found; where none is they are skipped and say so."""

from __future__ import annotations

import shutil
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = "NOT RUN: no Chromium on this machine, so the pages were not opened in a browser (Debian, Ubuntu: apt-get install chromium)"


def find() -> Path | None:
    """The browser's executable."""
    return next((Path(found) for name in NAMES if (found := shutil.which(name))), None)
