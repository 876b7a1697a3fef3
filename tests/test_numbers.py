"""Measurements that README.md and docs/ state in sentences are in committed files.

A number in a sentence counts as a measurement if it has decimals or one of `UNITS`. It must be found, rounded to the
digits that are stated, among the numbers of its section: in a table, in a file of results/ or benchmarks/ that the
section names, or in a comment with more files, and with numbers that follow from others:

    <!-- numbers: results/ablation/standard.md, 941.5 / 640.6 - 1 -->

What is a definition, an option or a limit rather than a measurement is listed in `DEFINED`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Units, and how a number in a file can relate to them: as a fraction, in seconds, in megabytes.
UNITS: dict[str, tuple[float, ...]] = {"%": (1, 100), "ms": (1, 1000), "GB": (1, 1e-3), "images per second": (1,)}
UNITS |= dict.fromkeys(("s", "seconds", "minutes", "h", "MB", "KB", "times", "points", "percentage points"), (1.0,))
NUMBER = r"(?<![\w.+-])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w|\.\d)"
UNIT = rf"(?P<unit>{'|'.join(sorted(UNITS, key=len, reverse=True))})(?!\w)"
RANGE = rf"(?=(?:to|and) {NUMBER} {UNIT.replace('unit', 'of_range')})"
STATED = re.compile(rf"(?P<about>\b[Aa]bout )?(?P<number>{NUMBER})(?: (?:{UNIT}|{RANGE}))?")
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"^\|[^\n]*$", re.MULTILINE)
GENERATED = re.compile(r"<!-- (?:study|table|grid|owned|statements)\b[^>]*-->\n.*?<!-- end -->", re.DOTALL)
COMMENT = re.compile(r"<!-- (?P<numbers>numbers: )?(?P<text>.*?) -->", re.DOTALL)
FILE = re.compile(r"\b(?:results|benchmarks)/[a-z][\w/-]*\.(?:md|json|txt)\b")
DOCS = re.compile(r"docs/[\w-]+\.md")  # only in a comment
NOT_PROSE = (CODE, GENERATED, TABLE, COMMENT, re.compile(r"^#[^\n]*", re.MULTILINE))
NOT_WORDS = re.compile(r"`[^`]*`|\]\([^)]*\)")  # code, and the targets of links
NAMES = (
    "ie",
    "smcl",
    "cmcl",
    "vmcl",
    "amcl",
    "one network",
    "strict oracle",
    "oracle",
    "top-1",
    "top-m",
    "paper",
    "minus",
)
NAMES += (
    "own training",
    "worst member",
    "training",
    "rate",
    "decay",
    "purity",
    "cost",
    "t test",
    "holm",
    "over test examples",
)
TERMS = re.compile(rf"\b(?:{'|'.join(NAMES)})\b", re.IGNORECASE)
SPREAD = re.compile(r"± [\d.]+")  # standard deviations, which prose does not state
VERSIONS = re.compile(r"arXiv:\d+\.\d+|Python 3\.\d+|Apache-2\.0|Ray 2\.60 and grpcio 1\.85")
DEFINED = {
    "README.md": ("within 0.5 points",),
    "cluster.md": ("NVIDIA A100 (19.5 TFLOP/s)", "12.5 GB/s", "1,232.9 h", "154.3 h"),  # the last two: over 8 and 64
    "explorer.md": ("at most 10 MB", "within 30 seconds"),
    "own-data.md": ("more than 2 GB", "95 % interval", "p < 0.05"),
    "performance.md": ("1.4 times the speed", "5 times the speed", "0.5 s or more"),  # targets
    "predicting.md": (
        "most confident 90 %",
        "at most 1 %",
        "at most 0.3 points lost",
        "true positive rate of 95 %",
        "keeps 95 % of the test set",
    ),
    "prediction-sets.md": ("not exactly 90 %",),
    "pretrained.md": ("up to 20 GB", "more than 100 times"),
    "regression.md": ("T < 0.0005", "learning rate of 0.001"),
    "results.md": ("within 0.5 points", "95 % t interval", "95 % interval", "95 % bootstrap", "p < 0.05", "one of 5 %"),
    "studies.md": (
        *("95 % t interval", "p < 0.05", "-0.5 and 0.5 points", "within 0.5", "exceeds 2 %", "less than 0.001"),
        *("the training, 5 %", "learning rate 0.1", "up to 3 %"),
    ),
    "trust.md": ("at most 512 MB", "the largest took 112 MB", "40 seconds per reader", "10 s and 4 GB per input"),
    "tuning.md": ("more than 2 %",),
    "tutorial.md": ("downloaded (250 MB)", "1.7 percentage points"),  # one of 60 images
}


class Known(NamedTuple):
    """A number in a file, and the terms that a sentence about it must mention: those of its row and its column."""

    value: float
    terms: frozenset[str] = frozenset()


class Stated(NamedTuple):
    """A number in a sentence."""

    text: str
    about: bool = False
    unit: str = ""
    terms: frozenset[str] = frozenset()  # of the paragraph

    def found(self, known: list[Known]) -> bool:
        """Whether a known number is this one, rounded, or within 5 % after "about". Words may tell its sign."""
        value, digits = number(self.text), len(self.text.partition(".")[2])
        allowed = max(0.5 * 10**-digits, 0.05 * abs(value) * self.about) * (1 + 1e-9)
        sign, scales = (lambda x: x) if self.text[0] in "+-" else abs, UNITS.get(self.unit, (1,))
        near = [one for one in known if any(abs(sign(scale * one.value) - value) <= allowed for scale in scales)]
        return any(one.terms <= self.terms - ({"minus"} if self.unit == "%" else set()) for one in near)


def number(text: str) -> float:
    return float(text.replace(",", ""))


def terms(text: str) -> frozenset[str]:
    """The methods and errors that a text mentions."""
    return frozenset(term.lower() for term in TERMS.findall(text))


def sections(page: str) -> list[str]:
    """The parts of a page that begin with a heading of any level."""
    plain = CODE.sub(lambda code: re.sub(r"[^\n]", "-", code[0]), page)  # of the same length; # in code is no heading
    starts = [match.start() for match in re.finditer(r"^#+ ", plain, re.MULTILINE)]
    return [page[start:end] for start, end in zip(starts, [*starts[1:], len(page)], strict=True)]


def paragraphs(section: str) -> list[str]:
    """The paragraphs and list items of a section, without code, tables and comments."""
    for pattern in NOT_PROSE:
        section = pattern.sub("\n\n", section)
    return [" ".join(part.split()) for part in re.split(r"\n\n|\n(?=- )", section) if part.strip()]


def stated(section: str, defined: tuple[str, ...] = ()) -> list[Stated]:
    """The measurements in a section, without definitions."""
    found = []
    for paragraph in paragraphs(section):
        text = VERSIONS.sub(" ", NOT_WORDS.sub(" ", paragraph))
        for phrase in defined:
            text = text.replace(phrase, " ")
        for match in STATED.finditer(text):
            unit = match["unit"] or match["of_range"] or ""
            found.append(Stated(match["number"], bool(match["about"]), unit, terms(paragraph) | {"minus"}))
    return [one for one in found if one.unit or "." in one.text]


def numbers(value: Any) -> Iterator[float]:
    """All numbers in what a JSON file holds; text in it holds none."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def tabulated(text: str) -> Iterator[Known]:
    """The numbers in Markdown tables and in the notes below them."""
    head: list[str] = []
    for line in text.splitlines():
        cells = line.strip("|").split("|") if line.startswith("|") else []
        head = head if cells and head else cells
        of_row = terms(" ".join(cell for cell in cells if not re.search(r"\d", cell.replace("top-1", ""))))
        for column, cell in zip(head, cells, strict=False):
            yield from (Known(number(one), of_row | terms(column)) for one in re.findall(NUMBER, SPREAD.sub("", cell)))
        if line.startswith("- "):
            yield from (Known(number(one), terms(line.partition(":")[0])) for one in re.findall(NUMBER, line))


