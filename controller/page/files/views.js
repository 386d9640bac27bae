// Who waits and why; who holds what; and both in short beside the fleet on wide screens.
import { fresh, link } from "./address.js";
import { age, count, folded, gibibytes, h, number } from "./elements.js";

// The reasons of the metrics (api: dracaena_controller_waiting_pods), for people; a test knows of one that is missing.
export const REASONS = {
  "no-node": "No node fits", "claim-missing": "Claim does not exist", "class-missing": "DeviceClass does not exist",
  "config-broken": "Mistake in the claim", mistake: "Mistake in an object", selector: "A selector has no answer",
  unsupported: "Not supported", limit: "Beyond a limit", "other-driver": "Another driver's devices are asked for", quota: "Quota is used up",
  "took-too-long": "Took too long to decide", "refused-write": "The API server refuses the allocation", held: "Earlier GPUs are being reclaimed",
  "incomplete-gang": "Other pods of its gang do not exist yet", "gang-too-large": "Its gang is larger than the cluster",
};
const podLink = (state, namespace, pod) => h("a", { href: link(state, { open: `pod/${namespace}/${pod}` }), "data-key": `pod-${namespace}/${pod}` }, pod);
const teamLink = (state, team) => h("a", { href: link(state, { open: `team/${team}` }), "data-key": `team-${team}` }, team);

export function waitingView(waiting, state) {
  if (!waiting) return empty("This replica does not lead", "Only the leading replica knows who waits. Reload the page, or look again in a minute.");
  const by = (name, text) => h("a", { href: link(state, { by: name }), "aria-current": state.by === name ? "true" : null, "data-key": `by-${name}` }, text);
  const head = h("div", { class: "head" },
    h("h2", {}, waiting.total ? `${count(waiting.total, "pod")} ${waiting.total === 1 ? "waits" : "wait"}` : "No pod waits"),
    h("p", { class: "quiet" }, `${count(waiting.groups.length, "workload")}, the most pods first.`, waiting.more ? ` ${count(waiting.more, "more workload")} with fewer pods ${waiting.more === 1 ? "is" : "are"} not listed.` : "", waiting.hidden ? ` ${count(waiting.hidden, "pod")} of namespaces that you may not see ${waiting.hidden === 1 ? "is" : "are"} counted and not listed.` : ""),
    h("span", { class: "seg", role: "group", "aria-label": "Group by" }, by("workload", "By workload"), by("reason", "By reason"), by("team", "By team")));
  if (!waiting.total) return [head, empty("No pod waits for GPUs", "Pods that wait appear here within a second, with the reason and what would help.")];
  const groups = [...waiting.groups].sort((a, b) => b.pods - a.pods || b.oldestSeconds - a.oldestSeconds);
  if (state.by === "workload") return [head, h("div", { class: "cards" }, groups.map((group) => card(group, state)))];
  const key = state.by === "reason" ? "reason" : "namespace";
  const sections = new Map();
  for (const group of groups) sections.set(group[key], [...(sections.get(group[key]) ?? []), group]);
  return [head, [...sections].map(([name, some]) => h("section", {},
    h("h3", {}, key === "reason" ? REASONS[name] ?? name : teamLink(state, name), h("span", { class: "quiet" }, ` · ${count(some.reduce((sum, group) => sum + group.pods, 0), "pod")}`)),
    h("div", { class: "cards" }, some.map((group) => card(group, state)))))];
}

// Why no node fits, a bar for each reason: of how many nodes it is true, hatched where waiting does not help.
export function obstacleList(about, state) {
  if (!about.obstacles.length) return [];
  const bar = (one) => h("span", { class: `meter${one.lasting ? " lasting" : ""}`, "aria-hidden": "true" }, h("i", { css: { width: `${Math.max(3, 100 * one.nodes / about.nodes)}%` } }));
  const names = (one) => one.examples.flatMap((name, nth) => [nth ? ", " : "", h("a", { href: link(state, { open: `node/${name}` }), "data-key": `obs-${one.text}-${name}` }, name)]);
  return [h("h4", {}, `Why none of ${count(about.nodes, "node")} fits`),
    h("ul", { class: "obs" }, about.obstacles.map((one) => h("li", {}, h("b", { class: "n" }, `${number(one.nodes)} `), bar(one), h("span", {}, one.text, one.lasting ? h("em", {}, " (waiting does not help)") : null, ": ", names(one), one.nodes > one.examples.length ? ", …" : null)))),
    about.moreObstacles ? h("p", { class: "quiet" }, `${count(about.moreObstacles, "more reason")}, each of fewer nodes.`) : null];
}
export const whyText = (about) => (about.obstacles.length ? about.remarks.map((text) => h("p", {}, text)) : h("p", {}, about.why || "the details are being worked out"));

