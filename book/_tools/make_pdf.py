"""Print the built pages into one PDF of the book: ``make pdf``.

It is linked from the home page that it was printed from, and a new build of the pages comes without the link.
Chromium prints every page of the table of contents, in light colors and with its solutions closed. pypdf joins them,
with bookmarks for parts, chapters and pages and one run of page numbers; links between pages of the book become links
inside the PDF. Text stays text.

Usage: make_pdf.py HTML OUTPUT [PAGE ...]
"""

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from playwright.sync_api import sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, FloatObject, NameObject, NullObject

ROOT = Path(__file__).resolve().parents[2]
TITLE = "Bayesian Optimization Beyond the Point Query"
FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
]
PAPER: dict[str, Any] = {
    "format": "A4",
    "print_background": True,
    "scale": 0.85,
    "margin": {"top": "15mm", "bottom": "18mm", "left": "16mm", "right": "16mm"},
}
WIDTH = 780  # pixels between the margins at this scale: what pictures are drawn for

# What custom.css does not do for print: it hides the rest of what is of use on a screen alone.
STYLE = """
.bd-footer-content, dialog, .only-dark, #jb-print-toc, .cbo-pdf { display: none !important; }
.bd-main .bd-content .bd-article-container { padding: 0 !important; }
.bd-article { padding: 0 !important; }
figure, .cell_output img, table.dataframe tr, div.admonition-title, .cell_input, .highlight { break-inside: avoid; }
figure img { max-height: 1050px; object-fit: contain; }
mjx-container svg :is(path, use, rect) { stroke: none; }  /* on paper a line without width is a thin one */
div.math, mjx-container[display="true"] { break-inside: avoid; overflow: visible !important; }
h1, h2, h3, h4 { break-after: avoid; }
pre { white-space: pre-wrap !important; }
pre, .highlight, .cell_output, .cell_input { overflow: visible !important; }
"""
READY = """async () => {
  document.documentElement.dataset.theme = "light";
  if (window.MathJax) await MathJax.startup?.promise;
  await document.fonts.ready;
  await Promise.all([...document.images].map((image) => {
    image.loading = "eager";
    return image.decode().catch(() => 0);
  }));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const title = document.querySelector("article h1").cloneNode(true);
  title.querySelectorAll(".headerlink, mjx-assistive-mml").forEach((element) => element.remove());
  return title.textContent.trim();
}"""
# Page numbers, one a sheet, laid over the joined pages.
NUMBERS = """<!doctype html><style>@page {{ size: A4; margin: 0 }} body {{ margin: 0; font: 9pt sans-serif }}
div {{ height: 297mm; position: relative; break-after: page; overflow: hidden }}
span {{ position: absolute; bottom: 8mm; width: 100%; text-align: center; color: #444 }}</style>{}"""

Chapter = tuple[tuple[str, ...], str]  # the names of what a page is part of, and the page


def contents(toc: dict[str, Any]) -> Iterator[Chapter]:
    """The pages of the book in order, each with its part and the page that opens its chapter."""
    yield (), toc["root"]
    for part in toc["parts"]:
        for chapter in part["chapters"]:
            yield (part["caption"],), chapter["file"]
            for section in chapter.get("sections", []):
                yield (part["caption"], chapter["file"]), section["file"]


