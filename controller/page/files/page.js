// The page of the controller. Everything that comes from the cluster is put in as text, never as markup.
import { markAtWork, nodeBody, useTable } from "/draw.js";
import { count, element, fill, minutes } from "/elements.js";

const POLL_MS = 5000;
const AGAIN_MS = 2000;
const SHORTEST_MS = 1000; // between two summaries
const USE_MS = 5000; // between two looks at what the GPUs of open nodes do

const at = (id) => document.getElementById(id);
let token = "";
let newest = 0; // number of the newest snapshot that was told
let shown = 0; // number of the summary that is shown
let search = "";
let further = 0; // answers with nodes behind the first that the reader asked for
let loop = 0; // number of the loop that keeps up: an older one ends
let fail = notFollowing; // what is done where the page cannot be refreshed
let podShown = null;
let usesTold = false; // whether the controller asks exporters
let usesAsked = false; // whether a round of questions about open nodes is under way
const usesWanted = new Set(); // nodes that it has still to ask about
const rows = new Map(); // node → its details element
const signs = { ".": "free", "#": "taken", "+": "shared", "!": "unavailable", x: "missing" };

class Refused extends Error {}

async function ask(path, fields = {}) {
  const query = new URLSearchParams(fields).toString();
  const used = token;
  const headers = used ? { Authorization: `Bearer ${used}` } : {};
  const answer = await fetch(query ? `${path}?${query}` : path, { headers });
  if (answer.status === 401) {
    if (used === token) token = "";
    throw new Refused((await answer.text()).trim());
  }
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return answer;
}

const read = async (path, fields) => (await ask(path, fields)).json();
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function say(text, live) {
  if (at("live").textContent !== text) at("live").textContent = text;
  at("live").dataset.live = live ? "yes" : "no";
}

// Sums, sizes and who waits

function showSums(summary) {
  const sums = [
    [`${summary.free} of ${summary.devices}`, "devices free"],
    [summary.nodes, "nodes"],
    ...(summary.waiting ? [[summary.waiting.total, "pods wait"]] : []),
    ...summary.products.slice(0, 4).map((one) => [`${one.free} of ${one.devices}`, `free, ${one.product}`]),
  ];
  fill(at("sums"), sums.map(([number, what]) => element("li", {}, element("b", {}, number), element("span", {}, what))));
}

function showFits(summary) {
  const fits = summary.fits.map(({ gpus, pods, linked }) => {
    const what = `${count(pods, "pod")} of ${gpus} ${pods === 1 ? "fits" : "fit"}`;
    const within = gpus === 1 || pods === 0 ? "" : `, ${linked} within one NVLink group`;
    return element("li", { class: pods ? "" : "none" }, what + within);
  });
  fill(at("fits"), fits);
}

function showWaiting(waiting) {
  if (!waiting) {
    at("waiting-sum").textContent = "This replica does not lead: who waits is not known here.";
    fill(at("waiting"), []);
    return;
  }
  const reasons = Object.entries(waiting.reasons).map(([reason, pods]) => `${pods} × ${reason}`).join(", ");
  const rest = waiting.total - waiting.pods.length - waiting.hidden;
  const hidden = waiting.hidden ? ` ${waiting.hidden} of namespaces that you may not see.` : "";
  at("waiting-sum").textContent = waiting.total
    ? `${count(waiting.total, "pod")}: ${reasons}.${hidden}${rest > 0 ? ` ${rest} more are not listed.` : ""}`
    : "No pod waits.";
  const pods = waiting.pods.map((pod) =>
    element("li", {},
      podButton(pod.namespace, pod.name), " waits for ", age(pod.waitedSeconds),
      element("p", {}, pod.why || `${pod.reason}; the details are being worked out`)));
  fill(at("waiting"), pods);
}

function age(seconds) {
  const since = performance.now() - 1000 * seconds;
  return element("span", { class: "age", "data-since": since }, minutes(seconds));
}

function showAges() { // nothing is told while nothing changes, and time goes on
  for (const each of at("waiting").querySelectorAll(".age")) {
    const text = minutes(Math.round((performance.now() - Number(each.dataset.since)) / 1000));
    if (each.textContent !== text) each.textContent = text;
  }
}

function podButton(namespace, name) {
  const key = `${namespace}/${name}`;
  const button = element("button", { class: "name", type: "button", "data-key": key }, key);
  button.addEventListener("click", () => openPod(namespace, name));
  return button;
}

// Nodes

function cells(node) {
  const each = [...node.cells].map((sign) => element("span", { class: `cell ${signs[sign]}` }));
  const migs = [...node.migCells].map((sign) => element("span", { class: `cell mig ${signs[sign]}` }));
  return [...each, ...migs];
}

