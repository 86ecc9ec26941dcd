// What each view shows, as elements. Texts of others are only ever text: nothing is parsed as HTML.

import { GUTTER, clock, lasted } from "./gantt.js";

const OTHERS = "another tenant's";
const MOST = 300; // rows of a table

/** Makes an element. */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined && value !== "") made.setAttribute(name, value);
  made.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

/** Makes the children of `old` those given, and touches only what differs: a selection stays. */
export function patch(old, children) {
  const now = [...old.childNodes], next = children.flat().filter(Boolean).map((one) => (one.nodeType ? one : document.createTextNode(one)));
  next.forEach((one, at) => {
    const was = now[at];
    if (!was) old.append(one);
    else if (was.isEqualNode(one)) return;
    else if (was.nodeType !== 1 || was.nodeName !== one.nodeName) was.replaceWith(one);
    else {
      for (const { name } of [...was.attributes]) if (!one.hasAttribute(name) && name !== "open") was.removeAttribute(name);
      for (const { name, value } of one.attributes) {
        if (name === "style") was.style.cssText = value; // the policy lets no attribute of style in
        else if (was.getAttribute(name) !== value) was.setAttribute(name, value);
      }
      patch(was, [...one.childNodes]);
    }
  });
  for (const extra of now.slice(next.length)) extra.remove();
}

/** 64-bit numbers come as text, and so does what is no number. */
export const num = (value) => Number(value || 0);
const seconds = (us, digits = 1) => (num(us) / 1e6).toFixed(digits);
const gib = (bytes) => (num(bytes) / 2 ** 30).toFixed(2);
const size = (bytes) => (num(bytes) < 2 ** 30 ? `${(num(bytes) / 2 ** 20).toFixed(1)} MiB` : `${gib(bytes)} GiB`);
const ratio = (ppm) => (num(ppm) ? `${(num(ppm) / 1e6).toFixed(2)}×` : "–");
const percent = (share) => `${Math.round(100 * share)} %`;
const stateOf = (job) => job.state.replace("JOB_STATE_", "").toLowerCase();
const pill = (text) => h("span", { class: `pill ${text.replace(/\W/g, "-")}` }, text);
const link = (job, text) => (job ? h("a", { href: `#job/${encodeURIComponent(job)}` }, text || job) : h("span", { class: "dim" }, OTHERS));
const empty = (text) => h("p", { class: "empty" }, text);
const command = (text) => h("button", { class: "command", "data-copy": text, title: "Copy" }, h("code", {}, text));
const commands = (...texts) => h("div", { class: "commands" }, h("span", { class: "dim" }, "To act:"), texts.map(command));
const meter = (share, title) => h("meter", { min: 0, max: 1, value: Math.max(0, Math.min(1, share)).toFixed(3), title: title || percent(share) });

/** A table of columns [name, cell of an item, is a number]; `id` names a row. */
function table(items, id, columns, none) {
  if (!items.length) return empty(none);
  const head = h("tr", {}, columns.map(([name, , isNumber]) => h("th", { class: isNumber ? "number" : "" }, name)));
  const rows = items.slice(0, MOST).map((one) => h("tr", { "data-id": id(one) }, columns.map(([name, cell, isNumber]) => {
    const value = cell(one);
    return h("td", { "data-c": name, class: isNumber ? "number" : "" }, value === "" || value === null || value === undefined ? h("span", { class: "dim" }, "–") : value);
  })));
  return h("div", { class: "table" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows)), items.length > MOST ? empty(`${items.length - MOST} more are not shown; plexctl lists them.`) : null);
}

/** A figure with its name; `kind` says where tests find it. */
const tile = (kind, name, value, more, isBad) => h("div", { class: `tile${isBad ? " warn" : ""}` }, h("b", { [`data-${kind}`]: name }, value || "–"), h("span", {}, name), h("small", {}, more || "\u00a0"));

