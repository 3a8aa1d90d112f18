/* GPOO in the page: two sliders set δ₀ and σ, all rounds are run again, and the picture shows one round and its tree. */
(() => {
  "use strict";
  const { kinds, make, drawView, stepping, posterior, points } = window.cboStepper;
  const TIE = 1e-9;
  /* The first of the largest. */
  const largest = (values) => {
    const most = Math.max(...values);
    return values.findIndex((value) => value >= most - TIE);
  };

  /* The unknown curve. */
  const truth = ({ centers, weights, lengthscale }) => (x) =>
    centers.reduce((sum, c, i) => sum + weights[i] * Math.exp(-((x - c) ** 2) / (2 * lengthscale ** 2)), 0);

  /* All rounds of GPOO with δ(h) = delta K^-h and noise of standard deviation `noise`; the first entry is before any. */
  const run = (data, delta, noise) => {
    const K = data.branching, f = truth(data), rounds = [];
    const cell = (h, i) => {
      const width = K ** -h, inside = points([(i + 0.5) * width, width], data.points);
      return { h, i, low: i * width, high: (i + 1) * width, inside, value: inside.reduce((sum, x) => sum + f(x), 0) / data.points };
    };
    const allowed = ({ h }) => delta * K ** -h;
    const drawn = [], y = [], split = [];
    const believed = (cells) => posterior({ ...data, noise }, drawn.map((c) => c.inside), y, cells.map((c) => c.inside));
    const recommended = () => {
      const deepest = split.filter((c) => c.h === Math.max(...split.map((s) => s.h))).sort((a, b) => a.i - b.i);
      return deepest.length ? deepest[largest(believed(deepest).mean)] : cell(0, 0);
    };
    const sqrtBeta = (t) => Math.sqrt(2 * Math.log(((1 + (K - 1) * (t - 1)) * Math.PI ** 2 * t ** 2) / (6 * data.failure)));
    let leaves = [cell(0, 0)];
    for (let t = 1; t <= data.normals.length; t++) {
      const { mean, variance } = believed(leaves), multiplier = sqrtBeta(t);
      const width = variance.map((v) => multiplier * Math.sqrt(Math.max(v, 0)));
      const b = leaves.map((c, j) => mean[j] + width[j] + allowed(c)); // line 2
      const j = largest(b), chosen = leaves[j]; // line 3
      const now = { leaves, mean, width, b, chosen: j, delta: allowed(chosen), splits: width[j] <= allowed(chosen), seen: [...drawn] };
      if (t === 1) rounds.push({ ...now, chosen: -1, split: [], recommended: chosen });
      drawn.push(chosen); // lines 4 and 5
      y.push(chosen.value + noise * data.normals[t - 1]);
      if (now.splits) { // line 6
        split.push(chosen); // line 7
        const children = Array.from({ length: K }, (_, k) => cell(chosen.h + 1, K * chosen.i + k));
        leaves = [...leaves.filter((c) => c !== chosen), ...children].sort((a, c) => a.h - c.h || a.i - c.i);
      }
      rounds.push({ ...now, report: y[t - 1], split: [...split], recommended: recommended() });
    }
    return rounds;
  };

  const number = (v, digits = 2) => v.toFixed(digits).replace("-", "\u2212");
  const interval = ({ low, high }) => `[${+low.toFixed(4)}, ${+high.toFixed(4)}]`;
  const said = (data, round, t) => {
    const { leaves, chosen, width, delta, splits, recommended } = round;
    const rest = `recommends ${interval(recommended)}, regret ${number(data.optimum - recommended.value)}`;
    if (chosen < 0) return `before round 1: the root is the only leaf; ${rest}`;
    const cell = leaves[chosen], digits = [2, 3, 4, 5].find((d) => number(width[chosen], d) !== number(delta, d)) ?? 2;
    const verdict = `width ${number(width[chosen], digits)} ${splits ? "\u2264" : ">"} \u03b4 ${number(delta, digits)}: ${splits ? "split" : "stays a leaf"}`;
    return `round ${t}: draws ${interval(cell)} at depth ${cell.h}, ${verdict}; ${rest}`;
  };

  /* The leaves over the curve, and the tree below. */
  const views = (data, round) => {
    const { leaves, mean, width, b, chosen, seen, split, recommended } = round, [lo, hi] = data.limits;
    const row = (...values) => [0, 1, ...values];
    const of = (now, values) => leaves.flatMap((c, j) => ((j === chosen) === now ? [row(...values(c, j))] : []));
    const at = Array.from({ length: 201 }, (_, i) => i / 200), f = truth(data);
    const marks = [];
    for (const [now, c] of [[false, 0], [true, 1]])
      marks.push(
        { m: "box", c, o: now ? 0.35 : 0.24, w: 1, e: "ground", rows: of(now, (l, j) => [l.low, l.high, mean[j] + width[j], Math.max(Math.min(b[j], hi + 1), mean[j] + width[j])]) },
        { m: "box", c, o: now ? 0.65 : 0.5, w: 1, e: "ground", rows: of(now, (l, j) => [l.low, l.high, mean[j] - width[j], mean[j] + width[j]]) },
        { m: "seg", c, w: 2.4, rows: of(now, (l, j) => [l.low, mean[j], l.high, mean[j]]) });
    marks.push({ m: "line", c: 6, w: 1.6, rows: [row(at.flatMap((x) => [x, f(x)]))] });
    const legend = [["f", "line", 6, "", "", 1], ["leaf: mean", "line", 0, "", "", 1], ["\u00b1 width", "box", 0, "", "", 0.5], [`+ \u03b4, up to b (cut at ${hi})`, "box", 0, "", "", 0.24]];
    if (chosen >= 0) {
      const { low, high } = leaves[chosen];
      marks.push({ m: "dot", c: 6, s: "D", r: 4, rows: [row((low + high) / 2, round.report)] });
      legend.push(["drawn now", "box", 1, "", "", 0.65], ["its report", "", 6, "", "D", 1]);
    }
    /* Who is a leaf now was drawn before, or not; what is split was drawn. */
    const bars = (cells) => cells.map((c) => row(c.low, c.high, c.h - 0.4, c.h + 0.4));
    const now = chosen >= 0 ? [leaves[chosen]] : [], known = [...split, ...leaves];
    const was = known.filter((c) => seen.includes(c) && !now.includes(c)), fresh = known.filter((c) => !seen.includes(c) && !now.includes(c));
    const tree = [
      { m: "box", c: 0, o: 0, w: 1.2, e: "soft", rows: bars(fresh) },
      { m: "box", c: 0, o: 0.8, w: 1, e: "ground", rows: bars(was) },
      { m: "box", c: 1, o: 0.85, w: 2, e: 1, rows: bars(now) },
      ...[["ground", 11], [6, 7]].map(([c, r]) => ({ m: "dot", c, s: "*", r, rows: [row((recommended.low + recommended.high) / 2, recommended.h)] })),
    ];
    const signs = [["drawn before", "box", 0, "", "", 0.8], ["not yet drawn", "edge", "soft", "", "", 1]];
    if (now.length) signs.push(["drawn now", "box", 1, "", "", 0.85]);
    signs.push([now.length ? "recommended after it" : "recommended", "", 6, "", "*", 1]);
    const named = (rows) => rows.map((entry) => row(...entry));
    /* Labels of one length, so that both have one left edge. */
    const depths = Array.from({ length: data.depths + 1 }, (_, h) => [h, `\u2007${h}`]);
    return [
      { x: [0, 1], y: [lo, hi], xt: [], yl: "value (units of f)", w: 1, h: 250, marks, legend: named(legend) },
      { x: [0, 1], y: [data.depths + 0.6, -0.6], yt: depths, xl: "x", yl: "depth", w: 1, h: 230, marks: tree, legend: named(signs) },
    ];
  };

  const begin = (figure, data) => {
    const choice = { delta: data.start_delta, noise: data.start_noise };
    let rounds = run(data, data.deltas[choice.delta], data.noises[choice.noise]), shown = 0;
    const inputs = [];
    const { controls, label, show } = stepping(figure, {
      n: data.normals.length + 1,
      start: data.start,
      ms: data.ms,
      name: "round",
      count: (t) => `${t}/${data.normals.length}`,
      say: (t) => said(data, rounds[t], t),
      alt: (t) => `The curve f, the posterior of every leaf, and the tree of cells below, \u03b4\u2080 = ${data.deltas[choice.delta]}, ` +
        `\u03c3 = ${data.noises[choice.noise]}. ${said(data, rounds[t], t)}. The round begins with ${rounds[t].leaves.length} leaves.`,
      draw: (picture, t, room) => {
        shown = t;
        for (const view of views(data, rounds[t])) drawView(picture, view, 0, room);
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
        range.setAttribute("aria-valuetext", `${sign} = ${values[choice[which]]}; ${said(data, rounds[shown], shown)}`);
      };
      range.addEventListener("input", () => {
        choice[which] = Number(range.value);
        rounds = run(data, data.deltas[choice.delta], data.noises[choice.noise]);
        label.setAttribute("aria-live", "off");
        show();
      });
      inputs.push(tell);
      tell();
    };
    slider("delta", data.deltas, `\u03b4\u2080, with \u03b4(h) = \u03b4\u2080 \u00b7 ${data.branching}\u207b\u02b0`, "\u03b4\u2080");
    slider("noise", data.noises, "\u03c3, the noise of a report", "\u03c3");
  };

  kinds.gpoo = begin;
  window.cboStepper.gpoo = run;
})();
