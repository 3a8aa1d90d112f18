/* A cell that readers drag, and the posterior of f after its report: a Gaussian process on weighted points. */
(() => {
  "use strict";
  const { kinds, make, drawView, posterior, points } = window.cboStepper;

  const begin = (figure, data) => {
    const stage = figure.querySelector(".cbo-stage"), at = Array.from({ length: 161 }, (_, i) => i / 160);
    const f = (x) => data.waves.reduce((sum, [a, b, c]) => sum + a * Math.sin(b * x + c), 0);
    const average = (cell) => points(cell, data.points).reduce((sum, x) => sum + f(x), 0) / data.points;
    const kept = data.cells.map(([c, w, y]) => [c, w, y]);
    const first = kept.length;
    let cell = data.start.slice(), shown = null;
    const picture = make("div", null, { class: "cbo-picture", role: "img" });
    const label = make("div", null, { class: "cbo-label", "aria-live": "off" });
    const controls = make("div", null, { class: "cbo-controls" });
    const slider = (name) => make("div", null, { class: "cbo-handle", role: "slider", tabindex: 0, "aria-label": name, "aria-orientation": "horizontal" });
    const handles = [slider("center of the cell"), slider("width of the cell")];
    const limits = [[0, 1], [0.02, 1]];

    const draw = () => {
      const room = Math.floor(stage.clientWidth);
      if (!room) return;
      const y = average(cell) + data.errors[(kept.length - first) % data.errors.length];
      const all = [...kept, [...cell, y]];
      const { mean, variance } = posterior(data, all.map((c) => points(c, data.points)), all.map((c) => c[2]), at);
      const band = variance.map((v) => 2 * Math.sqrt(Math.max(v, 0)));
      const [lo, hi] = [cell[0] - cell[1] / 2, cell[0] + cell[1] / 2];
      const flat = (values) => at.flatMap((x, i) => [x, values[i]]);
      const high = mean.map((m, i) => m + band[i]), low = mean.map((m, i) => m - band[i]);
      const row = (...values) => [[0, 1, ...values]];
      const ground = { x: [0, 1], y: data.limits, xl: "x", yl: "f (units of f)", w: 1, h: 330 };
      const marks = [
        { m: "box", c: 1, o: 0.14, rows: row(lo, hi, ...data.limits) },
        { m: "area", c: 0, o: 0.2, rows: row([...flat(high), ...at.map((x, i) => [x, low[i]]).reverse().flat()]) },
        { m: "line", c: 6, w: 1.4, rows: row(flat(at.map(f))) },
        { m: "line", c: 0, w: 2.4, d: "--", rows: row(flat(mean)) },
        { m: "seg", c: 2, w: 3.5, rows: kept.map(([c, w, v]) => [0, 1, c - w / 2, v, c + w / 2, v]) },
        { m: "seg", c: 1, w: 4.5, rows: row(lo, y, hi, y) },
      ];
      const legend = [["f", "line", 6, "", "", 1], ["posterior mean, ± 2 deviations", "line", 0, "--", "", 1], ["report of the cell", "line", 1, "", "", 1]];
      if (kept.length) legend.push(["reports kept", "line", 2, "", "", 1]);
      picture.replaceChildren();
      shown = drawView(picture, { ...ground, marks, legend: legend.map((entry) => [0, 1, ...entry]) }, 0, room);
      const widest = band.reduce((best, b, i) => (b > band[best] ? i : best), 0);
      const middle = Math.round(Math.min(Math.max(cell[0], 0), 1) * 160);
      const number = (v) => v.toFixed(2).replace("-", "\u2212");
      const said = `The cell from ${number(lo)} to ${number(hi)} reports ${number(y)}. At its center the band is \u00b1${number(band[middle])}, ` +
        `at its widest, near x = ${number(at[widest])}, \u00b1${number(band[widest])}. Reports kept: ${kept.length}.`;
      label.textContent = said;
      picture.setAttribute("aria-label", `The unknown curve f, and its posterior. ${said}`);
      const tops = [shown.top + shown.tall - 16, shown.top + 14];
      const across = [cell[0], Math.min(hi, 1)];
      handles.forEach((handle, i) => {
        handle.style.left = `${shown.left + shown.x(Math.min(Math.max(across[i], 0), 1))}px`;
        handle.style.top = `${tops[i]}px`;
        handle.setAttribute("aria-valuemin", limits[i][0]);
        handle.setAttribute("aria-valuemax", limits[i][1]);
        handle.setAttribute("aria-valuenow", cell[i].toFixed(2));
        handle.setAttribute("aria-valuetext", said);
      });
    };
    const set = (i, value) => {
      cell[i] = Math.min(Math.max(value, limits[i][0]), limits[i][1]);
      // The whole cell stays inside, as the kept ones do.
      cell[0] = Math.min(Math.max(cell[0], cell[1] / 2), 1 - cell[1] / 2);
      label.setAttribute("aria-live", "off");
      draw();
    };
    handles.forEach((handle, i) => {
      handle.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 0.02, ArrowUp: 0.02, ArrowLeft: -0.02, ArrowDown: -0.02, PageUp: 0.1, PageDown: -0.1 }[event.key];
        const to = by ? cell[i] + by : { Home: limits[i][0], End: limits[i][1] }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        set(i, to);
      });
      handle.addEventListener("pointerdown", (event) => {
        handle.setPointerCapture(event.pointerId);
        handle.focus();
        event.preventDefault();
      });
      handle.addEventListener("pointermove", (event) => {
        if (!handle.hasPointerCapture(event.pointerId)) return;
        const x = (event.clientX - stage.getBoundingClientRect().left - shown.left) / shown.inner;
        set(i, i ? 2 * (x - cell[0]) : x);
      });
    });
    const button = (words, act) => {
      make("button", controls, { type: "button" }, words).addEventListener("click", () => {
        act();
        draw();
        label.setAttribute("aria-live", "polite");
      });
    };
    button("Keep this report", () => {
      if (kept.length < 24) kept.push([...cell, average(cell) + data.errors[(kept.length - first) % data.errors.length]]);
    });
    button("Begin again", () => {
      kept.length = first;
      cell = data.start.slice();
    });
    stage.replaceChildren(picture, ...handles);
    stage.after(controls, label);
    draw();
    let wide = stage.clientWidth;
    new ResizeObserver(() => {
      if (stage.clientWidth === wide) return;
      wide = stage.clientWidth;
      requestAnimationFrame(draw);
    }).observe(stage);
  };

  kinds.cell = begin;
})();
