// The filters of the table, and the answers to the three questions.
(function () {
  "use strict";

  const versions = window.imgbuildVersions;
  const machines = window.imgbuildMachine;
  const { all, commands, count, details, distinct, element, list, paragraph } = window.imgbuildElements;
  const { addCopyButtons, whenChanged } = window.imgbuildElements;

  // -- the table of targets

  /** The name of each target → its packages → their versions. */
  function packagesOf(data) {
    const targets = new Map(data.targets.map(target => [target.name, {}]));
    for (const [name, every] of Object.entries(data.versions)) {
      for (const [version, numbers] of Object.entries(every)) {
        for (const number of numbers) {
          const packages = targets.get(data.targets[data.images[number].target].name);
          (packages[name] ||= []).push(version);
        }
      }
    }
    return targets;
  }

  function filterTable(form, data) {
    const branches = form.hasAttribute("data-branches");
    const packages = packagesOf(data);
    const rows = all("tr[data-images]").map(row => ({
      row,
      body: row.parentElement,
      size: Number(row.getAttribute("data-size")),
      current: row.closest("#current") !== null,
      images: JSON.parse(row.getAttribute("data-images")),
      versions: packages.get(row.getAttribute("data-target")) || {},
    }));
    whenChanged(form, value => {
      for (const each of rows) each.row.hidden = !matches(each, value, branches);
      const smaller = (left, right) => left.size - right.size;
      const ordered = value.order === "size" ? [...rows].sort(smaller) : rows;
      for (const each of ordered) each.body.append(each.row);
      const shown = rows.filter(each => !each.row.hidden);
      const current = shown.filter(each => each.current).length;
      const more = shown.length - current;
      const total = count(rows.filter(each => each.current).length, "image");
      const active = Object.entries(value).some(([name, text]) => text && name !== "order");
      document.getElementById("count").textContent = active
        ? `${current} of ${total}${more ? `; ${more} retired match` : ""}`
        : total;
      document.getElementById("none").hidden = current > 0;
    });
  }

  function matches({ row, images, versions: has }, value, branches) {
    const words = name => (row.getAttribute(`data-${name}`) || "").split(" ");
    const named = ["cuda", "python", "stack", "tested"];
    const [capability, arch] = value.gpu.split(" ");
    const runs = images.some(([imageArch, driver, gpus]) =>
      [value.arch, arch].every(wanted => !wanted || wanted === imageArch) &&
      (!value.driver || (driver && !machines.older(value.driver, driver, branches))) &&
      (!capability || gpus.split(" ").includes(capability)));
    const requests = versions.requirements(lines(value.packages), true).read;
    return runs && named.every(name => !value[name] || words(name).includes(value[name])) &&
      requests.every(request => (has[request.name] || []).some(each => allows(request, each)));
  }

  /** Requests that are separated by commas, semicolons, words or spaces, one a line. */
  function lines(text) {
    return text.replace(/['"]/g, "")
      .replace(/;|,(?=\s*[A-Za-z])|\s+(?:with|and)\s+|\s\+\s/g, "\n")
      .replace(/([\d*])[^\S\n]+(?=[A-Za-z])/g, "$1\n");
  }

  function allows(request, version) {
    return !request.specifier || versions.satisfies(version, request.specifier);
  }

  // -- answers

  /** One image of each target, the first by `before` and then in the order of the data. */
  function best(images, judge, before) {
    const order = (left, right) => before(left, right) || left.number - right.number;
    const entries = images.map(
      ([image, number]) => ({ image, number, value: judge(image, number) }));
    const chosen = new Map();
    for (const entry of entries.sort(order)) {
      if (!chosen.has(entry.image.target)) chosen.set(entry.image.target, entry);
    }
    return [...chosen.values()];
  }

  const link = target => element("a", { href: `targets/${target.name}.html`, text: target.name });

  function card(target, image, state, words, children) {
    const facts = [
      image.arch, `CUDA ${image.cuda}`, `Python ${target.python}`, target.pins.join(", "),
      `${(image.size / 1e9).toFixed(1)} GB to pull`,
    ];
    const chip = (text, name) => element("span", { class: `chip ${name}`, text });
    const attributes = { class: "answer", "data-target": target.name, "data-state": state };
    return element("article", attributes, [
      element("h3", {}, [link(target)]),
      chip(words, state),
      target.recommended ? chip(`recommended: ${target.recommended}`, "") : null,
      target.retired ? chip("retired", "") : null,
      paragraph(facts.join(" · "), "muted"),
      ...children,
    ]);
  }

  function show(children) {
    document.getElementById("answer").replaceChildren(...children.filter(Boolean));
  }

  function skipped(label, lines) {
    return lines.length ? paragraph(`${label}: ${lines.join("; ")}`, "muted") : null;
  }

  // -- what runs on my machine

  const WORDS = { fits: "runs", unknown: "not known", no: "does not run" };

  function answerMachine(form, data) {
    const target = entry => data.targets[entry.image.target];
    const rank = entry => Object.keys(WORDS).indexOf(entry.value.state) * 4 +
      (target(entry).retired ? 2 : 0) + (entry.value.complete ? 0 : 1);
    const shown = entry => card(
      target(entry), entry.image, entry.value.state, WORDS[entry.value.state],
      [list([...entry.value.reasons, ...entry.value.remarks])],
    );
    whenChanged(form, value => {
      const machine = machines.read(value.machine, data.gpus);
      if (value.driver) machine.driver = value.driver;
      if (value.gpu) machine.gpus = [JSON.parse(value.gpu)];
      if (value.arch) machine.arch = value.arch;
      if (!machine.gpus.length && !machine.driver) return show([]);
      const other = entry => entry.image.arch !== machines.architecture(machine);
      const judged = best(
        data.images.map((image, number) => [image, number]),
        image => machines.judge(machine, image, data),
        (left, right) => rank(left) - rank(right) || other(left) - other(right),
      );
      const current = judged.filter(entry => !target(entry).retired);
      const [fits, unknown, no] = Object.keys(WORDS).map(
        state => current.filter(entry => entry.value.state === state));
      show([
        element("p", { id: "machine-read", text: describeMachine(machine, data) }),
        paragraph(verdict(fits, unknown, target), "verdict"),
        ...fits.map(shown), ...unknown.map(shown),
        details(`${count(no.length, "image")} that cannot run on it, and why`, no.map(shown)),
        details("Retired images", judged.filter(entry => target(entry).retired).map(shown)),
      ]);
    });
  }

  function describeMachine(machine, data) {
    const gpus = machine.gpus.map(({ name, capability }) =>
      `${name} (${capability ? `compute capability ${capability}` : "unknown"})`);
    const assumed = machine.arch || machine.gpus.some(gpu => gpu.arch) ? "" : " (assumed)";
    const facts = [
      distinct(gpus).join(", ") || "no GPU given",
      machine.driver ? `driver ${machine.driver}` : "no driver given",
      machines.architecture(machine) + assumed,
    ];
    const able = data.releases.filter(({ driver }) =>
      driver && machine.driver && !machines.older(machine.driver, driver, data.branches));
    const newest = able.length ? able[able.length - 1].cuda : "";
    const releases = newest ? ` This driver runs CUDA ${newest} and older.` : "";
    return `Compared: ${facts.join(", ")}.${releases}`;
  }

  function verdict(fits, unknown, target) {
    if (!fits.length) {
      return unknown.length ? "Whether an image runs on it is not known." : "No image runs on it.";
    }
    const [newest] = fits;
    const kind = newest.value.complete ? "newest for this driver's CUDA release" : "newest";
    const recommended = fits.map(target).filter(each => each.recommended).map(each => each.name);
    const more = recommended.length ? `; recommended: ${recommended.join(", ")}` : "";
    return `${count(fits.length, "image")} ${fits.length === 1 ? "runs" : "run"} on it;` +
      ` the ${kind} is ${target(newest).name}${more}.`;
  }

  // -- which image for this requirements.txt

  /** What the image `number` has of the requests, has in another version, and has not. */
  function comparison(data, requests, number) {
    const result = { has: [], other: [], absent: [] };
    for (const request of requests) {
      const known = Object.entries(data.versions[request.name] || {});
      const [version] = known.find(([, numbers]) => numbers.includes(number)) || [];
      if (!version) result.absent.push(request.line);
      else if (allows(request, version)) result.has.push(`${request.name} ${version}`);
      else result.other.push(`${request.line}: the image has ${version}`);
    }
    return result;
  }

  function answerRequirements(form, data) {
    const target = entry => data.targets[entry.image.target];
    const before = (left, right) =>
      left.value.other.length - right.value.other.length ||
      left.value.absent.length - right.value.absent.length ||
      target(left).retired - target(right).retired ||
      !target(left).recommended - !target(right).recommended ||
      (left.image.arch !== "x86_64") - (right.image.arch !== "x86_64");
    whenChanged(form, value => {
      const given = versions.requirements(value.requirements, false);
      if (!given.read.length && !given.skipped.length) return show([]);
      const images = data.images.map((image, number) => [image, number])
        .filter(([image]) => !value.arch || image.arch === value.arch);
      const judge = (_, number) => comparison(data, given.read, number);
      const compared = best(images, judge, before);
      const cards = compared.map(entry => requirementCard(entry, target(entry), given.read.length));
      const marked = given.read.some(request => request.marker);
      show([
        paragraph(requirementVerdict(compared), "verdict"),
        skipped("Not compared", given.skipped),
        marked ? paragraph("Environment markers are not evaluated.", "muted") : null,
        ...cards.slice(0, 6),
        details(`The other ${count(cards.length - 6, "image")}`, cards.slice(6)),
      ]);
    });
  }

  function requirementVerdict(compared) {
    const good = compared.filter(entry => !entry.value.other.length);
    const complete = good.filter(entry => !entry.value.absent.length).length;
    if (complete) {
      return `${count(complete, "image")} ${complete === 1 ? "has" : "have"} everything.`;
    }
    if (good.length) {
      return `No image has everything; ${good.length} can be extended without a conflict.`;
    }
    return compared.length ? "No image fits; these come nearest."
      : "No image is for this architecture.";
  }

  function requirementCard({ image, value }, target, number) {
    const { has, other, absent } = value;
    const [state, words] = other.length ? ["no", count(other.length, "conflict")]
      : absent.length ? ["unknown", `has ${has.length} of ${number}`] : ["fits", "has all"];
    return card(target, image, state, words, [
      list(other),
      absent.length ? paragraph(`To add: ${absent.join(", ")}`) : null,
      details(`In the image: ${has.length}`, has.length ? [paragraph(has.join(", "))] : []),
      ...other.length ? [] : commandsOf(target, absent.length > 0),
    ]);
  }

  /** How to use an image without a conflict: as it is, or as a project that adds packages to it. */
  function commandsOf({ name, pull }, incomplete) {
    const project = commands(`the commands that make a project of ${name}`,
      [`imgbuild init --from requirements.txt --target ${name}`, "imgbuild lock"]);
    if (incomplete) return [project];
    const runs = [...pull ? [`docker pull ${pull}`] : [], `imgbuild run ${name} -- python train.py`];
    return [
      paragraph("Use it as it is:"), commands(`the commands that run ${name}`, runs),
      paragraph("Or as a project, with a lock and packages that you add:"), project,
    ];
  }

  // -- why not these versions together

  const FACTS = ["cuda", "python"]; // which people name with packages

  /** The data, with the CUDA release and the Python of each image as if they were packages. */
  function withFacts(data) {
    const facts = { cuda: {}, python: {} };
    data.images.forEach(({ cuda, target }, number) => {
      (facts.cuda[cuda] ||= []).push(number);
      (facts.python[data.targets[target].python] ||= []).push(number);
    });
    return { ...data, versions: { ...data.versions, ...facts } };
  }

  /** What to type for versions that no image has together. */
  function nextCommand(requests) {
    const cuda = requests.filter(({ name }) => name === "cuda")
      .map(({ specifier }) => ` --cuda ${specifier.replace(/[=*~><!]|\.\*$/g, "").split(",")[0]}`);
    // A whole release, which was read as all its builds, can be audited.
    const exact = requests.filter(({ name }) => !FACTS.includes(name)).map(
      ({ name, specifier }) => [name, specifier.replace(/^==(\d+\.\d+\.\d+)\.\*$/, "==$1")]);
    const words = exact.map(([name, specifier]) => `'${name}${specifier}'`).join(" ");
    const pinned = exact.every(([, specifier]) => /^==[^*,\s]+$/.test(specifier)) &&
      exact.length === requests.length;
    return [
      paragraph(pinned ? "What stops these versions, from their code and libraries:"
        : "To solve for such versions:"),
      commands("the command", [`imgbuild ${pinned ? "audit" : "resolve"} ${words}${cuda.join("")}`]),
    ];
  }

  function answerTogether(form, data) {
    whenChanged(form, value => {
      const given = versions.requirements(lines(value.versions), true);
      if (!given.read.length) return show([]);
      const together = data.images.filter((_, number) => {
        const { other, absent } = comparison(data, given.read, number);
        return !other.length && !absent.length;
      });
      const targets = distinct(together.map(image => data.targets[image.target]));
      const recorded = targets.length ? [] : reasons(data, given.read);
      const why = recorded.length ? " The recorded reasons:"
        : " No reason against them is recorded.";
      show([
        paragraph(targets.length
          ? `These versions are together in ${count(targets.length, "image")}.`
          : `No image has these versions together.${why}`, "verdict"),
        element("ul", {}, targets.map(target => element("li", {}, [link(target)]))),
        list(recorded),
        ...targets.length ? [] : [
          element("h3", { text: "What the images have" }),
          list(given.read.map(request => where(data, request))),
          ...nextCommand(given.read),
        ],
        skipped("Not understood", given.skipped),
      ]);
    });
  }

  /** The versions of the data that a request allows. */
  function known(data, request) {
    const every = { ...data.versions[request.name], ...data.requires[request.name] };
    return Object.keys(every).filter(version => allows(request, version));
  }

  /** The same, and the version that the request names. */
  function candidates(data, request) {
    const named = /^==\s*([^*,]+?)(?:\.\*)?$/.exec(request.specifier);
    return [...known(data, request), ...(named ? [named[1]] : [])];
  }

  function reasons(data, requests) {
    const found = requests.flatMap((request, number) => [
      ...known(data, request).flatMap(version => requests
        .filter(other => other !== request)
        .flatMap(other => reasonsOf(data, request.name, version, other))),
      ...requests.slice(number + 1).flatMap(other => apart(data, request, other)),
      ...refused(data, request),
    ]);
    return distinct(found);
  }

  /** Why the package `name` in `version` does not go with any version that `other` allows. */
  function reasonsOf(data, name, version, other) {
    const possible = candidates(data, other);
    const within = specifier => one => versions.satisfies(one, specifier);
    const excludes = line => {
      const [need] = versions.requirements(line, false).read;
      return need && need.name === other.name && possible.length > 0 &&
        !possible.some(within(need.specifier));
    };
    const lines = ((data.requires[name] || {})[version] || []).filter(excludes);
    const learned = data.constraints.filter(entry => entry.package === name &&
      versions.satisfies(version, entry.versions) && excludes(entry.needs));
    const rules = data.rules.filter(rule => rule.package === name && rule.other === other.name &&
      (!rule.versions || versions.satisfies(version, rule.versions)) &&
      possible.length > 0 && possible.every(within(rule.clash)));
    return [
      ...lines.map(line => `${name} ${version} requires ${line}`),
      ...learned.map(entry => `learned: ${entry.text}`),
      ...rules.map(rule => `known: ${rule.why}; ${rule.cure}`),
    ];
  }

  /** What two packages require of a third, if one of them requires a version that the other excludes. */
  function apart(data, left, right) {
    const needs = request => known(data, request).flatMap(version =>
      ((data.requires[request.name] || {})[version] || []).map(line => ({
        line: `${request.name} ${version} requires ${line}`,
        need: versions.requirements(line, false).read[0],
      }))).filter(({ need }) => need);
    const pin = ({ specifier }) => (/^==\s*([^*,\s]+)$/.exec(specifier) || [])[1];
    const excludes = (one, other) => pin(one) && !versions.satisfies(pin(one), other.specifier);
    return needs(left).flatMap(one => needs(right)
      .filter(other => one.need.name === other.need.name &&
        (excludes(one.need, other.need) || excludes(other.need, one.need)))
      .map(other => `${one.line}; ${other.line}`));
  }

  function refused(data, request) {
    const about = candidates(data, request).map(version => `${request.name} ${version} in `);
    return data.refusals.filter(({ what }) => about.some(text => what.startsWith(text)))
      .map(({ what, reason }) => `refused: ${what}: ${reason}`);
  }

  function where(data, request) {
    const every = data.versions[request.name] || {};
    const names = version =>
      distinct(every[version].map(number => data.targets[data.images[number].target].name));
    const matching = known(data, request).filter(version => version in every);
    if (matching.length) {
      const place = version => `${request.name} ${version} is in ${names(version).join(", ")}`;
      return matching.map(place).join("; ");
    }
    const others = Object.keys(every).sort(versions.compare);
    return others.length ? `${request.line} is in no image; the images have ${others.join(", ")}`
      : `${request.line}: no image has this package`;
  }

  // -- start

  function start() {
    addCopyButtons();
    const questions = {
      filter: filterTable, machine: answerMachine, requirements: answerRequirements,
      together: (form, data) => answerTogether(form, withFacts(data)),
    };
    for (const form of all("form[data-question]")) {
      const question = form.getAttribute("data-question");
      if (window.imgbuildData) questions[question](form, window.imgbuildData);
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
