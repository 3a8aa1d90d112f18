"""Make one lecture a chapter from the figures and the last lines of its notebooks.

    python book/_tools/slides.py build/slides [chapter ...]

A lecture is one HTML file that needs no other and no network. Arrow keys turn its pages, and printing gives one slide a
sheet. Notebooks that `make book` has run are taken as they are; others are run first.
"""

import argparse
import base64
import html
import io
import re
import sys
from functools import cache
from pathlib import Path

import nbformat
from jupyter_cache.base import JupyterCacheAbstract
from markdown_it import MarkdownIt
from nbformat import NotebookNode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from book._tools import execute_notebooks, handout

NOTEBOOKS = ("1_setting", "2_policies", "3_regret", "4_experiments")
ORDER = ("aggregated", "indirect", "contexts", "subsets", "hyperparameters")
MATH = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$", re.S)
OTHER_NAMES = {
    r"\tfrac": r"\frac",
    r"\dfrac": r"\frac",
    r"\le": r"\leq",
    r"\ge": r"\geq",
    r"\ne": r"\neq",
    r"\to": r"\rightarrow",
    r"\lvert": "|",
    r"\rvert": "|",
    r"\text": r"\mathrm",
    r"\operatorname": r"\mathrm",
}
STYLE = """
html { scroll-snap-type: y mandatory; background: #ddd }
body { margin: 0; font: 2.6vh/1.45 system-ui, sans-serif; color: #1a1a1a }
section { box-sizing: border-box; height: 100vh; max-width: 178vh; margin: 0 auto; padding: 5vh 6vh; background: #fff;
  display: flex; flex-direction: column; scroll-snap-align: start; overflow: hidden; position: relative }
h1 { font-size: 6vh; line-height: 1.15; margin: 0 0 2vh }
h2 { font-size: 4.2vh; line-height: 1.2; margin: 0 0 2.5vh }
section.title { justify-content: center } section.title p { font-size: 3vh; margin: 0 }
section.figure img { flex: 1 1 auto; min-height: 0; min-width: 0; object-fit: contain; width: 100% }
section.figure p { flex: none; margin: 2vh 0 2vh; font-size: 2.3vh }
section.text { font-size: 3vh } li { margin-bottom: 1.4vh }
img.formula { display: inline; vertical-align: baseline }
footer { position: absolute; right: 3vh; bottom: 1.5vh; font-size: 1.8vh; color: #555 }
@media print {
  @page { size: 320mm 180mm; margin: 0 }
  html { background: none } body { font-size: 4.68mm }
  section { height: 180mm; max-width: none; width: 320mm; padding: 9mm 11mm; break-after: page }
  h1 { font-size: 10.8mm } h2 { font-size: 7.5mm } section.title p, section.text { font-size: 5.4mm }
  section.figure p { font-size: 4.1mm } footer { font-size: 3.2mm }
}
"""
SCRIPT = """
const slides = [...document.querySelectorAll("section")];
const at = () => slides.reduce((best, s, i) =>
  Math.abs(s.getBoundingClientRect().top) < Math.abs(slides[best].getBoundingClientRect().top) ? i : best, 0);
document.addEventListener("keydown", (event) => {
  const step = {ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1}[event.key];
  const to = event.key === "Home" ? 0 : event.key === "End" ? slides.length - 1 : step && at() + step;
  if (to === undefined || !slides[to]) return;
  event.preventDefault();
  slides[to].scrollIntoView();
});
"""


