/* One choice of Algorithm 1 in the page: sliders set alpha and the prices, and the picture says which set is played. */
(() => {
  "use strict";
  const { kinds, make, drawView, stepping } = window.cboStepper;
  const number = (v, digits = 2) => v.toFixed(digits).replace("-", "\u2212");

  /* Lines 16 and 22 to 26 with today's bounds in the place of the smallest so far in line 26. */
  const choose = ({ upper, lower, plays }, T, prices, alpha) => {
    const threshold = (1 - alpha) * lower;
    const good = upper.map((u) => u > threshold); // line 16
    const bound = prices.map((c, i) => Math.max(c - Math.sqrt((2 * Math.log(T)) / plays[i]), 0)); // lines 22 to 24
    const least = Math.min(...bound.filter((b, i) => good[i]));
    const tied = good.map((ok, i) => ok && bound[i] <= least + 1e-12); // line 25
    const most = Math.max(...upper.filter((u, i) => tied[i]));
    return { threshold, good, bound, tied, chosen: upper.findIndex((u, i) => tied[i] && u >= most - 1e-9) }; // line 26
  };

  const said = (data, t, prices, alpha) => {
    const state = data.states[t], { threshold, good, bound, tied, chosen } = choose(state, data.horizon, prices, alpha);
    const listed = (mark) => data.names.filter((name, i) => mark[i]).join(", ");
    const out = good.every((ok) => ok) ? "no set leaves" : `${listed(good.map((ok) => !ok))} cannot be good enough`;
    const ties = tied.filter((ok) => ok).length;
    const why = ties > 1 ? `${listed(tied)} tie at the cost bound ${number(bound[chosen])}, and the largest upper bound decides`
      : `its cost bound ${number(bound[chosen])} is the least`;
    return `after ${state.t} plays, threshold ${number(threshold)}: ${out}; plays ${data.names[chosen]}, as ${why}`;
  };

  const views = (data, t, prices, alpha) => {
    const state = data.states[t], { threshold, good, bound, tied, chosen } = choose(state, data.horizon, prices, alpha);
    const row = (...values) => [0, 1, ...values], m = data.names.length;
    const bars = (keep, value) => data.names.flatMap((_, i) => (keep(i) ? [row(i - 0.32, i + 0.32, 0, value(i))] : []));
    const named = (rows) => rows.map((entry) => row(...entry)), ticks = data.names.map((name, i) => [i, name]);
    const color = [["may be good enough", 0, (i) => good[i] && i !== chosen], ["left", "soft", (i) => !good[i]], ["played", 1, (i) => i === chosen]];
    const values = color.map(([, c, keep]) => ({ m: "box", c, o: 0.55, w: 1, e: "ground", rows: bars(keep, (i) => state.upper[i]) }));
    values.push({ m: "seg", c: 6, w: 1.8, d: "6 4", rows: [row(-0.5, threshold, m - 0.5, threshold)] });
    const costs = color.map(([, c, keep]) => ({ m: "box", c, o: 0.25, w: 1, e: "ground", rows: bars(keep, (i) => prices[i]) }));
    costs.push(...color.map(([, c, keep]) => ({ m: "box", c, o: 0.85, w: 1, e: "ground", rows: bars(keep, (i) => bound[i]) })));
    const legend = named([...color.map(([words, c]) => [words, "box", c, "", "", 0.55]), ["threshold (1 \u2212 \u03b1) L", "line", 6, "6 4", "", 1]]);
    const prices_ = named([["average cost", "box", 0, "", "", 0.25], ["its lower bound", "box", 0, "", "", 0.85]]);
    return [
      { x: [-0.5, m - 0.5], y: data.limits, xt: ticks, yl: "upper bound (units of f)", w: 1, h: 230, marks: values, legend },
      { x: [-0.5, m - 0.5], y: [0, 1.05], xt: ticks, yl: "cost", w: 1, h: 200, marks: costs, legend: prices_ },
    ];
  };

  kinds.choice = (figure, data) => {
    const prices = [...data.prices], inputs = [];
    let alpha = data.alpha, shown = data.start;
    const { controls, label, show } = stepping(figure, {
      n: data.states.length,
      start: data.start,
      ms: 900,
      name: "play",
      count: (t) => `${data.states[t].t}`,
      say: (t) => said(data, t, prices, alpha),
      alt: (t) => `Upper bounds of ${data.names.length} control sets over the threshold, and their costs. ${said(data, t, prices, alpha)}.`,
      draw: (picture, t, room) => {
        shown = t;
        for (const view of views(data, t, prices, alpha)) drawView(picture, view, 0, room);
        inputs.forEach((tell) => tell());
      },
    });
    const own = make("div", null, { class: "cbo-controls cbo-choices" });
    controls.after(own);
    const slider = (words, most, get, set) => {
      const holder = make("label", own);
      make("span", holder, {}, words);
      const range = make("input", holder, { type: "range", min: 0, max: most, step: 1, value: Math.round(100 * get()), autocomplete: "off" });
      const value = make("span", holder, { class: "cbo-count", "aria-hidden": "true" });
      const tell = () => {
        value.textContent = number(get());
        range.setAttribute("aria-valuetext", `${words} = ${number(get())}; ${said(data, shown, prices, alpha)}`);
      };
      range.addEventListener("input", () => {
        set(Number(range.value) / 100);
        label.setAttribute("aria-live", "off");
        show();
      });
      inputs.push(tell);
      tell();
    };
    slider("\u03b1", 60, () => alpha, (v) => { alpha = v; });
    data.names.forEach((name, i) => slider(`price of ${name}`, 100, () => prices[i], (v) => { prices[i] = v; }));
  };
  window.cboStepper.choose = choose;
})();
