// The page: who looks, what is asked, and which view is shown. The views themselves are in views.js.

import { Gantt, Hues, jobOf } from "./gantt.js";
import { h, patch, num, VIEWS, tiles, picked, series } from "./views.js";

const TOKEN = "plexsvc-token";
const $ = (id) => document.getElementById(id);
const hues = new Hues();
/** What the service said last, by view; `history` is what this page saw of each job. */
const seen = { history: new Map(), explained: new Map(), picked: null, hues };
let leaving = null; // aborts the stream
let charts = {};

const gantt = new Gantt($("gantt"), { hues, picked: (bar) => { seen.picked = bar; show(); }, moved: controls });
window.plexsvc = { gantt }; // for whoever measures

// ---- who looks

function token() { return sessionStorage.getItem(TOKEN); }

async function ask(path, options = {}) {
  const reply = await fetch(path, { ...options, headers: { Authorization: `Bearer ${token()}` }, cache: "no-store" });
  if (reply.ok) return reply;
  const told = await reply.json().catch(() => ({}));
  const problem = new Error(told.error?.message || `${reply.status} ${reply.statusText}`);
  problem.status = reply.status;
  throw problem;
}

function door(refusal = "") {
  leaving?.abort();
  sessionStorage.removeItem(TOKEN);
  $("house").hidden = true;
  $("door").hidden = false;
  $("refusal").textContent = refusal;
  $("token").focus();
}

$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, $("token").value.trim());
  $("token").value = "";
  if (seen.clock) location.reload(); // nothing stays of what another token was shown
  else enter();
});
$("leave").addEventListener("click", () => { door(); location.reload(); });

function enter() {
  if (!token()) return door();
  $("door").hidden = true;
  $("house").hidden = false;
  route();
}

// ---- what is asked

/** Reads the events of the views until they end or others are wanted. */
async function follow(views) {
  leaving?.abort();
  const mine = (leaving = new AbortController());
  for (let wait = 500; !mine.signal.aborted; wait = Math.min(wait * 2, 8000)) {
    try {
      const after = gantt.read;
      const reply = await ask(`/page/events?views=${views.join()}&after=${after}`, { signal: mine.signal });
      for await (const [name, data] of events(reply.body)) {
        if (mine.signal.aborted) return;
        if (name === "end") return door(data.error.message);
        heard(name, data);
        wait = 500;
      }
    } catch (problem) {
      if (mine.signal.aborted) return;
      if (problem.status === 401) return door(problem.message);
      said(problem.status ? problem.message : "not reached", true);
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(part) || [];
      if (name) yield [name, JSON.parse(data)];
    }
  }
}

function heard(name, data) {
  if (name === "timeline") {
    if (data.error) return;
    gantt.add(data.rows);
    gantt.read = data.next;
    return gantt.draw();
  }
  seen[name] = data;
  if (name === "status" && !data.error) status(data);
  if (name === "pack" && !data.error) gantt.plans = plans(data);
  for (const job of (name === "report" && data.jobs) || []) if (num(job.measured_ppm)) remember("slowdown", job.job_id, num(data.now_us), num(job.measured_ppm) / 1e6);
  show();
}

function status(data) {
  const now = num(data.now_us), owners = new Map(data.deployments.map((one) => [one.wpg_id, one.deployment_id]));
  const planned = new Map((seen.pack?.groups || []).flatMap((group) => group.residents.filter((one) => one.is_running).flatMap((one) => one.devices.map((device) => [device, one.deployment_id]))));
  seen.clock = { now, at: performance.now() };
  gantt.now = now;
  if (seen.epoch && seen.epoch !== data.scheduler_epoch) return location.reload(); // its timeline has other numbers
  seen.epoch = data.scheduler_epoch;
  said(`epoch ${data.scheduler_epoch} · live`, false);
  for (const one of data.devices) {
    const name = `${one.node_id}:${one.index}`, before = gantt.running.get(name);
    gantt.lane(name);
    if (!one.running_wpg) gantt.running.delete(name);
    else if (before?.wpg !== one.running_wpg) gantt.running.set(name, { wpg: one.running_wpg, deployment: owners.get(one.running_wpg) || planned.get(name) || "", since: now });
  }
  for (const job of data.jobs) {
    const { metrics = {}, at_us: at } = data.progress[job.job_id] || {};
    if (metrics.reward !== undefined) remember("reward", job.job_id, num(at), Number(metrics.reward));
  }
}

/** Keeps a point of a job's series, unless it is the last one. */
function remember(name, job, at, value) {
  const key = `${name} ${job}`;
  if (!seen.history.has(key)) seen.history.set(key, [[], []]);
  if (seen.history.size > 1000) seen.history.delete(seen.history.keys().next().value);
  const [times, values] = seen.history.get(key);
  if (times.at(-1) >= at / 1e6) return;
  times.push(at / 1e6);
  values.push(value);
  if (times.length > 4000) { times.splice(0, 1000); values.splice(0, 1000); }
}

function plans(pack) {
  return (pack.groups || []).flatMap((group) => group.residents.flatMap((one) =>
    one.devices.map((device) => ({
      device, deployment: one.deployment_id, duty: num(one.duty_ppm) / 1e6,
      busy: one.busy.map((span) => [num(span.start_us), num(span.end_us)]),
    }))));
}

