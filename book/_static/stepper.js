/* Pictures that step: draws the JSON inside each figure.cbo-stepper as SVG. book/steppers.py writes the JSON. */
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const DRAWN = new Set(["svg", "path", "rect", "text"]);
  const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
  const CIVIDIS = [[0, 32, 76], [37, 60, 110], [87, 93, 109], [123, 122, 120], [160, 152, 112], [205, 188, 90], [255, 234, 70]];
  const DASHES = { "--": "6 4", ":": "2 3", "-.": "7 3 2 3" };

  const make = (tag, parent, attributes = {}, text) => {
    const element = DRAWN.has(tag) ? document.createElementNS(NS, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
      if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent?.append(element);
    return element;
  };

  /* A color is a number of the book's palette, "soft" or "faint" ink, the "ground", or itself. */
  const color = (c) => (typeof c === "number" ? `var(--cbo-${c})` : ["soft", "faint", "ground"].includes(c) ? `var(--cbo-${c})` : c);
  const shade = (part) => {
    const at = Math.min(Math.max(part, 0), 1) * (CIVIDIS.length - 1), i = Math.min(Math.floor(at), CIVIDIS.length - 2);
    return `rgb(${CIVIDIS[i].map((v, k) => Math.round(v + (CIVIDIS[i + 1][k] - v) * (at - i)))})`;
  };
  const paint = (g) =>
    `stroke:${g.w ? color(g.e ?? g.c) : "none"};stroke-width:${g.w ?? 0};stroke-dasharray:${DASHES[g.d] ?? "none"};`;
  const written = (v) => String(+v.toPrecision(6)).replace("-", "\u2212");

  const ticks = (lo, hi, want) => {
    const raw = (hi - lo) / Math.max(want, 1), unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((k) => k * unit).find((s) => s >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + step * 1e-9; k++) found.push(+(k * step).toPrecision(12));
    return found.map((v) => [v, written(v)]);
  };
  const powers = (lo, hi, want) => {
    const from = Math.ceil(Math.log10(lo) - 1e-9), to = Math.floor(Math.log10(hi) + 1e-9);
    const each = Math.max(1, Math.ceil((to - from + 1) / want)), found = [];
    for (let k = from; k <= to; k += each) found.push([10 ** k, Math.abs(k) < 4 ? written(10 ** k) : `1e${k}`]);
    return found.length > 1 ? found : [1, 2, 5].flatMap((m) => [from - 1, from, to].map((k) => m * 10 ** k))
      .filter((v, i, all) => v >= lo && v <= hi && all.indexOf(v) === i).map((v) => [v, written(v)]);
  };
  const scale = ([from, to], [start, end], log) => {
    const [a, b] = log ? [Math.log(from), Math.log(to)] : [from, to];
    return (v) => start + (((log ? Math.log(v) : v) - a) / (b - a)) * (end - start);
  };

  const SHAPES = {
    o: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    s: (r) => `M${-r} ${-r}H${r}V${r}H${-r}Z`,
    "^": (r) => `M0 ${-r * 1.2}L${r * 1.1} ${r}H${-r * 1.1}Z`,
    D: (r) => `M0 ${-r * 1.2}L${r * 1.2} 0L0 ${r * 1.2}L${-r * 1.2} 0Z`,
    x: (r) => `M${-r} ${-r}L${r} ${r}M${-r} ${r}L${r} ${-r}`,
    "|": (r) => `M0 ${-r}V${r}`,
    _: (r) => `M${-r} 0H${r}`,
    "*": (r) => `${[...Array(10)].map((_, i) => {
      const angle = (Math.PI * i) / 5, length = i % 2 ? r * 0.42 : r * 1.1;
      return `${i ? "L" : "M"}${(length * Math.sin(angle)).toFixed(2)} ${(-length * Math.cos(angle)).toFixed(2)}`;
    }).join("")}Z`,
  };
  const stamp = (parent, g, x, y) => {
    const open = g.s === "x" || g.s === "|" || g.s === "_";
    const style = open || g.hollow
      ? `fill:none;stroke:${color(g.c)};stroke-width:${g.w ?? 1.8}`
      : `fill:${color(g.c)};fill-opacity:${g.o ?? 1}`;
    make("path", parent, { d: SHAPES[g.s](g.r), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, style });
  };
  const trace = (v, x, y) => {
    let d = "";
    for (let i = 0; i < v.length; i += 2) d += `${i ? "L" : "M"}${x(v[i]).toFixed(1)} ${y(v[i + 1]).toFixed(1)}`;
    return d;
  };

  /* How each kind of mark is drawn from a group's style g, the values v of one member, and the scales. */
  const MARKS = {
    line: (p, g, [v], x, y) => make("path", p, { d: trace(v, x, y), style: `fill:none;stroke-opacity:${g.o ?? 1};${paint(g)}` }),
    area: (p, g, [v], x, y) => make("path", p, { d: `${trace(v, x, y)}Z`, style: `fill:${color(g.c)};fill-opacity:${g.o};${paint(g)}` }),
    box: (p, g, [x0, x1, y0, y1], x, y) => {
      const [l, r, t, b] = [Math.min(x(x0), x(x1)), Math.max(x(x0), x(x1)), Math.min(y(y0), y(y1)), Math.max(y(y0), y(y1))];
      const [w, h] = [(r - l).toFixed(1), (b - t).toFixed(1)];
      make("rect", p, { x: l.toFixed(1), y: t.toFixed(1), width: w, height: h, style: `fill:${g.o ? color(g.c) : "none"};fill-opacity:${g.o};${paint(g)}` });
    },
    seg: (p, g, [x0, y0, x1, y1], x, y) =>
      make("path", p, { d: trace([x0, y0, x1, y1], x, y), style: `fill:none;stroke-opacity:${g.o ?? 1};${paint(g)}` }),
    rule: (p, g, [v], x, y, size) =>
      make("path", p, { d: g.dir === "v" ? `M${x(v).toFixed(1)} 0V${size[1]}` : `M0 ${y(v).toFixed(1)}H${size[0]}`, style: `fill:none;${paint(g)}` }),
    dot: (p, g, [a, b], x, y) => stamp(p, g, x(a), y(b)),
    text: (p, g, [a, b, words], x, y) =>
      make("text", p, { x: x(a).toFixed(1), y: (y(b) + 4).toFixed(1), "text-anchor": g.a, style: `fill:${color(g.c)};font-size:${g.size ?? 12}px` }, words),
    field: (p, g, [x0, x1, y0, y1, code], x, y) => {
      const columns = g.n, rows = code.length / columns;
      const w = Math.abs(x(x1) - x(x0)) / columns, h = Math.abs(y(y1) - y(y0)) / rows;
      const left = Math.min(x(x0), x(x1)), bottom = Math.max(y(y0), y(y1));
      for (let i = 0; i < code.length; i++)
        make("rect", p, {
          x: (left + (i % columns) * w).toFixed(1), y: (bottom - (Math.floor(i / columns) + 1) * h).toFixed(1),
          width: (w + 0.3).toFixed(1), height: (h + 0.3).toFixed(1), "shape-rendering": "crispEdges", fill: shade(DIGITS.indexOf(code[i]) / 63),
        });
    },
  };

  /* The members of a group that live at step t: each row is [from, to, value or values from step to step, ...]. */
  const alive = (rows, t, whole) =>
    rows.filter((row) => row[0] <= t && t < row[1])
      .map((row) => row.slice(2).map((v) => (!whole && Array.isArray(v) ? v[t - row[0]] : v)));

  /* Words in lines of so many letters. */
  const lines = (words, most) =>
    words.split(" ").reduce((found, word) => {
      const last = found[found.length - 1];
      if (last && last.length + word.length < most) found[found.length - 1] = `${last} ${word}`;
      else if (word) found.push(word);
      return found;
    }, []);

  const swatch = (item, [, kind, c, d, s, o]) => {
    const svg = make("svg", item, { width: 26, height: 14, "aria-hidden": "true" });
    if (kind === "box") make("rect", svg, { x: 2, y: 2, width: 22, height: 10, style: `fill:${color(c)};fill-opacity:${o}` });
    if (kind === "edge") make("rect", svg, { x: 3, y: 2, width: 20, height: 10, style: `fill:none;${paint({ c, w: 1.8, d })}` });
    if (kind === "line") make("path", svg, { d: "M1 7H25", style: `fill:none;stroke-opacity:${o};${paint({ c, w: 2.2, d })}` });
    if (s) stamp(svg, { s: s[0], c, r: 4, hollow: s.length > 1 }, 13, 7);
  };

  const widthOf = (view, room) => Math.floor(room >= 560 ? room * view.w : room);
  const nameLines = (view, room) => lines(view.xl ?? "", Math.floor((widthOf(view, room) - 12) / 6.4));
  const drawView = (holder, view, t, room, all = [view]) => {
    const wide = room >= 560, width = widthOf(view, room), first = all[0];
    const box = make("div", holder, { class: "cbo-view", style: `width:${width}px` });
    const title = Array.isArray(view.title) ? view.title[t] : view.title;
    if (title) make("div", box, { class: "cbo-view-title" }, title);
    if (view.links) return drawLinks(box, view, t, width);
    const [xs, ys] = [view.x, view.y];
    const span = ([a, b]) => [Math.min(a, b), Math.max(a, b)];
    const yWant = Math.max(3, Math.floor(view.h / 55));
    let yt = view.off ? [] : view.yt ?? (view.ylog ? powers : ticks)(...span(ys), yWant);
    if (!wide && yt.length && yt.every(([, s]) => !s)) yt = first.yt ?? yt; // rows named by the view beside it, which is above now
    const left = view.off ? 4 : 12 + Math.max(0, ...yt.map(([, s]) => s.length)) * 6.6 + (view.yl ? 18 : 0);
    const names = nameLines(view, room);
    // Panels beside each other keep their rows level.
    const level = wide && view.w < 1 ? Math.max(...all.map((v) => nameLines(v, room).length)) : names.length;
    const [right, top, bottom] = [14, 8, view.off ? 4 : (view.xt?.length === 0 ? 8 : 22) + (level ? 4 + 14 * level : 0)];
    let inner = Math.max(40, width - left - right), tall = Math.max(60, view.h - top - bottom);
    if (view.eq) {
      const ratio = Math.abs((ys[1] - ys[0]) / (xs[1] - xs[0]));
      inner = Math.min(inner, 420);
      tall = inner * ratio;
    }
    const svg = make("svg", box, { width, height: Math.round(tall + top + bottom), "aria-hidden": "true", focusable: "false" });
    const xt = view.off ? [] : view.xt ?? (view.xlog ? powers : ticks)(...span(xs), Math.max(2, Math.min(8, Math.floor(inner / 70))));
    const x = scale(xs, [0, inner], view.xlog), y = scale(ys, [tall, 0], view.ylog);
    const plot = { x: left, y: top, width: inner, height: tall };
    if (!view.off) {
      for (const [v, s] of xt) {
        make("path", svg, { class: "cbo-grid", d: `M${(left + x(v)).toFixed(1)} ${top}v${tall}` });
        make("text", svg, { x: (left + x(v)).toFixed(1), y: top + tall + 16, "text-anchor": "middle", class: "cbo-tick" }, s);
      }
      for (const [v, s] of yt) {
        make("path", svg, { class: "cbo-grid", d: `M${left} ${(top + y(v)).toFixed(1)}h${inner}` });
        make("text", svg, { x: left - 6, y: (top + y(v) + 4).toFixed(1), "text-anchor": "end", class: "cbo-tick" }, s);
      }
      make("path", svg, { class: "cbo-axis", d: `M${left} ${top}v${tall}h${inner}` });
      names.forEach((name, i) => {
        const half = name.length * 3.2; // a long name is moved into the picture
        const center = Math.max(half + 4, Math.min(left + inner / 2, width - half - 4));
        make("text", svg, { x: center, y: top + tall + 36 + 14 * i, "text-anchor": "middle" }, name);
      });
      if (view.yl) make("text", svg, { transform: `translate(13 ${top + tall / 2}) rotate(-90)`, "text-anchor": "middle" }, view.yl);
    }
    /* A nested svg clips to the axes; signs and words may reach a little beyond them. */
    const clip = make("svg", svg, { ...plot, overflow: "hidden" });
    const above = make("svg", svg, { ...plot, overflow: "visible" });
    for (const g of view.marks) {
      const whole = g.m === "line" || g.m === "area", over = g.m === "dot" || g.m === "text";
      for (const v of alive(g.rows, t, whole)) {
        if (over && (v[0] < span(xs)[0] || v[0] > span(xs)[1] || v[1] < span(ys)[0] || v[1] > span(ys)[1])) continue;
        MARKS[g.m](over ? above : clip, g, v, x, y, [inner, tall]);
      }
    }
    const legend = alive(view.legend ?? [], t);
    if (legend.length || view.bar) {
      const list = make("div", box, { class: "cbo-legend" });
      for (const entry of legend) {
        const item = make("span", list);
        swatch(item, entry);
        item.append(entry[0]);
      }
      if (view.bar) {
        const item = make("span", list, {}, `${written(view.bar[0])} `);
        make("span", item, { class: "cbo-bar", style: `background:linear-gradient(to right,${CIVIDIS.map((c) => `rgb(${c})`)})` });
        item.append(` ${written(view.bar[1])} ${view.bar[2]}`);
      }
    }
    return { box, svg, x, y, left, top, inner, tall, above };
  };

  /* A proof as a tree: what needs what, each link with both sides and tight, loose or broken by color, width and dash. */
  const LINKS = {
    tight: ["var(--cbo-2)", 4.5, "none"], loose: ["var(--cbo-4)", 2.5, "7 4"], broken: ["var(--cbo-1)", 3, "2 3"], open: ["var(--cbo-soft)", 1.5, "1 4"],
  };
  const drawLinks = (box, view, t, width) => {
    const row = 42, nodes = view.links, place = [];
    const svg = make("svg", box, { width, height: nodes.length * row + 6, "aria-hidden": "true", focusable: "false" });
    const only = nodes.map((_, i) => nodes.filter((n) => n.parent === i).length === 1);
    const indent = 30;
    nodes.forEach((node, i) => {
      const parent = place[node.parent];
      place.push([!parent ? 12 : parent[0] + (only[node.parent] ? 0 : indent), i * row + 18]);
    });
    nodes.forEach((node, i) => {
      const [x, y] = place[i], parent = place[node.parent];
      const state = node.state ? node.state[t] : "open";
      const [stroke, w, dash] = LINKS[state] ?? LINKS.open;
      const style = `fill:none;stroke:${stroke};stroke-width:${w};stroke-dasharray:${dash}`;
      if (parent && parent[0] !== x) {
        make("path", svg, { d: `M${parent[0]} ${parent[1] + 7}V${y}`, class: "cbo-axis" }); // a stem that several share
        make("path", svg, { d: `M${parent[0]} ${y}H${x - 7}`, style, "data-state": state });
      } else if (parent) make("path", svg, { d: `M${x} ${parent[1] + 7}V${y - 7}`, style, "data-state": state });
      const sign = { s: state === "broken" ? "x" : node.state ? "o" : "s", r: 5.5, c: stroke, hollow: state !== "tight" && !!node.state, w: 2.2 };
      stamp(svg, sign, x, y);
      const label = make("text", svg, { x: x + 14, y: y + 1, class: "cbo-link" }, node.name);
      if (node.state) make("text", svg, { x: x + 14, y: y + 16, class: "cbo-tick" }, node.text[t]);
      else label.textContent = `${node.name}${node.text ? ` ${node.text[t]}` : ""}`;
    });
    const list = make("div", box, { class: "cbo-legend" });
    for (const [state, words] of view.states) {
      const item = make("span", list), [stroke, w, dash] = LINKS[state];
      make("path", make("svg", item, { width: 30, height: 14, "aria-hidden": "true" }), { d: "M1 7H29", style: `stroke:${stroke};stroke-width:${w};stroke-dasharray:${dash}` });
      item.append(words);
    }
    return { box, svg };
  };

  const paused = matchMedia("(prefers-reduced-motion: reduce)");

  /* Buttons and a slider over the steps 0 to n - 1. `draw(picture, t, room)` draws step t, `say(t)` tells it beside the
     slider, `alt(t)` describes the picture, and `count(t)` counts. */
  const stepping = (figure, { n, start, ms, name, auto, draw, say, alt, count = (t) => `${t + 1}/${n}` }) => {
    let t = start, timer = 0, pending = 0;
    const stage = figure.querySelector(".cbo-stage"), picture = make("div", null, { class: "cbo-picture", role: "img" });
    const controls = make("div", null, { class: "cbo-controls" });
    const button = (words, sign, act) => {
      const b = make("button", controls, { type: "button", "aria-label": words, title: words }, sign);
      b.addEventListener("click", act);
      return b;
    };
    const back = button("Step back", "\u25C2", () => step(t - 1, true));
    const play = button("Play", "\u25B6", () => (timer ? stop() : go()));
    const forth = button("Step forward", "\u25B8", () => step(t + 1, true));
    const range = make("input", controls, { type: "range", min: 0, max: n - 1, step: 1, autocomplete: "off", "aria-label": name });
    const counter = make("span", controls, { class: "cbo-count", "aria-hidden": "true" });
    const label = make("div", null, { class: "cbo-label", "aria-live": "off" });
    const height = { now: 0 };

    const redraw = () => {
      const room = Math.floor(stage.clientWidth);
      if (!room) return;
      picture.style.minHeight = "";
      picture.replaceChildren();
      draw(picture, t, room);
      height.now = room === height.room ? Math.max(height.now, picture.offsetHeight) : picture.offsetHeight;
      height.room = room;
      picture.style.minHeight = `${height.now}px`; // a longer legend at another step must not move the page
      picture.setAttribute("aria-label", alt(t));
    };
    const show = () => {
      label.textContent = say(t);
      range.value = t;
      range.setAttribute("aria-valuetext", say(t));
      counter.textContent = count(t);
      back.disabled = t === 0;
      forth.disabled = t === n - 1;
      redraw();
    };
    const step = (to, told) => {
      if (told) stop();
      label.setAttribute("aria-live", told ? "polite" : "off");
      t = Math.min(Math.max(to, 0), n - 1);
      show();
    };
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      play.textContent = "\u25B6";
      play.title = "Play";
      play.setAttribute("aria-label", "Play");
    };
    const go = () => {
      step(t === n - 1 ? 0 : t, false);
      play.textContent = "\u275A\u275A";
      play.title = "Pause";
      play.setAttribute("aria-label", "Pause");
      timer = setInterval(() => (t < n - 1 ? step(t + 1, false) : stop()), ms);
    };
    range.addEventListener("input", () => { stop(); step(Number(range.value), false); });
    range.addEventListener("keydown", (event) => {
      if (event.key !== " ") return;
      event.preventDefault();
      play.click();
    });
    stage.replaceChildren(picture);
    stage.after(controls, label);
    show();
    new ResizeObserver(() => {
      cancelAnimationFrame(pending);
      pending = requestAnimationFrame(() => { if (Math.floor(stage.clientWidth) !== height.room) redraw(); });
    }).observe(stage);
    if (auto && !paused.matches) {
      const seen = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        seen.disconnect();
        go();
      }, { threshold: 0.4 });
      seen.observe(stage);
    }
    return { controls, label, show };
  };
  const begin = (figure, data) => stepping(figure, {
    ...data,
    n: data.labels.length,
    draw: (picture, t, room) => { for (const view of data.views) drawView(picture, view, t, room, data.views); },
    say: (t) => data.labels[t],
    alt: (t) => data.alts[t],
  });

  const kinds = { step: begin };
  window.cboStepper = { kinds, make, drawView, stepping, color };

  const all = () => {
    for (const figure of document.querySelectorAll("figure.cbo-stepper:not([data-ready])")) {
      figure.dataset.ready = "";
      const still = figure.querySelector(".cbo-stage").cloneNode(true);
      try {
        const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
        kinds[data.kind ?? "step"](figure, data);
      } catch (error) {
        console.error("a picture that steps could not be drawn:", error);
        figure.querySelectorAll(".cbo-controls, .cbo-label").forEach((e) => e.remove());
        figure.querySelector(".cbo-stage")?.replaceWith(still);
      }
    }
  };
  if (document.readyState === "complete") all();
  else document.addEventListener("DOMContentLoaded", all); // when cell.js and its kind, which come later, are there
})();
