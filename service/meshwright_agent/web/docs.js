// Shows /openapi.json as a page. Plain DOM, nothing fetched but that document; text is set as text, never as HTML.
"use strict";

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((v) => JSON.stringify(v)).join(" | ");
  const options = schema.anyOf || schema.oneOf;
  if (options) return options.map(typeOf).join(" | ");
  if (schema.type === "array") return `[${typeOf(schema.items) || (schema.prefixItems || []).map(typeOf).join(", ")}]`;
  return schema.type || "any";
}

function boundsOf(schema) {
  const words = { minimum: "≥", maximum: "≤", exclusiveMinimum: ">", exclusiveMaximum: "<" };
  const options = [schema, ...(schema.anyOf || [])];
  return options.flatMap((s) => Object.keys(words).filter((k) => k in s).map((k) => `${words[k]} ${s[k]}`)).join(", ");
}

function fieldsOf(document_, schema) {
  const name = schema && schema.$ref && schema.$ref.split("/").pop();
  const model = name && document_.components.schemas[name];
  if (!model || !model.properties) return [];
  const rows = Object.entries(model.properties).map(([field, s]) => [
    field + ((model.required || []).includes(field) ? " *" : ""),
    [typeOf(s), boundsOf(s)].filter(Boolean).join(" "),
    s.default === undefined || s.default === null ? "" : JSON.stringify(s.default),
    s.description || "",
  ]);
  return [element("p", name), table(["field", "type", "default", ""], rows)];
}

function showOperation(document_, path, method, operation) {
  const summary = element("summary", "", element("b", method.toUpperCase()), element("code", path), ` ${operation.summary || ""}`);
  const parts = [element("p", operation.description)];
  const parameters = (operation.parameters || []).map((p) => [`${p.name} (${p.in})`, typeOf(p.schema), p.description || ""]);
  if (parameters.length) parts.push(table(["parameter", "type", ""], parameters));
  const body = operation.requestBody && operation.requestBody.content["application/json"];
  if (body) parts.push(...fieldsOf(document_, body.schema.anyOf ? body.schema.anyOf[0] : body.schema));
  for (const [status, response] of Object.entries(operation.responses)) {
    const content = Object.entries(response.content || {})[0];
    parts.push(element("p", `${status}: ${response.description}${content ? ` (${content[0]})` : ""}`));
    if (status.startsWith("2") && content) parts.push(...fieldsOf(document_, content[1].schema));
  }
  return element("details", "", summary, ...parts);
}

async function show() {
  const document_ = await (await fetch("/openapi.json")).json();
  document.getElementById("title").textContent = `${document_.info.title} ${document_.info.version}`;
  document.getElementById("description").textContent = document_.info.description;
  const sections = new Map();
  for (const [path, operations] of Object.entries(document_.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const tag = (operation.tags || ["other"])[0];
      if (!sections.has(tag)) sections.set(tag, element("section", "", element("h2", tag)));
      sections.get(tag).append(showOperation(document_, path, method, operation));
    }
  }
  document.getElementById("routes").append(...sections.values());
}

show().catch((error) => {
  document.getElementById("description").textContent = `could not read /openapi.json: ${error}`;
});
