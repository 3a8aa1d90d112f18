// Excerpts of search results: prose, without code, outputs and formulas.
if (typeof Search !== "undefined") {
  const whole = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    page.querySelectorAll(".highlight, .cell_output, .cbo-stepper, .cbo-quiz, .toctree-wrapper, div.math").forEach(
      (element) => element.remove());
    page.querySelectorAll("span.math").forEach((element) => element.replaceWith("…"));
    return whole(page.documentElement.outerHTML, anchor);
  };
}