def sources(section: str) -> list[Known]:
    """The numbers of a section: of its tables, of the files that it names, and those that follow from them."""
    found, derived = list(tabulated("\n".join((*GENERATED.findall(section), *TABLE.findall(section))))), list[str]()
    names = set(FILE.findall(GENERATED.sub("", section)))
    for match in COMMENT.finditer(section):
        parts = [part for part in match["text"].split(", ") if match["numbers"]]
        names |= {part for part in parts if DOCS.fullmatch(part)}
        derived += [part for part in parts if part not in names]
    for name in sorted(names):
        content = (ROOT / name).read_text(encoding="utf-8")
        if name.endswith(".json"):
            found += map(Known, numbers(json.loads(content)))
        elif name.endswith(".txt"):
            found += (Known(number(one)) for one in re.findall(NUMBER, content))
        else:
            found += tabulated(content)
    return found + [Known(calculated(expression, found)) for expression in derived]


def calculated(expression: str, known: list[Known]) -> float:
    """The value of a sum, difference, product or quotient of known numbers; small integers are always known."""
    assert re.fullmatch(r"[\d.+*/() -]+", expression), f"neither a file nor a calculation: {expression}"
    for part in re.findall(NUMBER, expression):
        assert number(part) in (*range(10), 100, 1000) or Stated(part, terms=frozenset(NAMES)).found(known), part
    return float(eval(expression))