export const helpList = (help) => (help.length ? [h("h4", {}, "What would help"), h("ul", { class: "helps" }, help.map((text) => h("li", {}, text)))] : []);

function card(group, state) {
  const key = `${group.namespace}/${group.kind}/${group.name}`;
  const rest = group.pods - group.first.length;
  return h("article", { class: `card${group.obstacles.length ? "" : " plain"}`, "data-workload": key },
    h("header", { class: "top" }, h("span", { class: "many" }, number(group.pods)), h("div", {},
      h("h3", {}, group.name),
      h("p", { class: "quiet" }, `${group.kind} of `, teamLink(state, group.namespace)), group.ask ? h("p", {}, `${group.pods === 1 ? "asks" : "each asks"} for ${group.ask}`) : null,
      h("p", { class: "quiet" }, group.pods === 1 ? `waits ${age(group.oldestSeconds)}` : `the first waits ${age(group.oldestSeconds)}, the last ${age(group.newestSeconds)}`))),
    h("div", {}, h("p", { class: "why" }, REASONS[group.reason] ?? group.reason), whyText(group), helpList(group.help)),
    group.obstacles.length ? h("div", {}, obstacleList(group, state)) : null,
    group.pods > 1 || group.kind !== "Pod" ? folded(`pods-${key}`, count(group.pods, "pod"), () => [
      h("ul", { class: "podlist" }, group.first.map((pod) => h("li", {}, podLink(state, group.namespace, pod)))),
      rest > 0 ? h("p", { class: "quiet" }, `${count(rest, "more pod")} of this workload ${rest === 1 ? "waits" : "wait"} for the same reason.`) : null]) : h("p", {}, "Pod ", podLink(state, group.namespace, group.name)));
}

// How much of a limit is held; undefined: there is none. All of a limit of 0 is held from the start.
const shareOf = (held, limit) => (limit === undefined ? undefined : limit ? held / limit : held ? Infinity : 1);

const limitOf = (team, counted) => team.limits.find((limit) => limit.counted === counted);
const tightest = (team) => team.limits.reduce((most, limit) => (most && shareOf(most.held, most.limit) >= shareOf(limit.held, limit.limit) ? most : limit), undefined);

// What quotas limit (api: gpu_quota.KEYS): its name in words, and an amount of it.
const LIMITED = {
  gpus: [() => "GPUs", number], gpusByProduct: [(name) => `GPUs, ${name}`, number], shareMemory: [() => "memory in shares of GPUs", gibibytes],
  shareCores: [() => "cores in shares of GPUs", (percent) => `${number(percent)} %`], migSlices: [() => "MIG slices", number], migDevicesByProfile: [(name) => `MIG devices, ${name}`, number],
};
export const ofLimit = ({ counted, held, limit }) => `${LIMITED[counted][1](held)} of ${LIMITED[counted][1](limit)}`;
export const limitedWords = ({ counted, name }) => LIMITED[counted][0](name);

export function meter(one) {
  const share = one ? shareOf(one.held, one.limit) : undefined;
  if (share === undefined) return h("span", { class: "quiet" }, "no limit");
  return h("span", { class: `meter${share > 1 ? " over" : share >= .9 ? " tight" : ""}`, role: "img", "aria-label": ofLimit(one).replace(" of ", " of the quota of ") }, h("i", { css: { width: `${Math.min(100, 100 * share)}%` } }));
}

// The limit that is most used up; what it counts is said unless it is all GPUs.
function quota(team) {
  const most = tightest(team);
  if (team.problem) return [most ? meter(most) : null, h("small", {}, "cannot be read")];
  return [meter(most), most && most.counted !== "gpus" ? h("small", { class: "quiet" }, ofLimit(most), " ", limitedWords(most)) : null];
}

