// The fleet: a grid that is painted, or a list. Both draw only what is near the window, whatever the number of nodes.
import { at, cells, count, fault, fill, h, number, SIGNS } from "./elements.js";

const DENSE_FROM = 700; // nodes shown: beyond this the grid has no names
const NAMES = { cell: 13, gap: 2, pad: 7, label: 17, between: 6 };
const DENSE = { cell: 7, gap: 1, pad: 2, label: 0, between: 4 };
const A_ROW = 8; // cells side by side
const HEAD = 30;
const ROW = 32; // of the list
const STRIP = 384; // pixels of one canvas: a step of scrolling paints one or two of them
const FLASH_MS = 1200;
const MOST_PRINTED = 20000; // pixels
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Fleet {
  constructor(place, { href, open, said }) {
    Object.assign(this, { place, href, open, said, nodes: [], order: [], boxes: [], heads: [], flashes: new Map(), focused: -1, margin: 0, state: null });
    this.grid = h("div", { class: "grid", role: "group", "aria-label": "Nodes. Arrow keys move, Enter opens." });
    this.strips = new Map(); // number from the top → its canvas
    this.palette = new Map();
    this.titles = h("div");
    this.cursor = h("a", { class: "tile", "data-key": "cursor", href: "#", onkeydown: (event) => this.key(event), onfocus: () => this.put(this.nearest()) });
    this.under = h("a", { class: "tile hover", tabindex: "-1", "aria-hidden": "true", href: "#" });
    this.grid.append(this.titles, this.cursor, this.under);
    this.list = h("table", { class: "list" });
    place.append(this.grid, this.list);
    this.wanted = false;
    const draw = () => { if (!this.wanted) { this.wanted = true; requestAnimationFrame(() => { this.wanted = false; this.draw(); }); } };
    this.soon = draw;
    addEventListener("scroll", draw, { passive: true });
    addEventListener("beforeprint", () => { this.margin = MOST_PRINTED; this.draw(); });
    addEventListener("afterprint", () => { this.margin = 0; draw(); });
    new ResizeObserver(() => { if (this.width !== place.clientWidth) { this.lay(); draw(); } }).observe(place);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)", `(resolution: ${devicePixelRatio}dppx)`]) matchMedia(query).addEventListener("change", () => { this.palette.clear(); this.forget(); draw(); });
    this.grid.addEventListener("mousemove", (event) => this.hover(event));
    this.grid.addEventListener("click", (event) => { // a touch comes without a pointer that moved before
      const nth = event.target.closest("a") ? -1 : this.hit(event);
      if (nth >= 0) location.hash = this.href(this.nodes[this.boxes[nth].place][0]);
    });
    this.grid.addEventListener("mouseleave", () => { at("tip").hidden = true; this.under.hidden = true; });
  }

  // `order`: places of `nodes` in groups, [{ title, note, short, places }]; what is free of them now is asked at each drawing.
  show(nodes, groups, state, team) {
    Object.assign(this, { nodes, groups, state, team, total: groups.reduce((sum, group) => sum + group.places.length, 0) });
    this.grid.hidden = state.as === "list" || !this.total;
    this.list.hidden = state.as !== "list" || !this.total;
    this.lay();
    this.draw();
  }

  // Nodes changed in place: nothing moves, and only what shows them is painted again.
  touch(places) {
    const until = performance.now() + FLASH_MS;
    const again = () => {
      const changed = new Set(places);
      if (this.state?.as === "list") this.listed = null;
      else for (const box of this.boxes) if (changed.has(box.place)) for (let strip = Math.floor(box.y / STRIP); strip <= Math.floor((box.y + box.h) / STRIP); strip += 1) if (this.strips.has(strip)) this.strips.get(strip).stale = true;
      this.soon();
    };
    if (!still.matches) { for (const place of places) this.flashes.set(place, until); setTimeout(again, FLASH_MS + 50); }
    again();
  }

  clear() { // nothing of what was shown stays
    Object.assign(this, { nodes: [], groups: null, boxes: [], heads: [], titled: "", listed: null, focused: -1, data: null });
    for (const canvas of this.strips.values()) canvas.remove();
    this.strips.clear();
    fill(this.titles);
    fill(this.list);
    this.cursor.removeAttribute("aria-label");
    this.cursor.href = this.under.href = "#";
    this.grid.hidden = this.list.hidden = at("tip").hidden = true;
    at("tip").textContent = "";
  }

  // The first tile that can be seen, and how far from the top of the window: for keepInSight().
  inSight() {
    if (!this.groups || this.state?.as === "list" || !scrollY) return null;
    const top = -this.grid.getBoundingClientRect().top;
    const box = this.boxes[first(this.boxes, Math.max(0, top))];
    return box && { name: this.nodes[box.place][0], from: box.y - top };
  }

  keepInSight(kept) {
    const box = kept && this.boxes.find((each) => this.nodes[each.place][0] === kept.name);
    if (box) scrollBy(0, box.y + this.grid.getBoundingClientRect().top - kept.from);
  }

  forget() {
    for (const strip of this.strips.values()) strip.stale = true;
    this.listed = null;
  }

  lay() {
    if (!this.groups) return;
    const width = this.place.clientWidth;
    this.width = width;
    this.forget();
    if (this.state.as === "list") return;
    const dense = this.total > DENSE_FROM;
    const size = this.size = dense ? DENSE : NAMES;
    const pitch = size.cell + size.gap;
    let y = 0;
    this.boxes = []; this.heads = [];
    if (this.state.group === "rack") y = this.layBlocks(width, dense);
    else for (const group of this.groups) {
      if (group.title) { this.heads.push({ x: 0, y, w: width, ...group }); y += HEAD; }
      const most = group.places.reduce((sum, place) => Math.max(sum, this.nodes[place][3].length), 1);
      const least = Math.max(dense ? 0 : 128, Math.min(A_ROW, most) * pitch - size.gap + 2 * size.pad);
      const across = Math.max(1, Math.floor((width + size.between) / (least + size.between)));
      const w = dense ? least : Math.floor((width + size.between) / across) - size.between;
      const tall = size.label + Math.ceil(most / A_ROW) * pitch - size.gap + 2 * size.pad;
      group.places.forEach((place, nth) => this.boxes.push({ place, x: (nth % across) * (w + size.between), y: y + Math.floor(nth / across) * (tall + size.between), w, h: tall }));
      y += Math.ceil(group.places.length / across) * (tall + size.between) + 14;
    }
    this.height = y;
    this.grid.style.height = `${y}px`;
    this.under.hidden = true;
    if (this.focused >= this.boxes.length) this.focused = -1;
    this.put(Math.max(0, this.focused), false);
  }

  // Racks side by side, two nodes wide: 1,250 racks are not 1,250 lines.
  layBlocks(width, dense) {
    const { cell, gap, pad, label, between } = this.size;
    const largest = (groups) => groups.reduce((sum, group) => group.places.reduce((more, place) => Math.max(more, this.nodes[place][3].length), sum), 1);
    const w = Math.max(dense ? 68 : 128, Math.min(A_ROW, largest(this.groups)) * (cell + gap) - gap + 2 * pad);
    const block = 2 * w + between;
    const across = Math.max(1, Math.floor((width + 18) / (block + 18)));
    let y = 0;
    for (let begin = 0; begin < this.groups.length; begin += across) {
      const row = this.groups.slice(begin, begin + across);
      const tall = label + Math.ceil(largest(row) / A_ROW) * (cell + gap) - gap + 2 * pad;
      row.forEach((group, column) => {
        const left = column * (block + 18);
        this.heads.push({ x: left, y, w: block, ...group, note: group.short });
        group.places.forEach((place, nth) => this.boxes.push({ place, x: left + (nth % 2) * (w + between), y: y + HEAD - 6 + Math.floor(nth / 2) * (tall + between), w, h: tall }));
      });
      y += HEAD + 6 + Math.ceil(Math.max(...row.map((group) => group.places.length)) / 2) * (tall + between);
    }
    this.boxes.sort((a, b) => a.y - b.y || a.x - b.x);
    return y;
  }

  draw() {
    if (!this.groups || !this.place.offsetParent) return;
    if (this.state.as === "list") this.drawList(); else this.drawGrid();
  }

  drawGrid() {
    const top = -this.grid.getBoundingClientRect().top;
    const last = Math.ceil(this.height / STRIP) - 1;
    const near = (margin) => [Math.max(0, Math.floor((top - margin) / STRIP)), Math.min(last, Math.floor((top + innerHeight + margin) / STRIP))];
    const [from, to] = near(Math.max(STRIP, this.margin));
    const spare = [];
    for (const [strip, canvas] of this.strips) if (strip < from || strip > to) { this.strips.delete(strip); spare.push(canvas); }
    const fresh = (strip) => this.strips.has(strip) && !this.strips.get(strip).stale;
    const [first_, last_] = near(this.margin);
    for (let strip = first_; strip <= last_; strip += 1) if (!fresh(strip)) this.paintStrip(strip, spare);
    for (let strip = from; strip <= to; strip += 1) if (!fresh(strip)) { this.paintStrip(strip, spare); this.soon(); break; } // out of sight: one at a time
    for (const canvas of spare) canvas.remove();
    const shown = this.heads.filter((head) => head.y > top - 200 && head.y < top + innerHeight + 200);
    const notes = shown.map((head) => head.note());
    const key = shown.map((head, nth) => `${head.y}${head.title}${notes[nth]}`).join();
    if (this.titled !== key) { this.titled = key; fill(this.titles, shown.map((head, nth) => h("h3", { class: head.w < 300 ? "tight" : "", css: { top: `${head.y}px`, left: `${head.x}px`, width: `${head.w}px` } }, head.title, h("span", {}, notes[nth])))); }
  }

  paintStrip(strip, spare) {
    let canvas = this.strips.get(strip) ?? spare.pop();
    if (!canvas) { canvas = h("canvas", { "aria-hidden": "true" }); this.grid.prepend(canvas); }
    this.strips.set(strip, canvas);
    canvas.stale = false;
    const ratio = devicePixelRatio;
    const [w, tall] = [Math.round(this.width * ratio), Math.round(STRIP * ratio)];
    if (canvas.width !== w || canvas.height !== tall) Object.assign(canvas, { width: w, height: tall });
    Object.assign(canvas.style, { top: `${strip * STRIP}px`, width: `${this.width}px`, height: `${STRIP}px` });
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, STRIP);
    pen.translate(0, -strip * STRIP);
    paint(pen, this.boxes.slice(first(this.boxes, strip * STRIP - 80), first(this.boxes, (strip + 1) * STRIP)), this, (name) => this.colour(name));
  }

  colour(name) {
    if (!this.palette.has(name)) this.palette.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
    return this.palette.get(name);
  }

  drawList() {
    const all = this.groups.flatMap((group) => group.places);
    const top = Math.max(0, -this.list.getBoundingClientRect().top);
    const from = Math.max(0, Math.floor(top / ROW) - 10) & ~7;
    const to = Math.min(all.length, from + Math.ceil(innerHeight / ROW) + 28);
    const now = `${from} ${to} ${all.length} ${this.state.sort}`;
    if (this.listed === now) return;
    this.listed = now;
    const { state } = this;
    const column = (title, sort, kind = "") => h("th", { scope: "col", class: kind, "aria-sort": state.sort === sort ? (sort === "name" ? "ascending" : "descending") : null },
      sort ? h("button", { type: "button", "data-key": `sort-${sort}`, onclick: () => this.open({ sort }) }, title) : title);
    const pad = (rows) => h("tr", { class: "pad", "aria-hidden": "true" }, h("td", { colspan: "6", css: { height: `${rows * ROW}px` } }));
    const rows = all.slice(from, to).map((place, nth) => {
      const [name, product, , text] = this.nodes[place];
      return h("tr", { "aria-rowindex": String(from + nth + 2) },
        h("th", { scope: "row" }, h("a", { href: this.href(name), "data-key": `node-${name}` }, name)), h("td", { class: "wide" }, this.data.products[product]),
        h("td", {}, cells(text)), h("td", { class: "n" }, `${free(text)} of ${text.length}`),
        h("td", { class: "n" }, failed(text) || ""), h("td", { class: "wide" }, teamsOf(this.nodes[place], this.data).join(", ")));
    });
    this.list.setAttribute("aria-rowcount", String(all.length + 1));
    const key = this.list.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    fill(this.list, h("thead", {}, h("tr", {}, column("Node", "name"), column("Product", "", "wide"), column("GPUs", ""), column("Free", "free", "n"), column("Failed", "trouble", "n"), column("Teams", "", "wide"))),
      h("tbody", {}, from ? pad(from) : null, rows, to < all.length ? pad(all.length - to) : null));
    if (key) [...this.list.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key)?.focus({ preventScroll: true });
  }

  hit(event) {
    const place = this.grid.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left, event.clientY - place.top];
    for (let nth = first(this.boxes, y - 120); nth < this.boxes.length && this.boxes[nth].y <= y; nth += 1) {
      const box = this.boxes[nth];
      if (x >= box.x && x < box.x + box.w + 2 && y < box.y + box.h + 2) return nth;
    }
    return -1;
  }

  hover(event) { // a real link lies under the pointer: it can be copied, and opened in a new tab
    const nth = this.hit(event);
    this.under.hidden = nth < 0;
    at("tip").hidden = nth < 0;
    if (nth < 0) return;
    this.place_(this.under, this.boxes[nth]);
    const tip = at("tip");
    if (this.told !== nth) { tip.textContent = this.words(this.boxes[nth].place, "\n"); this.told = nth; }
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 330)}px`;
    tip.style.top = `${event.clientY + 150 > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 16}px`;
  }

  place_(anchor, box) {
    Object.assign(anchor.style, { left: `${box.x}px`, top: `${box.y}px`, width: `${box.w}px`, height: `${box.h}px` });
    anchor.href = this.href(this.nodes[box.place][0]);
  }

  nearest() { // the tile that had the focus, if it can be seen, else the first that can
    const top = Math.max(0, -this.grid.getBoundingClientRect().top);
    const box = this.boxes[this.focused];
    if (box && box.y >= top - box.h && box.y < top + innerHeight) return this.focused;
    return Math.min(this.boxes.length - 1, first(this.boxes, top + (top ? 100 : 0)));
  }

  put(nth, move = true) {
    const box = this.boxes[nth];
    if (!box) return;
    this.focused = nth;
    this.place_(this.cursor, box);
    this.cursor.setAttribute("aria-label", this.words(box.place, ", "));
    if (!move) return;
    this.said(this.words(box.place, ", "));
    this.cursor.scrollIntoView({ block: "nearest" });
    this.soon();
  }

  key(event) {
    const box = this.boxes[this.focused];
    if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
    const vertical = (by) => this.boxes.reduce((best, each, nth) => {
      if (by > 0 ? each.y <= box.y : each.y >= box.y) return best;
      const far = Math.abs(each.y - box.y) * 1000 + Math.abs(each.x - box.x);
      return far < best[0] ? [far, nth] : best;
    }, [Infinity, this.focused])[1];
    const moves = { ArrowRight: () => this.focused + 1, ArrowLeft: () => this.focused - 1, ArrowDown: () => vertical(1), ArrowUp: () => vertical(-1), Home: () => 0, End: () => this.boxes.length - 1 };
    if (!moves[event.key]) return;
    event.preventDefault();
    this.put(Math.max(0, Math.min(this.boxes.length - 1, moves[event.key]())));
  }

  words(place, between) {
    const [name, product, rack, text, , more] = this.nodes[place];
    const by = Object.entries(SIGNS).map(([sign, [, what]]) => [text.split(sign).length - 1, what]).filter(([many]) => many).map(([many, what]) => `${many} ${what}`).join(", ");
    const faults = Object.entries(more?.sick ?? {}).map(([gpu, what]) => `GPU${gpu}: ${fault(what)}`);
    const teams = teamsOf(this.nodes[place], this.data);
    return [name, `${this.data.products[product]}, ${this.data.racks[rack] ?? "no rack"}`, `${count(text.length, "GPU")}: ${by}`, ...faults, ...(more?.remarks ?? []), teams.length ? `held by ${teams.join(", ")}` : ""].filter(Boolean).join(between);
  }
}

function first(boxes, y) { // the first box that begins at y or below
  let [low, high] = [0, boxes.length];
  while (low < high) { const middle = (low + high) >> 1; if (boxes[middle].y < y) low = middle + 1; else high = middle; }
  return low;
}

// By kind of cell, so that a pen changes its colour eight times and not 40,000 times.
function paint(pen, boxes, fleet, colour) {
  const { size, nodes, team, flashes } = fleet;
  const { cell, gap, pad, label } = size;
  const pitch = cell + gap;
  const kinds = Object.fromEntries(Object.keys(SIGNS).map((sign) => [sign, [[], []]]));
  const now = performance.now();
  pen.lineWidth = 1;
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (const box of boxes) {
    const [name, , , text, held, more] = nodes[box.place];
    if (label) {
      pen.beginPath();
      pen.roundRect(box.x + .5, box.y + .5, box.w - 1, box.h - 1, 5);
      pen.fillStyle = colour("panel"); pen.fill();
      pen.strokeStyle = colour(more?.sick ? "bad" : "line"); pen.stroke();
      pen.fillStyle = colour("text");
      pen.fillText(shortened(pen, name, box.w - 2 * pad), box.x + pad, box.y + pad + label / 2 - 2);
    }
    if (!label && more?.sick) { pen.strokeStyle = colour("bad"); pen.strokeRect(box.x - .5, box.y - .5, box.w + 1, box.h + 1); } // small crosses are not seen without colours
    for (let gpu = 0; gpu < text.length; gpu += 1) {
      const faded = team !== null && held[gpu] !== team && !(Array.isArray(held[gpu]) && held[gpu].includes(team));
      kinds[text[gpu]][faded ? 1 : 0].push(box.x + pad + (gpu % A_ROW) * pitch, box.y + pad + label + Math.floor(gpu / A_ROW) * pitch);
    }
    if (fleet.state.open === `node/${name}`) { pen.strokeStyle = colour("accent"); pen.lineWidth = 3; pen.strokeRect(box.x + 1, box.y + 1, box.w - 2, box.h - 2); pen.lineWidth = 1; }
    if (flashes.has(box.place)) {
      if (flashes.get(box.place) < now) flashes.delete(box.place);
      else { pen.strokeStyle = colour("mark"); pen.lineWidth = 2; pen.strokeRect(box.x, box.y, box.w, box.h); pen.lineWidth = 1; }
    }
  }
  for (const [sign, [clear, faded]] of Object.entries(kinds)) {
    pen.globalAlpha = 1; stroke(pen, sign, clear, cell, colour);
    pen.globalAlpha = .22; stroke(pen, sign, faded, cell, colour);
  }
  pen.globalAlpha = 1;
}

function stroke(pen, sign, at_, cell, colour) {
  if (!at_.length) return;
  const each = (draw) => { pen.beginPath(); for (let nth = 0; nth < at_.length; nth += 2) draw(at_[nth], at_[nth + 1]); };
  const square = (x, y) => pen.rect(x + .5, y + .5, cell - 1, cell - 1);
  const line = { ".": "free-line", v: "free-line", "#": "taken", "+": "part", "*": "part", "!": "bad", "%": "bad", "-": "closed", x: "closed" }[sign];
  pen.strokeStyle = pen.fillStyle = colour(line);
  pen.lineWidth = 1;
  if (sign === "#" || sign === "%") { each((x, y) => pen.rect(x, y, cell, cell)); pen.fill(); }
  if (sign === ".") { pen.fillStyle = colour("free"); each(square); pen.fill(); pen.stroke(); }
  if (sign === "+") { each((x, y) => pen.rect(x, y + cell / 2, cell, cell / 2)); pen.fill(); }
  if (sign === "*") { each((x, y) => { for (let line_ = 0; line_ < cell; line_ += 4) pen.rect(x, y + line_, cell, 2); }); pen.fill(); }
  if ("+*-v".includes(sign)) { each(square); pen.stroke(); }
  if (sign === "x") { pen.setLineDash([2, 2]); each(square); pen.stroke(); pen.setLineDash([]); }
  if (sign === "!") { if (cell > 9) { pen.lineWidth = 2; each((x, y) => pen.rect(x + 1, y + 1, cell - 2, cell - 2)); } else each(square); pen.stroke(); }
  if (sign === "%") { pen.strokeStyle = colour("panel"); pen.lineWidth = cell > 9 ? 2 : 1; }
  if ("!%-".includes(sign)) {
    const inset = cell > 9 ? 3 : 1.5;
    each((x, y) => {
      pen.moveTo(x + inset, y + cell - inset); pen.lineTo(x + cell - inset, y + inset);
      if (sign !== "-") { pen.moveTo(x + inset, y + inset); pen.lineTo(x + cell - inset, y + cell - inset); }
    });
    pen.stroke();
  }
}

const widths = new Map();
function shortened(pen, name, room) { // the end of a node's name tells more than its middle
  const key = `${room} ${name}`;
  if (!widths.has(key)) {
    let [text, keep] = [name, name.length];
    while (pen.measureText(text).width > room && keep > 6) { keep -= 1; text = `${name.slice(0, Math.ceil(keep / 2) - 1)}…${name.slice(-Math.floor(keep / 2))}`; }
    if (widths.size > 20000) widths.clear();
    widths.set(key, text);
  }
  return widths.get(key);
}

export const free = (text) => text.split(".").length - 1;
export const failed = (text) => text.split("!").length + text.split("%").length - 2;
export function teamsOf(node, data) {
  const found = new Set(node[4].flat());
  const names = [...found].filter((team) => team >= 0).map((team) => data.teams[team]);
  return found.has(-2) ? [...names, "others"] : names;
}
export const summed = (nodes, places) => {
  let [gpus, open, bad] = [0, 0, 0];
  for (const place of places) { const text = nodes[place][3]; gpus += text.length; open += free(text); bad += failed(text); }
  return `${count(places.length, "node")} · ${number(open)} of ${number(gpus)} GPUs free${bad ? ` · ${bad} failed` : ""}`;
};
