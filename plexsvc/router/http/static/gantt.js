// A live Gantt chart of devices on a canvas. Only bars that can be seen are drawn, and those as pixels: a canvas
// takes 15 ms and more for 20,000 rectangles.

export const GUTTER = 148; // names of devices
const AXIS = 22; // times
const LIMIT = 65536; // bars that are kept
const MOVES = new Set(["load", "offload"]);
const STEPS_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200];
const HUES = [212, 145, 340, 265, 185, 100, 300, 235, 165, 320, 195, 125]; // amber is the switches'

/** Returns the hue of a job: the next free one when it is first seen. */
export class Hues {
  #of = new Map();
  of(job) {
    if (!this.#of.has(job)) this.#of.set(job, HUES[this.#of.size % HUES.length]);
    return this.#of.get(job);
  }
  jobs() { return [...this.#of.keys()]; }
}

/** Bars of one device, in the order of their ends. */
class Lane {
  bars = [];
  longest = 0;
  y = 0;
  add(bar) {
    let at = this.bars.length;
    while (at > 0 && this.bars[at - 1].end > bar.end) at--;
    if (at === this.bars.length) this.bars.push(bar);
    else this.bars.splice(at, 0, bar);
    this.longest = Math.max(this.longest, bar.end - bar.start);
  }
  /** Returns the index of the first bar that ends at `time` or later. */
  from(time) {
    let low = 0, high = this.bars.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.bars[middle].end < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  /** Calls `see` with each bar that has a part in [start, end). */
  between(start, end, see) {
    for (let at = this.from(start); at < this.bars.length; at++) {
      const bar = this.bars[at];
      if (bar.end - this.longest > end) return;
      if (bar.start < end) see(bar);
    }
  }
}

export const jobOf = (deployment) => deployment.split("/", 1)[0];

export class Gantt {
  /** `box` is an empty element that the chart fills; `picked` is told of a bar that was clicked. */
  constructor(box, { hues, picked, moved }) {
    this.box = box;
    this.hues = hues;
    this.picked = picked;
    this.moved = moved; // the window changed
    this.lanes = new Map();
    this.count = 0;
    this.read = 0; // number of the last bar that came
    this.shown = { count: 0, at: 0 }; // how many bars there were at a draw, and when that was first
    this.plans = []; // [{device, deployment, duty, busy: [[start, end]]}]
    this.running = new Map(); // device -> {deployment, since}
    this.now = 0; // of the service
    this.ahead = 0.15; // share of the window that shows the plan
    this.span = 60e6;
    this.end = 0;
    this.follows = true;
    this.selected = null;
    this.canvas = document.createElement("canvas");
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.room = document.createElement("div"); // as high as all lanes: the box scrolls it
    box.append(this.canvas, this.room, this.tip);
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.scratch = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    this.looks = new Map(); // what bars of one deployment and kind share
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(box);
  }

  /** Takes rows of the timeline: device, kind, deployment, start, end, bytes, operation. */
  add(rows) {
    for (const [device, kind, deployment, start, end, nbytes, operation] of rows) {
      const key = `${deployment} ${kind}`;
      if (!this.looks.has(key)) this.looks.set(key, { deployment, kind, pixel: 0 });
      this.lane(device).add({ device, kind, deployment, start, end, nbytes, operation, look: this.looks.get(key) });
    }
    this.count += rows.length;
    if (this.count > LIMIT * 1.1) this.#forget();
  }

  lane(device) {
    if (!this.lanes.has(device)) this.lanes.set(device, new Lane());
    return this.lanes.get(device);
  }

  #forget() {
    const ends = [...this.lanes.values()].flatMap((lane) => lane.bars.map((bar) => bar.end)).sort((a, b) => a - b);
    const oldest = ends[ends.length - LIMIT];
    for (const lane of this.lanes.values()) lane.bars.splice(0, lane.from(oldest));
    this.count = LIMIT;
  }

  get start() { return this.end - this.span; }

  /** Moves the right edge to the present, and a little further for the plan. */
  follow() {
    if (this.follows) this.end = this.now + this.span * this.ahead;
  }

  /** Shows all bars that are kept. */
  fit() {
    let first = Infinity;
    for (const lane of this.lanes.values()) if (lane.bars.length) first = Math.min(first, lane.bars[0].start);
    if (first === Infinity) return;
    this.span = Math.max(1e6, (this.now - first) * 1.02) / (1 - this.ahead);
    this.#go(true);
  }

  zoom(span) { this.span = span; this.#go(true); }

  #go(follows) {
    this.follows = follows;
    this.follow();
    this.moved();
    this.draw();
  }

  get laneHeight() {
    const free = this.box.clientHeight - AXIS;
    return Math.max(12, Math.min(30, Math.floor(free / Math.max(1, this.lanes.size))));
  }

  draw() {
    this.box.style.height = `${AXIS + 3 + Math.max(4, this.lanes.size) * 30}px`; // the style sheet bounds it
    const width = this.box.clientWidth, height = this.box.clientHeight, ratio = devicePixelRatio || 1;
    if (!width || !height) return;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const tall = this.laneHeight, names = [...this.lanes.keys()].sort(byDevice);
    this.room.style.height = `${Math.max(0, names.length * tall + AXIS - height)}px`;
    const style = getComputedStyle(this.box), theme = (name) => style.getPropertyValue(name).trim();
    const c = this.context;
    const dark = theme("--is-dark") === "1";
    if (dark !== this.dark) for (const look of this.looks.values()) look.pixel = 0;
    this.dark = dark;
    this.colour = { text: theme("--text"), dim: theme("--dim"), line: theme("--line"), panel: theme("--panel"), accent: theme("--accent"), move: theme("--move") };
    this.scale = (width - GUTTER) / this.span;
    const top = this.box.scrollTop, seen = [];
    names.forEach((name, at) => {
      const lane = this.lanes.get(name);
      lane.y = AXIS + at * tall - top;
      if (lane.y + tall > AXIS && lane.y < height) seen.push([name, lane]);
    });
    const labels = this.#paint(seen.map(([, lane]) => lane), tall, ratio);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.save();
    c.beginPath();
    c.rect(GUTTER, AXIS, width - GUTTER, height - AXIS);
    c.clip();
    for (const [name, lane] of seen) this.#beside(name, lane, tall);
    for (const [bar, lane, left, wide] of labels) this.#label(bar, left, lane.y, wide, tall);
    c.restore();
    this.#axis(width, height);
    this.#names(seen, names.length, tall, height);
    if (this.shown.count !== this.count) this.shown = { count: this.count, at: performance.now() };
  }

  /** Paints all bars as pixels: a line of them for each lane, copied for its height. Returns the bars with room for text. */
  #paint(lanes, tall, ratio) {
    const c = this.context, wide = this.canvas.width, high = this.canvas.height, gutter = Math.round(GUTTER * ratio);
    if (this.image?.width !== wide || this.image.height !== high) this.image = c.createImageData(wide, high);
    const pixels = new Uint32Array(this.image.data.buffer);
    const blank = new Uint32Array(wide).fill(this.#packed(this.colour.panel)), labels = [];
    const rule = this.#packed(this.colour.line);
    for (const at of this.#ticks().ticks) blank[Math.round(this.x(at) * ratio)] = rule;
    for (let row = 0; row < high; row++) pixels.set(blank, row * wide);
    this.drawn = 0;
    const scale = this.scale * ratio, start = this.start;
    for (const lane of lanes) {
      const line = blank.slice();
      lane.between(start, this.end, (bar) => {
        const left = gutter + (bar.start - start) * scale, right = gutter + (bar.end - start) * scale;
        const from = Math.max(gutter, Math.round(left));
        line.fill((bar.look.pixel ||= this.#packed(this.fill(bar.deployment, bar.kind))), from, Math.max(from + 1, Math.round(right) - (right - left > 4 ? 1 : 0)));
        this.drawn++;
        if (bar === this.selected || (right - left > 56 * ratio && tall > 14)) labels.push([bar, lane, from / ratio, (Math.min(right, wide) - from) / ratio]);
      });
      const bottom = Math.min(high, Math.round((lane.y + tall - 2) * ratio));
      for (let row = Math.max(0, Math.round((lane.y + 2) * ratio)); row < bottom; row++) pixels.set(line, row * wide);
    }
    c.putImageData(this.image, 0, 0);
    return labels;
  }

  /** Returns a CSS colour as a pixel has it. */
  #packed(colour) {
    this.scratch.fillStyle = colour;
    this.scratch.fillRect(0, 0, 1, 1);
    return new Uint32Array(this.scratch.getImageData(0, 0, 1, 1).data.buffer)[0];
  }

  x(time) { return GUTTER + (time - this.start) * this.scale; }

  fill(deployment, kind) {
    if (MOVES.has(kind)) return this.colour.move;
    if (!deployment) return this.dark ? "#4a5160" : "#b9c0cc";
    const strength = kind === "forward_backward" || kind === "generate" ? 0 : kind === "step" ? 12 : 6;
    return `hsl(${this.hues.of(jobOf(deployment))} ${this.dark ? 52 : 62}% ${(this.dark ? 50 : 55) + strength}%)`;
  }

  /** Draws what runs on a device now, and what is planned for it. */
  #beside(name, lane, tall) {
    const c = this.context, y = lane.y + 2, high = tall - 4, runs = this.running.get(name);
    if (runs) {
      const last = lane.bars.length ? lane.bars[lane.bars.length - 1].end : 0;
      const from = this.x(Math.max(last, runs.since)), wide = this.x(this.now) - from;
      c.globalAlpha = 0.45;
      c.fillStyle = this.fill(runs.deployment, "");
      if (wide > 0) c.fillRect(from, y, wide, high);
      c.globalAlpha = 1;
    }
    for (const plan of this.plans) if (plan.device === name) this.#plan(plan, y, high);
  }

  #plan({ deployment, duty, busy }, y, high) {
    const c = this.context, from = Math.max(this.now, this.start);
    c.strokeStyle = c.fillStyle = this.fill(deployment, "");
    const spans = busy.length ? busy : [[from, this.end]];
    const tall = busy.length ? high : high * duty; // flat: mass at its duty
    for (const [start, end] of spans) {
      const left = this.x(Math.max(from, start)), right = this.x(Math.min(end, this.end));
      if (right - left < 1) continue;
      c.globalAlpha = 0.22;
      c.fillRect(left, y + high - tall, right - left, tall);
      c.globalAlpha = 0.7;
      if (busy.length) c.strokeRect(left + 0.5, y + 0.5, right - left - 1, high - 1);
    }
    c.globalAlpha = 1;
  }

  #label(bar, left, y, wide, tall) {
    const c = this.context;
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.fillStyle = this.dark ? "#0d1017" : "#ffffff";
    if (tall > 14 && c.measureText(bar.kind).width <= wide - 8) c.fillText(bar.kind, left + 5, y + tall / 2);
    if (bar !== this.selected) return;
    c.strokeStyle = this.colour.text;
    c.lineWidth = 1.5;
    c.strokeRect(left, y + 2, wide, tall - 4);
  }

  #ticks() {
    const step = (STEPS_S.find((one) => one * 1e6 * this.scale > 90) || 14400) * 1e6, ticks = [];
    for (let at = Math.ceil(this.start / step) * step; at < this.end; at += step) ticks.push(at);
    return { ticks, step };
  }

  #axis(width, height) {
    const c = this.context, { ticks, step } = this.#ticks();
    c.fillStyle = this.colour.panel;
    c.fillRect(0, 0, width, AXIS);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.fillStyle = this.colour.dim;
    for (const at of ticks) if (this.x(at) > GUTTER && this.x(at) < width - 70) c.fillText(clock(at, step), this.x(at) + 4, AXIS / 2);
    c.fillStyle = this.colour.line;
    c.fillRect(0, AXIS - 1, width, 1);
    const now = this.x(this.now);
    if (now > GUTTER && now < width) {
      c.fillStyle = this.colour.accent;
      c.fillRect(Math.round(now), AXIS - 1, 1.5, height);
    }
  }

