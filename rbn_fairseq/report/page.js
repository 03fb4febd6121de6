"use strict";

// Figures of curves, drawn so that they can be questioned: values under the cursor, settings shown
// and hidden, the axis of x and the difference to layer norm chosen, for all figures of the page at once.
const embedded = document.getElementById("panels");
const PANELS = embedded ? JSON.parse(embedded.textContent) : {};
const AXES = { epoch: "epoch", update: "update", minutes: "minutes of training" };
const ROWS = 16; // of a tooltip
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5]; // between ticks
const state = { x: "epoch", difference: true, hidden: new Set() };
const dark = matchMedia("(prefers-color-scheme: dark)");
const renders = [];
const renderAll = () => renders.forEach((render) => render());

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

// A colour is written out, or is a variable of the style sheet, which a canvas does not know.
function resolve(colour) {
  const name = colour.match(/^var\((.*)\)$/);
  return name ? getComputedStyle(document.documentElement).getPropertyValue(name[1]).trim() : colour;
}

const isNumber = (value) => typeof value === "number";
const mean = (values) =>
  values.every(isNumber) ? values.reduce((a, b) => a + b, 0) / values.length : values.find((value) => !isNumber(value));

function format(value, signed) {
  if (!isNumber(value)) return value;
  const size = Math.abs(value);
  const text = size >= 1000 || size === 0 ? size.toFixed(0) : size >= 1e-3 ? `${+size.toPrecision(4)}` : size.toPrecision(3);
  return `${value < 0 ? "−" : signed && value > 0 ? "+" : ""}${text}`;
}

const hasDifference = (panel) => panel.curves.some((curve) => curve.runs.some((run) => run.difference));
const isDifference = (panel) => state.difference && hasDifference(panel);
const axisOf = (panel) => (panel.x === "epoch" ? AXES[state.x] : panel.x);

// The lines of a panel: each has `points`, a map of x to a value; of several seeds the mean comes last.
// A value that is missing is left out; one that is not finite is a text.
function linesOf(panel) {
  const values = isDifference(panel) ? "difference" : "value";
  const lines = [];
  for (const curve of panel.curves) {
    if (state.hidden.has(curve.label)) continue;
    const byEpoch = new Map();
    let runs = 0;
    for (const run of curve.runs) {
      const xs = panel.x === "epoch" && state.x !== "epoch" ? run[state.x] : run.x;
      if (!xs || !run[values]) continue;
      runs += 1;
      const points = new Map();
      run.x.forEach((epoch, n) => {
        const value = run[values][n];
        if (value === null || !isNumber(xs[n])) return;
        points.set(xs[n], value);
        byEpoch.set(epoch, [...(byEpoch.get(epoch) ?? []), [xs[n], value]]);
      });
      lines.push({ curve, run: run.run, points, thin: curve.runs.length > 1 });
    }
    if (curve.runs.length < 2) continue;
    const shared = [...byEpoch.values()].filter((points) => points.length === runs);
    const points = new Map(shared.map((all) => [mean(all.map(([x]) => x)), mean(all.map(([, value]) => value))]));
    lines.push({ curve, run: null, points, thin: false });
  }
  return lines;
}

// The value at x; between two points of the line, what is on it.
function valueAt(points, x) {
  if (points.has(x)) return points.get(x);
  const xs = [...points.keys()];
  const before = xs.filter((it) => it < x).at(-1);
  const after = xs.find((it) => it > x);
  if (before === undefined || after === undefined) return undefined;
  const [low, high] = [points.get(before), points.get(after)];
  return isNumber(low) && isNumber(high) ? low + ((x - before) / (after - before)) * (high - low) : undefined;
}

