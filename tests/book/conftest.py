"""What the tests of the book share: where its pages are and a browser to open them in."""

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
STATIC = ROOT / "book" / "_static"

#: Milliseconds that a browser may take for one thing, on a machine that other programs have too.
PATIENCE = 120_000

SIZE = {"width": 1280, "height": 900}


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves the pages without writing to the terminal."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built pages."""
    if not (HTML / "search.html").exists():
        pytest.fail("the pages are not built: run `make book` first", pytrace=False)
    return HTML


@pytest.fixture(scope="session")
def addresses(html: Path) -> Iterator[dict[str, str]]:
    """The two ways to read the book: from the disk and from a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(html)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {"file": html.as_uri(), "http": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium of the system."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    from book._tools.make_pdf import launched

    with api.sync_playwright() as playwright:
        try:
            chromium = launched(playwright)
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield chromium
        chromium.close()


class Visitor:
    """Opens pages and writes down what they ask for and complain about."""

    def __init__(self, page: Any, home: str) -> None:
        self.home, self.page = home, page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.set_default_timeout(PATIENCE)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", lambda r: self.complaints.append(f"failed: {r.url[:200]}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("console", self._console)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, name: str, query: str = "") -> Any:
        """Load a page and wait until its mathematics is set."""
        self.page.goto(f"{self.home}/{name}.html{query}", wait_until="load")
        self.page.wait_for_function(
            "() => !window.MathJax || (MathJax.startup?.promise ?? new Promise(() => {})).then(() => true)"
        )
        return self.page

    def foreign(self) -> list[str]:
        """Requests that went anywhere else than to the book."""
        return [u for u in self.requests if not re.match(rf"{re.escape(self.home)}/|data:|blob:", u)]


@pytest.fixture
def visitor(browser: Any, addresses: dict[str, str], request: pytest.FixtureRequest) -> Iterator[Visitor]:
    """A visitor of the book, from the disk unless the test asks for another way."""
    page = browser.new_page(viewport=SIZE)
    visitor = Visitor(page, addresses[getattr(request, "param", "file")])
    yield visitor
    visitor.page.close()


PAGE = """<!doctype html><html lang=en data-theme=light><meta charset=utf-8><title>t</title>
<link rel=stylesheet href="{static}/stepper.css"><script defer src="{static}/stepper.js"></script>
<body style="margin:8px">{body}</body></html>"""


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Open a body with pictures that step as a page from the disk; what it complains of fails the test.

    With a ``clock`` no time passes but by ``page.clock.run_for``.
    """
    complaints: list[str] = []
    contexts = []

    def start(body: str, complain: bool = True, clock: bool = False, **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": 1000, "height": 800}, **settings)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        if complain:
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
        file = tmp_path / "page.html"
        file.write_text(PAGE.format(static=STATIC.as_uri(), body=body), encoding="utf-8")
        if clock:
            page.clock.install(time=0)
        page.goto(file.as_uri())
        if clock:
            page.clock.pause_at(3_600_000)
        return page

    yield start
    for context in contexts:
        context.close()
    assert complaints == []