  #names(seen, many, tall, height) {
    const c = this.context;
    c.fillStyle = this.colour.panel;
    c.fillRect(0, AXIS, GUTTER - 1, height);
    c.fillStyle = this.colour.line;
    c.fillRect(GUTTER - 1, 0, 1, height);
    c.font = `${Math.min(12, tall - 1)}px system-ui, sans-serif`;
    c.fillStyle = this.colour.text;
    for (const [name, { y }] of seen) c.fillText(name, 10, y + tall / 2, GUTTER - 20);
    c.fillStyle = this.colour.panel;
    c.fillRect(0, 0, GUTTER - 1, AXIS - 1);
    c.font = "11px system-ui, sans-serif";
    c.fillStyle = this.colour.dim;
    c.fillText(`${many} devices`, 10, AXIS / 2);
  }

  /** Returns the bar at a place of the canvas. */
  at(x, y) {
    if (x < GUTTER || y < AXIS) return null;
    const tall = this.laneHeight, slack = 1 / this.scale, time = this.start + (x - GUTTER) / this.scale;
    for (const lane of this.lanes.values()) {
      if (y < lane.y || y >= lane.y + tall) continue;
      let found = null;
      lane.between(time - slack, time + slack, (bar) => { found = bar; });
      return found;
    }
    return null;
  }

  #listen() {
    let held = null;
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.canvas.addEventListener("wheel", (event) => {
      if (event.shiftKey) return; // scrolls
      event.preventDefault();
      const [x] = place(event), pivot = this.start + Math.max(0, x - GUTTER) / this.scale;
      const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240)));
      const before = this.span;
      this.span = Math.max(1e3, Math.min(4 * 86400e6, this.span * factor));
      if (!this.follows) this.end = pivot + (this.end - pivot) * (this.span / before);
      this.#go(this.follows);
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, y: event.clientY, end: this.end, top: this.box.scrollTop, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (!held) return this.#point(x, y);
      const by = event.clientX - held.x;
      if (Math.abs(by) + Math.abs(event.clientY - held.y) > 4) held.moved = true;
      if (!held.moved) return;
      this.tip.hidden = true;
      this.box.scrollTop = held.top - (event.clientY - held.y);
      this.end = held.end - by / this.scale;
      this.#go(false);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved) {
        this.selected = this.at(...place(event));
        this.picked(this.selected);
        this.draw();
      }
      held = null;
    });
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("dblclick", () => this.fit());
    this.box.addEventListener("scroll", () => this.draw());
  }

  #point(x, y) {
    const bar = this.at(x, y);
    this.tip.hidden = !bar;
    this.canvas.style.cursor = bar ? "pointer" : "grab";
    if (!bar) return;
    this.tip.textContent = `${bar.kind} · ${bar.deployment || "another tenant's"} · ${lasted(bar.end - bar.start)}`;
    this.tip.style.left = `${Math.min(x + 14, this.box.clientWidth - this.tip.offsetWidth - 8)}px`;
    this.tip.style.top = `${this.box.scrollTop + Math.min(y + 14, this.box.clientHeight - 30)}px`;
  }
}

function byDevice(a, b) { return a.localeCompare(b, "en", { numeric: true }); }

export function clock(us, step) {
  const at = new Date(us / 1e3), two = (n) => String(n).padStart(2, "0");
  const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (step >= 60e6) return text;
  const parts = `${text}:${two(at.getSeconds())}`;
  return step >= 1e6 ? parts : `${parts}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export function lasted(us) {
  if (us < 1e3) return `${us} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 1 : 0)} ms`;
  if (us < 120e6) return `${(us / 1e6).toFixed(us < 10e6 ? 2 : 1)} s`;
  if (us < 7200e6) return `${Math.floor(us / 60e6)} min ${Math.round((us % 60e6) / 1e6)} s`;
  return `${(us / 3600e6).toFixed(1)} h`;
}
