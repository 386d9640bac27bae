// The page of the controller: what the address says is shown, and kept up to date without moving what the reader looks at.
import { DEFAULTS, fresh, link, parse } from "./address.js";
import { atWork, nodeBody, podBody, teamBody } from "./drawer.js";
import { age, at, cell, count, fault, fill, h, number, refill, SIGNS } from "./elements.js";
import { follow, read, Refused, signIn, sleep } from "./answers.js";
import { failed, Fleet, free, summed } from "./fleet.js";
import { empty, REASONS, sideView, teamsView, waitingView } from "./views.js";

const SHORTEST_MS = 1000; // between two looks at what changed
const AGAIN_MS = 5000; // after an answer that did not come
const USE_MS = 5000; // between two looks at what the GPUs of the open node do
const STEPS = [0, 1, 2, 4, 8, 16];
const SHOWS = { failed: ["Failed", /[!%]/], informs: ["Fault reported, still allocated", null], closed: ["Closed to new pods", null], parts: ["In parts", /[+*]/], missing: ["Not published", /x/] };
const SIGN_OF = { failed: "!", informs: ".", closed: "-", parts: "+", missing: "x" };
const SORTS = { name: "name", free: "most free first", trouble: "failed first" };

let state = parse(location.hash);
let [summary, data, waiting, teams] = [null, null, null, null];
let allTeams = false;
let opener = null; // what had the focus before the drawer opened
let drawn = ""; // what the drawer shows
let use = null; // what the GPUs of the open node do
const said = (text) => { at("said").textContent = text; };
const go = (changed, keep = true) => { const to = link(state, changed); if (keep) history.pushState(null, "", to); else history.replaceState(null, "", to); arrive(); };
const fleet = new Fleet(at("fleet"), { href: (name) => link(state, { open: `node/${name}` }), open: (changed) => go(changed, false), said });

// Which nodes, in which order

const has = (node, show) => (SHOWS[show]?.[1] ? SHOWS[show][1].test(node[3]) : Boolean(node[5]?.[show]));
function fits(node, wanted) {
  return free(node[3]) >= wanted.free && (!wanted.product.length || wanted.product.includes(data.products[node[1]]))
    && (!wanted.rack || `${data.racks[node[2]] ?? ""}/`.startsWith(`${wanted.rack}/`)) && (!wanted.show.length || wanted.show.some((show) => has(node, show)))
    && (!wanted.team.length || node[4].flat().some((team) => wanted.team.includes(data.teams[team])))
    && (!wanted.q || node[0].includes(wanted.q.toLowerCase()));
}

function grouped() {
  const places = data.nodes.map((_, place) => place).filter((place) => fits(data.nodes[place], state));
  const by = { free: (place) => -free(data.nodes[place][3]), trouble: (place) => -failed(data.nodes[place][3]) }[state.sort];
  if (by) places.sort((a, b) => by(a) - by(b) || a - b);
  if (state.as === "list" || state.group === "none") return [{ title: "", places }];
  const column = state.group === "rack" ? 2 : 1;
  const groups = new Map();
  for (const place of places) { const key = data.nodes[place][column]; if (!groups.has(key)) groups.set(key, []); groups.get(key).push(place); }
  return [...groups].map(([key, some]) => ({ title: (column === 2 ? data.racks : data.products)[key] ?? "no rack", note: () => summed(data.nodes, some), short: () => `${some.reduce((sum, place) => sum + free(data.nodes[place][3]), 0)} free`, places: some }));
}

// The parts of the page

const whyMost = (reasons) => Object.entries(reasons).sort((a, b) => b[1] - a[1]).slice(0, 2).map(([reason, many]) => `${REASONS[reason] ?? reason} (${number(many)})`).join(", ");