@cache
def formula(tex: str) -> str:
    """A formula as a picture that stands in a line; as its source if matplotlib does not know it."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    plain = re.sub(r"\\(big|Big|bigg|left|right)(?=[^a-zA-Z])", "", tex)
    plain = re.sub(r"\\[a-z]+", lambda m: OTHER_NAMES.get(m[0], m[0]), plain).replace(r"\!", "")
    picture = io.BytesIO()
    try:
        size = 12
        depth = math_to_image(f"${plain}$", picture, prop=FontProperties(size=size), dpi=72, format="svg")
    except ValueError:
        return f"<code>{html.escape(tex)}</code>"
    text = picture.getvalue().decode()
    height = float(re.search(r'height="([\d.]+)pt"', text)[1]) / size
    source = base64.b64encode(re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S).encode()).decode()
    style = f"height:{height:.3f}em;vertical-align:{-depth / size:.3f}em"
    alt = html.escape(tex, quote=True)
    return f'<img class="formula" alt="{alt}" style="{style}" src="data:image/svg+xml;base64,{source}">'


def as_html(text: str, works: dict[str, str]) -> str:
    """Markdown of the book, its formulas as pictures, without links."""
    found: list[str] = []

    def keep(match: re.Match[str]) -> str:
        found.append((match[1] or match[2]).strip())
        return f"FORMULA{len(found) - 1}END"

    text = re.sub(r"\{cite\}`([\w,]+)`", lambda m: f"({'; '.join(works[key] for key in m[1].split(','))})", text)
    text = re.sub(r"\{(?:glue|doc|numref|prf:ref|eq|ref)[^}]*\}`[^`]*`", "", handout.plain(text, works))
    made = MarkdownIt().render(MATH.sub(keep, text))
    return re.sub(r"FORMULA(\d+)END", lambda m: formula(found[int(m[1])]), made)


def inline(text: str, works: dict[str, str]) -> str:
    """One line of it."""
    return re.sub(r"^<p>|</p>\s*$", "", as_html(text, works)).strip()


def pictures(cell: NotebookNode) -> list[tuple[str, str]]:
    """The figures of a cell that was run, and what is said of each; of one that steps, the first frame."""
    found = []
    for output in cell.get("outputs", []):
        text = "".join(output.get("data", {}).get("text/html", ""))
        image = re.search(r'<img\b[^>]*\bsrc="data:image/[^"]+"[^>]*>', text)
        if image is None:
            continue
        alt = re.search(r'\balt="([^"]*)"', image[0])
        source = re.search(r'\bsrc="([^"]+)"', image[0])[1]
        caption = re.search(r"<figcaption[^>]*>(.*?)</figcaption>", text, flags=re.S)
        said = re.sub(r"<[^>]+>", "", caption[1]).strip() if caption else html.unescape(alt[1] if alt else "")
        found.append((source, html.unescape(said)))
    return found


def lines(notebook: NotebookNode) -> str | None:
    """The lines that a notebook ends with, as a list in Markdown."""
    for cell in reversed(notebook.cells):  # what is told in five lines before is something else
        if cell.cell_type == "markdown" and "n five lines" in cell.source:
            rest = cell.source.rsplit("n five lines", 1)[1].lstrip(".* \n")
            listed = re.match(r"(?:(?:\d\.|-) .*\n?)+", rest)
            if listed:
                return listed[0]
            return "\n".join(f"- {line}" for line in rest.split("\n\n")[0].splitlines())
    return None


def slide(kind: str, inner: str) -> str:
    """One slide."""
    return f'<section class="{kind}">\n{inner}\n</section>\n'


def of_notebook(notebook: NotebookNode, works: dict[str, str]) -> list[str]:
    """The slides of a notebook that was run."""
    made, heading = [], ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for level, title in re.findall(r"^(#{1,3}) (.+)$", cell.source, flags=re.M):
                if level == "#":
                    made.append(slide("title", f"<h1>{inline(title, works)}</h1>"))
                heading = inline(title, works)
        for source, said in pictures(cell):
            image = f'<img alt="{html.escape(said, quote=True)}" src="{source}">'
            made.append(slide("figure", f"<h2>{heading}</h2>\n{image}\n<p>{html.escape(said)}</p>"))
    if last := lines(notebook):
        made.append(slide("text", f"<h2>In five lines</h2>\n{as_html(last, works)}"))
    return made


def lecture(chapter: str, notebooks: list[NotebookNode], works: dict[str, str]) -> str:
    """The HTML of a chapter's lecture."""
    text = (handout.ROOT / "book" / chapter / "index.md").read_text(encoding="utf-8")
    page = re.sub(r"\A---\n.*?\n---\n+", "", text, flags=re.S).split("\n", 1)  # without what is said to browsers
    title = page[0].lstrip("# ")
    findings = re.findall(r"\*\*Main finding(?:, (\w+))?\.?\*\*(.*?)\n\n", page[1] + "\n\n", re.S)
    first = page[1].strip().split("\n\n")[0]
    made = [slide("title", f"<h1>{html.escape(title)}</h1>\n{as_html(first, works)}")]
    for notebook in notebooks:
        made += of_notebook(notebook, works)
    for part, finding in findings:
        heading = f"The main finding, {part}" if part else "The main finding"
        made.append(slide("text", f"<h2>{heading}</h2>\n{as_html(finding.strip(), works)}"))
    numbered = [
        s.replace("</section>", f"<footer>{n} of {len(made)}</footer></section>") for n, s in enumerate(made, 1)
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n<body>\n'
        f"{''.join(numbered)}<script>{SCRIPT}</script></body></html>\n"
    )


def ran(path: Path, kept: JupyterCacheAbstract) -> NotebookNode:
    """A notebook with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    found = execute_notebooks.executed(kept, notebook)
    if found is not None:
        return found
    result = execute_notebooks.run(path, notebook)
    if result.err is not None:
        raise SystemExit(f"{path}: {result.exc_string}")
    return result.nb


def known(chapter: str) -> str:
    """A chapter that has a lecture."""
    if chapter not in ORDER:
        raise argparse.ArgumentTypeError(f"must be some of {', '.join(ORDER)}, got {chapter!r}")
    return chapter


def main() -> None:
    """Write the lectures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("chapters", nargs="*", type=known, help=f"of {', '.join(ORDER)}; default: all")
    wish = parser.parse_args()
    wish.folder.mkdir(parents=True, exist_ok=True)
    works, kept = handout.entries(), execute_notebooks.open_cache(handout.ROOT)
    for chapter in wish.chapters or ORDER:
        notebooks = [ran(handout.ROOT / "book" / chapter / f"{name}.ipynb", kept) for name in NOTEBOOKS]
        target = wish.folder / f"{chapter}.html"
        target.write_text(lecture(chapter, notebooks, works), encoding="utf-8")
        print(target, flush=True)


if __name__ == "__main__":
    main()
