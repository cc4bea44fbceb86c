// Elements, forms and copy buttons of the pages. Texts are only written as text, never as HTML.
(function () {
  "use strict";

  /** An element with attributes, a `text` and children; children that are null are omitted. */
  function element(name, attributes, children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "text") made.textContent = value;
      else made.setAttribute(key, value);
    }
    made.append(...(children || []).filter(Boolean));
    return made;
  }

  const all = (selector, within) => [...(within || document).querySelectorAll(selector)];
  const count = (number, noun, several = `${noun}s`) => `${number} ${number === 1 ? noun : several}`;
  const distinct = values => [...new Set(values)];
  const paragraph = (text, name) => element("p", name ? { class: name, text } : { text });

  /** The answer in one sentence, as a heading. */
  const heading = text => element("h2", { class: "verdict", text });

  function list(texts) {
    if (!texts.length) return null;
    return element("ul", {}, texts.map(text => element("li", { text })));
  }

  /** A section that can be expanded; null if it is empty. */
  function details(summary, children) {
    if (!children.length) return null;
    return element("details", {}, [element("summary", { text: summary }), ...children]);
  }

  /** The numbers in a set of ranges: first, last, first, last. */
  const members = ([first, last, ...more]) => first === undefined ? []
    : [...Array.from({ length: last - first + 1 }, (_, index) => first + index), ...members(more)];

  /** Copies a text: the result is whether it was copied. */
  function copy(text) {
    const withoutClipboard = () => {
      const area = element("textarea", { class: "away", "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    };
    if (!navigator.clipboard) return Promise.resolve(withoutClipboard());
    return navigator.clipboard.writeText(text).then(() => true, withoutClipboard);
  }

  /** A place for the element `pre` and a button that copies its text, with the heading before as its label. */
  function withCopyButton(pre) {
    pre.dataset.copy = pre.dataset.copy || pre.previousElementSibling.textContent;
    const label = `Copy ${pre.dataset.copy}`;
    const attributes = { type: "button", class: "copy", "aria-label": label, text: "Copy" };
    const button = element("button", attributes);
    button.addEventListener("click", async () => {
      const done = await copy(pre.textContent);
      button.textContent = done ? "Copied" : "Select and copy";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    const place = element("div", { class: "code" }, [button]);
    pre.replaceWith(place);
    place.prepend(pre);
    pre.tabIndex = 0; // it scrolls
    return place;
  }

  /** Scrolls a navigation that is too wide for the screen to the link of this page. */
  function showCurrentPage() {
    const here = document.querySelector("nav [aria-current]");
    if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 16;
  }

  const addCopyButtons = () => {
    all("pre[data-copy]").forEach(withCopyButton);
    for (const pre of all(".guide pre")) pre.tabIndex = 0;
  };

  /** Commands with a button that copies them; `label` names them for a screen reader. */
  const commands = (label, lines) =>
    withCopyButton(element("pre", { "data-copy": label, text: lines.join("\n") }));

  /** The values of a form by the names of its fields. */
  function values(form) {
    return Object.fromEntries(all("[name]", form).map(field => [field.name, field.value.trim()]));
  }

  function restore(form) {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const field of all("[name]", form)) {
      if (given.has(field.name)) field.value = given.get(field.name);
    }
  }

  /** Keeps the values of a form in the URL, so that a result can be shared. */
  function remember(form, kept) {
    const given = Object.entries(kept(values(form))).filter(([, value]) => value && value.length < 4000);
    const text = new URLSearchParams(given).toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }

  /**
   * Shows the form, and calls `answer` with its values now and after each change. `kept` are those
   * of the values that the address has.
   */
  function whenChanged(form, answer, kept = given => given) {
    const show = () => answer(values(form));
    const changed = () => { remember(form, kept); show(); };
    form.hidden = false;
    restore(form);
    form.addEventListener("input", changed);
    form.addEventListener("submit", event => { event.preventDefault(); changed(); });
    form.addEventListener("reset", () => setTimeout(changed, 0));
    window.addEventListener("hashchange", () => { restore(form); show(); });
    show();
  }

  const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

  /** The bytes of a text in base85 (RFC 1924, as Python's base64.b85encode writes it). */
  function decoded(text) {
    const groups = text.match(/.{1,5}/g);
    const view = new DataView(new ArrayBuffer(groups.length * 4));
    groups.forEach((group, number) => view.setUint32(number * 4,
      [...group.padEnd(5, "~")].reduce((sum, each) => sum * 85 + DIGITS.indexOf(each), 0)));
    return new Uint8Array(view.buffer, 0, Math.floor(text.length * 4 / 5));
  }

  /** The data of a script that imgbuild has compressed. */
  async function unpacked(text) {
    const plain = new Blob([decoded(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(plain).text());
  }

  const link = target => element("a", { href: `targets/${target.name}.html`, text: target.name });
  /** The failed tiers of an image, and the GPUs on which tiers passed; "" if there are none. */
  const results = ({ failed, tested }) =>
    [...failed, tested.length && `${failed.length ? "passed on " : ""}${tested.join(", ")}`]
      .filter(Boolean).join("; ");

  const mark = target => (target.retired ? " (retired)" : "");

  function show(children) {
    document.getElementById("answer").replaceChildren(...children.filter(Boolean));
  }

  function skipped(label, lines) {
    return lines.length ? paragraph(`${label}: ${lines.join("; ")}`, "notice") : null;
  }

  /** A table with a head; a row begins with its name, cells are texts or elements. */
  function table(head, rows) {
    const cell = (name, attributes) => content =>
      element(name, attributes, [content instanceof Node ? content : String(content)]);
    return element("table", {}, [
      element("thead", {}, [element("tr", {}, head.map(cell("th", { scope: "col" })))]),
      element("tbody", {}, rows.map(([first, ...rest]) => element("tr", {}, [
        cell("th", { scope: "row" })(first), ...rest.map(cell("td", {})),
      ]))),
    ]);
  }

  window.imgbuildElements = {
    addCopyButtons, all, commands, count, details, distinct, element, heading, link, list, mark, members,
    paragraph, results, show, showCurrentPage, skipped, table, unpacked,
    whenChanged,
  };
})();
