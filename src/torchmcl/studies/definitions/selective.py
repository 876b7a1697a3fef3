"""Errors of accepted answers at three coverages, with and without unseen data (not in the paper).

The runs are those of the study `unseen_data`.
"""

from torchmcl.studies import Results, Table
from torchmcl.studies.definitions.unseen_data import rows, runs
from torchmcl.studies.records import COVERAGES
from torchmcl.studies.study import spread

__all__ = ["runs", "table"]

RULES = {"confidence": "confidence", "claims": "claim and confidence"}
MEASURES = {"error": "error", "unseen": "unseen accepted", "joint": "joint error"}


def table(results: Results) -> Table:
    """Show the error of accepted answers, the share of unseen examples that are accepted, and the error on both."""
    cells = []
    for data, other, method, _, records in rows(results, "selective"):
        for rule, title in RULES.items():
            own = [one[rule] for one in records if rule in one]
            if own or rule == "confidence":
                found = [
                    spread([one[str(coverage)][key] for one in own], 1 if key != "error" else 2)
                    for coverage in COVERAGES
                    for key in MEASURES
                ]
                cells.append((data, other, method, title, *found))
    about = (
        "Percent. Thresholds on the confidence, or on claim and confidence, accept 80, 90 and 95 % of the validation "
        "split. error: of the accepted answers on the test set; unseen accepted: share of the unseen examples that are "
        "accepted; joint error: of the accepted answers if as many unseen examples as test examples are given, where "
        "every accepted answer to an unseen example is wrong. An independent ensemble has no claims. K = 1."
    )
    columns = tuple(f"{title}, {coverage} %" for coverage in COVERAGES for title in MEASURES.values())
    return Table("Errors of accepted answers", ("data", "unseen", "method", "threshold on", *columns), cells, about)