def launched(playwright: Any) -> Any:
    """A headless Chromium of the system.

    Raises:
        FileNotFoundError: if there is none.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        raise FileNotFoundError(f"no system Chromium (looked for {', '.join(names)})")
    return playwright.chromium.launch(executable_path=executable, args=FLAGS)


def print_pages(browser: Any, html: Path, names: Sequence[str]) -> tuple[list[tuple[str, PdfReader]], PdfReader]:
    """Title and print of every page, and the sheets of page numbers."""
    made = []
    for name in names:
        page = browser.new_page(viewport={"width": WIDTH, "height": 1100}, color_scheme="light")
        page.emulate_media(media="print", reduced_motion="reduce")
        page.goto((html / f"{name}.html").as_uri(), wait_until="load", timeout=120_000)
        page.add_style_tag(content=STYLE)
        title = page.evaluate(READY)
        made.append((title, PdfReader(io.BytesIO(page.pdf(**PAPER)))))
        page.close()
        print(f"  {len(made[-1][1].pages):4d} pages  {name}", flush=True)
    page = browser.new_page()
    count = sum(len(reader.pages) for _, reader in made)
    page.set_content(NUMBERS.format("".join(f"<div><span>{n}</span></div>" for n in range(1, count + 1))))
    numbers = PdfReader(io.BytesIO(page.pdf(format="A4", margin=dict.fromkeys(PAPER["margin"], "0"))))
    page.close()
    return made, numbers


def target(address: str, html: Path) -> str | None:
    """The page of the book that a link of the disk leads to."""
    path = Path(unquote(urlsplit(address).path))
    return path.with_suffix("").relative_to(html).as_posix() if path.is_relative_to(html) else None


def place(writer: PdfWriter, number: int, left: Any = None, top: Any = None) -> ArrayObject:
    """A place in the PDF that a link may lead to."""
    spots = [NullObject() if value is None else FloatObject(value) for value in (left, top, None)]
    return ArrayObject([writer.pages[number].indirect_reference, NameObject("/XYZ"), *spots])


def mend_links(writer: PdfWriter, starts: dict[str, int], readers: dict[str, PdfReader], html: Path) -> None:
    """Lead the links to pages of the book to places in the PDF; a link to a file that is not in it goes."""
    for name, reader in readers.items():
        named = reader.named_destinations
        for offset in range(len(reader.pages)):
            page = writer.pages[starts[name] + offset]
            kept = ArrayObject()
            for reference in page.get("/Annots", ArrayObject()):
                link: DictionaryObject = reference.get_object()
                action = link.get("/A", DictionaryObject()).get_object()
                address, inside = str(action.get("/URI", "")), link.get("/Dest", action.get("/D"))
                if isinstance(inside, str):
                    spot = named.get(inside)
                    if spot is None:
                        continue
                    number = reader.get_destination_page_number(spot)
                    goal = place(writer, starts[name] + (number or 0), spot.left, spot.top)
                elif address.startswith("file:"):
                    other = target(address, html)
                    if other not in starts:
                        continue
                    goal = place(writer, starts[other])
                else:
                    kept.append(reference)
                    continue
                link.pop("/A", None)
                link[NameObject("/Dest")] = goal
                kept.append(reference)
            if "/Annots" in page:
                page[NameObject("/Annots")] = kept


def joined(browser: Any, html: Path, chapters: Sequence[Chapter]) -> PdfWriter:
    """The PDF of some pages of the book."""
    html = html.resolve()
    made, numbers = print_pages(browser, html, [name for _, name in chapters])
    writer = PdfWriter()
    starts: dict[str, int] = {}
    readers: dict[str, PdfReader] = {}
    marks: dict[str, Any] = {}
    for (above, name), (title, reader) in zip(chapters, made, strict=True):
        starts[name], readers[name] = len(writer.pages), reader
        for sheet in reader.pages:
            writer.add_page(sheet)
        parent = None
        for key in above:
            if "/" in key and key not in marks:
                continue  # the page that opens the chapter is not among them
            if key not in marks:
                marks[key] = writer.add_outline_item(title=key, page_number=starts[name], parent=parent)
            parent = marks[key]
        marks[name] = writer.add_outline_item(title=title, page_number=starts[name], parent=parent)
    mend_links(writer, starts, readers, html)
    for sheet, number in zip(writer.pages, numbers.pages, strict=True):
        sheet.merge_page(number)
        sheet.compress_content_streams()
    writer.add_metadata({"/Title": TITLE})
    writer.compress_identical_objects(remove_unreferenced=True)
    return writer


def link_from_home(home: Path, output: Path, size: str) -> None:
    """Fill the place that the home page keeps for a link to the PDF."""
    address = Path(os.path.relpath(output, home.parent)).as_posix()
    line = f'<p class="cbo-pdf"><a href="{address}">The whole book as one PDF</a> ({size})</p>'
    text = home.read_text(encoding="utf-8")
    filled, count = re.subn(r"(<!-- pdf -->).*?(<!-- /pdf -->)", rf"\g<1>{line}\g<2>", text, flags=re.DOTALL)
    if not count:
        raise SystemExit(f"{home} has no place for the link; build the pages again")
    home.write_text(filled, encoding="utf-8")


def main(html: Path, output: Path, pages: Sequence[str] = ()) -> None:
    """Write the PDF of the whole book, or of some pages of it."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [(above, name) for above, name in contents(toc) if not pages or name in pages]
    with sync_playwright() as playwright:
        try:
            browser = launched(playwright)
        except FileNotFoundError as error:
            raise SystemExit(f"make pdf: {error}") from None
        writer = joined(browser, html, chapters)
        browser.close()
    writer.write(output)
    size = f"{len(writer.pages)} pages, {output.stat().st_size / 1e6:.0f} MB"
    if not pages:
        link_from_home(html / f"{toc['root']}.html", output, size)
    print(f"{output}: {size}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
