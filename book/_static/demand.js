/* The seller's stock after some days: sliders set the bandwidth and the radius, and the picture shows what is decided. */
(() => {
  "use strict";
  const { kinds, make, drawView, stepping } = window.cboStepper;
  const TIE = 1e-9;
  const largest = (values) => {
    const most = Math.max(...values);
    return values.findIndex((value) => value >= most - TIE);
  };
  const profit = (x, c) => 9 * Math.min(x, c) + Math.max(0, x - c) - 5 * x;
  const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;

  /* What is expected of every stock after n days: by the estimate, by the days alone, and at worst in the ball. */
  const decide = (data, share, radius, n) => {
    const seen = data.demands.slice(0, n), middle = mean(seen);
    const std = Math.sqrt(seen.reduce((sum, c) => sum + (c - middle) ** 2, 0) / Math.max(1, n - 1));
    const h = share * (4 / (3 * n)) ** 0.2 * std;
    const nodes = seen.flatMap((c) => data.bells.map((z) => Math.min(1, Math.max(0, c + h * z))));
    const under = (points) => data.stocks.map((x) => mean(points.map((c) => profit(x, c))));
    const worst = data.stocks.map((x) => {
      const values = nodes.map((c) => profit(x, c)).sort((a, b) => b - a), m = values.length;
      const floor = Math.min(profit(x, 0), values[m - 1]);
      let left = Math.min(radius / 2, 1), total = 0;
      for (const v of values) {
        const moved = Math.min(left, 1 / m);
        total += moved * floor + (1 / m - moved) * v;
        left -= moved;
      }
      return total;
    });
    return { seen, h, curves: [data.worth, under(seen), under(nodes), worst] };
  };

  const NAMES = ["seen by nobody", "plain average", "under the estimate", "worst in the ball"];
  const number = (v, digits = 3) => v.toFixed(digits).replace("-", "\u2212");
  const said = (data, now) => {
    const best = now.curves.map(largest), top = Math.max(...data.worth);
    const lost = (k) => `${NAMES[k]} ${number(data.stocks[best[k]])}, loses ${number(top - data.worth[best[k]])}`;
    return `${now.seen.length} days, bandwidth ${number(now.h)}; stock by ${lost(1)}; ${lost(2)}; ${lost(3)}`;
  };

  const views = (data, now) => {
    const row = (...values) => [0, 1, ...values], looks = [[6, ""], [5, "2 3"], [0, ""], [1, "6 4"]], signs = ["", "o", "s", "D"];
    const bell = (c) => mean(now.seen.map((d) => Math.exp(-(((c - d) / now.h) ** 2) / 2))) / (now.h * Math.sqrt(2 * Math.PI));
    const left = [{ m: "line", c: 6, w: 1.4, rows: [row(data.grid.flatMap((c, i) => [c, data.density[i]]))] }];
    if (now.h > 0.002) left.push({ m: "line", c: 0, w: 2, rows: [row(data.grid.flatMap((c) => [c, Math.min(bell(c), 7)]))] });
    left.push({ m: "seg", c: 1, w: 1.6, rows: now.seen.map((d) => row(d, 0, d, 0.45)) });
    const right = now.curves.flatMap((curve, k) => {
      const j = largest(curve), [c, d] = looks[k];
      const line = { m: "line", c, d, w: k ? 2 : 1.4, rows: [row(data.stocks.flatMap((x, i) => [x, Math.max(curve[i], -1)]))] };
      return k ? [line, { m: "dot", c, s: signs[k], r: 4, rows: [row(data.stocks[j], Math.max(curve[j], -1))] }] : [line];
    });
    const named = (rows) => rows.map((entry) => row(...entry));
    return [
      { x: [0, 0.7], y: [0, 7], xl: "demand", yl: "density", w: 0.45, h: 250, marks: left, legend: named([["p, seen by nobody", "line", 6, "", "", 1], ["estimate", "line", 0, "", "", 1], ["days", "line", 1, "", "", 1]]) },
      { x: [0, 0.5], y: [-1, 1], xl: "stock", yl: "expected profit", w: 0.55, h: 250, marks: right, legend: named(NAMES.map((name, k) => [name, "line", looks[k][0], looks[k][1], signs[k], 1])) },
    ];
  };

  kinds.demand = (figure, data) => {
    const choice = { share: data.start_share, radius: data.start_radius }, inputs = [];
    let shown = data.start;
    const at = (t) => decide(data, data.shares[choice.share], data.radii[choice.radius], t + 2);
    const { controls, label, show } = stepping(figure, {
      n: data.demands.length - 1,
      start: data.start,
      ms: 500,
      name: "day",
      count: (t) => `${t + 2} days`,
      say: (t) => said(data, at(t)),
      alt: (t) => `Left the density and its estimate, right the expected profit of every stock. ${said(data, at(t))}.`,
      draw: (picture, t, room) => {
        shown = t;
        for (const view of views(data, at(t))) drawView(picture, view, 0, room);
        inputs.forEach((tell) => tell());
      },
    });
    const own = make("div", null, { class: "cbo-controls cbo-choices" });
    controls.after(own);
    const slider = (which, values, words, sign) => {
      const holder = make("label", own);
      make("span", holder, {}, words);
      const range = make("input", holder, { type: "range", min: 0, max: values.length - 1, step: 1, value: choice[which], autocomplete: "off" });
      const value = make("span", holder, { class: "cbo-count", "aria-hidden": "true" });
      range.value = choice[which];
      const tell = () => {
        value.textContent = values[choice[which]];
        range.setAttribute("aria-valuetext", `${sign} = ${values[choice[which]]}; ${said(data, at(shown))}`);
      };
      range.addEventListener("input", () => {
        choice[which] = Number(range.value);
        label.setAttribute("aria-live", "off");
        show();
      });
      inputs.push(tell);
      tell();
    };
    slider("share", data.shares, "bandwidth, in shares of the rule of thumb", "h");
    slider("radius", data.radii, "radius \u03b4 of the ball that is feared", "\u03b4");
  };
  window.cboStepper.demand = decide;
})();
