/* Long tables are sorted by their columns. A header holds a button, as the ARIA Authoring Practices ask: any key that
   presses a button sorts, a second press turns the order around, and aria-sort tells it. */
(() => {
  "use strict";
  const LONG = 8;
  const number = (text) => parseFloat(text.replaceAll("−", "-").replaceAll(",", "").replace(/^[\s<>≤≥±~]+/, ""));
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
    return (isNaN(x) ? 0 : x - y) || a.localeCompare(b, "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("article table")) {
    const body = table.tBodies[0], head = table.tHead?.rows[0];
    if (!head || body.rows.length <= LONG || table.querySelector("[rowspan], [colspan]")) continue;
    [...head.cells].filter((header) => header.textContent.trim()).forEach((header) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "cbo-sort";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        const turned = header.ariaSort === "ascending" ? -1 : 1, text = (row) => row.cells[header.cellIndex].innerText;
        const rows = [...body.rows].map((row) => [text(row).trim(), row]);
        body.append(...rows.sort((a, b) => turned * compare(a[0], b[0])).map(([, row]) => row));
        for (const other of head.cells) other.removeAttribute("aria-sort");
        header.ariaSort = turned === 1 ? "ascending" : "descending";
      });
    });
  }
})();