function tooltip(panel, lines, tip) {
  const signed = isDifference(panel) || panel.line === 0;
  return (chart) => {
    const { idx, left, top } = chart.cursor;
    const x = idx === null || left < 0 ? undefined : chart.data[0][idx];
    if (x === undefined) return tip.replaceChildren();
    const rows = panel.curves
      .map((curve) => {
        const own = lines.filter((line) => line.curve === curve);
        const values = own.map((line) => [line, valueAt(line.points, x)]).filter(([, value]) => value !== undefined);
        const bold = values.find(([line]) => !line.thin)?.[1] ?? "";
        const seeds = values.filter(([line]) => line.thin).map(([, value]) => value);
        return { curve, bold, seeds, shown: values.length > 0 };
      })
      .filter((row) => row.shown);
    const height = ({ bold, seeds }) => [bold, ...seeds].find(isNumber) ?? Infinity;
    const distance = (row) => Math.abs(height(row) - chart.posToVal(top, "y"));
    const near = [...rows].sort((a, b) => distance(a) - distance(b)).slice(0, ROWS);
    const body = near.sort((a, b) => height(b) - height(a)).map(({ curve, bold, seeds }) =>
      element("tr", {},
        element("th", {}, swatch(curve, "dot", "background"), curve.name),
        element("td", {}, format(bold, signed)),
        element("td", { className: "seeds" }, seeds.map((seed) => format(seed, signed)).join("  "))));
    const more = rows.length > near.length ? [element("div", {}, `and ${rows.length - near.length} more`)] : [];
    tip.replaceChildren(element("b", {}, `${axisOf(panel)} ${format(x)}`), element("table", {}, ...body), ...more);
    const place = chart.over.offsetLeft + left;
    const right = place + 14 + tip.offsetWidth > tip.parentElement.clientWidth;
    tip.style.left = `${Math.max(0, right ? place - 14 - tip.offsetWidth : place + 14)}px`;
  };
}

function swatch(curve, className, property) {
  const mark = element("span", { className });
  mark.style[property] = curve.colour;
  return mark;
}

// Where lines are drawn across: black ones, and the paper's values.
function levelsOf(panel) {
  if (isDifference(panel)) return { lines: [0], references: [] };
  return { lines: panel.line === null ? [] : [panel.line], references: panel.references };
}

// What uPlot does not draw: the line at 0, the paper's values, and values that are not finite, at the top edge.
function marks(panel, lines) {
  return ({ ctx, bbox, valToPos }) => {
    const across = (value, colour, dash) => {
      const y = valToPos(value, "y", true);
      if (y < bbox.top || y > bbox.top + bbox.height) return;
      ctx.strokeStyle = resolve(colour);
      ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
      ctx.stroke(new Path2D(`M${bbox.left} ${y}h${bbox.width}`));
    };
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    const { lines: [level], references } = levelsOf(panel);
    if (level !== undefined) across(level, "var(--ink)", []);
    references.forEach(([value], number) => across(value, "var(--paper)", number % 2 ? [2, 3] : [6, 4]));
    ctx.font = `${13 * devicePixelRatio}px sans-serif`;
    ctx.textAlign = "center";
    for (const { curve, points } of lines) {
      ctx.fillStyle = resolve(curve.colour);
      for (const [x, value] of points) {
        if (isNumber(value)) continue;
        ctx.fillText(value === "NaN" ? "×" : "▲", valToPos(x, "x", true), bbox.top + 11 * devicePixelRatio);
      }
    }
    ctx.restore();
  };
}

function widen(min, max, part) {
  const room = min === max ? 0.5 : part * (max - min);
  return [min - room, max + room];
}

