// The dashboard: one request twice a second for figures, one event stream for text, pictures as fast as they load.
import { drawCurves, drawLegend, drawSteps } from "./charts.js";
import { age, ask } from "./chat.js";

const $ = (id) => document.getElementById(id);
const POLL_MS = 500, PICTURE_MS = 200, MAX_TEXTS = 60, MAX_STEPS = 160;
const view = { selected: null, sessions: [], steps: [], last: null, parts: [], executed: null, live: new Map(), cameras: "" };

function text(tag, words, className) {
  const node = document.createElement(tag);
  node.textContent = words;
  if (className) node.className = className;
  return node;
}

const number = (value, digits = 0) => (value === null || value === undefined || !isFinite(value) ? "–" : value.toFixed(digits));

async function poll() {
  const after = view.steps.length ? view.steps[view.steps.length - 1].step : -1;
  try {
    const response = await fetch(`v1/dashboard?after=${after}`, { cache: "no-store" });
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    show(await response.json());
  } catch (error) {
    status("unreachable", String(error.message || error));
  }
  setTimeout(poll, POLL_MS);
}

function status(word, sentence) {
  const pill = $("status");
  pill.textContent = word;
  pill.title = sentence;
  pill.className = `pill ${word}`;
}

function show(state) {
  status(state.condition.status, state.condition.message);
  view.sessions = state.sessions;
  const robot = state.server.robot || {};
  view.parts = (robot.actions && robot.actions.parts) || [];
  view.executed = robot.replan_steps || null;
  if (state.steps.length && view.steps.length && state.steps[0].step <= view.steps[0].step) view.steps = [];
  view.steps = view.steps.concat(state.steps).slice(-MAX_STEPS);
  showFigures(state);
  showSessions();
  showSession();
  drawSteps($("steps"), view.steps);
  const newest = view.steps[view.steps.length - 1];
  $("step-note").textContent = newest ? `the newest wrote ${newest.tokens} text tokens in ${newest.rounds} rounds` : "";
}

function showFigures(state) {
  const engine = state.engine, counts = engine.counts;
  if (view.last) {
    const seconds = state.at - view.last.at;
    const rate = (name) => ((counts[name] || 0) - (view.last.counts[name] || 0)) / seconds;
    $("fps").textContent = number(Math.max(0, rate("chunks")), 1);
    $("tps").textContent = number(Math.max(0, rate("tokens")), 0);
  }
  view.last = { at: state.at, counts };
  const ready = engine.recent.action_ready_s;
  $("ready").textContent = ready ? `${number(1000 * ready.p50)} ms median, ${number(1000 * ready.p99)} ms p99` : "–";
  $("budget").textContent = engine.budget;
  for (const [id, used, max] of [["contexts", engine.context_rows, state.limits.context_rows], ["tails", engine.tail_rows, state.limits.tail_rows]]) {
    $(id).max = max;
    $(id).value = used;
    $(`${id}-text`).textContent = `${used}/${max}`;
  }
}

function showSessions() {
  const names = view.sessions.map((s) => s.name);
  if (!names.includes(view.selected)) {
    const live = view.sessions.find((s) => s.is_connected) || view.sessions[0];
    select(live ? live.name : null);
  }
  $("empty").hidden = names.length > 0;
  document.querySelector("main").classList.toggle("off", names.length === 0);
  for (const button of [...$("sessions").children]) if (!names.includes(button.dataset.name)) button.remove();
  for (const session of view.sessions) showTab(session);
}

function showTab(session) {
  let button = [...$("sessions").children].find((b) => b.dataset.name === session.name);
  if (!button) {
    button = text("button", "");
    button.dataset.name = session.name;
    button.append(text("span", "", "dot"), text("span", ""));
    button.addEventListener("click", () => { select(session.name); showSessions(); showSession(); });
    $("sessions").append(button);
  }
  const [dot, label] = button.children;
  dot.className = session.is_connected ? "dot on" : "dot";
  dot.title = session.is_connected ? "connected" : "gone";
  label.textContent = `${session.name} · ${number(session.frame_rate_hz, 1)} frames/s`;
  button.setAttribute("aria-pressed", String(session.name === view.selected));
}

function select(name) {
  if (name === view.selected) return;
  view.selected = name;
  view.live.clear();
  view.cameras = "";
  $("texts").replaceChildren();
  const session = view.sessions.find((s) => s.name === name);
  for (const event of session ? session.texts : []) takeText(event);
}

