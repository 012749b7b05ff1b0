// Elements without a parser: text is only ever text, whatever characters a volume's name has.

/** An element with attributes (functions are listeners, null and false leave one out) and children. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same of SVG. */
export function drawing(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** Sets a text where it changed, so that nothing is laid out or announced for nothing. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Gives a node other children where `key` changed since the last time. */
export function refill(node, key, children) {
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  node.replaceChildren(...children());
}