function showNumbers() {
  const { gpus, fits: sizes, migSlices, shareMemoryGiB, waiting: waits } = summary;
  const faults = new Map();
  for (const node of data.nodes) for (const what of Object.values(node[5]?.sick ?? {})) faults.set(what, (faults.get(what) ?? 0) + 1);
  const told = [...faults].sort((a, b) => b[1] - a[1]).map(([what, many]) => `${many} × ${fault(what)}`);
  const share = (many, sign) => (many ? h("i", { class: `c ${SIGNS[sign][0]}`, css: { "flex-grow": String(many), width: "0", height: "6px", "border-radius": "0" } }) : null);
  const one = (href, big, small, more, kind) => h("li", { class: kind ?? "" }, h("a", { class: "big", href, "data-key": `n-${small}` }, h("b", {}, big), ` ${small}`), more);
  refill(at("numbers"),
    one(fresh({ free: 1, sort: "free" }), `${number(gpus.free)} of ${number(gpus.gpus)}`, "GPUs free", [h("div", { class: "split", role: "img", "aria-label": `${gpus.used} used, ${gpus.partial} partly free, ${gpus.free} free, ${gpus.vm} free for virtual machines, ${gpus.failed} failed, ${gpus.closed} closed` }, share(gpus.used, "#"), share(gpus.partial, "+"), share(gpus.free, "."), share(gpus.vm, "v"), share(gpus.closed, "-"), share(gpus.failed, "%")), h("p", { class: "quiet small" }, `${number(gpus.used)} used, ${number(gpus.partial)} partly free, ${number(gpus.closed)} closed`)]),
    one(fresh({ show: ["failed"], sort: "trouble" }), number(gpus.failed), gpus.failed === 1 ? "GPU failed" : "GPUs failed", h("p", { class: "quiet small" }, told.slice(0, 3).join(", ") || "no fault is known", told.length > 3 ? `, ${told.length - 3} more kinds` : ""), gpus.failed ? "bad" : ""),
    waits ? one(fresh({ view: "waiting" }), number(waits.total), waits.total === 1 ? "pod waits" : "pods wait", h("p", { class: "quiet small" }, waits.total ? [`the first for ${age(waits.oldestSeconds)}`, h("br"), whyMost(waits.reasons)] : "all have their GPUs")) : one(fresh({ view: "waiting" }), "–", "not known on this replica", null),
    h("li", {}, h("span", { class: "quiet small" }, "Pods that fit now, by GPUs each"), h("div", { class: "ladder" }, sizes.map((size) => h("a", { href: fresh({ free: size.gpus, sort: "free" }), class: size.pods ? "" : "none", "aria-current": state.free === size.gpus ? "true" : null, "aria-label": `${count(size.pods, "pod")} of ${count(size.gpus, "GPU")} fit, ${size.linked} within one NVLink group`, title: `${number(size.linked)} within one NVLink group`, "data-key": `fit-${size.gpus}` }, h("b", {}, number(size.pods)), h("span", { class: "quiet small" }, `of ${size.gpus}`))))),
    one(fresh({ show: ["parts"] }), `${number(migSlices.free)} of ${number(migSlices.all)}`, "MIG slices free", h("p", { class: "quiet small" }, `${number(shareMemoryGiB.free)} of ${number(shareMemoryGiB.all)} GiB free on shared GPUs`)));
  at("n-waiting").textContent = waits ? number(waits.total) : "";
  at("n-teams").textContent = number(teams.teams.length);
}

function showRail() {
  const box = (name, value, text, note, icon) => h("label", {}, h("input", { type: "checkbox", name, value, checked: state[name].includes(value), "data-key": `${name}-${value}` }), icon ?? null, text, h("span", {}, note));
  const held = new Map(teams.teams.map((team) => [team.namespace, team.holds.gpus]));
  const names = [...held.keys()].sort((a, b) => held.get(b) - held.get(a));
  const some = allTeams ? names : names.filter((name, nth) => nth < 12 || state.team.includes(name));
  const counts = Object.fromEntries(Object.keys(SHOWS).map((show) => [show, 0]));
  for (const node of data.nodes) for (const show of Object.keys(SHOWS)) if (has(node, show)) counts[show] += 1;
  refill(at("rail"),
    h("fieldset", {}, h("legend", {}, "Free GPUs, at least"), h("div", { class: "steps" }, STEPS.map((step) => h("label", {}, h("input", { class: "away", type: "radio", name: "free", value: String(step), checked: state.free === step, "data-key": `free-${step}` }), step ? String(step) : "any")))),
    h("fieldset", {}, h("legend", {}, "Nodes with GPUs that are"), Object.entries(SHOWS).map(([show, [text]]) => box("show", show, text, number(counts[show]), cell(SIGN_OF[show])))),
    h("fieldset", {}, h("legend", {}, "Product (free of all)"), summary.products.map((product) => box("product", product.product, product.product.replace(/^NVIDIA /, ""), `${number(product.free)} of ${number(product.gpus)}`))),
    h("fieldset", {}, h("legend", {}, "Team (GPUs held)"), some.map((name) => box("team", name, name, number(held.get(name)))), names.length > some.length ? h("button", { type: "button", "data-key": "all-teams", onclick: () => { allTeams = true; showRail(); } }, `All ${names.length} teams`) : null),
    h("fieldset", { class: "narrow" }, h("legend", {}, "Order"), Object.entries(SORTS).map(([value, text]) => h("label", {}, h("input", { type: "radio", name: "sort", value, checked: state.sort === value, "data-key": `sort-${value}` }), text))),
    h("fieldset", { class: "narrow" }, h("legend", {}, "Legend"), h("div", { class: "key" }, Object.entries(SIGNS).map(([sign, [, text]]) => h("span", {}, cell(sign), text)))),
    h("button", { type: "button", class: "main narrow", onclick: () => { document.body.classList.remove("filters"); at("open-rail")?.focus(); } }, "Show nodes"));
}

