// What both pages build with: plain DOM; text is set as text, never as HTML.
"use strict";

function element(name, text, ...children) {
  const node = document.createElement(name);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
}

function table(head, rows) {
  const cells = (tag, row) => element("tr", "", ...row.map((cell) => (cell instanceof Node ? cell : element(tag, String(cell ?? "")))));
  return element("table", "", cells("th", head), ...rows.map((row) => cells("td", row)));
}

function place(id, ...nodes) {
  document.getElementById(id).replaceChildren(...nodes);
}
