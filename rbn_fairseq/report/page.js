"use strict";

// Tables: a click on a column's heading sorts by it, a second one the other way round.
// Numbers come before texts, and empty cells last, in both directions.
const texts = new Intl.Collator("en", { numeric: true });
const kind = ({ dataset }) => ("value" in dataset ? 0 : "text" in dataset ? 1 : 2);

function compare(one, other, direction) {
  const kinds = kind(one) - kind(other);
  if (kinds || kind(one) === 2) return kinds;
  if (kind(one) === 1) return direction * texts.compare(one.dataset.text, other.dataset.text);
  const [x, y] = [Number(one.dataset.value), Number(other.dataset.value)];
  return direction * ((x > y) - (x < y));
}

function sort(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const order = heads[column].ariaSort === "ascending" ? "descending" : "ascending";
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].ariaSort = order;
  const direction = order === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => compare(one.cells[column], other.cells[column], direction));
  table.tBodies[0].append(...rows);
}

function makeButton(element, action) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...element.childNodes);
  button.addEventListener("click", action);
  element.append(button);
  return button;
}

for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (head.textContent) makeButton(head, () => sort(table, column));
  });
}

// Figures: a click, or Enter, shows one as large as the window allows; Escape or a click closes it.
const dialog = document.createElement("dialog");
dialog.addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => dialog.replaceChildren());
document.body.append(dialog);

for (const drawing of document.querySelectorAll(".drawing")) {
  const svg = drawing.querySelector("svg");
  const button = makeButton(drawing, () => {
    const { width, height } = svg.viewBox.baseVal;
    dialog.style.setProperty("--ratio", width / height);
    dialog.style.setProperty("--own", (width * 96) / 72);
    dialog.setAttribute("aria-label", svg.getAttribute("aria-label"));
    const close = document.createElement("button");
    close.textContent = "Close";
    dialog.replaceChildren(close, svg.cloneNode(true));
    dialog.showModal();
  });
  button.setAttribute("aria-label", `Enlarge ${svg.getAttribute("aria-label")}`);
}