function said(text, isBad) {
  $("state").textContent = text;
  $("state").className = isBad ? "state bad" : "state";
}

/** Asks once, and shows what came: the answer, or the refusal. */
async function explain(job, operation = "") {
  const key = operation || job;
  try {
    const id = operation && btoa(String.fromCharCode(...operation.match(/../g).map((two) => parseInt(two, 16))));
    const reply = await ask(`/page/look/explain?${new URLSearchParams(operation ? { operation_id: id, job_id: job } : { job_id: job })}`);
    seen.explained.set(key, await reply.json());
  } catch (problem) {
    seen.explained.set(key, { text: problem.message, facts: [], refused: true });
  }
  show();
}

async function bill() {
  const since = seen.since ? { since_us: String((Date.now() - seen.since * 3600e3) * 1000) } : {};
  try {
    seen.cost = await (await ask(`/page/look/cost?${new URLSearchParams(since)}`)).json();
  } catch (problem) {
    seen.cost = { error: { message: problem.message } };
  }
  show();
}

// ---- what is shown

let view = VIEWS[0], subject = "", asked = "", due = 0;

function route() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  view = VIEWS.find((one) => one.name === name) || VIEWS[0];
  subject = decodeURIComponent(rest.join("/"));
  $("devices").hidden = view.name !== "devices";
  $("job-charts").hidden = view.name !== "job";
  $("view").replaceChildren();
  const tabs = VIEWS.filter((one) => one.title);
  $("tabs").replaceChildren(...tabs.map((one) => h("a", { href: `#${one.name}`, class: one === view || one.name === view.under ? "here" : "" }, one.title)));
  if (view.name === "job") explain(subject);
  if (view.asks.includes("cost")) bill();
  const views = ["status", "pack", "report", ...view.asks.filter((one) => one !== "cost")];
  if (views.join() !== asked || leaving?.signal.aborted !== false) follow(views);
  asked = views.join();
  show();
}

/** Shows what is known, once for all that came since the last frame. */
function show() { due ||= requestAnimationFrame(draw); }

function draw() {
  due = 0;
  patch($("tiles"), tiles(seen));
  if (view.name === "devices") {
    legend();
    patch($("bar"), picked(seen));
  } else if (view.show) {
    patch($("view"), view.show(seen, subject));
  }
}

function legend() {
  const names = new Map([...(seen.pack?.groups || []).flatMap((group) => group.residents.map((one) => [one.job_id, one.job_name])), ...(seen.status?.jobs || []).map((job) => [job.job_id, job.name])]);
  const keys = hues.jobs().filter((job) => names.has(job)).slice(-24).map((job) => {
    const key = h("a", { href: `#job/${job}`, class: "key", "data-hue": hues.of(job) }, h("i", {}), names.get(job) || job);
    key.firstChild.style.background = gantt.fill(`${job}/`, "");
    return key;
  });
  patch($("legend"), [...keys, h("span", { class: "key" }, h("i", { class: "move" }), "switch"), h("span", { class: "key" }, h("i", { class: "other" }), "another tenant's"), h("span", { class: "key" }, h("i", { class: "plan" }), "planned")]);
}

function controls() {
  $("follow").className = gantt.follows ? "on" : "";
  for (const button of $("spans").children) button.className = Number(button.dataset.us) === gantt.span ? "on" : "";
}

for (const [text, us] of [["10 s", 10e6], ["1 min", 60e6], ["10 min", 600e6], ["1 h", 3600e6]]) {
  const button = h("button", { "data-us": us }, text);
  button.addEventListener("click", () => gantt.zoom(us));
  $("spans").append(button);
}
const all = h("button", {}, "All");
all.addEventListener("click", () => gantt.fit());
$("spans").append(all);
$("follow").addEventListener("click", () => gantt.zoom(gantt.span));

/** Redraws what moves by itself; nothing while the page is hidden. */
setInterval(() => {
  if (document.hidden || !seen.clock) return;
  gantt.now = seen.clock.now + (performance.now() - seen.clock.at) * 1e3;
  if (view.name === "devices" && gantt.follows) { gantt.follow(); gantt.draw(); }
}, 100);
setInterval(() => { if (!document.hidden && seen.clock) charts = series(view, { gantt, seen, subject, charts }); }, 1000);
setInterval(() => {
  if (document.hidden || !token()) return;
  if (view.asks.includes("cost")) bill();
  if (view.name === "job") explain(subject);
}, 5000);

document.addEventListener("click", (event) => {
  const at = event.target.closest("[data-explain],[data-copy],[data-since]");
  if (!at) return;
  if (at.dataset.copy !== undefined) navigator.clipboard?.writeText(at.dataset.copy).then(() => { at.classList.add("done"); setTimeout(() => at.classList.remove("done"), 900); });
  else if (at.dataset.since !== undefined) { seen.since = Number(at.dataset.since); bill(); }
  else if (seen.explained.has(at.dataset.explain)) { seen.explained.delete(at.dataset.explain); show(); }
  else explain(jobOf(at.dataset.job || at.dataset.explain), at.dataset.operation);
});

function theme(name) {
  document.documentElement.dataset.theme = name;
  for (const one of Object.values(charts)) one.destroy?.();
  charts = {};
  gantt.draw();
}
$("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("plexsvc-theme", next);
  theme(next);
});
theme(localStorage.getItem("plexsvc-theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
addEventListener("hashchange", route);
controls();
enter();
