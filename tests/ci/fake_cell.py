"""A stand-in for `python -m e2e run` in tests of builds: runs end as they are told, verdicts are copied from prepared ones. Standard library only.

`fake_cell.py FOLDER run CELL SEED RESULTS` and `fake_cell.py FOLDER judge CELL SEEDS RESULTS`. FOLDER/plan.json says by cell id how each attempt of a seed ends
({"runs": {"100": ["lost", 13, 0]}}; the last one is repeated, 0 where nothing is said) and which verdicts of FOLDER/verdicts/ its looks find
({"looks": ["INCONCLUSIVE", "PASS"]}).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path


def key(cell: str) -> str:
    return cell.replace("+", "_").replace("@", "__")


def run(folder: Path, told: dict, cell: str, seed: str, root: Path) -> int:
    endings = told.get("runs", {}).get(seed, [0])
    marks = folder / "attempts" / f"{key(cell)}-{seed}"
    marks.parent.mkdir(exist_ok=True)
    before = marks.read_text().count("\n") if marks.exists() else 0
    with marks.open("a") as stream:
        stream.write(f"{os.environ.get('BUILDKITE_RETRY_COUNT')}\n")
    ending = endings[min(before, len(endings) - 1)]
    if ending == "lost":
        os.kill(os.getsid(0), signal.SIGKILL)  # the shell that leads the job: the agent is gone
        time.sleep(60)
    place = root / key(cell) / f"seed-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    host = told.get("hosts", {}).get(seed, ["host-1"])
    record = {"cell": cell, "seed": int(seed), "host": host[min(before, len(host) - 1)], "outcome": "INFRA" if ending == 13 else None, "earlier": []}
    (place / "runner.json").write_text(json.dumps(record))
    (place / "manifest.json").write_text(json.dumps({"schema_version": 1, "seed": int(seed), "host": record["host"]}))
    return int(ending)


def judge(folder: Path, told: dict, cell: str, seeds: str, root: Path) -> int:
    wanted = seeds.split(",")
    missing = [seed for seed in wanted if not (root / key(cell) / f"seed-{seed}" / "runner.json").is_file()]
    looks = told.get("looks", ["PASS"])
    name = "NOT_RUN" if missing else looks[min(len(wanted), len(looks)) - 1]
    if name == "none":
        return 2
    verdict = json.loads((folder / "verdicts" / f"{name}.json").read_text())
    now = datetime.now(UTC)
    verdict["created"] = told.get("created") or now.isoformat(timespec="seconds")
    verdict["declared"]["cell"] = cell
    place = root / key(cell) / "verdicts"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{now.strftime('%Y%m%dT%H%M%S')}.{time.time_ns() % 10**9:09d}Z.json").write_text(json.dumps(verdict))
    return 0


if __name__ == "__main__":
    where = Path(sys.argv[1])
    plan = json.loads((where / "plan.json").read_text()).get(sys.argv[3], {})
    act = run if sys.argv[2] == "run" else judge
    sys.exit(act(where, plan, sys.argv[3], sys.argv[4], Path(sys.argv[5])))