def unknown(page: Path, text: str) -> list[str]:
    """The measurements in a page that are in none of their sources."""
    lost = []
    for section in sections(text):
        known = sources(section)
        measured = stated(section, DEFINED.get(page.name, ()))
        lost += [
            f"{section.splitlines()[0]}: {one.text} {one.unit}".strip() for one in measured if not one.found(known)
        ]
    return lost


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_measurements_are_in_committed_files(path):
    text = path.read_text(encoding="utf-8")
    assert unknown(path, text) == []
    plain = " ".join(NOT_WORDS.sub(" ", one) for one in paragraphs(text))
    assert [phrase for phrase in DEFINED.get(path.name, ()) if phrase not in plain] == [], "exempt, but not there"


def test_changed_measurements_are_noticed():
    """One step of the last digit up or down, or seven up; some steps lead to another number of the same rows."""
    noticed, path = [], ROOT / "docs/results.md"
    for section in sections(path.read_text(encoding="utf-8")):
        known = sources(section)
        for one in stated(section, DEFINED[path.name]):
            sign, digits = one.text[: one.text[0] in "+-"], len(one.text.partition(".")[2])
            changed = [abs(abs(number(one.text)) + step * 10**-digits) for step in (-1, 1, 7)]
            noticed += [not one._replace(text=f"{sign}{value:.{digits}f}").found(known) for value in changed]
    assert len(noticed) > 100
    assert sum(noticed) > 0.6 * len(noticed)


def test_a_sentence_must_mention_the_row_and_the_column():
    section = (
        "# S\n\nAMCL has a top-1 error of {} %.\n\n| method | oracle | top-1 |\n|---|---|---|\n| amcl | 1.5 | 11.2 |"
    )
    section += "\n| ie | 7.7 | 11.3 |\n"
    for value, lost in (("11.2", []), ("11.3", ["# S: 11.3 %"]), ("1.5", ["# S: 1.5 %"])):
        assert unknown(Path("page.md"), section.format(value)) == lost


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The error is 4.3 %.", ["4.3 %"]),
        ("It takes 2 to 5 ms, or 3 of 5 members.", ["2 ms", "5 ms"]),
        ("By 1.2 points [-0.1, +2.4], with 9,000 images.", ["1.2 points", "-0.1 ", "+2.4 "]),
        ("`0.5` [table](0.5.md), Python 3.11, resnet18", []),
    ],
)
def test_what_counts_as_a_measurement(text, expected):
    assert [f"{one.text} {one.unit}" for one in stated(text)] == expected


def test_numbers_are_compared_at_their_digits():
    known = [Known(1.24), Known(0.209), Known(512.0)]
    found = [Stated("1.2"), Stated("+1.2"), Stated("21", unit="%"), Stated("500", about=True)]
    assert all(one.found(known) for one in found)
    assert not any(one.found(known) for one in (Stated("1.3"), Stated("-1.2"), Stated("21"), Stated("500")))


def test_a_calculation_needs_known_numbers():
    known = [Known(941.5), Known(640.6)]
    assert calculated("941.5 / 640.6 - 1", known) == pytest.approx(0.47, abs=0.001)
    with pytest.raises(AssertionError):
        calculated("941.5 / 600.6", known)
