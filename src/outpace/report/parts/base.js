"use strict";
/* What every part of the page uses: the data, words in two languages, elements, numbers. Nothing here knows of turns.
   Texts of traces reach the page through textContent alone, never as markup. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const page = { language: DATA.language, listeners: [] };

const byId = (id) => document.getElementById(id);

/** The word of a key in the page's language, with {names} filled in. */
function say(key, names = {}) {
  const words = DATA.words[page.language][key] ?? DATA.words.en[key];
  if (words === undefined) throw new Error(`no word for ${key}`);
  return words.replace(/\{(\w+)\}/g, (_, name) => names[name]);
}

/** An HTML element: attributes by name, text as `text`, handlers as `onclick` and the like, then its children. */
function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same of SVG. */
function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") element.textContent = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Put these children in place of those that an element has. */
function refill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null));
  return element;
}

/** A probability in three digits, or what is known of it. */
function chance(value) {
  if (value === null || value === undefined) return say("unknown");
  if (value === 0) return "0";
  if (value < 0.0005) return value.toExponential(0).replace("e-", "e−");
  return value >= 0.9995 && value < 1 ? "> .999" : value === 1 ? "1" : value.toFixed(3).replace(/^0/, "");
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

/** The parts of a text that a label has to show: spaces and line ends by signs, what cannot be seen by its number. */
function signs(text) {
  return text
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
      (one) => (one === "\r" ? "␍" : `⟨${one.codePointAt(0).toString(16).toUpperCase()}⟩`))
    .replace(/\n/g, "↵").replace(/\t/g, "⇥");
}

/** A token as a label: what it says, with its spaces shown, cut to a length. */
function label(text, length = 40) {
  const shown = signs(text).replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
  const letters = Array.from(shown === "" ? "∅" : shown);
  return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : letters.join("");
}

/** A token for the ear: what it says without signs. */
const spoken = (text) => (text.trim() === "" ? say("blank") : `“${signs(text.trim())}”`);

/** Draw again whenever language or theme change. */
function onChange(draw) {
  page.listeners.push(draw);
}

function spell() {
  document.documentElement.lang = page.language === "zh" ? "zh-CN" : "en";
  document.title = say("title");
  for (const element of document.querySelectorAll("[data-word]")) {
    element.textContent = say(element.dataset.word);
  }
  for (const element of document.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", say(element.dataset.label));
    if (element.tagName === "BUTTON") element.title = say(element.dataset.label);
  }
  for (const draw of page.listeners) draw();
}

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = say(`theme.${theme}`);
}

function openTools() {
  byId("theme").addEventListener("click", () => {
    const now = THEMES.indexOf(document.documentElement.dataset.theme);
    setTheme(THEMES[(now + 1) % THEMES.length]);
  });
  byId("language").addEventListener("click", () => {
    page.language = page.language === "en" ? "zh" : "en";
    spell();
  });
  onChange(() => setTheme(document.documentElement.dataset.theme));
}

/** Patterns that charts fill with, so that no colour stands alone. */
function patterns() {
  const hatch = svg("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { x1: 0, y1: 0, x2: 0, y2: 7, class: "hatch-line" }));
  const stripes = svg("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "stripe-line" }));
  document.body.append(svg("svg", { width: 0, height: 0, "aria-hidden": "true", class: "sr" }, svg("defs", {}, hatch, stripes)));
}
