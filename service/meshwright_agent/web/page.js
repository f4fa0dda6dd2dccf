// The agent's page: what is here, is it healthy, which mesh, how fast. Asks the same routes as everybody else.
"use strict";

const REFRESH_S = 10;
const GIB = 2 ** 30;
const STATE_CLASS = { healthy: "good", degraded: "warn", unhealthy: "bad", unknown: "warn", initializing: "quiet" };

async function ask(path, options) {
  const response = await fetch(path, options);
  const document_ = await response.json();
  if (response.ok) return document_;
  throw new Error([document_.detail, document_.hint].filter(Boolean).join(" · "));
}

function seen(fact) {
  return `${fact.basis}, ${Math.round(fact.age_s)} s ago`;
}

function gib(bytes) {
  return bytes === null || bytes === undefined ? "unknown" : `${(bytes / GIB).toFixed(1)} GiB`;
}

function mark(state, text) {
  const node = element("span", text || state);
  node.className = STATE_CLASS[state] || "";
  return element("td", "", node);
}

// Local indices; with the host before them where there are several, as on a simulated or joined topology.
function labels(devices) {
  const several = new Set(devices.map((d) => d.host)).size > 1;
  return devices.map((d) => (several ? `${d.host}/${d.local_index}` : d.local_index));
}

function left(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

// As `meshwright devices` says it: who holds a device, and for what and how long it is leased.
function holders(device) {
  const lease = device.lease && `leased, ${left(device.lease.expires_in_s)} left: ${device.lease.purpose}`;
  if (device.processes === null) return ["?", lease].filter(Boolean).join("; ");
  const names = device.processes.map((p) => `${p.pid} ${p.name || p.command || ""}`.trim() + (p.own ? " (agent)" : ""));
  return [names.join(", "), lease].filter(Boolean).join("; ") || "free";
}

function showDevices(devices) {
  place("host", new Text(devices.host.name));
  place("worker", new Text(`worker ${devices.worker.state}, generation ${devices.worker.generation}`));
  const shown = labels(devices.devices);
  const rows = devices.devices.map((d, index) => [
    shown[index], d.kind + (d.virtual ? " (virtual)" : ""), d.uuid || d.pci_bus_id || (d.coords ? d.coords.join(",") : ""),
    gib(d.memory && d.memory.capacity_bytes), gib(d.memory && d.memory.used_bytes), d.numa_node, d.jax ? d.jax.id : "not seen", holders(d), seen(d),
  ]);
  place("devices", table(["", "kind", "identity", "memory", "used", "NUMA", "jax id", "held by", "known"], rows),
    ...devices.warnings.map((w) => element("p", `${w.message}${w.hint ? ` · ${w.hint}` : ""}`)));
  showLinks(devices);
}

function showLinks(devices) {
  const kinds = new Map(devices.links.flatMap((l) => [[`${l.a},${l.b}`, l.kind], [`${l.b},${l.a}`, l.kind]]));
  const order = devices.devices.map((_, index) => index);
  const shown = labels(devices.devices);
  if (order.length > 64) {
    place("links", element("p", "too many devices for a matrix"));
    return;
  }
  const rows = order.map((a) => [shown[a], ...order.map((b) => (a === b ? "X" : kinds.get(`${a},${b}`) || ""))]);
  place("links", table(["", ...shown], rows));
}

function showHealth(health) {
  const rows = health.components.map((c) => [
    c.name, mark(c.state), c.reason, c.action, c.age_s === null ? "never" : `${Math.round(c.age_s)} s ago`,
  ]);
  place("health", table(["component", "state", "seen", "what to do", "checked"], rows));
}

function drawMesh(plan) {
  const names = Object.keys(plan.mesh_shape);
  const columns = plan.mesh_shape[names[names.length - 1]];
  const shown = labels(plan.devices);
  const rows = [];
  for (let start = 0; start < shown.length; start += columns) rows.push(shown.slice(start, start + columns));
  const head = rows[0].map((_, index) => `${names[names.length - 1]} ${index}`);
  return table(head, rows);
}

function showPlan(plans) {
  const plan = plans.plans[0];
  const code = element("pre", plan.code);
  place("plan", element("p", plan.fingerprint), drawMesh(plan),
    ...plan.warnings.map((w) => element("p", `${w.code}: ${w.message} ${w.hint}`)), code);
}

function listed(record) {
  const indices = record.device_indices;
  const whole = indices.length > 2 && indices.every((index, place) => index === indices[0] + place);
  return whole ? `${indices[0]}-${indices[indices.length - 1]}` : indices.join(record.case === "device_to_device" ? "→" : ",");
}

function showBench(latest) {
  const rows = latest.records.map((r) => {
    const rate = r.busbw_bytes_per_s ?? r.algbw_bytes_per_s;
    const speed = r.flops_per_s ? `${(r.flops_per_s / 1e9).toFixed(1)} GFLOP/s` : `${(rate / 1e9).toFixed(2)} GB/s`;
    return [r.case, listed(r), r.axis ? `${r.axis}:${r.axis_size}` : "", `${(r.size_bytes / 2 ** 20).toFixed(2)} MiB`, speed,
      `${(r.median_s * 1e3).toFixed(2)} ms`, mark(r.correct ? "healthy" : "unhealthy", r.correct ? "right" : `${r.nwrong} wrong`), seen(r)];
  });
  place("bench", latest.records.length ? table(["case", "devices", "axis", "size", "speed", "median", "result", "known"], rows) : element("p", "nothing measured yet"));
}

function followRun(run) {
  const bar = document.getElementById("bench-progress");
  const events = new EventSource(`/runs/${run.id}/events`);
  bar.hidden = false;
  const hear = async (message) => {
    const event = JSON.parse(message.data);
    if (event.progress) {
      bar.max = event.progress.total;
      bar.value = event.progress.done;
    }
    place("bench-state", new Text(event.progress ? `${event.state}: ${event.progress.message}` : event.state));
    if (!["queued", "running"].includes(event.state)) {
      events.close();
      bar.hidden = true;
      showBench(await ask("/placement/bench"));
    }
  };
  for (const type of ["state", "progress", "record"]) events.addEventListener(type, hear);
}

function tell(id) {
  return (error) => place(id, element("p", error.message));
}

async function refresh() {
  const line = (await (await fetch("/readyz")).text()).trim();
  place("ready", new Text(line));
  document.getElementById("ready").className = line.startsWith("ready") ? "good" : "bad";
  await Promise.all([
    ask("/devices").then(showDevices).catch(tell("devices")),
    ask("/health").then(showHealth).catch(tell("health")),
  ]);
}

function planMesh(mesh) {
  return ask(`/mesh/plan?mesh=${encodeURIComponent(mesh)}`).then(showPlan).catch(tell("plan"));
}

document.getElementById("plan-form").addEventListener("submit", (event) => {
  event.preventDefault();
  planMesh(document.getElementById("mesh").value);
});

document.getElementById("bench-start").addEventListener("click", () => {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" };
  ask("/placement/bench", options).then(followRun).catch((error) => place("bench-state", new Text(error.message)));
});

const linked = new URLSearchParams(location.search).get("mesh"); // /?mesh=dp:2,tp:4 is a link to a plan
if (linked !== null) {
  document.getElementById("mesh").value = linked;
  planMesh(linked);
}

const unreachable = () => place("ready", new Text("the agent does not answer"));
refresh().catch(unreachable);
ask("/placement/bench").then(showBench).catch(tell("bench"));
setInterval(() => refresh().catch(unreachable), REFRESH_S * 1000);
