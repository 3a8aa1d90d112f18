/* HE-GP-UCB in the page: two sliders set the truth's lengthscale and the multiplier, and all rounds are run again. */
(() => {
  "use strict";
  const { kinds, make, drawView, stepping, posterior } = window.cboStepper;
  /* As the library breaks ties: the first of those within 1e-9 of the largest. */
  const largest = (values) => {
    const most = Math.max(...values);
    return values.findIndex((value) => value >= most - 1e-9 * Math.min(Math.abs(most), 1));
  };

  /* One sum of waves, stretched to a lengthscale. */
  const truth = ({ frequencies, phases }, lengthscale) => (x) =>
    Math.sqrt(2 / phases.length) * phases.reduce((sum, phase, i) => sum + Math.cos(((x - 0.5) / lengthscale) * frequencies[i] + phase), 0);

  /* All rounds of HE-GP-UCB. */
  const run = (data, lengthscale, multiplier) => {
    const { noise, failure, lengthscales, normals } = data, many = lengthscales.length;
    const at = Array.from({ length: data.points }, (_, i) => i / (data.points - 1));
    const f = at.map(truth(data, lengthscale)), best = Math.max(...f);
    const seen = [], y = [], rounds = [];
    const sums = lengthscales.map(() => ({ count: 0, errors: 0, widths: 0 }));
    let alive = lengthscales.map(() => true); // line 1
    normals.forEach((normal, i) => {
      const t = i + 1;
      const believed = lengthscales.map((ell) => posterior({ lengthscale: ell, variance: 1, noise }, seen, y, at)); // line 4
      const mean = believed.map((b) => b.mean), width = believed.map((b) => b.variance.map((v) => multiplier * Math.sqrt(Math.max(v, 0))));
      const upper = (u, j) => (alive[u] ? mean[u][j] + width[u][j] : -Infinity); // line 5
      const place = largest(at.map((_, j) => Math.max(...lengthscales.map((_, u) => upper(u, j))))); // line 7
      const followed = largest(lengthscales.map((_, u) => upper(u, place)));
      const answer = f[place] + noise * normal, own = sums[followed]; // line 9
      own.count += 1; // line 8
      own.errors += answer - mean[followed][place]; // line 11
      own.widths += width[followed][place];
      const xi = 2 * noise ** 2 * Math.log((many * Math.PI ** 2 * t ** 2) / (3 * failure));
      const allowed = Math.sqrt(xi * own.count) + own.widths;
      const dropped = Math.abs(own.errors) > allowed && alive.filter(Boolean).length > 1; // line 12
      rounds.push({ mean, width, alive, followed, place, answer, errors: own.errors, allowed, dropped, regret: best - f[place] });
      if (dropped) alive = alive.map((left, u) => left && u !== followed); // line 13
      seen.push([at[place]]); // line 10
      y.push(answer);
    });
    return rounds;
  };

  const number = (v) => v.toFixed(2).replace("-", "\u2212");
  const said = (data, round, t) => {
    const { followed, errors, allowed, dropped, regret } = round;
    const verdict = `${number(Math.abs(errors))} ${Math.abs(errors) > allowed ? ">" : "\u2264"} ${number(allowed)}`;
    return `round ${t + 1}: ${data.names[followed]} is followed, sum of errors ${verdict}, it ${dropped ? "is dropped" : "stays"}; regret ${number(regret)}`;
  };

  /* The bands over the curve, and who was followed below. */
  const views = (data, rounds, t, lengthscale) => {
    const now = rounds[t], [lo, hi] = data.limits, f = truth(data, lengthscale);
    const row = (...values) => [0, 1, ...values];
    const at = now.mean[0].map((_, j) => j / (data.points - 1)), cut = (v) => Math.min(Math.max(v, lo - 1), hi + 1);
    const marks = [], legend = [];
    data.names.forEach((name, u) => {
      if (!now.alive[u]) return;
      const strong = u === now.followed;
      const upper = at.flatMap((x, j) => [x, cut(now.mean[u][j] + now.width[u][j])]);
      const lower = at.map((x, j) => [x, cut(now.mean[u][j] - now.width[u][j])]).reverse().flat();
      marks.push(
        { m: "area", c: u, o: strong ? 0.3 : 0.12, rows: [row([...upper, ...lower])] },
        { m: "line", c: u, w: strong ? 2.6 : 1.2, rows: [row(upper)] });
      legend.push([`band of ${name}, \u2113 = ${data.lengthscales[u]}${strong ? ", followed" : ""}`, "box", u, "", "", 0.3]);
    });
    marks.push(
      { m: "line", c: 6, w: 1.4, d: "--", rows: [row(at.flatMap((x) => [x, f(x)]))] },
      { m: "dot", c: 6, s: "o", r: 3, rows: rounds.slice(0, t).map((r) => row(at[r.place], r.answer)) },
      { m: "dot", c: 6, s: "D", r: 5, rows: [row(at[now.place], now.answer)] });
    legend.push(["f", "line", 6, "--", "", 1], ["seen", "", 6, "", "o", 1], ["now", "", 6, "", "D", 1]);
    const strip = data.names.map((_, u) => u).flatMap((u) => [false, true].map((cross) => ({
      m: "dot", c: u, s: cross ? "x" : "o", r: cross ? 5 : 4,
      rows: rounds.slice(0, t + 1).flatMap((r, i) => (r.followed === u && r.dropped === cross ? [row(i + 1, 1 - u)] : [])),
    })));
    const signs = [["followed", "", 6, "", "o", 1], ["followed and dropped", "", 6, "", "x", 1]];
    const named = (entries) => entries.map((entry) => row(...entry));
    return [
      { x: [0, 1], y: [lo, hi], xl: "x", yl: "f (units of f)", w: 1, h: 260, marks, legend: named(legend) },
      { x: [0.3, rounds.length + 0.7], y: [-0.6, 1.6], yt: data.names.map((name, u) => [1 - u, name]), xl: "round", w: 1, h: 70, marks: strip, legend: named(signs) },
    ];
  };

  const begin = (figure, data) => {
    const choice = { truth: data.start_truth, multiplier: data.start_multiplier };
    const again = () => run(data, data.truths[choice.truth], data.multipliers[choice.multiplier]);
    let rounds = again(), shown = 0;
    const inputs = [];
    const { controls, label, show } = stepping(figure, {
      n: data.normals.length,
      start: data.start - 1,
      ms: data.ms,
      name: "round",
      say: (t) => said(data, rounds[t], t),
      alt: (t) => `The bands of the candidates left around f, whose lengthscale is ${data.truths[choice.truth]}, with the multiplier ` +
        `${data.multipliers[choice.multiplier]}, and who was followed in each round. ${said(data, rounds[t], t)}.`,
      draw: (picture, t, room) => {
        shown = t;
        for (const view of views(data, rounds, t, data.truths[choice.truth])) drawView(picture, view, 0, room);
        inputs.forEach((tell) => tell());
      },
    });
    const own = make("div", null, { class: "cbo-controls cbo-choices" });
    controls.after(own);
    const slider = (which, values, words) => {
      const holder = make("label", own);
      make("span", holder, {}, words);
      const range = make("input", holder, { type: "range", min: 0, max: values.length - 1, step: 1, value: choice[which], autocomplete: "off" });
      const value = make("span", holder, { class: "cbo-count", "aria-hidden": "true" });
      range.value = choice[which];
      const tell = () => {
        value.textContent = values[choice[which]];
        range.setAttribute("aria-valuetext", `${words} = ${values[choice[which]]}; ${said(data, rounds[shown], shown)}`);
      };
      range.addEventListener("input", () => {
        choice[which] = Number(range.value);
        rounds = again();
        label.setAttribute("aria-live", "off");
        show();
      });
      inputs.push(tell);
      tell();
    };
    slider("truth", data.truths, "lengthscale of the truth");
    slider("multiplier", data.multipliers, "\u221a\u03b2, the multiplier");
  };

  kinds.hegpucb = begin;
  window.cboStepper.hegpucb = run;
})();
