// The agent's page: is the host healthy, which devices are here, who holds them, which mesh, how fast. It reads the public routes.
"use strict";

const REFRESH_S = 10;
const ANSWER_S = 5; // an agent that hangs does not refuse: it says nothing
const GIB = 2 ** 30;
const STATE_CLASS = { healthy: "good", degraded: "warn", unhealthy: "bad", unknown: "warn", initializing: "quiet" };
const WORST_FIRST = ["unhealthy", "unknown", "degraded", "initializing", "healthy"];
const BENCH_QUESTION = "Measuring uses every idle device of this host until it ends, about a minute. Start?";

async function ask(path, options) {
  const response = await fetch(path, options);
  const document_ = await response.json();
  if (response.ok) return document_;
  throw new Error([document_.detail, document_.hint].filter(Boolean).join(" · "));
}

function describeAge(fact) {
  return `${fact.basis}, ${Math.round(fact.age_s)} s ago`;
}

function gib(bytes) {
  return bytes === null || bytes === undefined ? "unknown" : `${(bytes / GIB).toFixed(1)} GiB`;
}

function markState(state, text) {
  const node = element("span", text || state);
  node.className = STATE_CLASS[state] || "";
  return node;
}

function stateCell(state, text) {
  return element("td", "", markState(state, text));
}

// Local indices; with the host before them where there are several, as on a simulated or joined topology.
function labels(devices) {
  const several = new Set(devices.map((d) => d.host)).size > 1;
  return devices.map((d) => (several ? `${d.host}/${d.local_index}` : d.local_index));
}

function describeDuration(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

// As `meshwright devices` prints it: the processes that hold a device, and its lease.
function describeHolders(device) {
  const lease = device.lease && `leased, ${describeDuration(device.lease.expires_in_s)} left: ${device.lease.purpose}`;
  if (device.processes === null) return ["holders unknown", lease].filter(Boolean).join("; ");
  const names = device.processes.map((p) => `${p.pid} ${p.name || p.command || ""}`.trim() + (p.own ? " (agent)" : ""));
  return [names.join(", "), lease].filter(Boolean).join("; ") || "free";
}

function showDevices(devices) {
  place("host", new Text(devices.host.name));
  place("worker", new Text(`worker ${devices.worker.state}, generation ${devices.worker.generation}`));
  const shown = labels(devices.devices);
  const rows = devices.devices.map((d, index) => [
    shown[index], d.kind + (d.virtual ? " (virtual)" : ""), d.uuid || d.pci_bus_id || (d.coords ? d.coords.join(",") : ""),
    gib(d.memory && d.memory.capacity_bytes), gib(d.memory && d.memory.used_bytes), d.numa_node, d.jax_id ?? "not seen", describeHolders(d), describeAge(d),
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
  const components = health.components.toSorted((a, b) => WORST_FIRST.indexOf(a.state) - WORST_FIRST.indexOf(b.state));
  const rows = components.map((c) => [
    c.name, stateCell(c.state), c.reason, c.action, c.age_s === null ? "never" : `${Math.round(c.age_s)} s ago`,
  ]);
  place("health", table(["component", "state", "reason", "action", "checked"], rows));
  place("state", markState(health.state));
  const bad = components.filter((c) => !["healthy", "initializing"].includes(c.state));
  const others = bad.length > 1 ? ` (and ${bad.length - 1} more)` : "";
  place("worst", ...bad.slice(0, 1).map((c) => new Text([`${c.name}: ${c.reason}${others}`, c.action].filter(Boolean).join(" · "))));
}

function showLeases(list) {
  const rows = list.leases.map((l) => [l.purpose, l.devices.map((d) => d.local_index).join(","), l.owner, describeDuration(l.expires_in_s), l.id]);
  place("leases", list.leases.length ? table(["purpose", "devices", "owner", "ends in", "id"], rows) : element("p", "no device is leased"));
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

function describeDevices(record) {
  const indices = record.device_indices;
  const whole = indices.length > 2 && indices.every((index, place) => index === indices[0] + place);
  return whole ? `${indices[0]}-${indices[indices.length - 1]}` : indices.join(record.case === "device_to_device" ? "→" : ",");
}

function showBench(latest) {
  const rows = latest.records.map((r) => {
    const rate = r.busbw_bytes_per_s ?? r.algbw_bytes_per_s;
    const speed = r.flops_per_s ? `${(r.flops_per_s / 1e9).toFixed(1)} GFLOP/s` : `${(rate / 1e9).toFixed(2)} GB/s`;
    return [r.case, describeDevices(r), r.axis ? `${r.axis}:${r.axis_size}` : "", `${(r.size_bytes / 2 ** 20).toFixed(2)} MiB`, speed,
      `${(r.median_s * 1e3).toFixed(2)} ms`, stateCell(r.correct ? "healthy" : "unhealthy", r.correct ? "right" : `${r.wrong_elements} wrong`), describeAge(r)];
  });
  place("bench", latest.records.length ? table(["case", "devices", "axis", "size", "speed", "median", "result", "known"], rows) : element("p", "nothing measured yet"));
}

function followRun(run) {
  const bar = document.getElementById("bench-progress");
  const events = new EventSource(`/runs/${run.id}/events`);
  bar.hidden = false;
  const showEvent = async (message) => {
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
  for (const type of ["state", "progress", "record"]) events.addEventListener(type, showEvent);
}

function showError(id) {
  return (error) => place(id, element("p", error.message));
}

function showUnreachable() {
  place("state", markState("unknown", "unknown: the agent does not answer"));
  for (const id of ["worst", "ready", "worker", "health", "devices", "leases"]) place(id);
}

// A host whose health cannot be read has no verdict: the last one is not left standing.
function showHealthError(error) {
  place("state", markState("unknown"));
  place("worst");
  showError("health")(error);
}

async function refresh() {
  const limit = { signal: AbortSignal.timeout(ANSWER_S * 1000) };
  place("ready", new Text((await (await fetch("/readyz", limit)).text()).trim()));
  await Promise.all([
    ask("/health", limit).then(showHealth).catch(showHealthError),
    ask("/devices", limit).then(showDevices).catch(showError("devices")),
    ask("/leases", limit).then(showLeases).catch(showError("leases")),
  ]);
}

function planMesh(mesh) {
  return ask(`/mesh/plan?mesh=${encodeURIComponent(mesh)}`).then(showPlan).catch(showError("plan"));
}

document.getElementById("plan-form").addEventListener("submit", (event) => {
  event.preventDefault();
  planMesh(document.getElementById("mesh").value);
});

// Whether the visitor may start a bench is known to the agent, which writes it into the page.
document.getElementById("bench-controls").hidden = document.documentElement.dataset.scope === "read";
document.getElementById("bench-start").addEventListener("click", () => {
  if (!confirm(BENCH_QUESTION)) return;
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" };
  ask("/placement/bench", options).then(followRun).catch((error) => place("bench-state", new Text(error.message)));
});

const linked = new URLSearchParams(location.search).get("mesh"); // /?mesh=dp:2,tp:4 is a link to a plan
if (linked !== null) {
  document.getElementById("mesh").value = linked;
  planMesh(linked);
}

refresh().catch(showUnreachable);
ask("/placement/bench").then(showBench).catch(showError("bench"));
setInterval(() => refresh().catch(showUnreachable), REFRESH_S * 1000);
