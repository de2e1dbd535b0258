"use strict";
(() => {
const data = JSON.parse(document.getElementById("figures").textContent);
const byId = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const first = data.choices[0].named ? data.choices.find(c => c.published.length) || data.choices[0] : data.choices[0];
const state = {choice: first, n: first.n, epsilon: 1, delta: "0", relation: first.neighbours, prior: 0.1};
const cache = new Map();  // "key n delta relation" -> Map of epsilon -> point
let wanted = 0;  // counts changes, so that answers to old questions are dropped

/* ---- small tools ---- */
function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") node.textContent = value; else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter(child => child !== null));
  return node;
}
function shape(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
const percent = (share, digits = 1) => (100 * share).toFixed(digits) + "\u00a0%";
const number = value => value && Math.abs(value) < 1e-3 ? Number(value.toPrecision(4)).toExponential() : Number(value.toPrecision(4)).toString();
const sentence = words => words.charAt(0).toUpperCase() + words.slice(1);
const thousands = value => value.toLocaleString("en");
function table(caption, headings, rows, firstIsHeading) {
  const head = el("thead", {}, el("tr", {}, ...headings.map(h => el("th", {scope: "col", text: h}))));
  const body = el("tbody", {}, ...rows.map(row => el("tr", {}, ...row.map((cell, i) =>
    cell instanceof Node ? el("td", {}, cell) : el(i === 0 && firstIsHeading ? "th" : "td", {scope: i === 0 && firstIsHeading ? "row" : null, text: cell})))));
  return el("div", {class: rows.length > 14 ? "scroll tall" : "scroll", tabindex: rows.length > 14 ? "0" : null}, el("table", {}, caption ? el("caption", {text: caption}) : null, head, body));
}

/* ---- the arithmetic of belief, as in adlm.privacy.accounting: pure epsilon, or the mu of Gaussian noise ---- */
function normal(x) {  // the distribution function; error below 1.2e-7 of its value (Numerical Recipes, erfcc)
  const z = Math.abs(x) / Math.SQRT2, t = 1 / (1 + z / 2);
  const series = [0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223];
  const tail = t * Math.exp(-z * z + series.reduce((sum, term) => sum * t + term, 0)) / 2;
  return x < 0 ? tail : 1 - tail;
}
function largest(holds, low, high) {  // of an interval that holds below a point and not above it
  for (let i = 0; i < 80; i++) {
    const middle = (low + high) / 2;
    if (holds(middle)) low = middle; else high = middle;
  }
  return low;
}
function gaussianMu(epsilon, delta) {
  return largest(mu => normal(mu / 2 - epsilon / mu) - Math.exp(epsilon) * normal(-mu / 2 - epsilon / mu) <= delta, 0, 64);
}
function oddsFactor(epsilon, delta) {
  if (!delta) return Math.exp(Math.min(epsilon, 700));
  return normal(largest(x => normal(x) <= data.alarm, -40, 0) + gaussianMu(epsilon, delta)) / data.alarm;
}
function posterior(prior, factor) {
  const odds = prior / (1 - prior) * factor;
  return odds === Infinity ? 1 : odds / (1 + odds);
}
function bestGuess(epsilon, delta) {
  return delta ? normal(gaussianMu(epsilon, delta) / 2) : 1 / (1 + Math.exp(-epsilon));
}

/* ---- where forecasts come from: this file, or the server on this machine ---- */
const curveKey = s => `${s.choice.key} ${s.n} ${s.delta} ${s.relation}`;
function known(s) {
  const key = curveKey(s);
  if (!cache.has(key)) {
    const points = s.n === s.choice.n ? s.choice.curves[`${s.delta} ${s.relation}`] || [] : [];
    cache.set(key, new Map(points.map(p => [p.epsilon, p])));
  }
  return cache.get(key);
}
async function ask(path, parameters) {
  const answer = await fetch(`api/${path}?${new URLSearchParams(parameters)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}
async function simulate() {
  if (!data.live) return;
  const mine = ++wanted, s = {...state}, points = known(s);
  const question = {choice: s.choice.key, n: s.n, delta: s.delta, neighbours: s.relation};
  const busy = words => { byId("busy").textContent = words; };
  try {
    if (!points.asked) {
      points.asked = true;
      for (const p of (await ask("curve", question)).points) points.set(p.epsilon, p);
      if (mine === wanted) draw();
    }
    const missing = [s.epsilon, ...data.epsilons].filter(e => !points.has(e));
    for (const [i, epsilon] of missing.entries()) {
      if (mine !== wanted) return;
      busy(`simulating on synthetic records, ${missing.length - i} budgets to go`);
      const p = await ask("point", {...question, epsilon: String(epsilon)});
      points.set(epsilon, p);
      if (mine === wanted) draw();
    }
    if (mine === wanted) busy("");
  } catch (error) {
    if (mine === wanted) busy(error instanceof TypeError ? "the server has stopped; start adlm ui again" : error.message);
  }
}

/* ---- the current point: exact where it is known, between its neighbours where it is not ---- */
function between(points, epsilon) {
  const sorted = [...points].sort((a, b) => a.epsilon - b.epsilon);
  const exact = sorted.find(p => Math.abs(p.epsilon - epsilon) < 1e-12);
  if (exact) return {...exact, exact: true};
  const after = sorted.findIndex(p => p.epsilon > epsilon);
  if (after < 1) return null;
  const [a, b] = [sorted[after - 1], sorted[after]];
  const share = Math.log(epsilon / a.epsilon) / Math.log(b.epsilon / a.epsilon);
  const mix = key => a[key] === null || b[key] === null || a[key] === undefined ? null : a[key] + share * (b[key] - a[key]);
  return {...(share < 0.5 ? a : b), epsilon, accuracy: mix("accuracy"), low: mix("low"), high: mix("high"), noise: mix("noise"), exact: false};
}
const pure = () => state.delta === "0";
function ours() {
  return state.choice.measured.filter(m => m.family === "ours" && m.neighbours === state.relation && (pure() ? !m.delta : m.delta === Number(state.delta)));
}
function theirs() {  // of the same relation and delta: DP-SGD has no pure epsilon
  return state.choice.measured.filter(m => m.family === "dp-sgd" && m.neighbours === state.relation && m.delta === Number(state.delta));
}
function published() {  // pure beside pure; a figure whose delta is not stated is shown in both
  return state.choice.published.filter(p => p.epsilon >= 0.018 && p.epsilon <= 11 && (p.delta === null || pure() === !p.delta));
}
/* known points with an accuracy: tables have none */
const forecasts = () => [...known(state).values()].filter(p => p.accuracy !== null).sort((a, b) => a.epsilon - b.epsilon);
/* ---- the other end: from the accuracy that is needed, or the guesses that are accepted, to epsilon ---- */
function epsilonForAccuracy(need) {
  const points = forecasts();
  const after = points.findIndex(p => p.accuracy >= need);
  if (after < 1) return after === 0 ? points[0].epsilon : null;
  const [a, b] = [points[after - 1], points[after]], share = (need - a.accuracy) / (b.accuracy - a.accuracy);
  return data.live ? Number((a.epsilon * (b.epsilon / a.epsilon) ** share).toPrecision(3)) : b.epsilon;
}
function epsilonForGuess(guess) {
  const most = largest(e => bestGuess(e, Number(state.delta)) <= guess, 0, 100);
  const allowed = data.live ? [Math.floor(1000 * most) / 1000] : data.epsilons.filter(e => e <= most);
  return allowed.length && allowed[allowed.length - 1] >= data.epsilons[0] ? allowed[allowed.length - 1] : null;
}
function note(name, words, bad) {
  const line = byId(`${name}-note`);
  line.hidden = !words;
  line.textContent = words;
  line.classList.toggle("bad", Boolean(bad));
  byId(name).setAttribute("aria-invalid", String(Boolean(bad)));
}
function solve(name, low, high, find, none) {
  const field = byId(name);
  field.addEventListener("change", () => {
    if (!field.value.trim()) return note(name, "");
    const given = Number(field.value.replace("%", "").replace(",", "."));
    if (!(given > low && given < high)) return note(name, `give a number between ${low} and ${high}`, true);
    const epsilon = find(given / 100);
    if (epsilon === null) return note(name, none, true);
    note(name, `epsilon ${number(epsilon)}${pure() ? "" : `, mu ${number(gaussianMu(epsilon, Number(state.delta)))}`}`);
    setEpsilon(epsilon);
  });
}

/* ---- the large chart ---- */
function chart(current) {
  const box = byId("chart"), width = Math.max(280, box.clientWidth || 640), narrow = width < 520;
  const height = narrow ? 260 : 330, left = 36, right = 16, top = 18, bottom = 42;
  const points = forecasts();
  const own = state.n === state.choice.n ? ours() : [], other = theirs();
  const dots = published();
  const low = data.epsilons[0], high = data.epsilons[data.epsilons.length - 1];
  const values = [...points.flatMap(p => [p.accuracy, p.low ?? p.accuracy, p.high ?? p.accuracy]),
    ...own.flatMap(m => m.points.map(p => p.accuracy)), ...other.slice(0, 1).flatMap(m => m.points.map(p => p.accuracy)), ...dots.map(p => p.accuracy)];
  const least = values.length ? Math.max(0, Math.floor(10 * Math.min(...values)) / 10) : 0;
  const most = values.length ? Math.min(1, Math.ceil(20 * Math.max(...values)) / 20) : 1;
  const x = e => left + Math.log(e / low) / Math.log(high / low) * (width - left - right);
  const y = a => height - bottom - (a - least) / Math.max(1e-9, most - least) * (height - top - bottom);
  const said = points.length && current ? `Forecast ${percent(current.accuracy)} at epsilon ${number(state.epsilon)}` : "No forecast";
  const svg = shape("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${sentence(state.choice.measure)} over epsilon for ${state.choice.title}. ${said}. All figures are in the table below.`});
  const step = most - least > 0.5 ? 0.2 : most - least > 0.22 ? 0.1 : 0.05;
  for (let a = Math.ceil(least / step - 1e-9) * step; a <= most + 1e-9; a += step) {
    svg.append(shape("line", {class: "grid", x1: left, x2: width - right, y1: y(a), y2: y(a)}),
      shape("text", {x: left - 7, y: y(a) + 4, "text-anchor": "end"}, (100 * a).toFixed(0)));
  }
  for (const e of narrow ? [0.02, 0.1, 0.5, 1, 3, 10] : [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 10]) {
    svg.append(shape("line", {class: "axis", x1: x(e), x2: x(e), y1: height - bottom, y2: height - bottom + 4}),
      shape("text", {x: x(e), y: height - bottom + 18, "text-anchor": "middle"}, String(e)));
  }
  svg.append(shape("line", {class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom}),
    shape("text", {x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle"}, "epsilon"),
    shape("text", {x: left + 4, y: top - 3}, `${state.choice.measure}, %`));
  const path = list => list.map((p, i) => `${i ? "L" : "M"}${x(p.epsilon).toFixed(1)},${y(p.accuracy).toFixed(1)}`).join("");
  const clip = shape("clipPath", {id: "inside"});  // a curve may leave the picture; the table has all of it
  clip.append(shape("rect", {x: left - 5, y: top - 6, width: width - left - right + 10, height: height - top - bottom + 6}));
  const drawn = shape("g", {"clip-path": "url(#inside)"});
  svg.append(clip, drawn);
  const line = (list, style) => drawn.append(shape("path", {class: `l ${style}`, d: path(list)}));
  other.forEach((m, i) => {
    line(m.points, `theirs${i}`);
    m.points.forEach(p => drawn.append(shape("circle", {class: `p theirs${i}`, cx: x(p.epsilon), cy: y(p.accuracy), r: 2.4})));
  });
  const banded = points.filter(p => p.low !== null);
  if (banded.length > 1) {
    const up = banded.map(p => `${x(p.epsilon).toFixed(1)},${y(p.high).toFixed(1)}`);
    const down = banded.map(p => `${x(p.epsilon).toFixed(1)},${y(p.low).toFixed(1)}`).reverse();
    drawn.append(shape("polygon", {class: "band", points: [...up, ...down].join(" ")}));
  }
  if (points.length) line(points, "forecast");
  points.filter(() => points.length < 8).forEach(p => drawn.append(shape("circle", {class: "p forecast", cx: x(p.epsilon), cy: y(p.accuracy), r: 3})));
  own.forEach(m => {
    line(m.points, "ours");
    m.points.forEach(p => {
      if (p.sd) drawn.append(shape("line", {class: "whisker", x1: x(p.epsilon), x2: x(p.epsilon), y1: y(p.accuracy - p.sd), y2: y(Math.min(1, p.accuracy + p.sd))}));
      drawn.append(shape("circle", {class: "p ours", cx: x(p.epsilon), cy: y(p.accuracy), r: 3}));
    });
  });
  dots.forEach(p => {
    const cx = x(p.epsilon), cy = y(p.accuracy), r = 4.2;
    const mark = shape("path", {class: `x ${p.status}`, d: `M${cx - r},${cy - r}L${cx + r},${cy + r}M${cx - r},${cy + r}L${cx + r},${cy - r}`});
    mark.append(shape("title", {}, `${p.what}: ${percent(p.accuracy)} at epsilon ${p.epsilon}, ${p.source} (${p.status})`));
    svg.append(mark);
  });
  const at = Math.min(high, Math.max(low, state.epsilon));
  svg.append(shape("line", {class: "now", x1: x(at), x2: x(at), y1: top, y2: height - bottom}));
  if (points.length && current) {
    svg.append(shape("circle", {class: "knob", cx: x(at), cy: y(current.accuracy), r: 7}));
    const end = x(at) > width - 110, below = y(current.accuracy) < top + 24;
    svg.append(shape("text", {class: "strong", x: x(at) + (end ? -12 : 12), y: y(current.accuracy) + (below ? 20 : -10), "text-anchor": end ? "end" : "start"}, percent(current.accuracy)));
  }
  const area = shape("rect", {class: "catch", x: left, y: top, width: width - left - right, height: height - top - bottom});
  const pick = event => {
    const place = svg.getBoundingClientRect(), share = ((event.clientX - place.left) / place.width * width - left) / (width - left - right);
    const epsilon = low * Math.exp(Math.min(1, Math.max(0, share)) * Math.log(high / low));
    setEpsilon(nearest(epsilon));
  };
  area.addEventListener("pointerdown", event => { area.setPointerCapture(event.pointerId); pick(event); });
  area.addEventListener("pointermove", event => { if (event.buttons) pick(event); });
  svg.append(area);
  box.replaceChildren(svg);
  legend(points, own, other, dots);
}
function legend(points, own, other, dots) {
  const entries = [];
  const sample = (style, kind) => {
    const svg = shape("svg", {viewBox: "0 0 28 12", "aria-hidden": "true"});
    svg.append(kind === "x" ? shape("path", {class: `x ${style}`, d: "M10,2L18,10M10,10L18,2"}) : kind === "band" ? shape("rect", {class: "band", x: 0, y: 0, width: 28, height: 12}) : shape("path", {class: `l ${style}`, d: "M1,6L27,6"}));
    return svg;
  };
  const add = (svg, words) => entries.push(el("li", {}, svg, words));
  if (points.length) add(sample("forecast"), "forecast on synthetic classes");
  if (points.some(p => p.low !== null)) add(sample("", "band"), "± one standard deviation over synthetic tasks");
  own.forEach(m => add(sample("ours"), `measured: ${m.label}`));
  other.forEach((m, i) => add(sample(`theirs${i}`), `measured: ${m.label} (${m.neighbours})`));
  if (dots.some(p => p.status !== "disputed")) add(sample("", "x"), "published by others");
  if (dots.some(p => p.status === "disputed")) add(sample("disputed", "x"), "published, and disputed since");
  byId("legend").replaceChildren(...entries);
}

/* ---- the picture of belief ---- */
function beliefChart(factor) {
  const size = 280, left = 42, bottom = 36, top = 10, right = 16;
  const x = p => left + p * (size - left - right), y = p => size - bottom - p * (size - top - bottom);
  const after = posterior(state.prior, factor);
  const svg = shape("svg", {viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": `Belief after the release over belief before it: from ${percent(state.prior, 0)} to at most ${percent(after)}.`});
  for (const t of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(shape("line", {class: "grid", x1: left, x2: size - right, y1: y(t), y2: y(t)}), shape("line", {class: "grid", x1: x(t), x2: x(t), y1: top, y2: size - bottom}));
    svg.append(shape("text", {x: left - 6, y: y(t) + 4, "text-anchor": "end"}, 100 * t), shape("text", {x: x(t), y: size - bottom + 16, "text-anchor": "middle"}, 100 * t));
  }
  const steps = Array.from({length: 101}, (_, i) => i / 100);
  const bound = (p, f) => p <= 0 || p >= 1 ? p : posterior(p, f);
  const up = steps.map(p => `${x(p).toFixed(1)},${y(bound(p, factor)).toFixed(1)}`), down = steps.map(p => `${x(p).toFixed(1)},${y(bound(p, 1 / factor)).toFixed(1)}`).reverse();
  svg.append(shape("polygon", {class: "band", points: [...up, ...down].join(" ")}), shape("polyline", {class: "l forecast", points: up.join(" ")}),
    shape("line", {class: "l coin", x1: x(0), y1: y(0), x2: x(1), y2: y(1)}),
    shape("line", {class: "now", x1: x(state.prior), x2: x(state.prior), y1: y(state.prior), y2: y(after)}),
    shape("circle", {class: "knob", cx: x(state.prior), cy: y(after), r: 6}),
    shape("text", {x: (left + size - right) / 2, y: size - 4, "text-anchor": "middle"}, "likely before, %"),
    shape("text", {x: 10, y: (top + size - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 10 ${(top + size - bottom) / 2})`}, "after, at most, %"));
  byId("belief-chart").replaceChildren(svg);
}
const times = factor => factor > 1e6 ? "more than a million times" : `${Number(factor.toPrecision(3))} times`;

/* ---- everything that follows from the state ---- */
function draw() {
  const current = between(known(state).values(), state.epsilon);
  const delta = Number(state.delta), factor = oddsFactor(state.epsilon, delta), guess = bestGuess(state.epsilon, delta);
  const own = state.n === state.choice.n ? ours().map(m => between(m.points, state.epsilon)).find(p => p) : null;
  const other = theirs().map(m => [m, between(m.points, state.epsilon)]).find(([, p]) => p);
  const tile = (title, value, note, style) => el("section", {class: `tile ${style || ""}`}, el("h3", {text: title}), el("b", {text: value}), el("p", {text: note}));
  const interval = current && current.low !== null ? `between ${percent(current.low)} and ${percent(current.high)}` : "";
  const declared = state.choice.kind === "table", noise = current && declared ? `${number(current.noise)} records` : "";
  const tiles = [declared ? tile("Noise on each weight", noise || "…", `of ${state.n.toLocaleString("en")}: what so many or fewer have in common hardly shows`, "main") : tile(`Forecast ${state.choice.measure}`, current ? percent(current.accuracy) : "…", current ? interval + (current.exact ? "" : ", between two simulations") : data.live ? "not simulated yet" : "not simulated beforehand", "main")];
  if (own) tiles.push(tile("Measured on its test set", percent(own.accuracy), `${own.exact ? `mean of ${own.seeds} release${own.seeds === 1 ? "" : "s"}` : "between two measured budgets"}`));
  if (other) tiles.push(tile("DP-SGD, measured", percent(other[1].accuracy), `${other[0].label}, delta ${state.delta}, ${other[0].neighbours}`, "theirs"));
  tiles.push(tile("An attacker guesses right", percent(guess), "at most, between two possibilities; a coin has 50 %"));
  if (!own || !other) tiles.push(tile("Their odds grow", times(factor), delta ? "at most, from a test with a 1 % false-alarm rate" : "at most, whatever they compute"));
  if (delta) tiles.push(tile("Mu of Gaussian noise", number(gaussianMu(state.epsilon, delta)), "what is guessed is as hard to tell as a normal draw with mean mu from one with mean 0; epsilon and delta are the guarantee"));
  byId("tiles").replaceChildren(...tiles);
  const gaussian = delta ? `, mu ${number(gaussianMu(state.epsilon, delta))}` : "";
  byId("said").textContent = current ? `Epsilon ${number(state.epsilon)}, delta ${state.delta}${gaussian}: ${declared ? `noise on each weight as strong as ${noise}` : `forecast ${percent(current.accuracy)}`}${interval ? ", " + interval : ""}; an attacker guesses right at most ${percent(guess)}.` : "";
  chart(current);
  figuresTable();
  byId("remark").textContent = current ? current.remark || "Forecasts are for synthetic classes, as near to each other as real ones were found to lie; yours may be easier or harder." : "";
  believe(factor, guess, delta);
  byId("words").replaceChildren(...(current ? current.words : [data.live ? "The plan is being made." : "This budget was not simulated beforehand; adlm ui does it."]).map(w => el("li", {text: w})));
  command();
  warn(delta);
}
function believe(factor, guess, delta) {
  const person = state.choice.unit !== "record", added = state.relation === "add-remove";
  const suspicion = added ? `that ${person ? "they are" : "it is"} among the records` : person ? "two hypotheses about their records" : "two hypotheses about it";
  const people = person ? ` The guarantee is per ${state.choice.unit}.` : "";
  byId("belief").textContent = `Somebody knows ${person ? "all records but those of one person" : "every record but one"}, and ${added ? `suspects of that ${person ? "person" : "one"} ${suspicion}` : `has ${suspicion}`}. Whatever they compute from the release, their odds grow at most ${times(factor)}${delta ? ", from a test with a 1 % false-alarm rate" : ""}.${people}`;
  const after = posterior(state.prior, factor), then = byId("then");
  byId("prior-shown").textContent = percent(state.prior, 0);
  byId("prior").setAttribute("aria-valuetext", `${percent(state.prior, 0)} before, at most ${percent(after)} after`);
  then.replaceChildren("Afterwards it is at most ", el("b", {text: percent(after)}), ".");
  beliefChart(factor);
}
function figuresTable() {
  const rows = [...known(state).values()].sort((a, b) => a.epsilon - b.epsilon).map(p => p.accuracy === null ? ["noise on each weight", number(p.epsilon), `${number(p.noise)} records`, "", "", "the plan"]
    : ["forecast", number(p.epsilon), percent(p.accuracy), `${percent(p.low)} to ${percent(p.high)}`, "", "synthetic records"]);
  for (const m of [...ours(), ...theirs()]) for (const p of m.points) rows.push([m.label, number(p.epsilon), percent(p.accuracy), p.sd === null ? "" : `± ${percent(p.sd)}`, m.neighbours, `measured here, ${p.seeds} seed${p.seeds === 1 ? "" : "s"}`]);
  for (const p of published()) rows.push([p.what, number(p.epsilon), percent(p.accuracy), "", p.relation || "not stated", `${p.source}, ${p.status}`]);
  byId("figures-table").replaceChildren(table("Accuracy of every curve and mark above", ["what", "epsilon", state.choice.measure, "interval", "relation", "from"], rows, true));
}
function command() {
  const c = state.choice, quoted = word => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
  const budget = [`--epsilon ${number(state.epsilon)}`, pure() ? "" : `--delta ${state.delta}`];
  let text, note = "This page cannot run it: a release spends budget, and that is for you to do.";
  if (c.origin) {
    const origin = c.named ? c.origin : `TABLE.csv --domain ${quoted(c.file)}`;
    const limit = c.named && state.n < c.n ? `--limit ${state.n}` : "";
    const guess = state.relation === "add-remove" ? `--size ${state.n}` : "";
    text = ["adlm release", origin, ...budget, `--neighbours ${state.relation}`, limit, guess, "--out release"].filter(w => w).join(" ");
    if (!c.named) note += " Put the name of your file in place of TABLE.csv.";
  } else {
    const size = state.relation === "add-remove" ? `, size=${state.n}` : "";
    text = `from dataclasses import replace\nfrom adlm import Domain, privatise\n\ndomain = replace(Domain.load(${JSON.stringify(c.file)}), neighbours="${state.relation}")\nrelease = privatise(x, y, domain=domain, epsilon="${number(state.epsilon)}", delta="${state.delta}"${size})\nrelease.save("release")`;
    note += " Records of such a domain come as arrays x and y, from Python.";
  }
  byId("command").textContent = text;
  byId("command-note").textContent = note;
}
function warn(delta) {
  const words = [];
  if (delta >= 1 / state.n) words.push(`Delta ${state.delta} is at least 1/n: so much is met by publishing a random record as it is, and a release is stamped NOT PRIVATE.`);
  if (state.epsilon > 10) words.push(`Epsilon ${number(state.epsilon)} is large: odds about a ${state.choice.unit} can change e^${number(state.epsilon)} times.`);
  if (state.choice.named && state.n > state.choice.n) words.push(`${state.choice.title} has ${thousands(state.choice.n)} training records.`);
  byId("warning").hidden = !words.length;
  byId("warning").textContent = words.join(" ");
}

/* ---- controls ---- */
const nearest = epsilon => data.epsilons.reduce((a, b) => Math.abs(Math.log(b / epsilon)) < Math.abs(Math.log(a / epsilon)) ? b : a);
function show() {
  const slider = byId("epsilon"), delta = byId("delta"), exact = byId("exact");
  slider.value = data.epsilons.indexOf(nearest(state.epsilon));
  slider.setAttribute("aria-valuetext", `epsilon ${number(state.epsilon)}`);
  if (document.activeElement !== exact) exact.value = number(state.epsilon);
  delta.value = data.deltas.indexOf(state.delta);
  const said = pure() ? "0, pure epsilon" : state.delta;
  delta.setAttribute("aria-valuetext", `delta ${said}`);
  byId("delta-shown").textContent = pure() ? "0" : state.delta;
  if (document.activeElement !== byId("size")) byId("size").value = thousands(state.n);
  for (const radio of document.querySelectorAll("[name=relation]")) radio.checked = radio.value === state.relation;
  byId("choice").value = state.choice.key;
  draw();
}
let timer = 0;
function changed() { wanted++; show(); clearTimeout(timer); timer = setTimeout(simulate, 120); }
function setEpsilon(epsilon) { if (epsilon !== state.epsilon) { state.epsilon = epsilon; changed(); } }
function fill() {
  byId("choice").replaceChildren(...data.choices.map(c => el("option", {value: c.key, text: c.title})));
}
function controls() {
  byId("epsilon").max = data.epsilons.length - 1;
  byId("delta").max = data.deltas.length - 1;
  byId("upload").hidden = !data.live;
  byId("size").readOnly = !data.live;
  byId("controls").addEventListener("submit", event => event.preventDefault());
  byId("epsilon").addEventListener("input", event => setEpsilon(data.epsilons[event.target.value]));
  byId("delta").addEventListener("input", event => { state.delta = data.deltas[event.target.value]; changed(); });
  byId("prior").addEventListener("input", event => { state.prior = event.target.value / 100; draw(); });
  for (const radio of document.querySelectorAll("[name=relation]")) radio.addEventListener("change", () => { state.relation = radio.value; changed(); });
  byId("choice").addEventListener("change", event => choose(data.choices.find(c => c.key === event.target.value)));
  byId("exact").addEventListener("change", event => {
    const given = Number(event.target.value), good = Number.isFinite(given) && given > 0 && given <= 100;
    note("exact", good ? "" : "epsilon must be a number above 0 and at most 100", !good);
    if (good) { state.epsilon = data.live ? Number(given.toPrecision(4)) : nearest(given); changed(); }
    if (good) event.target.value = number(state.epsilon);
  });
  byId("size").addEventListener("change", event => {
    const given = Number(event.target.value.replace(/[\s,_']/g, "")), good = Number.isInteger(given) && given >= 1 && given <= 1e9;
    note("size", good ? "" : "give a whole number between 1 and 1,000,000,000", !good);
    if (good && data.live) { state.n = given; changed(); }
    if (good) event.target.value = thousands(state.n);
  });
  solve("need", 0, 100, epsilonForAccuracy, "no budget on this page reaches that forecast");
  solve("accept", 50, 100, epsilonForGuess, "no budget on this page is that private");
  byId("file").addEventListener("change", event => upload(event.target));
  byId("copy").addEventListener("click", copy);
  if (!data.live) note("size", "This page was computed beforehand for this number; adlm ui computes for any.");
}
function choose(choice) {
  Object.assign(state, {choice, n: choice.n, relation: choice.neighbours});
  changed();
}
async function upload(input) {
  const file = input.files[0];
  if (!file) return;
  try {
    const body = JSON.stringify({name: file.name, text: await file.text(), n: state.n});
    const answer = await fetch("api/domain", {method: "POST", headers: {"Content-Type": "application/json"}, body});
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    if (!data.choices.some(c => c.key === found.key)) { data.choices.unshift(found); fill(); }
    note("size", `${file.name} is read; give the number of its records.`);
    choose(data.choices.find(c => c.key === found.key));
  } catch (error) {
    note("size", `${file.name}: ${error.message}`, true);
  }
  input.value = "";
}
async function copy() {
  const button = byId("copy"), text = byId("command").textContent;
  try { await navigator.clipboard.writeText(text); } catch (error) {
    const range = document.createRange();
    range.selectNodeContents(byId("command"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

/* ---- tabs, as the ARIA pattern has them ---- */
function tabs() {
  const all = [...document.querySelectorAll("[role=tab]")];
  const select = (tab, focus) => {
    for (const other of all) {
      const mine = other === tab;
      other.setAttribute("aria-selected", String(mine));
      other.tabIndex = mine ? 0 : -1;
      byId(other.getAttribute("aria-controls")).hidden = !mine;
    }
    if (focus) tab.focus();
    if (tab.id === "tab-plan") draw();
  };
  all.forEach((tab, i) => {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", event => {
      const to = {ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: all.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      select(all[(to + all.length) % all.length], true);
    });
  });
}

/* ---- releases, models, ledgers ---- */
const shownEpsilon = value => value === null ? "none proved" : number(value);
function belief(a) {
  if (a.odds === null) return "nothing is bounded";
  return `from 10 % to at most ${percent(posterior(0.1, a.odds.factor))}; right guesses at most ${percent(a.odds.guess)}`;
}
function releases() {
  const box = byId("releases");
  if (!data.artefacts.length) {
    box.replaceChildren(el("p", {class: "empty", text: "No release was given. Start the page with adlm ui FOLDER, where FOLDER holds releases or models."}));
    return;
  }
  box.replaceChildren(el("div", {class: "stack"}, ...data.artefacts.map(release)));
}
function release(a) {
  const title = el("div", {class: "heading"}, el("h2", {text: a.name}), a.private ? el("span", {class: "badge", text: `epsilon ${shownEpsilon(a.proved)} proved per ${a.unit}`}) : el("span", {class: "badge bad", text: "not private"}));
  const parts = [title, ...a.stamps.map(s => el("p", {class: "stamp", text: s.words}, el("small", {text: s.meaning}))), el("p", {text: `${sentence(a.sentence)} An attacker can come to believe: ${belief(a)}.`})];
  parts.push(el("dl", {class: "facts"}, ...a.facts.map(([name, value]) => el("div", {}, el("dt", {text: name}), el("dd", {text: value})))));
  const folded = (title, ...children) => el("details", {}, el("summary", {text: title}), ...children);
  parts.push(folded(`Certificate: ${a.charges.length} charge${a.charges.length === 1 ? "" : "s"}, claimed and proved`, charges(a.charges)));
  if (a.models.length) parts.push(folded(`${a.models.length} model${a.models.length === 1 ? "" : "s"} of it`, table("", ["model", "network", "epochs", "accuracy", "balanced", "measured on"], a.models.map(m => [m.name, m.network, m.epochs, m.accuracy === null ? "not measured" : percent(m.accuracy), m.balanced === null ? "" : percent(m.balanced), m.of]), true)));
  if (a.audit) parts.push(folded(`Audit: ${a.audit.summary}`, table("A lower bound must never lie above what is proved; controls are broken on purpose and must be caught.", ["mechanism", "attack", "proved", "lower bound", "verdict"], a.audit.rows.map(r => [r.mechanism, r.attack + (r.control ? " (control)" : ""), shownEpsilon(r.proved), r.lower === null ? "unbounded" : number(r.lower), el("span", {class: `badge ${/VIOLATED|NOT/.test(r.verdict) ? "bad" : "good"}`, text: r.verdict})]), true)));
  else parts.push(el("p", {class: "note", text: "No audit was kept with it: adlm audit --json > audit.json beside the folder."}));
  if (a.words.length) parts.push(folded("The plan that it followed", el("ul", {class: "words"}, ...a.words.map(w => el("li", {text: w})))));
  parts.push(folded("Check it, or make another", el("pre", {class: "plain"}, el("code", {text: `${a.verify}\n${a.again}`}))));
  return el("article", {class: "card", "aria-label": a.name}, ...parts);
}
function charges(list) {
  return table("", ["released", "noise", "per", "claimed", "proved", "delta", "mu", "proof"], list.map(c => [c.what, c.noise, c.unit, c.claimed, c.proved, c.delta, c.mu, c.proof]), true);
}
function compare() {
  const box = byId("compare");
  if (data.artefacts.length < 2) {
    box.replaceChildren(el("p", {class: "empty", text: "Two releases are needed. Start the page with adlm ui ONE OTHER."}));
    return;
  }
  const options = () => data.artefacts.map((a, i) => el("option", {value: i, text: a.name}));
  const first = el("select", {id: "first"}, ...options()), second = el("select", {id: "second"}, ...options());
  second.value = 1;
  const result = el("div", {id: "compared", "aria-live": "polite"});
  const update = () => {
    const [i, j] = [Number(first.value), Number(second.value)], [a, b] = [data.artefacts[i], data.artefacts[j]];
    const audit = x => x.audit ? x.audit.summary : "not kept";
    const rows = [...a.facts.map(([name, value], k) => [name, value, b.facts[k][1]]), ["an attacker can come to believe", belief(a), belief(b)], ["audit", audit(a), audit(b)], ["stamps", a.stamps.map(s => s.words).join("; ") || "none", b.stamps.map(s => s.words).join("; ") || "none"]];
    const made = table("What differs is marked.", ["", a.name, b.name], rows, true);
    [...made.querySelectorAll("tbody tr")].forEach((row, k) => { if (rows[k][1] !== rows[k][2]) { row.className = "differs"; row.firstChild.append(el("span", {class: "visually-hidden", text: " (differs)"})); } });
    const words = i === j ? "One and the same release: choose another." : data.pairs[`${Math.min(i, j)} ${Math.max(i, j)}`];
    result.replaceChildren(el("p", {text: words}), made);
  };
  first.addEventListener("change", update);
  second.addEventListener("change", update);
  box.replaceChildren(el("div", {class: "card"}, el("div", {class: "pickers"}, el("div", {class: "field"}, el("label", {for: "first", text: "One release"}), first), el("div", {class: "field"}, el("label", {for: "second", text: "Another"}), second)), result));
  update();
}
function ledgers() {
  const box = byId("ledgers");
  if (!data.ledgers.length) {
    box.replaceChildren(el("p", {class: "empty", text: "No ledger was given. Start the page with adlm ui --ledger FILE; adlm release prints where it keeps one."}));
    return;
  }
  box.replaceChildren(el("div", {class: "stack"}, ...data.ledgers.map(ledger)));
}
function ledger(book) {
  const parts = [el("h2", {text: book.name}), el("p", {text: `Spent: ${book.sentence}`})];
  if (book.budget === null) {
    parts.push(el("p", {class: "warning", text: "There is no budget: every charge is written down, and nothing is refused."}));
  } else {
    const share = book.spent === null ? 1 : Math.min(1, book.spent / book.budget.epsilon), bar = el("i");
    bar.style.width = `${100 * share}%`;
    parts.push(el("div", {class: "meter", role: "meter", "aria-label": "Spent of the budget", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * share)}, bar));
    parts.push(el("p", {text: `Of a budget of epsilon ${number(book.budget.epsilon)}, delta ${number(book.budget.delta)}, what one more release can have:`}));
    parts.push(table("", ["delta of the next release", ...data.relations], data.deltas.map(d => [d === "0" ? "0, pure epsilon" : d, ...data.relations.map(r => `epsilon ${number(book.left[`${d} ${r}`])}`)]), true));
  }
  if (book.charges.length) parts.push(el("details", {}, el("summary", {text: `${book.charges.length} charge${book.charges.length === 1 ? "" : "s"}`}), charges(book.charges)));
  return el("article", {class: "card", "aria-label": book.name}, ...parts);
}

/* ---- begin ---- */
byId("version").textContent = data.version;
fill();
controls();
tabs();
releases();
compare();
ledgers();
show();
simulate();
let drawn = innerWidth;
addEventListener("resize", () => { if (innerWidth !== drawn) { drawn = innerWidth; if (!byId("panel-plan").hidden) draw(); } });
window.adlm = {state, epsilonForAccuracy, epsilonForGuess, oddsFactor, gaussianMu, posterior, bestGuess, known: () => [...known(state).values()]};
})();