const COLUMNS = [["Team", "name"], ["GPUs", "gpus"], ["Quota", "share"], ["MIG slices", "mig"], ["Shared memory", "memory"], ["Nodes", "nodes"], ["Waiting", "waiting"]];
const VALUES = { name: (team) => team.namespace, gpus: (team) => team.holds.gpus, share: (team) => shareOf(tightest(team)?.held, tightest(team)?.limit) ?? -1, mig: (team) => team.holds.migSlices, memory: (team) => team.holds.shareMemoryGiB, nodes: (team) => team.nodes, waiting: (team) => team.waiting };

export function teamsView(answer, state) {
  const sort = VALUES[state.sort] && state.sort !== "name" ? state.sort : state.sort === "free" || state.sort === "trouble" ? "gpus" : state.sort;
  const value = VALUES[sort];
  const teams = [...answer.teams].sort((a, b) => (sort === "name" ? a.namespace.localeCompare(b.namespace) : (value(a) === value(b) ? 0 : value(b) - value(a)) || a.namespace.localeCompare(b.namespace)));
  const of = (team, counted, held) => (limitOf(team, counted) ? ofLimit(limitOf(team, counted)) : held);
  const hidden = answer.hidden.namespaces ? `${count(answer.hidden.namespaces, "more namespace")} that you may not see ${answer.hidden.namespaces === 1 ? "holds" : "hold"} ${count(answer.hidden.gpus, "GPU")}.` : "";
  if (!teams.length) return [h("h2", {}, "Teams"), empty("No team holds GPUs", "A team is a namespace. It appears here once it holds GPUs or has a quota.")];
  return [h("div", { class: "head" }, h("h2", {}, count(teams.length, "team")), h("p", { class: "quiet" }, "A team is a namespace that holds GPUs or has a quota. ", hidden)),
    h("div", { class: "scroll" }, h("table", { class: "teams" },
      h("thead", {}, h("tr", {}, COLUMNS.map(([title, name]) => h("th", { scope: "col", "aria-sort": sort === name ? (name === "name" ? "ascending" : "descending") : null, class: ["name", "share"].includes(name) ? "" : "n" }, h("a", { href: link(state, { sort: name }), "data-key": `sort-${name}` }, title))))),
      h("tbody", {}, teams.map((team) => h("tr", {}, h("th", { scope: "row" }, teamLink(state, team.namespace)), h("td", { class: "n" }, of(team, "gpus", number(team.holds.gpus))),
        h("td", { class: "bar" }, quota(team)), h("td", { class: "n" }, of(team, "migSlices", number(team.holds.migSlices))),
        h("td", { class: "n" }, of(team, "shareMemory", `${number(team.holds.shareMemoryGiB)} GiB`)), h("td", { class: "n" }, h("a", { href: fresh({ team: [team.namespace] }) }, number(team.nodes))),
        h("td", { class: "n" }, team.waiting ? h("a", { href: fresh({ view: "waiting", by: "team" }) }, number(team.waiting)) : "0"))))))];
}

export function sideView(waiting, teams, state) {
  const groups = waiting ? [...waiting.groups].sort((a, b) => b.pods - a.pods) : [];
  return [h("section", {}, h("h2", {}, h("a", { href: fresh({ view: "waiting" }) }, waiting ? `${count(waiting.total, "pod")} ${waiting.total === 1 ? "waits" : "wait"}` : "Who waits is not known here")),
    h("ul", {}, groups.slice(0, 12).map((group) => h("li", {}, h("b", {}, `${number(group.pods)} × ${group.name}`), h("span", { class: "quiet" }, ` ${group.namespace}, ${age(group.oldestSeconds)}`), h("p", {}, REASONS[group.reason] ?? group.reason, group.obstacles.length || !group.why ? "" : `: ${group.why}`), helpList(group.help.slice(0, 1)).slice(1))))),
  h("section", {}, h("h2", {}, h("a", { href: fresh({ view: "teams" }) }, "Teams")),
    h("table", {}, h("tbody", {}, [...teams.teams].sort((a, b) => b.holds.gpus - a.holds.gpus).slice(0, 14).map((team) => h("tr", {}, h("th", { scope: "row" }, teamLink(state, team.namespace)),
      h("td", { class: "n" }, limitOf(team, "gpus") ? ofLimit(limitOf(team, "gpus")) : number(team.holds.gpus)), h("td", { css: { width: "150px" } }, quota(team)))))))];
}

export const empty = (title, text, ...more) => h("div", { class: "empty" }, h("h3", {}, title), h("p", {}, text), more);
