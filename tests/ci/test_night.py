"""A night of 40 cells in every outcome and disposition: adaptive seeds, agents that are lost, a flaky host, a quarantine that has ended. Page, annotation,
gate and counts are held to what was played."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from ci.local.executor import Build, Options
from ci.local.steps import State
from matrix.outcome import Outcome
from tests.ci.conftest import tell, verdict, write_settings
from tests.ci.tree import example_tree

ROOT = Path(__file__).parents[2]
MODE = "qwen3-4b.cpu.colocate"
DISPOSITIONS = ("required", "experimental", "quarantined", "stale")
OLD = (datetime.now(UTC) - timedelta(days=5)).isoformat(timespec="seconds")
ENDED = (date.today() - timedelta(days=1)).isoformat()
Expected = dict[str, tuple[str, str]]  # cell -> (outcome, action)


def name(*parts: str) -> str:
    return f"{MODE}@{'-'.join(parts).lower().replace('_', '-')}"


def script() -> tuple[dict[str, dict], dict[str, str], Expected]:
    """(what the stand-ins play by cell, disposition by cell, what the gate must make of it)."""
    told: dict[str, dict] = {}
    disposition: dict[str, str] = {}
    expected: Expected = {}
    for one in DISPOSITIONS:
        for outcome in Outcome:
            cell = name(one, outcome)
            disposition[cell] = one
            told[cell] = {"looks": [str(outcome)]} | ({"created": OLD} if one == "stale" else {})
            counts = one in ("required", "stale") and outcome not in (Outcome.PASS, Outcome.INFRA)
            quiet = outcome is Outcome.PASS and one != "stale"
            expected[cell] = (str(outcome), "block" if counts else "pass" if quiet else "warn")
    special: dict[str, tuple[dict, str, str]] = {
        "seeds-pass": ({"looks": ["INCONCLUSIVE", "PASS"]}, "PASS", "pass"),
        "seeds-fail": ({"looks": ["INCONCLUSIVE", "INCONCLUSIVE", "FAIL"]}, "FAIL", "block"),
        "lost-twice": ({"runs": {"100": ["lost", "lost", 0]}}, "PASS", "pass"),
        "lost-thrice": ({"runs": {"100": ["lost"]}}, "NOT_RUN", "block"),
        "flaky-one": ({"runs": {"100": [13]}, "hosts": {"100": ["host-7"]}, "looks": ["INFRA"]}, "INFRA", "warn"),
        "flaky-two": ({"runs": {"100": [13]}, "hosts": {"100": ["host-7"]}, "looks": ["INFRA"]}, "INFRA", "warn"),
        "ended": ({"looks": ["FAIL"]}, "FAIL", "block"),
        "exact": ({"looks": ["exact"]}, "PASS", "pass"),
    }
    for key, (play, outcome, action) in special.items():
        told[name(key)], disposition[name(key)], expected[name(key)] = play, "ended" if key == "ended" else "required", (outcome, action)
    return told, disposition, expected


def night_tree(place: Path, disposition: dict[str, str]) -> Path:
    root = example_tree(place)
    cells = [
        {"id": cell, "recipe": "spell-backward", "tiers": ["nightly"], "disposition": "experimental" if one == "experimental" else "required"}
        for cell, one in disposition.items()
    ]
    (root / "cells" / "qwen3-4b.yaml").write_text(yaml.safe_dump({"cells": cells}))
    entry = "  - {{cell: {}, owner: ann, reason: flaky, issue: '#7', expires: {}}}\n"
    held = [entry.format(cell, "2999-01-31" if one == "quarantined" else ENDED) for cell, one in disposition.items() if one in ("quarantined", "ended")]
    (root / "quarantine.yaml").write_text("quarantined:\n" + "".join(held))
    return root


@pytest.fixture(scope="module")
def night(tmp_path_factory) -> tuple[Build, Expected]:
    """The night, played once: the pipeline was uploaded before the quarantine ended, as at midnight."""
    place = tmp_path_factory.mktemp("night")
    fakes = place / "fakes"
    (fakes / "verdicts").mkdir(parents=True)
    for outcome in Outcome:
        (fakes / "verdicts" / f"{outcome}.json").write_text(verdict(outcome))
    (fakes / "verdicts" / "exact.json").write_text(verdict(Outcome.PASS, evidence="exactness"))
    told, disposition, expected = script()
    tell(fakes, **told)
    root = night_tree(place, disposition)
    text = (root / "quarantine.yaml").read_text()
    settings = write_settings(place / "settings.yaml", fakes)
    values = yaml.safe_load(settings.read_text())
    values["commands"]["report"] = f"{{python}} -m reports site {{results}} -o {{report}} --matrix {root}"
    settings.write_text(yaml.safe_dump(values))
    (root / "quarantine.yaml").write_text(text.replace(ENDED, "2999-01-31"))
    command = f"{sys.executable} -m ci pipeline --tier nightly --settings {settings} --matrix {root} --upload && cp {place}/later {root}/quarantine.yaml"
    (place / "later").write_text(text)
    options = Options(place / "build", ROOT, build="b1", agents=4, apart=True, grace_s=1, say=lambda line: None)
    options.environment = {**options.environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    build = Build(options)
    build.run({"steps": [{"key": "pipeline", "command": command}]})
    return build, expected


pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


def gate(build: Build) -> dict:
    return json.loads((build.store.artifacts / "results" / "b1" / "gate" / "gate.json").read_text())


def test_the_script_has_forty_cells_in_every_outcome_and_disposition():
    _, disposition, expected = script()
    assert len(expected) == 40
    assert Counter(disposition.values()) == {"required": 15, "experimental": 8, "quarantined": 8, "stale": 8, "ended": 1}


def test_every_cell_comes_to_what_was_played(night):
    build, expected = night
    assert build.state is State.FAILED
    assert {cell["cell"]: (cell["outcome"], cell["action"]) for cell in gate(build)["cells"]} == expected


def test_the_gate_exits_with_the_most_severe_blocking_outcome(night):
    build, _ = night
    assert build.step("gate").jobs[0].attempts[-1].exit == gate(build)["exit_code"] == 1
    assert not [step.name for step in build.steps if step.state is State.FAILED and step.key != "gate"], "the gate alone decides"


def test_counts_add_up_on_every_page(night):
    build, expected = night
    counts = Counter(outcome for outcome, _ in expected.values())
    assert gate(build)["counts"] == {str(outcome): counts[outcome] for outcome in Outcome}
    index = json.loads((build.store.artifacts / "report" / "b1" / "index.json").read_text())
    rows = {row["cell"]: row for row in index["cells"]}
    assert {cell: row["outcome"] for cell, row in rows.items()} == {cell: outcome for cell, (outcome, _) in expected.items()}
    assert sum(index["counts"]["state"].values()) == 40
    assert index["counts"]["state"]["quarantined"] == 8
    assert index["counts"]["state"]["passed (exactness)"] == 1


def test_the_quarantine_that_ended_counts_and_says_whose_it_was(night):
    build, _ = night
    (cell,) = [cell for cell in gate(build)["cells"] if cell["cell"] == name("ended")]
    assert (cell["disposition"], cell["action"]) == ("required", "block")
    assert f"the quarantine expired on {ENDED} (owner ann, issue #7)" in cell["remark"]


def test_seeds_were_added_where_asked_and_only_there(night):
    build, _ = night
    made = Counter(key.split(":")[1] for key in build.started if key.startswith("run:") and not key.endswith(":100"))
    want = {name(one, "inconclusive"): 2 for one in DISPOSITIONS} | {name("seeds-pass"): 1, name("seeds-fail"): 2}
    assert made == {cell.replace("@", "__"): count for cell, count in want.items()}


def test_lost_agents_were_replaced_twice(night):
    build, _ = night
    keys = ("lost-twice", "lost-thrice", "flaky-one")
    attempts = {key: [one.exit for one in build.step(f"run:{name(key).replace('@', '__')}:100").jobs[0].attempts] for key in keys}
    assert attempts == {"lost-twice": [-1, -1, 0], "lost-thrice": [-1, -1, -1], "flaky-one": [13, 13, 13]}


def test_the_annotation_says_what_blocks_the_host_and_fits(night):
    build, expected = night
    text = (build.store.annotations / "gate.md").read_text()
    blocking = re.findall(r"^- blocks: <code>(.*?)</code>", text, re.MULTILINE)
    assert sorted(one.replace("&#64;", "@") for one in blocking) == sorted(cell for cell, (_, action) in expected.items() if action == "block")
    assert expected[blocking[0].replace("&#64;", "@")] == ("FAIL", "block")
    assert "host <code>host-7</code> lost 2 runs" in text
    assert "**40 cells**" in text
    assert (build.store.annotations / "gate.style").read_text() == "error"
    assert len(text.encode()) < 1 << 20


def test_the_status_text_is_set(night):
    build, _ = night
    status = build.store.meta["vime:status:gate"]
    assert re.match(r"qwen3-4b\.cpu\.colocate@\S+ FAIL and \d+ more block; ", status)
    assert len(status) <= 140
