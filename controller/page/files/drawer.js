// Beside the fleet: one node as tree, ring and matrix; one pod with its decision; one team with its quota.
import { fresh, link } from "./address.js";
import { count, fault, gibibytes, h, number, refill, SIGNS } from "./elements.js";
import { helpList, limitedWords, meter, obstacleList, ofLimit, REASONS, whyText } from "./views.js";

const LEVELS = { PSB: "one board", PIX: "one PCIe switch", PXB: "several PCIe switches", PHB: "one host bridge", NODE: "one NUMA node", SYS: "across NUMA nodes" };
const SVG = "http://www.w3.org/2000/svg";
const RADIUS = 82;
const titled = (title, ...more) => h("section", { class: "box" }, h("h3", {}, title), more);
const pod = (state, namespace, name) => h("a", { href: link(state, { open: `pod/${namespace}/${name}` }), "data-key": `pod-${namespace}/${name}` }, `${namespace}/${name}`);

export function nodeBody(node, state, use) {
  const told = node.gpus.filter((gpu) => gpu.taints.length);
  const linked = !node.partitions.length && node.matrix.some((row) => row.some((token) => token.startsWith("NV")));
  const cut = node.cut.filter((gpu) => gpu.parts.length);
  return [h("p", {}, `${node.product} · ${node.levels.map((each) => `${each.level} ${each.name} · `).join("")}${node.free} of ${count(node.all, "GPU")} free`),
    told.map((gpu) => h("p", { class: gpu.taints.some((taint) => blocks(taint)) ? "fault" : "remark" }, h("b", {}, `GPU${gpu.index}: `), gpu.taints.map((taint) => `${fault(taint.what)} (${EFFECTS[taint.effect] ?? EFFECTS.None})`).join("; "))),
    node.remarks.map((remark) => h("p", { class: "remark" }, remark)),
    h("div", { class: "box tree" }, h("ul", {}, node.tree.children.map((each) => branch(each, node, state)))),
    node.partitions.length ? titled("Whole partitions: no other set of GPUs has NVLinks", h("ul", {}, node.partitions.map((gpus) => h("li", {}, gpus.map((place) => `GPU${node.gpus[place].index}`).join(", "), gpus.every((place) => node.gpus[place].sign === ".") ? " (free)" : "")))) : null,
    cut.length ? titled("GPUs that are cut into MIG devices", cut.map((gpu) => cutGpu(gpu, state))) : null,
    node.migs.length ? titled("MIG devices and vGPUs", h("ul", {}, node.migs.map((part) => h("li", {}, `${part.profile} `, holders(part, state, part.device))))) : null,
    linked ? titled("NVLinks", ring(node)) : null,
    node.gpus.length > 1 ? h("details", { class: "box", "data-key": "matrix" }, h("summary", {}, "All links"), matrix(node)) : null,
    h("div", { id: "use" }, use ? useTable(use, state) : null)];
}

const EFFECTS = { NoSchedule: "no new pod gets it", NoExecute: "pods are evicted", None: "only informs, pods still get it" };
const blocks = (taint) => taint.effect === "NoSchedule" || taint.effect === "NoExecute";
const HIDDEN = "a namespace that you may not see";

// What containers use, in a node that is drawn already: its boxes say too where something runs that no container has.
export function atWork(drawer, use, state) {
  const place = drawer.querySelector("#use");
  if (!place) return;
  refill(place, useTable(use, state));
  const busy = use.unowned.filter((each) => each.profile === null).map((each) => String(each.gpu));
  for (const box of drawer.querySelectorAll(".gpu")) {
    box.querySelector(".at-work")?.remove();
    if (busy.includes(box.dataset.gpu)) box.append(h("small", { class: "at-work" }, "at work, and no container has it"));
  }
}

function useTable(use, state) {
  if (use.trouble) return titled("In use now", h("p", {}, use.trouble));
  if (!use.uses.length && !use.unowned.length) return titled("In use now", h("p", {}, "No container has a GPU of it."));
  const told = (value, text) => h("td", {}, value === null || value === undefined ? "not reported" : text(value));
  const percent = (value) => `${value} %`;
  const row = (one, whose, busy) => h("tr", {}, h("th", { scope: "row" }, `GPU${one.gpu}`), whose, busy, told(one.memoryBytes, gibibytes), told(one.processes, String));
  return titled("In use now", h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["GPU", "Pod", "Container", "SMs", "Memory", "Processes"].map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, use.uses.map((one) => row(one, [h("td", {}, one.hidden ? HIDDEN : pod(state, one.namespace, one.pod)), h("td", {}, one.container ?? "")], told(one.smPercent, percent))),
      use.unowned.map((one) => row(one, h("td", { colspan: "2" }, one.profile === null ? "no container has it" : `no container has this ${one.profile}`), told(one.busyPercent, (value) => `${value} % busy`)))))));
}

