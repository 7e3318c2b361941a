"""The look of the page, and its script: draws the figures and moves the maps with the time slider."""

import json

from fieldfill.data.flags import FILLED, FLAGS

__all__ = ["CSS", "SCRIPT"]

CSS = """
:root { --ink: #1d2733; --soft: #5b6773; --line: #dfe3e8; --ours: #0f4c75; --wash: #f4f6f8; }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; background: var(--wash); color: var(--ink); line-height: 1.55; font-size: 16px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial,
    sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 0 0 .35rem; }
h3 { font-size: .95rem; margin: 0; font-weight: 600; }
p { margin: .3rem 0 .8rem; max-width: 78ch; }
.lead { font-size: 1.1rem; max-width: 112ch; }
.note { color: var(--soft); font-size: .875rem; max-width: 110ch; }
nav { font-size: .875rem; margin: 1rem 0 0; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; }
nav a { color: var(--ours); text-decoration: none; border-bottom: 1px solid var(--line); }
section, .tile { background: #fff; border: 1px solid var(--line); border-radius: 8px; }
section { padding: 20px 22px 16px; margin-top: 18px; }
.tiles { display: grid; gap: 12px; margin-top: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 1.6rem; line-height: 1.2; font-weight: 600; color: var(--ours);
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .875rem; }
.row { display: grid; gap: 8px 18px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); }
.row > .wide { grid-column: span 2; }
.beside { font-size: 1rem; align-self: center; }
@media (max-width: 800px) { .row > .wide { grid-column: auto; } }
figure { margin: 6px 0 8px; min-width: 0; }
figure.map { max-width: 560px; }
.plot { width: 100%; }
.player { display: flex; gap: 12px; align-items: center; margin: .4rem 0 .6rem; padding: 6px 0;
  background: #fff; position: sticky; top: 0; z-index: 5; }
.player input { flex: 1; min-width: 80px; accent-color: var(--ours); }
.player output { font-variant-numeric: tabular-nums; font-weight: 600; min-width: 11ch; text-align: right; }
.player button { font: inherit; border: 1px solid var(--line); border-radius: 6px; background: var(--wash);
  min-width: 5.2em; padding: 3px 10px; cursor: pointer; color: var(--ink); }
.key { font-size: .9rem; padding: 4px 8px; }
.key dl { display: grid; grid-template-columns: auto 1fr; gap: 3px 14px; margin: .5rem 0 1rem; }
.key dt { color: var(--soft); } .key dd { margin: 0; font-variant-numeric: tabular-nums; font-weight: 600; }
.key ul { list-style: none; padding: 0; margin: .4rem 0; }
.key li { margin: .25rem 0; }
.swatch { display: inline-block; width: 22px; height: 14px; border: 1px solid #8b949e; margin-right: 8px;
  vertical-align: -2px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.gap { background: repeating-linear-gradient(45deg, #fff 0 3px, #9aa3ad 3px 4px); }
.land { background: #b9bcbf; } .alarm { background: #c2255c; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .93rem; margin: .5rem 0 .6rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 11px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--soft); font-weight: 600; font-size: .85rem; border-bottom: 2px solid var(--line); }
tr.ours td { background: #e6f0f7; font-weight: 700; color: var(--ours); print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }
tr.bound td { font-style: italic; color: var(--soft); }
td.bar { min-width: 190px; padding-right: 0; }
td.bar i { display: block; height: 12px; background: #9fb3c4; border-radius: 2px; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }
tr.ours td.bar i { background: var(--ours); }
table.made { table-layout: fixed; width: 100%; }
table.made th { width: 15em; color: var(--soft); font-weight: 600; vertical-align: top; }
table.made td { text-align: left; white-space: pre-wrap; overflow-wrap: anywhere; }
code, td.command { font-size: .9em;
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
@page { size: A4; margin: 11mm; }
@media print {
  body { background: #fff; zoom: var(--zoom, .6); }
  main { width: var(--width, 1240px); max-width: none; }
  .player button, .player input, nav { display: none !important; }
  .player { position: static; } .player output { text-align: left; }
  figure, .tile, table { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""

SCRIPT = """
"use strict";
(() => {
const FLAGS = @FLAGS, FILLED = @FILLED;
const CONFIG = {responsive: true, displaylogo: false, displayModeBar: false};
const read = id => JSON.parse(document.getElementById(id).textContent);

const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
function unpack(packed) {
  const codes = new Uint16Array(bytes(packed.codes).buffer);
  return Float32Array.from(codes, code => code === 65535 ? NaN : packed.low + packed.step * code);
}
const number = (value, units) => Number.isFinite(value) ? `${value.toPrecision(3)} ${units}` : "–";
const percent = (part, all) => all ? `${Math.round(100 * part / all)} %` : "–";

class Movie {
  constructor(element, packed, figures) {
    [this.frames, this.rows, this.columns] = packed.shape;
    this.element = element;
    this.packed = packed;
    this.flag = bytes(packed.flag);
    this.fields = {};
    for (const name of ["value", "truth", "std"]) if (packed[name]) this.fields[name] = unpack(packed[name]);
    const {value, truth, std} = this.fields, flag = this.flag;
    this.shown = {
      observed: i => flag[i] === FLAGS.observed ? value[i] : NaN,
      filled: i => value[i],
      truth: i => truth[i],
      std: i => std[i],
      error: i => FILLED.includes(flag[i]) ? value[i] - truth[i] : NaN,
      unsupported: i => flag[i] === FLAGS.filled_without_support ? 1 : NaN,
    };
    this.panels = [...element.querySelectorAll(".plot")];
    this.figures = figures;
    this.slider = element.querySelector("input");
    this.button = element.querySelector("button");
  }
  frame(name, k) {
    const out = [], first = k * this.rows * this.columns, show = this.shown[name];
    for (let row = 0; row < this.rows; row++)
      out.push(Float32Array.from({length: this.columns}, (_, j) => show(first + row * this.columns + j)));
    return out;
  }
  traces(panel, k) {
    const z = [this.frame(panel.dataset.shows, k)];
    return panel.dataset.shows === "filled" ? [...z, this.frame("unsupported", k)] : z;
  }
  draw() {
    const start = this.packed.start;
    const drawn = this.panels.map(panel => {
      const figure = this.figures[panel.id];
      this.traces(panel, start).forEach((z, n) => { figure.data[n + 1].z = z; });
      return Plotly.newPlot(panel, figure.data, figure.layout, CONFIG);
    });
    this.slider.addEventListener("input", () => this.show(+this.slider.value));
    this.button.addEventListener("click", () => this.timer ? this.pause() : this.play());
    this.describe(start);
    return Promise.all(drawn).then(panels => this.link(panels));
  }
  link(panels) {  // zooming one map zooms all
    let busy = false;
    for (const panel of panels) panel.on("plotly_relayout", change => {
      const keys = Object.keys(change).filter(key => /^[xy]axis\\.(range|autorange)/.test(key));
      if (busy || !keys.length) return;
      busy = true;
      const wanted = Object.fromEntries(keys.map(key => [key, change[key]]));
      Promise.all(panels.filter(other => other !== panel).map(other => Plotly.relayout(other, wanted)))
        .finally(() => { busy = false; });
    });
  }
  show(k) {
    this.slider.value = k;
    this.describe(k);
    return Promise.all(this.panels.map(panel => {
      const z = this.traces(panel, k);
      return Plotly.restyle(panel, {z}, z.map((_, n) => n + 1));
    }));
  }
  play() {
    this.button.textContent = "Pause";
    const step = () => this.show((+this.slider.value + 1) % this.frames).then(() => {
      if (this.timer) this.timer = setTimeout(step, 160);
    });
    this.timer = setTimeout(step, 0);
  }
  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    this.button.textContent = "Play";
  }
  describe(k) {
    const size = this.rows * this.columns, {value, truth, std} = this.fields;
    let inside = 0, seen = 0, missing = 0, squares = 0, variance = 0, covered = 0;
    for (let i = k * size; i < (k + 1) * size; i++) {
      if (this.flag[i] === FLAGS.outside_domain) continue;
      inside++;
      if (this.flag[i] === FLAGS.observed) { seen++; continue; }
      if (std) variance += std[i] ** 2;
      missing++;
      if (truth) squares += (value[i] - truth[i]) ** 2;
      if (truth && std && Math.abs(value[i] - truth[i]) <= 1.6449 * std[i]) covered++;
    }
    const shown = {
      time: this.packed.times[k], observed: percent(seen, inside),
      rmse: number(Math.sqrt(squares / missing), this.packed.units),
      std: number(Math.sqrt(variance / missing), this.packed.units), covered: percent(covered, missing),
    };
    for (const place of this.element.querySelectorAll("[data-entry]"))
      place.textContent = shown[place.dataset.entry];
  }
}

const figures = read("figures"), movies = read("movies"), drawn = [];
for (const element of document.querySelectorAll("[data-movie]"))
  drawn.push(new Movie(element, movies[element.dataset.movie], figures).draw());
for (const plot of document.querySelectorAll(".plot:not([data-shows])"))
  drawn.push(Plotly.newPlot(plot, figures[plot.id].data, figures[plot.id].layout, CONFIG));
addEventListener("beforeprint", () => {  // on paper the page is the screen's, scaled down as a whole
  const width = document.querySelector("main").offsetWidth, style = document.documentElement.style;
  style.setProperty("--width", `${width}px`);
  style.setProperty("--zoom", Math.min(1, 700 / width));
});
Promise.all(drawn).then(() => { document.body.dataset.drawn = document.querySelectorAll(".plot").length; });
})();
""".replace("@FLAGS", json.dumps(FLAGS)).replace("@FILLED", json.dumps(FILLED))