function nodeRow(node) {
  let row = rows.get(node.name);
  if (!row) {
    row = element("details", { class: "node", "data-node": node.name },
      element("summary", {},
        element("span", { class: "name-text" }), element("span", { class: "product" }),
        element("span", { class: "cells", "aria-hidden": "true" }), element("span", { class: "sum" }),
        element("span", { class: "remarks" })),
      element("div", { class: "body" }),
      element("div", { class: "body use" }));
    row.addEventListener("toggle", () => {
      if (!row.open) return;
      showNode(row, node.name);
      showUses([node.name]);
    });
    rows.set(node.name, row);
  }
  const parts = row.firstChild.children;
  const gpus = node.cells.replaceAll("x", "").length;
  const counted = node.devices === gpus ? "" : "devices "; // a GPU that is cut counts by its parts
  const texts = [node.name, node.product, null, `${node.free} of ${node.devices} ${counted}free`, node.remarks.join("; ")];
  texts.forEach((text, place) => {
    if (text !== null && parts[place].textContent !== text) parts[place].textContent = text;
  });
  parts[4].hidden = !node.remarks.length;
  const drawn = node.cells + node.migCells;
  if (row.dataset.cells !== drawn) {
    row.dataset.cells = drawn;
    fill(parts[2], cells(node));
  }
  return row;
}

async function readNodes(first) {
  const pages = [first];
  for (let page = 0; page < further && pages.at(-1).more; page += 1) {
    pages.push(await read("/api/nodes", { search, after: pages.at(-1).nodes.at(-1).name }));
  }
  return { total: pages.at(-1).total, nodes: pages.flatMap((page) => page.nodes) };
}

function showNodes({ total, nodes }) {
  const wanted = nodes.map(nodeRow);
  const list = at("node-list");
  wanted.forEach((row, place) => {
    if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null);
  });
  while (list.children.length > wanted.length) {
    rows.delete(list.lastChild.dataset.node);
    list.lastChild.remove();
  }
  at("nodes-sum").textContent = search
    ? `${count(total, "node")} with “${search}”`
    : nodes.length < total ? `the first ${nodes.length} of ${total}` : "";
  at("more").hidden = nodes.length >= total;
}

async function showUse(row, name) {
  if (!usesTold) return;
  const place = row.lastChild;
  let found;
  let use = null;
  try {
    use = await read("/api/use", { node: name });
    found = useTable(use, podButton);
  } catch (error) {
    if (error instanceof Refused) fail(error);
    found = [element("p", {}, `no figures from node ${name}: ${error.message}`)];
  }
  row.use = use; // for boxes that are drawn anew
  markAtWork(row.children[1], use);
  if (row.isConnected) keepFocus(place, () => fill(place, found));
}

// One after the other: the controller asks one exporter at a time, which may hang, and a browser has six connections.
async function showUses(names) {
  for (const name of names) usesWanted.add(name);
  if (usesAsked) return;
  usesAsked = true;
  try {
    for (const name of usesWanted) { // those that are added meanwhile come too
      usesWanted.delete(name);
      const row = rows.get(name);
      if (row?.open) await showUse(row, name);
    }
  } finally {
    usesAsked = false;
  }
}

function showUsesAgain() {
  if (usesAsked || document.hidden) return;
  showUses([...rows].filter(([, row]) => row.open).map(([name]) => name));
}

async function showNode(row, name) {
  const body = row.children[1];
  try {
    const text = await (await ask("/api/node", { name })).text();
    if (body.dataset.text === text) return;
    body.dataset.text = text;
    keepFocus(body, () => fill(body, nodeBody(JSON.parse(text), podButton)));
    markAtWork(body, row.use);
  } catch (error) {
    if (error instanceof Refused) fail(error);
    delete body.dataset.text;
    fill(body, [element("p", {}, error.message)]);
  }
}

function keepFocus(within, change) {
  const key = within.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  change();
  if (key) [...within.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key)?.focus();
}

// One pod

async function openPod(namespace, name) {
  podShown = { namespace, name };
  at("pod-title").textContent = `${namespace}/${name}`;
  fill(at("pod-body"), [element("p", {}, "…")]);
  if (!at("pod").open) at("pod").showModal();
  await showPod();
}

async function showPod() {
  if (!podShown || !at("pod").open) return;
  const asked = podShown;
  try {
    const pod = await read("/api/pod", asked);
    if (asked === podShown) fill(at("pod-body"), podBody(pod));
  } catch (error) {
    if (error instanceof Refused) fail(error);
    if (asked === podShown) fill(at("pod-body"), [element("p", {}, error.message)]);
  }
}

function podBody(pod) {
  const where = pod.node ? ` on ${pod.node}` : "";
  const why = pod.waiting ? [element("p", {}, pod.waiting.why || pod.waiting.reason)] : [];
  return [element("p", { id: "pod-state" }, `It ${pod.words}${where}.`), ...why, ...pod.claims.flatMap(claimBody)];
}

