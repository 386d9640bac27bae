// Elements whose content is text: nothing here reads markup.
export function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [property, text] of Object.entries(value)) made.style.setProperty(property, text);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const at = (id) => document.getElementById(id);
export const fill = (place, ...children) => place.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== false));
export const number = (value) => value.toLocaleString("en");
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

export function age(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

// Sign in an answer → class of the cell, and its name in words.
export const SIGNS = {
  ".": ["free", "free"], v: ["virtual", "free for virtual machines"], "#": ["taken", "used"], "+": ["part", "in parts, room left"], "*": ["full", "in parts, full"],
  "!": ["failed", "failed"], "%": ["held", "failed, still held"], "-": ["closed", "closed"], x: ["missing", "not published"],
};
export const cell = (sign) => h("i", { class: `c ${SIGNS[sign][0]}`, "aria-hidden": "true" });
export const cells = (text) => h("span", { class: "cells", "aria-hidden": "true" }, [...text].map(cell));

// Puts new children in place and keeps the focus on the element with the same data-key.
export function refill(place, ...children) {
  const key = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const open = new Set([...place.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key));
  fill(place, ...children);
  for (const each of place.querySelectorAll("details[data-key]")) if (open.has(each.dataset.key)) { each.unfold?.(); each.open = true; }
  if (key) [...place.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key)?.focus({ preventScroll: true });
}

// What is made only once it is unfolded: 200 workloads have 4,000 pods.
export function folded(key, title, content) {
  const made = h("details", { "data-key": key, ontoggle: () => made.unfold() }, h("summary", {}, title));
  made.unfold = () => { if (made.children.length === 1) made.append(...content().filter(Boolean)); };
  return made;
}

const FAULTS = { "gpu-lost": "lost", silent: "no answer", "driver-mismatch": "driver mismatch", "driver-released": "driver released", "row-remap=pending": "row remap pending", "row-remap=failed": "row remap failed", "fabric=not-started": "fabric not started", "fabric=failed": "fabric failed", "page-retirement=pending": "page retirement pending", "recovery-action=reset": "needs a reset" };
export const fault = (what) => FAULTS[what] ?? what.replace(/^xid=/, "XID ").replace(/^ecc=/, "ECC error: ").replaceAll("=", ": ");

export const gibibytes = (bytes) => (bytes < 2 ** 30 ? `${Math.round(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`);