/** Returns what a view shows of a reply, or that there is none yet, or why not. */
const told = (reply, show) => (!reply ? empty("…") : reply.error ? h("p", { class: "bad", role: "alert" }, reply.error.message) : show(reply));
const sum = (items, of) => items.reduce((total, one) => total + num(of(one)), 0);
const metric = (seen, job, name, digits) => { const value = seen.status.progress[job.job_id]?.metrics?.[name]; return value === undefined ? "" : Number(value).toFixed(digits); };
const use = (seen, job) => seen.report?.jobs?.find((one) => one.job_id === job) || {};
/** Returns the caller's jobs, and those of others that the report names to operators, newest first. */
const known = (seen) => [...(seen.report?.jobs || []).filter((one) => one.job_id && !seen.status.jobs.some((own) => own.job_id === one.job_id)), ...seen.status.jobs].reverse();
const resident = (seen, job) => (seen.pack?.groups || []).flatMap((group) => group.residents).filter((one) => one.job_id === job);

export function tiles(seen) {
  const { status, pack } = seen;
  if (!status || status.error) return [told(status, () => null)];
  const jobs = known(seen).map(stateOf), many = (state) => jobs.filter((one) => one === state).length;
  const busy = status.devices.filter((one) => one.running_wpg).length;
  const down = status.nodes.filter((one) => one.state !== "up").length;
  const waiting = pack?.waiting || [];
  return [
    tile("tile", "jobs running", String(many("running")), `${many("queued")} queued, ${jobs.length} known`),
    tile("tile", "devices busy", `${busy} / ${status.devices.length}`, `${sum(status.devices, (one) => one.switches)} switches so far`),
    tile("tile", "waiting", String(waiting.length), waiting.length ? `first for ${lasted(num(pack.now_us) - Math.min(...waiting.map((one) => num(one.since_us))))}` : "nothing waits", waiting.length),
    tile("tile", "nodes", String(status.nodes.length), down ? `${down} not up` : "all up", down),
    tile("tile", "state in host memory", size(sum(status.nodes, (one) => one.host_bytes_used)), `of ${size(sum(status.nodes, (one) => one.host_bytes_total))}`),
  ];
}

/** What is told of a bar that was clicked. */
export function picked(seen) {
  const bar = seen.picked;
  if (!bar) return [];
  const job = bar.deployment.split("/", 1)[0];
  const said = seen.explained.get(bar.operation);
  return [h("div", { class: "card" },
    h("h3", {}, bar.kind, " ", h("span", { class: "dim" }, `on ${bar.device}`)),
    h("dl", {},
      h("dt", {}, "job"), h("dd", {}, link(job)),
      h("dt", {}, "deployment"), h("dd", {}, bar.deployment || OTHERS),
      h("dt", {}, "lasted"), h("dd", {}, lasted(bar.end - bar.start)),
      bar.nbytes ? [h("dt", {}, "moved"), h("dd", {}, size(bar.nbytes))] : null),
    bar.operation ? [h("button", { "data-explain": bar.operation, "data-operation": bar.operation, "data-job": job }, "Explain"), command(`plexctl explain op_${bar.operation} --job ${job}`)] : null,
    said ? explained(said) : null)];
}

const explained = (said) => h("div", { class: said.refused ? "why bad" : "why" }, h("p", {}, said.text), said.facts.length ? h("ul", {}, said.facts.map((fact) => h("li", {}, fact))) : null);

