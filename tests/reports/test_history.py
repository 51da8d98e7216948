"""Verdicts over commits: heads of files, the first bad range, and what `bisect` makes of a repository."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from matrix.status import read_judged
from reports.bisect import bisect
from reports.cli import app
from reports.errors import ReportError
from reports.heads import Heads, read_head
from reports.history import first_bad
from reports.judge import judge
from reports.verdict import Declared
from tests.matrix.tree import make_tree
from tests.reports.synthetic import CELL, SCIENCE, rewards, rule, run_dir

SHAS = [f"{letter * 40}" for letter in "abcdef"]


def verdict(root, number, outcome, commit=None, *, cell=CELL, dirty=False, science="s", seeds=(100,)):
    """A verdict file as far as heads read it."""
    folder = root / cell / "verdicts"
    folder.mkdir(parents=True, exist_ok=True)
    commits = [commit] if isinstance(commit, str) or commit is None else commit
    value = {
        "schema_version": 2,
        "created": f"2026-01-{number + 1:02d}T03:00:00+00:00",
        "outcome": outcome,
        "evidence": "convergence",
        "reasons": [f"because of {outcome}"],
        "declared": {"science_hash": science, "recipe": "r"},
        "candidates": [{"seed": seed, "provenance": {"commit": sha, "dirty": dirty}} for seed, sha in zip(seeds, commits)],
    }
    file = folder / f"202601{number + 1:02d}T030000.000000000Z.json"
    file.write_text(json.dumps(value))
    return file


def history(tmp_path, *outcomes, **more):
    for number, outcome in enumerate(outcomes):
        verdict(tmp_path, number, outcome, SHAS[number], **more)
    return Heads(tmp_path).of(CELL)


def test_head_of_a_real_verdict_says_what_the_verdict_says(tmp_path):
    base = [run_dir(tmp_path / f"seed-{seed}", seed) for seed in range(5)]
    run = run_dir(tmp_path / "seed-100", 100, rewards(100, plateau=0.8))
    whole = judge([run], base, rule(), Declared(cell=CELL, recipe="spell-backward", science_hash=SCIENCE))
    head = read_head(whole.write(tmp_path / "verdicts"))
    assert (head.outcome, head.title, head.evidence, head.created) == (whole.outcome, whole.title, whole.evidence, whole.created)
    assert (head.reasons, head.seeds, head.n, head.B, head.science_hash) == (whole.reasons, [100], 1, 5, SCIENCE)
    assert head.suspects == [suspect.name for suspect in whole.suspects]
    assert [one.difference for one in head.statistics] == [one.difference for one in whole.comparisons]
    assert head.judged() == read_judged(next((tmp_path / "verdicts").iterdir()))


def test_heads_are_kept_by_content_and_a_damaged_store_is_as_good_as_none(tmp_path):
    root, kept = tmp_path / "root", tmp_path / "heads"
    file = verdict(root, 0, "PASS", SHAS[0])
    first = Heads(root, kept)
    assert [head.outcome for head in first.of(CELL)] == ["PASS"]
    first.save()
    second = Heads(root, kept)
    assert second.of(CELL) == first.of(CELL)
    assert (first.read, second.read) == (1, 0)
    file.write_text(file.read_text().replace("PASS", "FAIL"))
    third = Heads(root, kept)
    assert [head.outcome for head in third.of(CELL)] == ["FAIL"]
    assert third.read == 1
    kept.write_bytes(kept.read_bytes()[:-3])
    assert Heads(root, kept).of(CELL) == third.of(CELL)


def test_parsing_in_several_processes_gives_the_same_heads(tmp_path):
    for cell in ("a", "b", "c"):
        for number in range(10):
            verdict(tmp_path, number, "PASS", SHAS[0], cell=cell)
    many = Heads(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reports.heads.PARALLEL_FROM", 5)
        many.fill(["a", "b", "c"], 2)
    assert many.read == 30
    assert [many.of(cell) for cell in "abc"] == [Heads(tmp_path).of(cell) for cell in "abc"]
    assert many.read == 30


def test_first_bad_range(tmp_path):
    found = first_bad(history(tmp_path, "PASS", "PASS", "INFRA", "FAIL", "INCONCLUSIVE", "FAIL"))
    assert (found.before, found.after) == (SHAS[1], SHAS[3])
    assert found.text() == f"good at {SHAS[1][:12]} (2026-01-02 03:00), bad since {SHAS[3][:12]} (2026-01-04 03:00)"


def test_a_cell_that_is_good_again_has_no_bad_range(tmp_path):
    assert first_bad(history(tmp_path, "PASS", "FAIL", "PASS", "INFRA")) is None
    assert first_bad(()) is None


def test_never_good_and_good_and_bad_at_one_commit(tmp_path):
    assert first_bad(history(tmp_path / "never", "FAIL", "INCOMPLETE")).text().startswith(f"bad since {SHAS[0][:12]}")
    for number, outcome in enumerate(("PASS", "FAIL")):
        verdict(tmp_path, number, outcome, SHAS[0])
    found = first_bad(Heads(tmp_path).of(CELL))
    assert found.same_commit
    assert "good and bad at the same commit" in found.text()


def test_a_changed_recipe_begins_anew(tmp_path):
    verdict(tmp_path, 0, "PASS", SHAS[0], science="old")
    verdict(tmp_path, 1, "FAIL", SHAS[1], science="new")
    assert first_bad(Heads(tmp_path).of(CELL)).good is None


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Ten commits, each touching vime/, but for the fifth, which touches the README alone. Returns (folder, commits from old to new)."""
    place = tmp_path_factory.mktemp("repository")
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }

    def git(*words):
        return subprocess.run(["git", "-C", str(place), *words], check=True, capture_output=True, text=True, env=environment).stdout

    git("init", "-q", "-b", "main")
    (place / "vime").mkdir()
    for number in range(10):
        file = place / ("README.md" if number == 5 else "vime/loop.py")
        file.write_text(f"{number}\n")
        git("add", "-A")
        git("commit", "-q", "-m", f"change {number}")
    return place, git("rev-list", "--reverse", "HEAD").split()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = make_tree(tmp_path_factory.mktemp("tree"))
    (root / "selection.yaml").write_text(
        "unknown_tier: smoke\nareas:\n"
        "  - {name: code, paths: ['vime/**'], because: it trains}\n"
        "  - {name: words, paths: ['*.md'], none: true, because: nothing runs it}\n"
    )
    return root