function branch(one, node, state) {
  if (one.gpu !== undefined) return gpuBox(node.gpus[one.gpu], node.matrix[one.gpu], node, state);
  return h("li", { class: "branch" }, one.level ? h("span", {}, `${LEVELS[one.level]} (${one.level})${one.assumed ? ", assumed from NUMA nodes" : ""}`) : null, h("ul", {}, one.children.map((each) => branch(each, node, state))));
}

function gpuBox(gpu, links, node, state) {
  const peers = links.map((token, other) => [token, node.gpus[other].index]).filter(([token]) => token.startsWith("NV"));
  const linked = peers.length ? `${peers[0][0]} to ${peers.length > 3 ? `${peers.length} others` : peers.map(([, other]) => `GPU${other}`).join(", ")}` : "no NVLink";
  const parts = gpu.heldBy.filter((one) => one.percent);
  const bar = parts.length ? h("span", { class: "meter parts", role: "img", "aria-label": `${parts.reduce((sum, one) => sum + one.percent, 0)} % given in ${count(parts.length, "part")}` }, parts.map((one) => h("i", { css: { width: `${one.percent}%` } }))) : null;
  return h("li", { class: `gpu ${SIGNS[gpu.sign][0]}`, "data-gpu": gpu.index }, h("b", {}, `GPU${gpu.index}`), node.partitions.length ? null : h("small", {}, linked), gpu.rail === null ? null : h("small", {}, `rail ${gpu.rail}`), bar, holders(gpu, state, `gpu-${gpu.index}`));
}

function holders(device, state, key) {
  if (!device.heldBy.length) return h("em", {}, device.why && !device.taints?.length ? device.label : SIGNS[device.sign]?.[1] ?? device.label);
  return device.heldBy.map((one, nth) => h("span", {}, one.hidden ? h("em", {}, HIDDEN) : [h("small", {}, one.namespace), one.pods.length ? one.pods.map((name) => h("a", { href: link(state, { open: `pod/${one.namespace}/${name}` }), "data-key": `pod-${key}-${nth}-${one.namespace}/${name}` }, name)) : h("em", {}, `claim ${one.claim}, no pod`)], one.amount ? h("small", {}, one.amount) : null));
}

function cutGpu(gpu, state) { // its slices side by side, in their places
  const taken = new Set(gpu.parts.flatMap((part) => Array.from({ length: part.size }, (_, nth) => part.start + nth)));
  const box = (start, size, ...content) => h("div", { class: content.length ? "part" : "hole", css: { "grid-column": `${start + 1} / span ${size}`, "grid-row": "1" } }, content);
  return h("div", {}, h("span", {}, gpu.gpu === null ? "GPU" : `GPU${gpu.gpu}`),
    h("div", { class: "slices", css: { "grid-template-columns": `repeat(${gpu.slices}, minmax(1.4rem, 1fr))` } },
      gpu.parts.map((part) => box(part.start, part.size, `${part.profile} `, holders(part, state, part.device))),
      Array.from({ length: gpu.slices }, (_, place) => (taken.has(place) ? null : box(place, 1)))));
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function ring(node) {
  const places = node.gpus.map((_, nth) => [RADIUS * Math.sin((2 * Math.PI * nth) / node.gpus.length), -RADIUS * Math.cos((2 * Math.PI * nth) / node.gpus.length)]);
  const lines = node.matrix.flatMap((row, one) => row.flatMap((token, other) => (other <= one || !token.startsWith("NV") ? [] : [drawn("line", { x1: places[one][0], y1: places[one][1], x2: places[other][0], y2: places[other][1], "stroke-width": Math.min(5, .6 + Number(token.slice(2)) / 9) })])));
  const dots = node.gpus.map((gpu, nth) => drawn("g", { class: SIGNS[gpu.sign][0] }, drawn("circle", { cx: places[nth][0], cy: places[nth][1], r: node.gpus.length > 10 ? 11 : 14 }), drawn("text", { x: places[nth][0], y: places[nth][1] }, String(gpu.index))));
  return drawn("svg", { class: "ring", viewBox: "-104 -104 208 208", role: "img", "aria-label": "NVLinks between the GPUs; “All links” has them as text" }, ...lines, ...dots);
}

function matrix(node) {
  const names = node.gpus.map((gpu) => `GPU${gpu.index}`);
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("td", {}), names.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, node.matrix.map((row, nth) => h("tr", {}, h("th", { scope: "row" }, names[nth]), row.map((token) => h("td", {}, token)))))));
}