function queue(seen) {
  const rows = (pack) => {
    if (!pack.waiting.length) return empty("Nothing waits for devices.");
    return h("div", { class: "list" }, pack.waiting.map((one) => {
      const said = seen.explained.get(one.job_id);
      return h("article", { class: "card", "data-id": one.deployment_id || "" },
        h("h3", {}, one.job_id ? link(one.job_id, one.job_name || one.job_id) : OTHERS, " ", h("span", { class: "dim" }, `${one.name || ""} ${one.tenant || ""}`)),
        h("p", { "data-c": "since" }, `waits for ${lasted(num(pack.now_us) - num(one.since_us))}`),
        h("p", { "data-c": "reason" }, one.reason),
        one.job_id ? [h("button", { "data-explain": one.job_id }, said ? "Close" : "Explain"), command(`plexctl explain ${one.job_id}`)] : null,
        said ? explained(said) : null);
    }));
  };
  return [h("h2", {}, "Queue"), told(seen.pack, rows)];
}

function jobs(seen) {
  return [h("h2", {}, "Jobs"), told(seen.status, () => table(known(seen), (job) => job.job_id, [
    ["job", (job) => link(job.job_id)],
    ["name", (job) => job.name],
    ["tenant", (job) => job.tenant],
    ["state", (job) => pill(stateOf(job))],
    ["phase", (job) => job.phase],
    ["step", (job) => metric(seen, job, "step", 0), true],
    ["reward", (job) => metric(seen, job, "reward", 3), true],
    ["operations", (job) => job.operations_done, true],
    ["device s", (job) => seconds(job.device_us), true],
    ["slowdown", (job) => ratio(use(seen, job.job_id).measured_ppm), true],
    ["bound", (job) => ratio(use(seen, job.job_id).bound_ppm), true],
  ], "No job was made yet."))];
}

function job(seen, id) {
  return told(seen.status, (status) => {
    const found = known(seen).find((one) => one.job_id === id), said = seen.explained.get(id);
    const why = said ? explained(said) : empty("…");
    if (!found) return h("div", {}, h("h2", {}, id), why);
    const used = use(seen, id), slow = num(used.measured_ppm), bound = num(used.bound_ppm);
    const costs = (seen.cost?.costs || []).filter((one) => one.job_id === id);
    return h("div", {},
      h("h2", {}, found.name || id, " ", pill(stateOf(found)), " ", h("span", { class: "dim" }, id)),
      found.reason ? h("p", {}, found.reason) : null,
      found.notice ? h("p", { class: "bad" }, found.notice) : null,
      h("div", { class: "tiles" },
        tile("fact", "reward", metric(seen, found, "reward", 3), `step ${metric(seen, found, "step", 0) || "–"}`),
        tile("fact", "slowdown", slow ? ratio(slow) : ratio(used.predicted_ppm), `${slow ? "measured" : "predicted"}, bound ${ratio(bound)}`, slow && bound && slow > bound),
        tile("fact", "waited", `${seconds(used.wait_us)} s`, `${percent(num(used.wait_ratio_ppm) / 1e6)} of its time`),
        tile("fact", "device time", `${seconds(found.device_us)} s`, found.operations_done && `${found.operations_done} operations`),
        tile("fact", "switches", String(num(used.switches)), `${seconds(used.switch_us, 2)} s`),
        tile("fact", "pool cost", num(used.cost).toFixed(2), `${seconds(used.pooled_us)} s of spot and lent`)),
      h("h3", {}, "Why it waits"), why,
      resident(seen, id).map(cycle),
      h("h3", {}, "Deployments"),
      table(deployments(seen, id), (one) => one.deployment_id, [
        ["name", (one) => one.name], ["role", (one) => one.spec?.role], ["backend", (one) => one.spec?.backend],
        ["state", (one) => one.state && pill(one.state)], ["state is on", (one) => one.residency.replace("RESIDENCY_", "").toLowerCase()],
        ["devices", (one) => resident(seen, id).find((r) => r.deployment_id === one.deployment_id)?.devices.join(", ")],
        ["size", (one) => size(one.state_bytes), true],
      ], "It has no deployment."),
      h("h3", {}, "Cost"), table(costs, (one) => one.kind, COSTS.slice(1), "Nothing is charged to it yet."),
      commands(`plexctl logs ${id} --follow`, `plexctl job cancel ${id}`, `plexctl job move ${id}`, `plexctl job pin ${id}`));
  });
}

