/* Paper is light, whatever the screen is. */
(() => {
  "use strict";
  const paper = matchMedia("print"), page = document.documentElement;
  let theme;
  paper.addEventListener("change", () => {
    if (paper.matches) {
      theme = page.dataset.theme;
      page.dataset.theme = "light";
    } else if (theme) page.dataset.theme = theme;
  });
})();