function heldBy(places) { // whole GPUs of the one team that is chosen
  if (state.team.length !== 1) return "";
  const team = data.teams.indexOf(state.team[0]);
  return ` · ${state.team[0]} holds ${count(places.reduce((sum, place) => sum + data.nodes[place][4].filter((each) => each === team).length, 0), "whole GPU")}`;
}

function sumOf(groups) {
  const places = groups.flatMap((group) => group.places);
  return summed(data.nodes, places) + heldBy(places);
}

// The nodes stay that the reader chose; what is free of them is counted again. Screen readers say only what the reader changed.
function countAgain() {
  const sum = document.querySelector("#bar .sum");
  sum.removeAttribute("role");
  sum.textContent = sumOf(fleet.groups);
}

function showBar(groups) {
  const pick = (name, title, options) => h("label", {}, `${title} `, h("select", { name, "data-key": `pick-${name}` }, Object.entries(options).map(([value, text]) => h("option", { value, selected: state[name] === value }, text))));
  const as = (value, text) => h("a", { href: link(state, { as: value }), "aria-current": state.as === value ? "true" : null, "data-key": `as-${value}` }, text);
  const chips = [...state.product.map((one) => ["product", one, one]), ...state.team.map((one) => ["team", one, `team ${one}`]), ...state.show.map((one) => ["show", one, SHOWS[one]?.[0] ?? one]),
    ...(state.free ? [["free", 0, `${state.free} or more free`]] : []), ...(state.rack ? [["rack", "", `rack ${state.rack}`]] : []), ...(state.q ? [["q", "", `“${state.q}”`]] : [])];
  const without = (name, value) => ({ [name]: Array.isArray(state[name]) ? state[name].filter((one) => one !== value) : DEFAULTS[name] });
  refill(at("bar"), h("button", { id: "open-rail", type: "button", "data-key": "rail", "aria-expanded": String(document.body.classList.contains("filters")), onclick: () => document.body.classList.toggle("filters") }, chips.length ? `Filters (${chips.length})` : "Filters"),
    h("p", { class: "sum", role: "status" }, sumOf(groups)),
    state.as === "grid" ? pick("group", "Group by", { product: "product", rack: "rack", none: "nothing" }) : null, pick("sort", "Order", SORTS),
    h("span", { class: "seg", role: "group", "aria-label": "Show as" }, as("grid", "Grid"), as("list", "List")),
    h("div", { class: "chips" }, chips.map(([name, value, text]) => h("button", { type: "button", "data-key": `chip-${name}-${value}`, "aria-label": `Remove filter: ${text}`, onclick: () => go(without(name, value)) }, `${text} ✕`)), chips.length > 1 ? h("button", { type: "button", onclick: () => go({ ...DEFAULTS, as: state.as, group: state.group }) }, "Clear all") : null),
    h("div", { class: "key", "aria-label": "Legend" }, Object.entries(SIGNS).map(([sign, [, text]]) => h("span", {}, cell(sign), text))));
}

function showFleet() {
  const groups = grouped();
  const team = state.team.length === 1 ? data.teams.indexOf(state.team[0]) : null;
  showBar(groups);
  for (const each of at("fleet").querySelectorAll(".empty")) each.remove();
  Object.assign(fleet, { data });
  fleet.show(data.nodes, groups, state, team);
  if (fleet.total) return;
  at("fleet").append(data.nodes.length
    ? empty("No node matches these filters", "Remove one of the filters above.", h("p", {}, h("a", { href: fresh({}) }, "Show all nodes")))
    : empty(`No node publishes devices of ${summary.driver}`, "If GPU nodes exist, look at the plugin's pods: kubectl get pods -l app.kubernetes.io/component=plugin"));
}