def test_bisect_narrows_and_names_the_run_that_halves_what_remains(repository, tree, tmp_path):
    place, shas = repository
    for number, (at, outcome) in enumerate(((1, "PASS"), (9, "FAIL"), (2, "PASS"), (8, "FAIL"))):
        verdict(tmp_path, number, outcome, shas[at])
    found = bisect(tmp_path, CELL, place, tree)
    assert (found.good.sha, found.bad.sha) == (shas[2], shas[8])
    assert [one.sha for one in found.suspects] == [shas[at] for at in (3, 4, 6, 7, 8)]  # 5 touches the README alone
    assert any("1 commit(s) between touch nothing" in remark for remark in found.remarks)
    assert found.next.sha == shas[6]
    assert any(f"git worktree add ../bisect-{shas[6][:12]}" in command for command in found.commands)
    text = "\n".join(found.lines())
    assert "5 commits remain, 3 runs of the cell settle it" in text
    verdict(tmp_path, 4, "PASS", shas[7])
    assert bisect(tmp_path, CELL, place, tree).settled
    assert f"first bad commit: {shas[8][:12]}" in "\n".join(bisect(tmp_path, CELL, place, tree).lines())


@pytest.mark.parametrize("culprit", range(1, 10))
def test_following_bisect_finds_the_culprit(repository, tree, tmp_path, culprit):
    place, shas = repository
    truth = {sha: "FAIL" if number >= culprit else "PASS" for number, sha in enumerate(shas)}
    verdict(tmp_path, 0, "PASS", shas[0])
    verdict(tmp_path, 1, "FAIL", shas[9])
    for number in range(2, 8):
        found = bisect(tmp_path, CELL, place, tree)
        if found.settled:
            break
        verdict(tmp_path, number, truth[found.next.sha], found.next.sha)
    assert found.settled
    assert found.suspects[0].sha == shas[6 if culprit == 5 else culprit]  # 5 cannot be it, so its successor is named


def test_what_tells_nothing_is_left_out_and_said(repository, tree, tmp_path):
    place, shas = repository
    verdict(tmp_path, 0, "PASS", shas[0])
    verdict(tmp_path, 1, "PASS", shas[7], dirty=True)
    verdict(tmp_path, 2, "PASS", [shas[7], shas[8]], seeds=(100, 101))
    verdict(tmp_path, 3, "PASS", shas[8], science="other")
    verdict(tmp_path, 4, "FAIL", shas[9])
    found = bisect(tmp_path, CELL, place, tree)
    assert found.good.sha == shas[0]
    left = {f"1 verdict left out: {why}" for why in ("made with local changes", "naming no single commit", "of another recipe")}
    assert left <= set(found.remarks)


def test_contradictions_are_said(repository, tree, tmp_path):
    place, shas = repository
    for number, (at, outcome) in enumerate(((0, "PASS"), (4, "FAIL"), (6, "PASS"), (8, "PASS"), (8, "FAIL"), (9, "PASS"))):
        verdict(tmp_path, number, outcome, shas[at])
    found = bisect(tmp_path, CELL, place, tree)
    assert (found.good.sha, found.bad.sha) == (shas[6], shas[8])
    text = "\n".join(found.remarks)
    assert "was judged good and bad" in text
    assert "the latest verdict is good" in text


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [((), "no verdicts"), (("PASS",), "no bad verdict"), (("INFRA", "INCONCLUSIVE"), "no bad verdict")],
)
def test_nothing_to_bisect_is_one_line(repository, tree, tmp_path, outcomes, words):
    for number, outcome in enumerate(outcomes):
        verdict(tmp_path, number, outcome, repository[1][number])
    with pytest.raises(ReportError, match=words):
        bisect(tmp_path, CELL, repository[0], tree)


def test_unknown_commits_are_git_s_one_line(repository, tree, tmp_path):
    verdict(tmp_path, 0, "FAIL", SHAS[0])
    with pytest.raises(ReportError, match="git rev-list"):
        bisect(tmp_path, CELL, repository[0], tree)


def test_bisect_command_prints_data(repository, tree, tmp_path):
    place, shas = repository
    verdict(tmp_path, 0, "PASS", shas[0])
    verdict(tmp_path, 1, "FAIL", shas[9])
    done = CliRunner().invoke(app, ["bisect", str(tmp_path), CELL, "--repository", str(place), "--matrix", str(tree), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["next"]["sha"] in shas
    assert Path(tmp_path).exists()
