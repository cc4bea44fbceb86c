// The known failures that an error text matches, by the patterns of imgbuild diagnose.
(function () {
  "use strict";

  const { count, element, heading, link, paragraph, show, unpacked, whenChanged } = window.imgbuildElements;
  const LINES = 80, LISTED = 8; // of a text that are compared, and failures that are listed
  const LONGEST = 2000; // characters of a line
  const LEAST = 6; // the weight of the words in common
  const TOLD = 3; // failures that are listed with their causes
  const NAMED = 5; // images that are named
  const REQUIREMENT = /\b[a-z][\w-]*(?:,?(?:[<>=~!]=|[<>])\d+(?:\.\w+)*)+/gi;

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

  /** The paragraphs of the text file by code; none for a page in a folder, which cannot read it. */
  async function readCauses() {
    const answer = location.protocol.startsWith("http") && await fetch("failures.txt");
    const text = answer && answer.ok ? await answer.text() : "";
    return new Map(text.split(/\n(?=IMG\d+: )/).slice(1).map(entry => {
      const [title, ...paragraphs] = entry.trim().split(/\n\n+/);
      return [title.split(":", 1)[0], paragraphs];
    }));
  }

  /** A paragraph of a cause; of the new names of arguments, those of the arguments in the text. */
  function fitting(told, text) {
    const [, label, names] = /^(New names: )(.*)\.$/.exec(told) || [];
    if (!names) return told;
    const used = names.split("; ").filter(each =>
      wordsIn(text).includes(each.split(" is ")[0].replace(/.*\./, "")));
    return used.length ? `${label}${used.join("; ")}.` : "";
  }

  /** The images with the versions that a cure names, such as vllm>=0.10,<=0.11.2. */
  function imagesWith(paragraphs, { images, targets, versions }) {
    const named = paragraphs.filter(told => told.startsWith("Cure: "))
      .flatMap(told => told.match(REQUIREMENT) || []);
    const { read } = window.imgbuildVersions.requirements([...new Set(named)].join("\n"), true);
    return read.filter(({ name }) => versions[name]).map(request => {
      const numbers = Object.entries(versions[request.name])
        .filter(([version]) => window.imgbuildVersions.allows(request, version))
        .flatMap(([, holds]) => holds);
      const found = [...new Set(numbers.map(number => images[number].target))]
        .map(number => targets[number]).filter(({ retired }) => !retired);
      const filter = `index.html#${new URLSearchParams({ packages: request.line })}`;
      return element("p", {}, [
        `Images with ${request.line}: `,
        ...found.slice(0, NAMED).flatMap((target, number) => [number ? ", " : "", link(target)]),
        ...found.length > NAMED ? [", ", element("a", { href: filter, text: `${found.length - NAMED} more` })] : [],
        found.length ? "" : "none",
      ]);
    });
  }

  const wordsIn = text => text.match(/\w+/g) || [];

  window.imgbuildFindFailures = function (form, data) {
    let reading = null, causes = null;
    whenChanged(form, async value => {
      const text = value.words;
      if (!text) return show([]);
      const known = await (reading ||= read());
      const exact = matching(known.entries, text);
      const titles = new Set();
      const found = (exact.length ? exact : naming(known, text))
        .filter(({ title }) => !titles.has(title) && titles.add(title));
      const items = told => found.slice(0, LISTED).map(({ code, title }, number) => element("li", {}, [
        element("a", { href: `failures.txt#:~:text=${code}:`, text: `${code} ${title}` }),
        ...(number < TOLD && told.get(code) || []).map(each => fitting(each, text)).filter(Boolean)
          .map(each => paragraph(each)),
        ...number < TOLD ? imagesWith(told.get(code) || [], data) : []]));
      const answer = told => show(found.length ? [
        heading(exact.length ? `${count(found.length, "known failure")} ${found.length === 1 ? "matches" : "match"} this text.`
          : "No known failure matches exactly. These have the most words in common:"),
        element("ul", { class: "causes" }, items(told)),
        paragraph("Each links to its cause and cure. imgbuild diagnose also reads what is before and after it in the log.", "muted"),
      ] : [paragraph("No known failure matches. imgbuild diagnose reads the whole log," +
        " with the versions and names in it.", "notice")]);
      answer(new Map());
      if (found.length) answer(await (causes ||= readCauses().catch(() => new Map())));
    }, () => ({}));
  };
})();
