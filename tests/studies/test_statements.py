from pathlib import Path
from types import SimpleNamespace

import pytest

from torchmcl.studies import paper, statements, tables
from torchmcl.studies.comparison import Comparison
from torchmcl.studies.published import find
from torchmcl.studies.scales import scale
from torchmcl.studies.statements import FILE, Lower, Within, table, verdict_on
from torchmcl.studies.statistics import paired_seeds
from torchmcl.studies.study import Results

ROOT = Path(__file__).parents[2]
BASE = [10.0, 10.2, 9.9, 10.1, 10.3, 9.8]
RESULTS = Results(scale("standard"), {})


def difference(*values: float, fitted: bool = True, name: str = "amcl") -> Comparison:
    return Comparison(
        name,
        "ie",
        "oracle",
        paired_seeds([b + d for b, d in zip(BASE, values, strict=False)], BASE[: len(values)]),
        fitted,
    )


LOWER = difference(-1.0, -1.2, -0.9, -1.1, -1.3, -0.8)
HIGHER = difference(1.0, 1.2, 0.9, 1.1, 1.3, 0.8)
EQUAL = difference(0.1, -0.1, 0.05, -0.05, 0.0, 0.02)
UNCLEAR = difference(-3.0, 1.0, -2.0, 1.5, -0.5, 0.3)
SLIGHTLY_LOWER = difference(-0.1, -0.12, -0.09, -0.11, -0.13, -0.08)  # clear, and within the margin
FEW = difference(-1.0, -1.1, -0.9)
UNTRAINED = difference(-1.0, -1.2, -0.9, -1.1, -1.3, -0.8, fitted=False)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([LOWER], "holds"),
        ([LOWER, SLIGHTLY_LOWER], "holds"),
        ([HIGHER], "does not hold"),
        ([LOWER, HIGHER], "does not hold"),
        ([EQUAL], "does not hold"),
        ([LOWER, EQUAL], "does not hold"),
        ([UNCLEAR], "not clear"),
        ([LOWER, UNCLEAR], "not clear"),
        ([FEW], "not judged"),
        ([LOWER, FEW], "not judged"),
        ([LOWER, UNTRAINED], "not judged"),
        ([HIGHER, UNTRAINED], "does not hold"),
        ([EQUAL, FEW], "does not hold"),
    ],
)
def test_verdicts(differences, verdict):
    """A counterexample is enough, and only a statement that it does not refute waits for missing differences."""
    assert verdict_on(differences, expected=len(differences)) == verdict
    waiting = verdict if verdict == "does not hold" else "not judged"
    assert verdict_on(differences, expected=len(differences) + 1) == waiting


def test_the_least_favourable_difference_is_shown():
    row = {"method": "amcl", "memory": True, "fusion": True}
    statement = Lower("…", "table 1", "ablation", "oracle", {"amcl minus ie": (row, {"method": "ie"})})
    judged = statement.judge(RESULTS, [LOWER, difference(-9.0, -9.0, name="other")])
    assert (judged.verdict, judged.published, judged.here, judged.seeds) == (
        "holds",
        "2.14 and 5.1",
        "amcl minus ie: -1.05",
        6,
    )


def test_a_refuted_statement_shows_the_difference_that_refutes_it():
    pairs = {f"amcl {n} minus ie": ({}, {}) for n in range(2)}
    found = [difference(0.1, -0.1, 0.05, -0.05, 0.0, 0.02, name="amcl 0"), difference(9.0, 9.0, name="amcl 1")]
    judged = Lower("…", "table 1", "ablation", "oracle", pairs).judge(RESULTS, found)
    assert (judged.verdict, judged.here, judged.p_t) == (
        "does not hold",
        f"amcl 0 minus ie: {found[0].difference.value:+.2f}",
        found[0].difference.p_t,
    )


def test_p_values_are_corrected_and_false_statements_expected(monkeypatch, tmp_path):
    """Two judged statements and one with few seeds: the smaller p-value is doubled, the larger one stays."""
    found = iter([LOWER, UNCLEAR, FEW])
    made = [Lower(f"{n}", "table 1", f"study {n}", "oracle", {"amcl minus ie": ({}, {})}) for n in range(3)]
    shown = lambda *key, results: (SimpleNamespace(comparisons=[next(found)]), RESULTS, None)  # noqa: E731
    monkeypatch.setattr(statements, "show", shown)
    monkeypatch.setattr(statements, "find", lambda *table, **row: None)
    made = table(made, tmp_path)
    column = made.columns.index("p (Holm)")
    assert [row[column] for row in made.rows] == ["<0.001", f"{UNCLEAR.difference.p_t:.3f}", tables.MISSING]
    assert 2 * LOWER.difference.p_t < 0.001
    assert made.caption.endswith("at most 0.0 of these 2 would hold by chance.")
    assert statements.caption([statements.Judged("holds", seeds=6, p_t=0.01)] * 64).endswith(
        "at most 1.0 of these 64 would hold by chance."
    )


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(9, 11, "holds"), (10.05, 11, "not clear"), (11, 12, "does not hold")]
)
def test_ranges(low, high, verdict):
    statement = Within("…", "figure 2", "confidence", lambda results: BASE, low, high)
    assert statement.judge(RESULTS, []).verdict == verdict
    few = Within("…", "figure 2", "confidence", lambda results: BASE[:5], low, high)
    assert few.judge(RESULTS, []).verdict == "not judged"
    assert Within("…", "figure 2", "confidence", lambda results: []).judge(RESULTS, []).verdict == "not judged"


def test_every_statement_names_published_rows():
    pairs = [
        (one.study, row)
        for one in paper.STATEMENTS
        if isinstance(one, Lower)
        for pair in one.pairs.values()
        for row in pair
    ]
    for study, row in pairs:
        values = {name: value for name, value in row.items() if name != "table"}
        assert find(row.get("table", study), **values) is not None, row


def test_the_committed_table_follows_from_the_results():
    written = (ROOT / "results" / FILE).read_text(encoding="utf-8")
    assert tables.markdown(table(paper.STATEMENTS, ROOT / "results")) == written, "Run: torchmcl study statements"


def test_margins_are_paired_by_the_seeds_that_both_methods_have(monkeypatch):
    def runs(method):
        return [
            {"seed": seed, "records": {"r": {"cross_entropy": {"own": {"mean": 1.0}, "others'": {"mean": 2.0 + seed}}}}}
            for seed in {"amcl": (0, 1, 2), "vmcl": (2,), "cmcl": ()}[method]
        ]

    found = SimpleNamespace(scale=RESULTS.scale, of=lambda spec, scale, method: runs(method))
    monkeypatch.setattr(paper.auxiliary, "record_name", lambda scale: "r")
    assert paper._margin("vmcl")(found) == [0.0]
    assert paper._margin("cmcl")(found) == []