function showSession() {
  const session = view.sessions.find((s) => s.name === view.selected);
  if (!session) return;
  $("frame").textContent = session.frame_id === null ? "" : `frame ${session.frame_id} · ${session.num_frames} taken so far, ${session.num_refused} refused`;
  $("prompt").textContent = session.prompt || "";
  if (session.actions) showActions(session);
  const cameras = session.cameras.join("\n");
  if (cameras !== view.cameras) {
    view.cameras = cameras;
    $("cameras").replaceChildren(...session.cameras.map((name) => {
      const figure = document.createElement("figure"), image = document.createElement("img");
      image.alt = `camera ${name}`;
      image.dataset.camera = name;
      figure.append(image, text("figcaption", name));
      return figure;
    }));
  }
}

function showActions(session) {
  const ready = session.ready_ms_p50 === null ? "" : ` · ready after ${number(session.ready_ms_p50)} ms (median; p99 ${number(session.ready_ms_p99)} ms)`;
  const length = session.actions.length, executed = Math.min(view.executed || length, length);
  const rest = executed < length ? `Strong: the first ${executed}, executed before the robot looks again; pale: the rest. ` : "";
  $("chunk").textContent = `from frame ${session.actions_frame_id}${ready}`;
  $("chunk-note").textContent = `The next ${length} control steps. ${rest}The number is the first step; the grey line is 0.`;
  drawCurves($("curves"), session.actions, view.parts, executed);
}

function refreshPictures() {
  for (const image of document.querySelectorAll("#cameras img")) {
    if (image.dataset.loading || document.hidden) continue;
    const next = new Image();
    image.dataset.loading = "1";
    next.onload = () => { image.src = next.src; delete image.dataset.loading; };
    next.onerror = () => { delete image.dataset.loading; };
    next.src = `v1/sessions/${encodeURIComponent(view.selected)}/cameras/${encodeURIComponent(image.dataset.camera)}?at=${Date.now()}`;
  }
}

function takeText(event) {
  let item = view.live.get(event.id);
  if (!item) {
    const node = text("li", "", "live");
    item = { node, words: text("div", "", "words"), meta: text("div", "", "meta") };
    node.append(item.words, item.meta);
    view.live.set(event.id, item);
    $("texts").prepend(node);
    while ($("texts").children.length > MAX_TEXTS) $("texts").lastChild.remove();
  }
  if (event.done) {
    view.live.delete(event.id);
    if (event.text) item.words.textContent = event.text;
    item.node.className = event.error ? "refused" : "done";
    if (event.error) item.words.textContent = event.error.message || event.error.code;
  } else {
    item.words.textContent += event.delta;
  }
  const late = event.age_s === undefined ? "" : ` · ${age(event)}`;
  const end = event.done && event.finish_reason !== "stop" ? ` · ended: ${event.finish_reason}` : "";
  const frame = event.frame_id === null || event.frame_id === undefined ? "waits for a frame" : `about frame ${event.frame_id}`;
  const asked = event.question ? ` to “${event.question}”` : "";
  item.meta.replaceChildren(text("b", event.kind), `${asked} · ${frame}${late}${end}`);
}

function takeWarning(event) {
  const node = text("li", "", "warning");
  node.append(text("div", event.message, "words"), text("div", event.code || "text was dropped", "meta"));
  $("texts").prepend(node);
}

function listen() {
  const source = new EventSource("v1/events?types=text,warning,gap");
  source.addEventListener("text", (message) => {
    const event = JSON.parse(message.data);
    if (event.session === view.selected) takeText(event);
  });
  source.addEventListener("warning", (message) => {
    const event = JSON.parse(message.data);
    if (event.session === view.selected) takeWarning(event);
  });
  source.addEventListener("gap", (message) => takeWarning({ message: `${JSON.parse(message.data).dropped} events were dropped` }));
}

function theme() {
  const root = document.documentElement;
  const isDark = () => root.dataset.theme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const kept = localStorage.getItem("theme");
  if (kept) root.dataset.theme = kept;
  $("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    drawLegend($("legend"));
    drawSteps($("steps"), view.steps);
  });
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask($("ask"), $("question"), $("talk"), view.selected);
});
addEventListener("resize", () => drawSteps($("steps"), view.steps));
theme();
drawLegend($("legend"));
listen();
poll();
setInterval(refreshPictures, PICTURE_MS);