/** Returns a job's deployments; of another tenant's job, those that the plan has. */
function deployments(seen, id) {
  const own = seen.status.deployments.filter((one) => one.job_id === id);
  return own.length ? own : resident(seen, id);
}

/** The planned cycle of a resident, to scale. */
function cycle(one) {
  const period = num(one.period_us);
  if (!period) return null;
  const at = (us) => (100 * num(us)) / period;
  const parts = one.segments.map((part) => svg("rect", { x: at(part.offset_us), width: Math.max(0.3, at(part.duration_us)), y: 0, height: 10, class: `phase ${part.phase}` }, svg("title", {}, `${part.phase}: ${lasted(num(part.duration_us))}`)));
  return h("div", {}, h("h3", {}, `Cycle of ${one.name} `, h("span", { class: "dim" }, `${lasted(period)}, ${percent(num(one.duty_ppm) / 1e6)} on ${one.devices.length} device${one.devices.length > 1 ? "s" : ""}${one.is_cold ? ", not known yet" : ""}`)),
    svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "cycle" }, parts),
    h("p", { class: "hint" }, one.segments.map((part) => `${part.phase} ${lasted(num(part.duration_us))}`).join(" · ")));
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat());
  return made;
}

function nodes(seen) {
  return [h("h2", {}, "Nodes"), told(seen.nodes, ({ nodes: all }) => h("div", { class: "list" }, all.map((node) => h("article", { class: "card", "data-id": node.node_id },
    h("h3", {}, node.node_id, " ", pill(node.state)),
    node.reason ? h("p", {}, node.reason) : null,
    h("p", { class: "dim" }, `host memory ${size(node.host_bytes_used)} of ${size(node.host_bytes_total)} `, meter(num(node.host_bytes_used) / Math.max(1, num(node.host_bytes_total)))),
    table(node.devices, (one) => `${one.node_id}:${one.index}`, [
      ["device", (one) => `${one.node_id}:${one.index}`], ["kind", (one) => one.kind],
      ["used", (one) => `${size(one.bytes_used)} of ${size(one.bytes_total)}`, true],
      ["memory", (one) => meter(num(one.bytes_used) / Math.max(1, num(one.bytes_total)))],
      ["busy", (one) => percent(Math.min(1, num(one.busy_us) / Math.max(1, num(seen.status?.now_us) - num(one.since_us)))), true],
      ["residents", (one) => one.resident_wpgs.length, true],
      ["switches", (one) => num(one.switches), true], ["switch s", (one) => seconds(one.switch_us, 2), true],
    ], "It has no device."),
    commands(`plexctl node drain ${node.node_id}`, `plexctl node ${node.state === "up" ? "cordon" : "uncordon"} ${node.node_id}`)))))];
}

function instances(seen) {
  return [h("h2", {}, "Rollout instances"), told(seen.instances, (reply) => table(reply.instances, (one) => one.device, [
    ["device", (one) => one.device], ["kind", (one) => one.kind], ["phase", (one) => pill(one.phase)],
    ["engine", (one) => one.engine], ["deployment", (one) => (one.deployment_id ? link(one.job_id, one.deployment_id) : "")], ["version", (one) => num(one.version), true],
    ["running", (one) => one.running, true], ["pending", (one) => one.pending, true], ["tokens/s", (one) => num(one.tokens_per_s).toFixed(0), true],
    ["price", (one) => (one.price ? one.price : ""), true], ["because", (one) => one.because],
    ["to act", (one) => (one.kind === "spot" ? command(`plexctl instance ${one.phase === "closed" ? "open" : "drain"} ${one.device}`) : "")],
  ], "No rollout engine runs."))];
}