async function showDrawer() {
  const [kind, ...rest] = state.open.split("/");
  const isOpen = ["node", "pod", "team"].includes(kind) && rest.length > 0;
  const changed = document.body.classList.contains("open") !== isOpen;
  document.body.classList.toggle("open", isOpen);
  at("drawer").hidden = !isOpen;
  if (!isOpen) {
    drawn = "";
    use = null;
    fill(at("drawer"));
    if (changed) { ([...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === opener) ?? at("main")).focus({ preventScroll: true }); fleet.soon(); }
    return;
  }
  if (changed) opener = document.activeElement?.dataset?.key ?? "cursor";
  const asked = state.open;
  if (drawn !== asked) use = null;
  const title = rest.join("/");
  let body;
  try {
    body = kind === "node" ? nodeBody(await read("/api/node", { name: title }), state, use) : kind === "team" ? teamBody(await read("/api/team", { namespace: title }), state) : podBody(await read("/api/pod", { namespace: rest[0], name: rest.slice(1).join("/") }), state);
  } catch (error) {
    if (error instanceof Refused) return fail(error);
    body = [h("p", { class: "remark" }, error.message)];
  }
  if (asked !== state.open || !data) return;
  refill(at("drawer"), h("div", { class: "top" }, h("h2", { id: "drawer-title", tabindex: "-1", "data-key": "title" }, h("span", { class: "quiet small" }, `${kind === "node" ? "Node" : kind === "pod" ? "Pod" : "Team"} `), title),
    h("button", { type: "button", "data-key": "copy", onclick: () => navigator.clipboard?.writeText(location.href).then(() => said("Link copied")) }, "Copy link"), h("button", { type: "button", "data-key": "close", "aria-keyshortcuts": "Escape", onclick: () => go({ open: "" }) }, "Close")), body);
  if (drawn === asked) return;
  drawn = asked;
  at("drawer").scrollTop = 0;
  at("drawer-title").focus({ preventScroll: true });
  if (kind === "node") lookAtUse();
}

let looking = false; // the controller asks one exporter at a time, and it may hang
async function lookAtUse() {
  const asked = state.open;
  if (looking || !summary?.use || !asked.startsWith("node/") || document.hidden) return;
  looking = true;
  try {
    use = await read("/api/use", { node: asked.slice(5) });
  } catch (error) {
    if (error instanceof Refused) fail(error);
    use = { trouble: `no figures: ${error.message}`, uses: [], unowned: [] };
  } finally {
    looking = false;
  }
  if (asked !== state.open) return lookAtUse();
  if (drawn === asked) atWork(at("drawer"), use, state);
}

// From the address to the page

function arrive() {
  const before = state;
  state = parse(location.hash);
  document.body.dataset.view = state.view;
  document.title = `${state.open ? `${state.open.split("/").slice(1).join("/")} · ` : ""}${{ fleet: "Fleet", waiting: "Waiting", teams: "Teams" }[state.view]} · Dracaena`;
  for (const each of document.querySelectorAll("nav a")) { if (each.dataset.view === state.view) each.setAttribute("aria-current", "page"); else each.removeAttribute("aria-current"); }
  if (before.view !== state.view) { document.body.classList.remove("filters"); scrollTo(0, 0); }
  if (data) show();
}

function show() {
  for (const name of ["fleet", "waiting", "teams"]) at(name).hidden = state.view !== name;
  if (state.view !== "fleet") fill(at("bar"));
  showNumbers();
  if (state.view === "fleet") { showRail(); showFleet(); refill(at("side"), sideView(waiting, teams, state)); }
  if (state.view === "waiting") refill(at("waiting"), waitingView(waiting, state));
  if (state.view === "teams") refill(at("teams"), teamsView(teams, state));
  showDrawer();
}

function say(text, live) { at("live").textContent = text; at("live").dataset.live = live ? "yes" : "no"; }

function showTrouble() {
  at("trouble").hidden = !summary.trouble;
  at("trouble").textContent = summary.trouble ? `What is shown may be old: ${summary.trouble}` : "";
}

