// One node: its PCIe tree as boxes within boxes, its NVLinks as a ring, MIG slices and shares as bars.
import { element, gibibytes } from "/elements.js";

const LEVELS = {
  PSB: "one board", PIX: "one PCIe switch", PXB: "several PCIe switches", PHB: "one host bridge",
  NODE: "one NUMA node", SYS: "across NUMA nodes",
};
const STATES = { free: "", taken: "taken", shared: "shared", unavailable: "unavailable", "not published": "missing" };
const SVG = "http://www.w3.org/2000/svg";
const RADIUS = 82;

export function nodeBody(node, podButton) {
  const linked = !node.partitions.length && node.matrix.some((row) => row.some((token) => token.startsWith("NV")));
  const tree = element("div", { class: "tree" }, element("ul", {}, ...node.tree.children.map((each) => branch(each, node, podButton))));
  const parts = [element("div", { class: "drawing" }, tree, ...(linked ? [ring(node)] : []))];
  if (node.partitions.length) parts.push(...partitions(node));
  if (node.cut.some((gpu) => gpu.parts.length)) {
    parts.push(element("h3", {}, "GPUs that are cut into MIG devices"));
    parts.push(...node.cut.filter((gpu) => gpu.parts.length).map((gpu) => cutGpu(gpu, podButton)));
  }
  if (node.migs.length) {
    parts.push(element("h3", {}, "MIG devices"));
    parts.push(element("ul", {}, ...node.migs.map((mig) => element("li", {}, `${mig.profile} `, ...holders(mig, podButton)))));
  }
  if (node.gpus.length > 1) parts.push(matrix(node));
  return parts;
}

export function useTable(use, podButton) {
  const title = element("h3", {}, "In use now");
  if (use.trouble) return [title, element("p", {}, use.trouble)];
  if (!use.uses.length && !use.unowned.length) return [title, element("p", {}, "No container has a GPU of it.")];
  const heads = ["GPU", "Pod", "Container", "SMs", "Memory", "Processes"];
  const rows = use.uses.map((each) => element("tr", {},
    element("th", { scope: "row" }, `GPU${each.gpu}`),
    element("td", {}, each.hidden ? "somebody of a namespace that you may not see" : podButton(each.namespace, each.pod)),
    element("td", {}, each.container ?? ""),
    element("td", {}, each.smPercent === null ? "not told" : `${each.smPercent} %`),
    element("td", {}, each.memoryBytes === null ? "not told" : gibibytes(each.memoryBytes)),
    element("td", {}, each.processes ?? "not told")));
  rows.push(...use.unowned.map((each) => element("tr", { class: "unowned" },
    element("th", { scope: "row" }, `GPU${each.gpu}`),
    element("td", { colspan: "2" }, each.profile === null ? "no container has it" : `no container has this ${each.profile}`),
    element("td", {}, each.busyPercent === null ? "not told" : `${each.busyPercent} % busy`),
    element("td", {}, each.memoryBytes === null ? "not told" : gibibytes(each.memoryBytes)),
    element("td", {}, each.processes ?? "not told"))));
  return [title, element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows)))];
}

export function markAtWork(body, use) { // the boxes of whole GPUs on which something runs that no container has
  const whole = (use?.unowned ?? []).filter((each) => each.profile === null).map((each) => String(each.gpu));
  for (const box of body.querySelectorAll(".gpu")) {
    const atWork = whole.includes(box.dataset.gpu);
    if (box.classList.toggle("at-work", atWork) === Boolean(box.querySelector(".at-work"))) continue;
    if (atWork) box.append(element("span", { class: "at-work" }, "at work, and no container has it"));
    else box.querySelector(".at-work").remove();
  }
}

function branch(one, node, podButton) {
  if (one.gpu !== undefined) return gpuBox(node.gpus[one.gpu], node.matrix[one.gpu], node, podButton);
  const assumed = one.assumed ? ", assumed from NUMA nodes" : "";
  return element("li", { class: "branch" },
    element("span", { class: "level" }, `${one.level}: ${LEVELS[one.level]}${assumed}`),
    element("ul", {}, ...one.children.map((each) => branch(each, node, podButton))));
}

function gpuBox(gpu, links, node, podButton) {
  const facts = [gpu.product, gpu.numaNode === null ? "" : `NUMA ${gpu.numaNode}`].filter(Boolean).join(", ");
  const group = gpu.nvlinkGroup === null || node.partitions.length ? "" : `NVLink group ${gpu.nvlinkGroup}: ${linkText(links, node)}`;
  return element("li", { class: `gpu ${STATES[gpu.state]}`, "data-gpu": gpu.index },
    element("b", {}, `GPU${gpu.index}`), ` ${facts}`,
    ...(group ? [element("span", { class: "links" }, group)] : []),
    ...(gpu.state === "shared" ? [shareBar(gpu)] : []),
    ...holders(gpu, podButton));
}