function plot(panel, holder, tip) {
  const lines = linesOf(panel);
  const xs = [...new Set(lines.flatMap((line) => [...line.points.keys()]))].sort((a, b) => a - b);
  const style = ({ curve, thin }) => ({
    stroke: resolve(curve.colour),
    width: thin ? 1 : curve.many ? 1 : curve.runs.length > 1 ? 2.5 : 1.75,
    alpha: thin || curve.many ? (dark.matches ? 0.9 : 0.6) : 1,
    dash: curve.dash.map((length) => 1.5 * length),
    points: { show: !thin && !curve.many && xs.length <= 30, size: 5, fill: resolve(curve.colour) },
  });
  const difference = isDifference(panel);
  const { lines: across, references } = levelsOf(panel);
  const levels = [...across, ...references.map(([value]) => value)];
  const range = (chart, min, max) => {
    if (min === null) return [0, 1];
    if (panel.log && !difference) return uPlot.rangeLog(min, max, 10, false);
    const [low, high] = widen(Math.min(min, ...levels), Math.max(max, ...levels), 0.06);
    return [panel.zero && !difference ? 0 : low, high];
  };
  const font = "11px system-ui, sans-serif";
  const axis = {
    stroke: resolve("var(--soft)"), font, labelFont: font, labelSize: 16, labelGap: 0, ticks: { show: false },
    grid: { stroke: resolve("var(--line)"), width: 1 },
    values: (chart, splits) => splits.map((it) => (it === null ? "" : format(+it.toPrecision(12)))),
  };
  const options = {
    width: holder.clientWidth, height: holder.clientHeight, legend: { show: false }, padding: [8, 16, 0, 0],
    cursor: { drag: { x: true, y: true, uni: 25 }, y: false },
    scales: {
      x: { time: false, range: (chart, min, max) => widen(min, max, 0.02) },
      y: { distr: panel.linear_to ? 4 : panel.log && !difference ? 3 : 1, asinh: panel.linear_to, range },
    },
    axes: [
      { ...axis, label: axisOf(panel), size: 26, space: 36, ...(axisOf(panel) !== AXES.minutes && { incrs: WHOLE }) },
      { ...axis, size: 48 },
    ],
    series: [{}, ...lines.map(style)],
    hooks: { setCursor: [tooltip(panel, lines, tip)], draw: [marks(panel, lines)] },
  };
  // uPlot breaks a line at null, and joins it over undefined.
  const columns = lines.map(({ points }) => xs.map((x) => points.get(x)).map((value) => (typeof value === "string" ? null : value)));
  return new uPlot(options, [xs, ...columns], holder);
}

function pressable(text, title, onclick, pressed, ...children) {
  const button = element("button", { type: "button", title, onclick }, ...children, text);
  return { button, update: () => (button.ariaPressed = pressed()) };
}

// Returns a choice of one of several, for all figures.
function choice(label, key, options) {
  const parts = options.map(([value, text]) =>
    pressable(text, "", () => { state[key] = value; renderAll(); }, () => state[key] === value));
  const group = element("span", { className: "choice", role: "group", ariaLabel: label }, ...parts.map((part) => part.button));
  return { group, update: () => parts.forEach((part) => part.update()) };
}

// Fills a legend: a click hides a setting, a double click shows it alone. Returns what updates it.
function fillLegend(legend, panels) {
  const curves = new Map(panels.flatMap((panel) => panel.curves.map((curve) => [curve.label, curve])));
  const labels = [...curves.keys()];
  const isHidden = (label) => state.hidden.has(label);
  const entries = [...curves].map(([label, curve]) => {
    const line = swatch(curve, "swatch", "borderColor");
    line.style.borderTopStyle = curve.dash.length === 0 ? "solid" : curve.dash[0] < 2 ? "dotted" : "dashed";
    const toggle = (event) => {
      if (event.shiftKey || event.detail === 2) labels.forEach((other) => state.hidden.add(other));
      if (!state.hidden.delete(label)) state.hidden.add(label);
      renderAll();
    };
    const title = "Click: hide or show. Double click, or Shift with Enter: show it alone.";
    return pressable(label, title, toggle, () => !isHidden(label), line);
  });
  const showAll = () => { state.hidden.clear(); renderAll(); };
  const all = element("button", { type: "button", className: "all", onclick: showAll }, "show all");
  legend.append(...entries.map((entry) => entry.button), all);
  return () => {
    entries.forEach((entry) => entry.update());
    all.hidden = !labels.some(isHidden);
  };
}

