// The known failures that an error text matches, by the patterns of imgbuild diagnose.
(function () {
  "use strict";

  const { count, element, heading, paragraph, show, unpacked, whenChanged } = window.imgbuildElements;
  const LINES = 80, LISTED = 8; // of a text that are compared, and failures that are listed
  const LONGEST = 2000; // characters of a line
  const LEAST = 6; // the weight of the words in common

  const compiled = pattern => {
    const [flags] = pattern.split(":", 1);
    return new RegExp(pattern.slice(flags.length + 1), flags);
  };

  /** All failures; `number`: how many have a word. */
  async function read() {
    const entries = (await unpacked(window.imgbuildFailures)).map(
      ([code, title, patterns, conditions]) => ({
        code, title, words: wordsOf(`${code} ${title} ${patterns.join(" ")}`),
        patterns: patterns.map(compiled), conditions: conditions.map(compiled),
      }));
    const number = new Map();
    for (const { words } of entries) for (const word of words) number.set(word, (number.get(word) || 0) + 1);
    return { entries, number };
  }

  const wordsOf = text => new Set(text.toLowerCase().match(/[a-z][a-z0-9]{2,}/g));

  /** The failures with a pattern that matches a line or the end of the text, in their order. */
  function matching(entries, text) {
    const lines = text.split(/\r?\n/).map(line => line.trim().slice(0, LONGEST)).filter(Boolean).slice(-LINES);
    const texts = [...lines, lines.slice(-6).join("\n")];
    const found = one => texts.some(each => one.test(each));
    return entries.filter(({ patterns, conditions }) => patterns.some(found) && conditions.every(found));
  }

  /** The failures with the most words of a text, rare words first. */
  function naming({ entries, number }, text) {
    const weight = words => words.reduce((sum, word) => sum + Math.log(entries.length / number.get(word)), 0);
    const asked = wordsOf(text);
    const least = Math.min(LEAST, weight([...asked].filter(word => number.has(word))));
    const scores = new Map(entries.map(entry => {
      const words = [...entry.words];
      const common = weight(words.filter(word => asked.has(word)));
      return [entry, common && common >= least ? common / Math.sqrt(LEAST + weight(words)) : 0];
    }));
    const best = Math.max(...scores.values());
    return entries.filter(entry => scores.get(entry) > best / 2)
      .sort((left, right) => scores.get(right) - scores.get(left));
  }

  window.imgbuildFindFailures = function (form) {
    let reading = null;
    whenChanged(form, async value => {
      const text = value.words;
      if (!text) return show([]);
      const known = await (reading ||= read());
      const exact = matching(known.entries, text);
      const titles = new Set();
      const found = (exact.length ? exact : naming(known, text))
        .filter(({ title }) => !titles.has(title) && titles.add(title));
      const items = every => every.map(({ code, title }) => element("li", {}, [
        element("a", { href: `failures.txt#:~:text=${code}:`, text: `${code} ${title}` })]));
      return show(found.length ? [
        heading(exact.length ? `${count(found.length, "known failure")} ${found.length === 1 ? "matches" : "match"} this text.`
          : "No known failure matches exactly. These have the most words in common:"),
        element("ul", {}, items(found.slice(0, LISTED))),
        paragraph("Each links to its cause and fix. imgbuild diagnose also reads what is before and after it in the log.", "muted"),
      ] : [paragraph("No known failure matches. imgbuild diagnose reads the whole log," +
        " with the versions and names in it.", "notice")]);
    }, () => ({}));
  };
})();
