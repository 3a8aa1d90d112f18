"""Search puts the section that defines a term first, and its excerpts are prose.

Sphinx ranks pages by how often and where a word stands, and shows the first words of a page as they stand in its
source. An entry of the index outranks both, so the terms below become entries of the index that search reads.
The glossary's own entries for the same terms come after them.
"""

import json
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DEFINED = {
    "foundations/1_gaussian_process": {
        "Gaussian process": "",
        "kernels": "kernels-and-what-they-assume",
        "lengthscale": "kernels-and-what-they-assume",
        "RKHS norm": "a-fixed-function-the-rkhs-norm",
    },
    "foundations/2_optimism": {
        "optimism": "",
        "bandit": "the-words",
        "regret": "the-words",
        "acquisition function": "the-words",
        "GP-UCB": "optimism-in-ten-lines",
        "martingale": "two-tools-that-the-chapters-use",
        "information gain": "how-it-grows-information",
    },
    "foundations/3_measures": {"weighted set of points": "", "measure": "a-measure"},
    "aggregated/1_setting": {"aggregated regret": "two-notions-of-regret"},
    "aggregated/2_policies": {"GPOO": "the-algorithm", "StoOO": "stooo-and-ave-stooo", "GPTree": "gptree"},
    "aggregated/3_regret": {"near-optimality dimension": "step-4-there-are-few-near-optimal-cells"},
    "indirect/1_setting": {"conditional mean embedding": "when-nobody-knows-what-actions-mean"},
    "indirect/2_policies": {
        "CMES": "cmes-line-by-line",
        "conditional max-value entropy search": "cmes-line-by-line",
        "CMETS": "cmets-cheap-answers-first",
    },
    "contexts/1_setting": {
        "kernel density estimate": "learning-a-distribution",
        "newsvendor": "the-seller",
    },
    "contexts/2_policies": {
        "SBO-KDE": "sbo-kde",
        "DRBO-KDE": "drbo-kde",
        "DRBO-MMD": "drbo-mmd",
        "StableOpt": "stableopt-gp-ucb-and-a-ceiling",
    },
    "subsets/1_setting": {
        "control sets": "a-play-sets-some-variables-and-the-others-are-drawn",
        "cost regret": "three-notions-of-regret",
    },
    "subsets/2_policies": {"UCB-PSQ": "the-rivals", "TS-PSQ": "the-rivals"},
    "hyperparameters/2_policies": {
        "HE-GP-UCB": "algorithm-1-he-gp-ucb",
        "elimination rule": "the-elimination-rule",
        "HE-StableOpt": "when-the-point-may-be-moved-he-stableopt",
    },
}
START, END = "Search.setIndex(", ")"


def with_terms(text: str) -> str:
    """The search index with the entries above before all others of the same name."""
    index = json.loads(text.removeprefix(START).removesuffix(END))
    for page, terms in DEFINED.items():
        number = index["docnames"].index(f"book/{page}")
        for term, section in terms.items():
            others = [[doc, anchor, False] for doc, anchor, _ in index["indexentries"].get(term.lower(), [])]
            index["indexentries"][term.lower()] = [[number, section, True], *others]
    return START + json.dumps(index, separators=(",", ":"), ensure_ascii=False) + END


def add_terms(app: Sphinx, exception: Exception | None) -> None:
    """Rewrite the index that was built."""
    file = Path(app.outdir) / "searchindex.js"
    if exception is None and app.builder.name == "html":
        file.write_text(with_terms(file.read_text(encoding="utf-8")), encoding="utf-8")


def add_script(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """The page of results makes its excerpts without code and formulas."""
    if pagename == "search":
        app.add_js_file("excerpts.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("build-finished", add_terms)
    app.connect("html-page-context", add_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