// Rows are put in their places: filters and order are applied again only when the reader changes them.
function takeRows(rows) {
  const places = Object.keys(rows).map(Number);
  for (const place of places) data.nodes[place] = rows[place];
  if (state.view === "fleet") { fleet.touch(places); countAgain(); }
  return places.some((place) => state.open === `node/${rows[place][0]}`);
}

// Nodes came or went: all is laid out again, with the first tile that is in sight kept in its place. Where only the
// teams are others, every row stays where it is.
function takeFleet(answer) {
  const lists = (one) => JSON.stringify([one.products, one.racks, one.nodes.map((node) => node[0])]);
  if (lists(answer) === lists(data)) {
    data = fleet.data = answer;
    fleet.nodes = answer.nodes;
    if (state.view === "fleet") { fleet.touch(answer.nodes.map((_, place) => place)); countAgain(); }
    return showBeside(true);
  }
  const kept = fleet.inSight();
  data = answer;
  show();
  fleet.keepInSight(kept);
}

// What is shown next to the nodes. `changed`: the row of the node in the drawer is another.
function showBeside(changed) {
  showNumbers();
  if (state.view === "fleet") { showRail(); refill(at("side"), sideView(waiting, teams, state)); }
  if (state.view === "waiting") refill(at("waiting"), waitingView(waiting, state));
  if (state.view === "teams") refill(at("teams"), teamsView(teams, state));
  if (changed || /^(pod|team)\//.test(state.open)) showDrawer();
}

async function readFleet() {
  const answer = await read("/api/fleet", { since: data?.number ?? 0 });
  const same = !answer.rows || String(answer.teams) === String(data.teams);
  return same ? answer : read("/api/fleet"); // the reader sees other names than before
}

const wide = matchMedia("(min-width: 1800px)");
const wants = () => ({ waiting: !waiting || state.view === "waiting" || wide.matches });

async function refreshOnce() {
  const [sums, nodes, teams_, waits] = await Promise.all([read("/api/summary"), readFleet(), read("/api/teams"), wants().waiting ? read("/api/waiting") : null]);
  const first = !data;
  [summary, teams] = [sums, teams_];
  if (waits) waiting = waits.waiting;
  document.body.classList.remove("out");
  at("login").hidden = true;
  showTrouble();
  if (first) {
    data = nodes;
    arrive();
    requestAnimationFrame(() => performance.mark("shown"));
  } else if (nodes.nodes) {
    takeFleet(nodes);
  } else {
    data.number = nodes.number;
    showBeside(takeRows(nodes.rows));
  }
  document.body.dataset.shown = String(nodes.number);
  if (nodes.unasked || teams_.unasked || waits?.unasked) again = true; // which names may be seen is not known of all yet
}

let refreshing = null;
let again = false;
function refresh() {
  if (refreshing) { again = true; return refreshing; }
  refreshing = refreshOnce().finally(() => {
    refreshing = null;
    if (again) { again = false; sleep(SHORTEST_MS).then(refreshBeside); }
  });
  return refreshing;
}
function refreshBeside() { if (!document.hidden) refresh().catch((error) => fail(error)); }

// A browser has six connections to a host, and one that follows holds one: tabs that nobody sees give theirs back.
class Unseen extends Error { constructor() { super("nobody looks"); } }
async function shown() { while (document.hidden) await new Promise((done) => addEventListener("visibilitychange", done, { once: true })); }

let loop = 0; // number of the loop that keeps up: an older one ends
let fail = notFollowing; // what is done where the page cannot be refreshed
function notFollowing(error) { say(`not live: ${error.message}`, false); }

async function keepUp() {
  loop += 1;
  const mine = loop;
  fail(new Error("signing in")); // ends the stream of the loop before
  say("connecting", false);
  if (refreshing) await refreshing.catch(() => {}); // it asks with the token before
  while (mine === loop) {
    try {
      await refresh();
      await shown();
      if (mine !== loop) return;
      const stream = await follow((number_) => { if (number_ !== data?.number) refreshBeside(); });
      if (mine !== loop) return stream.close(new Error("signed in again"));
      fail = stream.close;
      if (document.hidden) fail(new Unseen());
      say("live", true);
      try { await stream.ended; } finally { if (mine === loop) fail = notFollowing; }
      if (mine !== loop) return;
      say("connecting again", false);
      await sleep(SHORTEST_MS / 2);
    } catch (error) {
      if (mine !== loop) return;
      if (error instanceof Refused) return login(error.message);
      if (error instanceof Unseen) { say("connecting again", false); await shown(); continue; }
      say(`not live: ${error.message}`, false);
      await sleep(AGAIN_MS);
    }
  }
}

function login(why) { // who signs in next may see less: no name stays
  say("not signed in", false);
  [summary, data, waiting, teams, use, drawn] = [null, null, null, null, null, ""];
  for (const place of ["numbers", "rail", "bar", "waiting", "teams", "side", "drawer", "n-waiting", "n-teams"]) fill(at(place));
  fleet.clear();
  showHits([]);
  at("q").value = "";
  document.title = "Dracaena";
  document.body.classList.remove("open");
  document.body.classList.add("out");
  at("drawer").hidden = true;
  at("login").hidden = false;
  at("refused").textContent = why;
  at("token").focus();
}

// Search: nodes at once in the grid, everything else by the controller

let typing = 0;
let chosen = -1;
function showHits(hits, more = false) {
  const list = at("hits");
  chosen = -1;
  list.hidden = !hits.length;
  at("q").setAttribute("aria-expanded", String(hits.length > 0));
  fill(list, hits.map((hit, nth) => h("li", { role: "option", id: `hit-${nth}`, "aria-selected": "false", onmousedown: (event) => { event.preventDefault(); pickHit(hit); } }, hit.name, h("span", {}, `${hit.kind} · ${hit.note}`))), more ? h("li", { "aria-disabled": "true" }, h("span", {}, "more are found: type further")) : null);
  list.hits = hits;
}
function pickHit(hit) { showHits([]); at("q").value = ""; go({ q: "", open: hit.open }); }

at("q").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(async () => {
    const q = at("q").value.trim();
    if (state.view === "fleet") go({ q: data.nodes.some((node) => node[0].includes(q.toLowerCase())) ? q : "" }, false);
    if (q.length < 2) return showHits([]);
    const { hits, more } = await read("/api/search", { q }).catch((error) => { fail(error); return { hits: [], more: false }; });
    if (q !== at("q").value.trim() || !data) return;
    if (!hits.length) said(`Nothing is found with ${q}`);
    showHits(hits, more);
  }, 150);
});
at("q").addEventListener("keydown", (event) => {
  const { hits = [] } = at("hits");
  if (event.key === "Escape") { at("q").value = ""; showHits([]); go({ q: "" }, false); event.stopPropagation(); }
  if (event.key === "Enter" && hits.length) pickHit(hits[Math.max(0, chosen)]);
  if (!["ArrowDown", "ArrowUp"].includes(event.key) || !hits.length) return;
  event.preventDefault();
  chosen = (chosen + (event.key === "ArrowDown" ? 1 : -1) + hits.length) % hits.length;
  [...at("hits").children].forEach((each, nth) => each.setAttribute("aria-selected", String(nth === chosen)));
  at("q").setAttribute("aria-activedescendant", `hit-${chosen}`);
  at(`hit-${chosen}`).scrollIntoView({ block: "nearest" });
});
at("q").addEventListener("blur", () => showHits([]));

at("rail").addEventListener("change", ({ target }) => {
  if (target.name === "free") return go({ free: Number(target.value) });
  if (target.name === "sort") return go({ sort: target.value }, false);
  const others = state[target.name].filter((one) => one !== target.value);
  return go({ [target.name]: target.checked ? [...others, target.value] : others });
});
at("bar").addEventListener("change", ({ target }) => go({ [target.name]: target.value }, false));
addEventListener("hashchange", arrive);
addEventListener("popstate", arrive);
addEventListener("keydown", (event) => { // no key alone but Escape: speech input and screen readers type letters
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); at("q").select(); at("q").focus(); }
  if (event.key !== "Escape" || event.defaultPrevented || event.target === at("q")) return;
  if (document.body.classList.contains("filters")) { document.body.classList.remove("filters"); at("open-rail")?.focus(); } else if (state.open) go({ open: "" });
});
at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(at("token").value.trim());
  at("token").value = "";
  keepUp();
});
addEventListener("visibilitychange", () => { if (document.hidden && fail !== notFollowing) fail(new Unseen()); });
setInterval(lookAtUse, USE_MS);
keepUp();