export function podBody(answer, state) {
  const devices = (claim) => h("ul", {}, claim.devices.map((device) => h("li", { class: "mono" }, device)));
  return [h("p", { id: "pod-state" }, `It ${answer.words}`, answer.node ? [" on ", h("a", { href: link(state, { open: `node/${answer.node}` }) }, answer.node)] : "", "."),
    h("p", { class: "quiet" }, "Team ", h("a", { href: link(state, { open: `team/${answer.namespace}` }) }, answer.namespace), answer.workload.kind === "Pod" ? "" : ` · ${answer.workload.kind} ${answer.workload.name}`),
    answer.waiting ? [h("div", { class: "remark" }, h("b", {}, REASONS[answer.waiting.reason] ?? answer.waiting.reason), whyText(answer.waiting)), helpList(answer.waiting.help), obstacleList(answer.waiting, state)] : null,
    answer.claims.map((claim) => titled(claim.claim ? `Claim ${claim.claim}` : `Claim “${claim.alias}” is not there`, devices(claim), claim.decision ? decision(claim.decision) : null))];
}

function decision(made) {
  const row = (part) => h("tr", { class: part.decided ? "decided" : "" }, h("th", { scope: "row" }, part.part, part.decided ? " (decided)" : ""), h("td", {}, part.chosen), made.runnerUp ? h("td", {}, part.runnerUp ?? "") : null);
  const table = (parts) => h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["", "Chosen", ...(made.runnerUp ? ["Next best"] : [])].map((head) => h("th", { scope: "col" }, head)))), h("tbody", {}, parts.map(row))));
  const [apart, same] = [made.parts.filter((part) => part.chosen !== part.runnerUp), made.parts.filter((part) => part.chosen === part.runnerUp)];
  return [h("h4", {}, "Why these"), h("ul", {}, made.words.split("; ").map((words) => h("li", {}, words))), apart.length ? table(apart) : null,
    same.length ? h("details", { "data-key": "score" }, h("summary", {}, `${count(same.length, "part")} of the score ${same.length === 1 ? "is" : "are"} equal`), table(same)) : null];
}

// What a team holds → what limits it, and its words.
const HELD = { gpus: ["gpus", "GPUs"], migSlices: ["migSlices", "MIG slices"], shareMemoryGiB: ["shareMemory", "GiB of memory in shares of GPUs"] };

export function teamBody(team, state) {
  const row = (words, amount, bar) => h("tr", {}, h("th", { scope: "row" }, words), h("td", { class: "n" }, amount), h("td", { css: { width: "40%" } }, bar));
  const free = Object.entries(HELD).filter(([key, [counted]]) => team.holds[key] && !team.limits.some((limit) => limit.counted === counted));
  return [h("p", {}, h("a", { href: fresh({ team: [team.namespace] }) }, `Its ${count(team.nodes, "node")} in the fleet`), " · ", h("a", { href: fresh({ view: "waiting", by: "team" }) }, `${count(team.waiting, "pod")} ${team.waiting === 1 ? "waits" : "wait"}`)),
    team.problem ? h("p", { class: "remark" }, h("b", {}, "The quota cannot be read: "), team.problem) : null,
    titled("Quota and use", h("table", {}, h("tbody", {}, team.limits.map((one) => row(limitedWords(one), ofLimit(one), meter(one))), free.map(([key, [, words]]) => row(words, number(team.holds[key]), meter())))),
      team.moreLimits ? h("p", { class: "quiet" }, `${count(team.moreLimits, "more limit")} on products and MIG profiles, less used up: dracaena status shows all.`) : null),
    titled("By product", h("table", {}, h("tbody", {}, team.products.map(([name, gpus]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "n" }, count(gpus, "GPU"))))))),
    titled("Workloads", h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Workload", "Pods", "Devices"].map((head, nth) => h("th", { scope: "col", class: nth ? "n" : "" }, head)))),
      h("tbody", {}, team.workloads.map((one) => h("tr", {}, h("th", { scope: "row" }, one.kind === "Pod" ? pod(state, team.namespace, one.name) : one.name, h("span", { class: "quiet" }, ` ${one.kind}`)), h("td", { class: "n" }, number(one.pods)), h("td", { class: "n" }, number(one.devices))))))))];
}