// Returns the part of a figure that shows one panel: its headings, chart and tooltip.
function makePart(panel, grid) {
  const [heading, unit] = [element("h4"), element("p", { className: "unit" })];
  const ariaLabel = `${panel.title}: left and right arrows read values`;
  const holder = element("div", { className: "chart", tabIndex: 0, role: "application", ariaLabel });
  const tip = element("div", { className: "tip", ariaLive: "polite" });
  grid.append(element("div", {}, heading, unit, holder, tip));
  const paper = panel.references.map(([value, name]) => `paper: ${name} ${format(value)}`);
  const values = panel.curves.flatMap((curve) => curve.runs.flatMap((run) => run.value));
  const texts = new Set(values.filter((value) => typeof value === "string"));
  const lost = [...texts].map((text) => (text === "NaN" ? "× not a number" : "▲ infinite"));
  let chart = null;
  const leave = () => chart?.setCursor({ left: -10, top: -10 });
  holder.addEventListener("blur", leave);
  holder.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return leave();
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !chart) return;
    event.preventDefault();
    const xs = chart.data[0];
    const from = chart.cursor.left >= 0 ? chart.cursor.idx : step > 0 ? -1 : xs.length;
    const index = Math.min(xs.length - 1, Math.max(0, from + step));
    chart.setCursor({ left: chart.valToPos(xs[index], "x"), top: 10 });
  });
  new ResizeObserver(() => chart?.setSize({ width: holder.clientWidth, height: holder.clientHeight })).observe(holder);
  return () => {
    heading.textContent = panel.title + (isDifference(panel) ? ", minus LN’s" : "");
    unit.textContent = [panel.y, ...(isDifference(panel) ? [] : paper), ...lost].join(" · ");
    chart?.destroy();
    tip.replaceChildren();
    chart = plot(panel, holder, tip);
  };
}

function makeLive(figure, panels) {
  const parts = ["controls", "legend", "panels"].map((className) => element("div", { className }));
  const [controls, legend, grid] = parts;
  figure.classList.add("live");
  figure.querySelector(".drawing").before(...parts);
  const has = (name) => panels.some((panel) => panel.curves.some((curve) => curve.runs.some((run) => run[name])));
  const byEpoch = panels.every((panel) => panel.x === "epoch");
  const axes = Object.keys(AXES).filter((name) => name === "epoch" || (byEpoch && has(name)));
  const choices = axes.length > 1 ? [choice("x axis", "x", axes.map((name) => [name, name]))] : [];
  if (has("difference")) choices.push(choice("values", "difference", [[true, "minus LN’s"], [false, "absolute"]]));
  controls.append(...choices.map((one) => one.group));
  const updates = choices.map((one) => one.update);
  updates.push(fillLegend(legend, panels), ...panels.map((panel) => makePart(panel, grid)));
  let seen = false;
  const render = () => seen && updates.forEach((update) => update());
  renders.push(render);
  new IntersectionObserver(([entry], observer) => {
    if (!entry.isIntersecting) return;
    observer.disconnect();
    seen = true;
    render();
  }, { rootMargin: "300px" }).observe(figure);
}

for (const [name, panels] of Object.entries(PANELS)) makeLive(document.getElementById(`figure-${name}`), panels);
dark.addEventListener("change", renderAll);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));

// The list of contents shows where the reader is; a link opens the section that it leads to.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const reading = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) links.get(target.id)?.toggleAttribute("aria-current", isIntersecting);
}, { rootMargin: "-10% 0px -75% 0px" });
for (const [id, link] of links) {
  const section = document.getElementById(id);
  reading.observe(section);
  link.addEventListener("click", () => section.querySelector(":scope > details")?.setAttribute("open", ""));
}