function rewards(seen) {
  return [h("h2", {}, "Reward pools"), told(seen.rewards, (reply) => h("div", {},
    table(reply.pools, (one) => one.name, [
      ["pool", (one) => one.name], ["queued", (one) => one.queued, true], ["busy", (one) => one.busy, true], ["idle", (one) => one.idle, true],
      ["starting", (one) => one.starting, true], ["limit", (one) => one.limit, true], ["planned", (one) => one.planned, true],
      ["in time", (one) => (one.is_unmet ? pill("too small") : "yes")],
    ], "No pool has workers yet."),
    h("h3", {}, "Batches"),
    table(reply.batches, (one) => one.batch_id, [
      ["program", (one) => one.program], ["job", (one) => link(one.job_id)], ["size", (one) => one.size, true], ["queued", (one) => one.queued, true],
      ["running", (one) => one.running, true], ["answered", (one) => one.answered, true], ["since", (one) => lasted(num(one.since_us)), true], ["waits for", (one) => one.critical],
      ["more", (one) => command(`plexctl reward explain ${[...atob(one.batch_id)].map((byte) => byte.charCodeAt(0).toString(16).padStart(2, "0")).join("")}`)],
    ], "No batch is scored now."),
    h("p", { class: "dim" }, `Untrusted code: ${reply.sandbox}`)))];
}

const COSTS = [
  ["job", (one) => link(one.job_id, one.job_name || one.job_id)], ["work", (one) => one.kind], ["count", (one) => num(one.count), true],
  ["device s", (one) => seconds(one.device_us), true], ["switch s", (one) => seconds(one.switch_us, 2), true], ["tokens", (one) => num(one.tokens), true],
  ["GiB", (one) => gib(one.nbytes), true], ["host GiB h", (one) => (num(one.host_mib_s) / 1024 / 3600).toFixed(2), true],
];
const ADDED = ["count", "device_us", "switch_us", "tokens", "nbytes", "host_mib_s"];

function bill(seen) {
  const since = [["all", 0], ["30 days", 720], ["24 h", 24]].map(([text, hours]) => h("button", { "data-since": hours, class: (seen.since || 0) === hours ? "on" : "" }, text));
  const tenants = seen.report?.tenants || [];
  return [
    h("div", { class: "bar" }, h("h2", {}, "Bill"), h("span", { class: "buttons" }, since), command(`plexctl cost${seen.since ? ` --since ${seen.since}h` : ""} --csv`)),
    told(seen.report, () => table(tenants, (one) => one.tenant, [
      ["tenant", (one) => one.tenant || "all others"], ["jobs", (one) => num(one.jobs), true], ["device s", (one) => seconds(one.device_us), true],
      ["waited s", (one) => seconds(one.wait_us), true], ["switch s", (one) => seconds(one.switch_us, 2), true], ["weight", (one) => num(one.weight), true],
      ["share now", (one) => percent(num(one.share_ppm) / 1e6), true], ["pool cost", (one) => num(one.cost).toFixed(2), true],
    ], "Nobody has used anything.")),
    h("h3", {}, "By job and work"),
    told(seen.cost, ({ costs }) => {
      const all = Object.fromEntries(ADDED.map((name) => [name, sum(costs, (one) => one[name])]));
      return table(costs.length ? [{ ...all, kind: "all", job_id: "", sum: true }, ...costs] : [], (one) => (one.sum ? "all" : `${one.job_id} ${one.kind}`),
        [["job", (one) => (one.sum ? h("b", {}, "all") : COSTS[0][1](one))], ["tenant", (one) => one.owner], ...COSTS.slice(1)], "Nothing was charged.");
    }),
  ];
}