function claimBody(claim) {
  const title = element("h3", {}, claim.claim ? `Claim ${claim.claim}` : `Claim “${claim.alias}” is not there`);
  const devices = claim.devices.map((device) => element("li", { class: "mono" }, device));
  const decision = claim.decision;
  if (!decision) return [title, element("ul", {}, ...devices)];
  const words = decision.words.split("; ").map((part) => element("li", {}, part));
  const heads = ["", "chosen", ...(decision.runnerUp ? ["next best"] : [])];
  const table = decision.parts.length
    ? [element("div", { class: "scroll" }, element("table", {},
        element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
        element("tbody", {}, ...decision.parts.map((part) => decisionRow(part, decision.runnerUp)))))]
    : [];
  return [title, element("ul", {}, ...devices), element("h3", {}, "Why these"), element("ul", {}, ...words), ...table];
}

function decisionRow(part, runnerUp) {
  const second = runnerUp ? [element("td", {}, part.runnerUp ?? "")] : [];
  const name = part.decided ? `${part.part} (decided)` : part.part;
  return element("tr", { class: part.decided ? "decided" : "" },
    element("th", { scope: "row" }, name), element("td", {}, part.chosen), ...second);
}

// Keeping up

let refreshing = null;
let again = false;

function refresh() {
  if (refreshing) {
    again = true;
    return refreshing;
  }
  refreshing = refreshOnce().finally(() => {
    refreshing = null;
    if (again) {
      again = false;
      sleep(SHORTEST_MS).then(refreshBeside);
    }
  });
  return refreshing;
}

function refreshBeside() {
  refresh().catch((error) => fail(error));
}

function notFollowing(error) {
  say(`not live: ${error.message}`, false);
}

async function refreshOnce() {
  const asked = search;
  const summary = await read("/api/summary");
  const first = asked ? await read("/api/nodes", { search: asked }) : summary.firstNodes;
  const nodes = await readNodes(first);
  if (asked !== search) {
    again = true;
    return;
  }
  shown = summary.number;
  usesTold = summary.use;
  if (summary.unasked) again = true; // which names may be seen is not known of all yet
  at("login").hidden = true;
  at("cluster").hidden = false;
  const reader = summary.reader ? `, seen as ${summary.reader}` : "";
  at("driver").textContent = `${summary.driver} · ${summary.state}${reader}`;
  at("trouble").hidden = !summary.trouble;
  at("trouble").textContent = summary.trouble ? `What is shown may be old: ${summary.trouble}` : "";
  showSums(summary);
  showFits(summary);
  keepFocus(at("waiting"), () => showWaiting(summary.waiting));
  showNodes(nodes);
  await Promise.all([...rows].filter(([, row]) => row.open).map(([name, row]) => showNode(row, name)));
  await showPod();
  document.body.dataset.shown = String(shown);
}

async function follow(mine) {
  const answer = await ask("/api/events");
  if (mine !== loop) return answer.body.cancel();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let failure = null;
  fail = (error) => {
    failure ??= error;
    reader.cancel().catch(() => {});
  };
  say("live", true);
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (failure) throw failure;
      if (done) return;
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        const number = /^data: (\d+)$/m.exec(event);
        if (number) newest = Number(number[1]);
      }
      if (newest !== shown) refreshBeside();
    }
  } finally {
    if (mine === loop) fail = notFollowing;
  }
}

async function keepUp() {
  loop += 1;
  const mine = loop;
  fail(new Error("signing in")); // ends the stream of the loop before
  say("connecting", false);
  if (refreshing) await refreshing.catch(() => {}); // it asks with the token before
  while (mine === loop) {
    try {
      await refresh();
      if (mine !== loop) return;
      await follow(mine);
      if (mine !== loop) return;
      say("connecting again", false);
      await sleep(AGAIN_MS / 4);
    } catch (error) {
      if (mine !== loop) return;
      if (error instanceof Refused) return login(error.message);
      say(`not live: ${error.message}`, false);
      await sleep(document.hidden ? 4 * POLL_MS : POLL_MS);
    }
  }
}

function login(why) {
  say("not signed in", false);
  at("pod").close();
  rows.clear(); // who signs in next may see less
  for (const place of ["sums", "fits", "waiting", "node-list", "pod-body"]) fill(at(place), []);
  at("cluster").hidden = true;
  at("login").hidden = false;
  at("refused").textContent = why;
  at("token").focus();
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  at("token").value = "";
  keepUp();
});
setInterval(showAges, SHORTEST_MS);
setInterval(showUsesAgain, USE_MS);
let typing = 0;
at("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    search = at("search").value.trim();
    further = 0;
    refreshBeside();
  }, 200);
});
at("more").addEventListener("click", () => {
  further += 1;
  refreshBeside();
});
at("close").addEventListener("click", () => at("pod").close());
at("pod").addEventListener("close", () => { podShown = null; });
keepUp();