function partitions(node) {
  const text = (gpus) => gpus.map((place) => `GPU${node.gpus[place].index}`).join(", ");
  const isFree = (gpus) => gpus.every((place) => node.gpus[place].state === "free");
  return [element("h3", {}, "Whole partitions: no other set of GPUs has NVLinks"),
    element("ul", {}, ...node.partitions.map((gpus) => element("li", {}, `${text(gpus)}${isFree(gpus) ? " [free]" : ""}`)))];
}

function linkText(links, node) {
  const peers = new Map();
  links.forEach((token, place) => {
    if (token.startsWith("NV")) peers.set(token, [...(peers.get(token) ?? []), node.gpus[place].index]);
  });
  return [...peers].map(([token, others]) => `${token} to ${others.length > 3 ? `${others.length} others` : `GPU ${others.join(", ")}`}`).join("; ");
}

function holders(device, podButton) {
  if (!device.heldBy.length) return [element("span", { class: "holder" }, device.label)];
  const each = device.heldBy.map((holder) => {
    const amount = holder.amount ? [` ${holder.amount}`] : [];
    if (holder.hidden) return element("span", { class: "holder" }, "somebody of a namespace that you may not see", ...amount);
    const pods = holder.pods.flatMap((pod, place) => [...(place ? [", "] : []), podButton(holder.namespace, pod)]);
    const whose = pods.length ? pods : [`claim ${holder.namespace}/${holder.claim}, no pod`];
    return element("span", { class: "holder" }, ...whose, ...amount);
  });
  return each;
}

function shareBar(gpu) {
  const shares = gpu.heldBy.filter((holder) => holder.percent !== null);
  const bar = element("span", { class: "share", role: "img", "aria-label": gpu.label });
  for (const holder of shares) {
    const piece = element("span", {});
    piece.style.width = `${holder.percent}%`;
    bar.append(piece);
  }
  return shares.length ? bar : "";
}

function cutGpu(gpu, podButton) {
  const grid = element("div", { class: "slices" });
  grid.style.gridTemplateColumns = `repeat(${gpu.slices}, minmax(1.4rem, 1fr))`;
  const taken = new Set();
  for (const part of gpu.parts) {
    const box = element("div", { class: "part" }, `${part.profile} `, ...holders(part, podButton));
    box.style.gridColumn = `${part.start + 1} / span ${part.size}`;
    box.style.gridRow = "1";
    for (let place = part.start; place < part.start + part.size; place += 1) taken.add(place);
    grid.append(box);
  }
  for (let place = 0; place < gpu.slices; place += 1) {
    if (taken.has(place)) continue;
    const hole = element("div", { class: "hole", "aria-hidden": "true" });
    hole.style.gridColumn = String(place + 1);
    hole.style.gridRow = "1";
    grid.append(hole);
  }
  return element("div", {}, element("span", {}, gpu.gpu === null ? "GPU" : `GPU${gpu.gpu}`), grid);
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function ring(node) {
  const total = node.gpus.length;
  const places = node.gpus.map((_, place) => {
    const angle = (2 * Math.PI * place) / total - Math.PI / 2;
    return [RADIUS * Math.cos(angle), RADIUS * Math.sin(angle)];
  });
  const lines = [];
  node.matrix.forEach((row, one) => row.forEach((token, other) => {
    if (other <= one || !token.startsWith("NV")) return;
    const width = Math.min(5, 0.8 + Number(token.slice(2)) / 5);
    lines.push(drawn("line", { x1: places[one][0], y1: places[one][1], x2: places[other][0], y2: places[other][1], "stroke-width": width }));
  }));
  const size = total > 10 ? 10 : 14;
  const dots = node.gpus.map((gpu, place) => drawn("g", { class: STATES[gpu.state] },
    drawn("circle", { cx: places[place][0], cy: places[place][1], r: size }),
    drawn("text", { x: places[place][0], y: places[place][1] }, String(gpu.index))));
  return drawn("svg", { class: "ring", viewBox: "-104 -104 208 208", role: "img", "aria-label": "NVLinks between the GPUs; the table below has them as text" }, ...lines, ...dots);
}

function matrix(node) {
  const names = node.gpus.map((gpu) => `GPU${gpu.index}`);
  const head = element("tr", {}, element("td", {}), ...names.map((name) => element("th", { scope: "col" }, name)));
  const rows = node.matrix.map((row, place) => element("tr", {}, element("th", { scope: "row" }, names[place]), ...row.map((token) => element("td", {}, token))));
  return element("details", {}, element("summary", {}, "All links"),
    element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
}