/** Views in the order of their tabs: what each asks for beside the status and the plan. */
export const VIEWS = [
  { name: "devices", title: "Devices", asks: ["timeline"] },
  { name: "queue", title: "Queue", asks: [], show: queue },
  { name: "jobs", title: "Jobs", asks: ["report"], show: jobs },
  { name: "job", under: "jobs", asks: ["report", "cost"], show: (seen, id) => [job(seen, id)] },
  { name: "nodes", title: "Nodes", asks: ["nodes"], show: nodes },
  { name: "instances", title: "Instances", asks: ["instances"], show: instances },
  { name: "rewards", title: "Rewards", asks: ["rewards"], show: rewards },
  { name: "bill", title: "Bill", asks: ["report", "cost"], show: bill },
];

/** Draws the series of a view by uPlot; returns its charts by the element that each is in. */
export function series(view, { gantt, seen, subject, charts }) {
  const wanted = view.name === "devices" ? { busy: ["Share of devices that work and that switch", shares(gantt), ["busy", "switching"], percent] }
    : view.name === "job" ? { reward: ["Reward", points(seen, "reward", subject), ["reward"], (value) => value.toPrecision(3)], slowdown: ["Slowdown", points(seen, "slowdown", subject), ["slowdown"], (value) => `${value.toFixed(2)}×`] } : {};
  for (const [id, [title, data, names, show]] of Object.entries(wanted)) {
    const box = document.getElementById(id), wide = box.clientWidth || box.parentElement.clientWidth; // an empty box is not shown
    if (data[0].length < 2 || !wide) { if (charts[id]?.subject !== subject) { charts[id]?.destroy(); delete charts[id]; } continue; }
    if (charts[id] && charts[id].subject === subject && charts[id].width === wide) charts[id].setData(data);
    else {
      charts[id]?.destroy();
      charts[id] = plot(box, wide, title, data, names, show, view.name === "devices" && (() => [gantt.start / 1e6, gantt.end / 1e6]));
      charts[id].subject = subject;
    }
  }
  return charts;
}

const points = (seen, name, job) => seen.history.get(`${name} ${job}`) || [[], []];

/** Shares of the time of all devices, in bins of the Gantt's window. */
function shares(gantt) {
  const bins = 80, end = Math.min(gantt.end, gantt.now), wide = (end - gantt.start) / bins, devices = Math.max(1, gantt.lanes.size);
  const busy = new Array(bins).fill(0), moving = new Array(bins).fill(0);
  if (wide <= 0) return [[], [], []];
  for (const lane of gantt.lanes.values()) {
    lane.between(gantt.start, end, (bar) => {
      const into = bar.kind === "load" || bar.kind === "offload" ? moving : busy;
      for (let bin = Math.max(0, Math.floor((bar.start - gantt.start) / wide)); bin < bins && gantt.start + bin * wide < bar.end; bin++) {
        const from = gantt.start + bin * wide;
        into[bin] += Math.max(0, Math.min(bar.end, from + wide) - Math.max(bar.start, from)) / wide / devices;
      }
    });
  }
  return [busy.map((_, bin) => (gantt.start + (bin + 0.5) * wide) / 1e6), busy.map((one) => Math.min(1, one)), moving.map((one) => Math.min(1, one))];
}

function plot(box, width, title, data, names, show, times) {
  const style = getComputedStyle(box), colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const strokes = [colour("--accent"), colour("--move")];
  return new uPlot({
    title, width, height: 160, cursor: { y: false }, padding: [null, 0, null, 0],
    axes: [{ ...axis, space: 100, values: (_, ticks) => ticks.map((at) => clock(at * 1e6, (ticks[1] - ticks[0]) * 1e6)) }, { ...axis, size: times ? GUTTER : 56, values: (_, ticks) => ticks.map(show) }],
    scales: { x: times ? { range: times } : {}, y: { range: (_, low, high) => (names.length > 1 ? [0, 1] : low === high ? [low - 1, high + 1] : [low, high]) } },
    series: [{}, ...names.map((label, at) => ({ label, points: { show: false }, stroke: strokes[at], fill: `${strokes[at]}22`, width: 1.5, value: (_, value) => (value === null ? "–" : show(value)) }))],
  }, data, box);
}
