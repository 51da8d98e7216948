"""Says whether every pin of a constraints file is on the package index: `python constraints/exists.py constraints/npu.txt …` (`make pins` for all).

Asks the index for each package once; prints what is missing and exits 1. A version with a local part (`+cpu`) is looked for without it: such builds come
from an index of their own.
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vendor import index


def main(files: list[str]) -> int:
    lines = [line.partition(";")[0].strip() for file in files for line in Path(file).read_text().splitlines()]
    pins = {tuple(line.split("==", 1)) for line in lines if line and not line.startswith("#")}
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(pins, pool.map(lambda pin: there(*pin), pins), strict=True))
    for package, version in sorted(pin for pin, right in found.items() if not right):
        print(f"{package}=={version}: the index has no such version")
    print(f"{sum(found.values())} of {len(pins)} pins are on the index")
    return 0 if all(found.values()) else 1


def there(package: str, version: str) -> bool:
    page = urllib.parse.urljoin(index() + "/", re.sub(r"[-_.]+", "-", package).lower() + "/")
    try:
        with urllib.request.urlopen(page, timeout=60) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError:
        return False
    stem = re.sub(r"[-_.]+", "[-_.]", re.escape(package).replace(r"\-", "-").replace(r"\.", "."))
    return re.search(rf"{stem}-{re.escape(version.split('+')[0])}(?:[-+.]|%2B)", text, re.IGNORECASE) is not None


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
