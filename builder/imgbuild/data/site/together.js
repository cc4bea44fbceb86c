// Why versions are not together: what images have, and what locks, audits and metadata record.
(function () {
  "use strict";

  const versions = window.imgbuildVersions;
  const {
    commands, count, details, distinct, element, heading, link, list, mark, paragraph, show, skipped, whenChanged,
  } = window.imgbuildElements;
  const { allows, ARCHES, separated } = versions;
  const FACTS = ["cuda", "python", ...Object.keys(ARCHES)];

  const having = (data, { name, specifier }) => distinct(
    Object.entries(data.versions[name] || {})
      .filter(([version]) => allows({ specifier }, version)).flatMap(([, numbers]) => numbers));

  /** What to type for versions that no image has together. */
  function nextCommand(data, requests, impossible) {
    const release = ({ specifier }) => specifier.replace(/[=*~><!]|\.\*$/g, "").split(",")[0];
    const facts = requests.filter(({ name }) => FACTS.includes(name))
      .map(each => ARCHES[each.name] ? ` --arch ${ARCHES[each.name]}` : ` --${each.name} ${release(each)}`);
    // A whole release, which was read as all its builds, can be audited.
    const exact = requests.filter(({ name }) => !FACTS.includes(name)).map(request => {
      const whole = /^==(\d+\.\d+\.\d+)\.\*$/.exec(request.specifier);
      const found = known(data, request);
      const one = whole && (found.length === 1 ? found[0] : whole[1]);
      return `'${request.name}${one ? `==${one}` : request.specifier}'`;
    });
    // Of a name that is not in the data nothing is known; it may be misspelt.
    if (requests.some(({ name }) => !data.versions[name] && !data.requires[name])) return [];
    if (!exact.length) return [paragraph("With a package, such as vllm, imgbuild can solve for them.")];
    const pinned = exact.every(word => /^'[^=]+==[^*,\s]+'$/.test(word)) && !facts.length;
    if (!pinned && impossible) return [];
    return [
      paragraph(impossible ? "To find what else stops these versions in their code and libraries, on your machine:"
        : "To solve for these versions, with an audit of their code, on your machine:"),
      commands("the command", [`imgbuild ${impossible ? "audit" : "resolve"} ${exact.join(" ")}${facts.join("")}`]),
    ];
  }

  const linked = (before, targets, after) => element("li", {}, [
    before, ...targets.flatMap((target, number) => [number ? ", " : "", link(target), mark(target)]),
    after || "",
  ]);

  /** The rows without a lock whose pins are what is asked for. */
  function planned(data, requests) {
    const has = row => ({ ...row.pins, cuda: row.cuda, python: row.python });
    return data.unlocked.filter(row => requests.every(request =>
      has(row)[request.name] && allows(request, has(row)[request.name])));
  }

  const NEWEST = /\b(?:newest|latest)\s+([a-z][\w.-]*)|\b((?!with\b|and\b)[a-z][\w.-]*?)(?:\s+|==?\s*)(?:newest|latest)\b/gi;

  /** The text with versions in place of "newest": the newest of the data. */
  const withNewest = (text, data) => text.replace(/^\s*why not\s+/i, "").replace(NEWEST, (whole, after, before) => {
    const every = Object.keys(data.versions[versions.normalize(after || before)] || {}).sort(versions.compare);
    return every.length ? `${after || before} ${every[every.length - 1]}` : whole;
  });

  function answerTogether(form, plain) {
    const data = versions.withFacts(plain);
    whenChanged(form, value => {
      const text = withNewest(value.versions, data);
      const given = versions.requirements(separated(text), true);
      const unread = skipped("Not understood", given.skipped);
      if (!given.read.length) return show([unread]);
      const numbers = given.read.map(request => having(data, request))
        .reduce((left, right) => left.filter(number => right.includes(number)));
      const targets = distinct(numbers.map(number => data.targets[data.images[number].target]));
      const { obstacles, impossible: excluded, outside, defects, decisive: recordedReason } = reasons(data, given.read);
      const against = targets.length ? [] : obstacles;
      const recorded = [...against, ...targets.length ? [] : defects];
      const rows = planned(data, given.read);
      const impossible = excluded && !rows.length; // a planned row has a build of another index
      const remarks = targets.length ? [] : notes(data, given.read);
      // The requirements of packages on Python are only in notes.
      const python = given.read.some(({ name }) => name === "python") && remarks.find(({ text }) => /requires Python/.test(text));
      const decisive = rows.length ? "" : recordedReason || (python ? python.text : "");
      const near = targets.length || recorded.length || decisive ? [] : nearby(data, given.read);
      const stops = targets.length ? [] : additions(data, given.read);
      show([
        heading(targets.length ? presence(given.read, targets)
          : absence(given.read, decisive, [...recorded, ...remarks, ...near, ...stops])),
        text === value.versions ? null : paragraph(`Newest in the images: ${text}`, "muted"),
        targets.length || impossible || decisive ? null : otherPython(data, given.read),
        element("ul", {}, targets.map(target => linked("", [target],
          target.incompatible.map(text => `; known incompatibility: ${text}`).join("")))),
        ...part(targets.length ? "" : impossible ? "They cannot be installed together"
          : "Requirements that exclude some of these versions", against),
        ...part("Known incompatibilities", defects),
        ...part("Other versions of the same minor releases", near),
        ...targets.length ? [] : indirectly(data, given.read),
        ...part("Outside the versions that a package names as supported", outside),
        ...targets.length ? [] : part("Not audited", unaudited(data, given.read)),
        ...remarks.length ? [
          element("h3", { text: "Notes of the maintainers on these packages" }),
          element("ul", {}, remarks.map(note => linked("", [{ name: note.target }], `: ${note.text}.`))),
        ] : [],
        rows.length ? element("ul", {}, rows.map(row => linked(
          "Planned, but not locked, so without an image: ", [row], row.needs ? `: needs ${row.needs}` : ""))) : null,
        ...targets.length ? [] : [
          element("h3", { text: "What the images have" }),
          element("ul", {}, given.read.flatMap(request => where(data, request, given.read))),
          ...stops,
          ...nextCommand(data, given.read, impossible),
        ],
        unread,
      ]);
    });
  }

  /** The Pythons of the images that have all but the Python that is asked for. */
  function otherPython(data, requests) {
    const rest = requests.filter(({ name }) => name !== "python");
    if (!rest.length || rest.length === requests.length) return null;
    const pythons = distinct(rest.map(request => having(data, request))
      .reduce((left, right) => left.filter(number => right.includes(number)))
      .map(number => data.targets[data.images[number].target].python));
    return pythons.length ? paragraph(`The images with ${rest.map(({ line }) => line).join(" and ")} have Python `
      + `${pythons.join(" and ")}. Another Python is another base (docs/howto/python-version.md), which may work.`) : null;
  }

  const part = (title, lines) =>
    lines.length && title ? [element("h3", { text: title }), list(lines)] : [];

  function presence(requests, targets) {
    const current = targets.filter(target => !target.retired).length;
    const retired = targets.length - current;
    const places = [current || !retired ? count(current, "image") : "",
      retired ? count(retired, "retired image") : ""].filter(Boolean).join(" and ");
    return `${requests.length > 1 ? "These versions are together in" : "It is in"} ${places}.`;
  }

  function absence(requests, decisive, recorded) {
    if (decisive) return `No image has ${requests.length > 1 ? "these versions together" : "it"}, because ${decisive}.`;
    if (requests.length === 1) return "No image has it.";
    return recorded.length ? "No image has these versions together."
      : "No image has these versions together, and no reason against them is recorded, which does" +
        " not mean that they work.";
  }

  /** The versions of the data that a request allows, the nearest to the one that it names first. */
  function known(data, request) {
    const every = { ...data.versions[request.name], ...data.requires[request.name] };
    const allowed = Object.keys(every).filter(version => allows(request, version)).sort(versions.compare);
    const [named] = /\d+(?:\.\w+)*/.exec(request.specifier) || [];
    const later = allowed.findIndex(version => named && versions.compare(version, named) >= 0);
    const place = later < 0 ? allowed.length : later;
    const distance = new Map(allowed.map((version, number) => [version, Math.abs(number - place)]));
    return allowed.sort((left, right) => distance.get(left) - distance.get(right));
  }

  /** The same, and the version that the request names. */
  function candidates(data, request) {
    const named = /^==\s*([^*,]+?)(?:\.\*)?$/.exec(request.specifier);
    return [...known(data, request), ...(named ? [named[1]] : [])];
  }

  /**
   * What prevents an installation, torch and its CUDA release first, what a package does not name as
   * supported, known incompatibilities; `decisive` is the first reason that leaves no version, or "".
   */
  function reasons(data, requests) {
    const found = requests.flatMap((request, number) => [
      ...known(data, request).flatMap(version => otherCuda(data, request.name, version, requests)),
      ...known(data, request).flatMap(version => requests
        .filter(other => other !== request)
        .flatMap(other => reasonsOf(data, request.name, version, other))),
      ...requests.slice(number + 1).flatMap(other => apart(data, request, other)),
      ...refused(data, request),
    ]);
    const of = kind => distinct(found.filter(each => each.kind === kind).map(({ text }) => text));
    const impossible = excluded(data, requests, "obstacle");
    const absent = requests.filter(({ name }) => data.sources[name] && !data.versions[name])
      .map(({ name }) => `${name} is in no image: ${data.sources[name].split(";")[0]}`);
    const [first = ""] = [...absent, ...impossible, ...excluded(data, requests, "defect")];
    return {
      impossible: impossible.length > 0,
      decisive: first.replace(/^(learned|known): /, ""),
      obstacles: of("obstacle").sort((left, right) => rank(left) - rank(right)),
      outside: of("outside"), defects: of("defect"),
    };
  }

  /** Why exact versions exclude all that another request allows. Of a range, other versions may not. */
  const excluded = (data, requests, kind) => requests.filter(({ name, specifier }) =>
    specifier.startsWith("==") && !FACTS.includes(name) && (kind !== "obstacle" || data.requires[name]))
    .flatMap(request => requests.filter(other => other !== request).flatMap(other => {
      const every = known(data, request).map(version => exclusions(data, request, version, other, kind));
      return every.length && every.every(texts => texts.length) ? every.flat() : [];
    })).sort((left, right) => rank(left) - rank(right));

  /** Why the minor releases do not go together, where the data has not the versions that are named. */
  function nearby(data, requests) {
    const minor = requests.map(request => {
      const [, release] = /^==(\d+\.\d+)\.\d+(?:\.\*)?$/.exec(request.specifier) || [];
      return release && !known(data, request).length ? { ...request, specifier: `==${release}.*` } : request;
    });
    if (minor.every((request, number) => request === requests[number])) return [];
    const { obstacles, defects } = reasons(data, minor);
    return [...obstacles, ...defects];
  }

  /** First the CUDA release of torch, then torch, then what one requires of the other. */
  const rank = text => (/ for CUDA /.test(text) ? 0 : / torch[=<>!~]/.test(text) ? 1
    : / requires .*; .* requires /.test(text) ? 3 : 2);

  /** Why a version, or what both require, excludes all versions that `other` allows: reasons of one kind. */
  function exclusions(data, request, version, other, kind) {
    const one = { ...request, specifier: `==${version}` };
    const theirs = other.specifier.startsWith("==") ? known(data, other) : [];
    const shared = theirs.map(there => apart(data, one, { ...other, specifier: `==${there}` }));
    return [
      ...other.name === "cuda" ? otherCuda(data, request.name, version, [other]) : [],
      ...reasonsOf(data, request.name, version, other),
      ...shared.every(each => each.length) ? shared.flat() : [],
    ].filter(each => each.kind === kind).map(({ text }) => text);
  }

  /** The release of CUDA in what torch requires. */
  const TOOLKIT = /^(?:cuda-toolkit|nvidia-cuda-runtime-cu\d+)==(\d+\.\d+)/;

  /** Why a version of torch, or of a package that requires one, is not for the CUDA release that is asked for. */
  function otherCuda(data, name, version, requests) {
    const wanted = requests.find(request => request.name === "cuda");
    const lines = (data.requires[name] || {})[version] || [];
    const pin = lines.find(line => /^torch==[^*,;]+$/.test(line));
    const torch = name === "torch" ? version : pin ? pin.slice(7) : "";
    const built = ((data.requires.torch || {})[torch] || []).find(line => TOOLKIT.test(line));
    if (!wanted || !built || allows(wanted, TOOLKIT.exec(built)[1])) return [];
    const subject = name === "torch" ? `torch ${version} of the images is` : `${name} ${version} requires ${pin}, which is`;
    return [{
      kind: "obstacle",
      text: `${subject} built for CUDA ${TOOLKIT.exec(built)[1]} (it requires ${built}), not for CUDA ${wanted.specifier.replace(/^==|\.\*$/g, "")}`,
    }];
  }

  /** A line of the metadata in words; a marker is that of an extra. */
  function requires(name, version, line) {
    const [need, extra] = line.split("; ");
    return extra ? `${name} ${version} supports ${need} (its ${extra})` : `${name} ${version} requires ${need}`;
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
      ...lines.map(line => ({
        kind: line.includes("; ") ? "outside" : "obstacle", text: requires(name, version, line),
      })),
      ...learned.map(entry => ({ kind: "defect", text: `learned: ${entry.text}` })),
      ...rules.map(rule => ({ kind: "defect", text: `known: ${rule.why}; ${rule.cure}` })),
    ];
  }

  /** What a request needs of packages, for each of its versions: line and requirement. */
  function needs(data, request) {
    return known(data, request).flatMap(version =>
      ((data.requires[request.name] || {})[version] || []).map(line => ({
        name: request.name, version, line: requires(request.name, version, line),
        need: versions.requirements(line, false).read[0],
      }))).filter(({ need }) => need && !need.marker);
  }

  /** Pairs of what two packages require of the same third one, which is not asked for. */
  function shared(data, left, right) {
    const others = needs(data, right);
    return needs(data, left).flatMap(one => others
      .filter(other => one.need.name === other.need.name).map(other => [one, other]));
  }

  /** What two packages require of a third, if no version of it can satisfy both. */
  function apart(data, left, right) {
    return shared(data, left, right)
      .filter(([one, other]) => versions.disjoint(one.need.specifier, other.need.specifier))
      .map(([one, other]) => ({ kind: "obstacle", text: `${one.line}; ${other.line}` }));
  }

  /** Texts of pairs of requirements, once for all versions of which they and the `end` are equal. */
  function merged(found) {
    const groups = new Map();
    for (const { pair, end } of found) {
      const key = [...pair.map(({ name, need }) => `${name} ${need.line}`), end].join("\n");
      if (!groups.has(key)) groups.set(key, { pair, end, having: pair.map(() => new Set()) });
      pair.forEach(({ version }, place) => groups.get(key).having[place].add(version));
    }
    return [...groups.values()].map(({ pair, end, having: every }) => pair.map(({ name, need }, place) =>
      requires(name, [...every[place]].sort(versions.compare).join(", "), need.line)).join("; ") + end);
  }

  /** What stops or limits two packages through a third one: its versions here, known incompatibilities. */
  function indirectly(data, requests) {
    const found = requests.flatMap((left, number) => requests.slice(number + 1).flatMap(right =>
      shared(data, left, right).flatMap(([one, other]) => {
        const name = one.need.name;
        const possible = Object.keys(data.versions[name] || {});
        const both = possible.filter(version => allows(one.need, version) && allows(other.need, version));
        const rules = data.rules.filter(rule => rule.other === name &&
          [[left, one], [right, other]].some(([request, { version }]) => rule.package === request.name &&
            (!rule.versions || versions.satisfies(version, rule.versions))) &&
          both.some(version => versions.satisfies(version, rule.clash)));
        const clashes = both.filter(version => rules.some(rule => versions.satisfies(version, rule.clash)));
        return [
          ...possible.length && !both.length && !versions.disjoint(one.need.specifier, other.need.specifier)
            ? [{ pair: [one, other], end: `: no version of ${name} in the images satisfies both` }] : [],
          ...rules.map(rule => ({
            pair: [one, other],
            end: `. With ${name} ${clashes.join(", ")} of the images, ${rule.package} has a known` +
              ` incompatibility: ${rule.why}; ${rule.cure}`,
          })),
        ];
      })));
    const lines = merged(found);
    return lines.length ? [element("h3", { text: "Through a package that both need" }), list(lines)] : [];
  }

  /** What stops each package in the images that have all else that is asked for. */
  function additions(data, requests) {
    const lines = requests.flatMap(request => {
      const others = requests.filter(other => other !== request).map(other => having(data, other));
      const numbers = others.length ? others.reduce((left, right) => left.filter(number => right.includes(number))) : [];
      const images = numbers.map(number => ({ number, target: data.targets[data.images[number].target] }))
        .filter(({ target }, index, every) => !target.retired &&
          every.findIndex(other => other.target === target) === index);
      return images.map(({ number, target }) => [
        target, versions.unfit(data, request, name => versions.versionOf(data, name, number)),
      ]).filter(([, clash]) => clash);
    });
    const clashes = distinct(lines.map(([, clash]) => clash));
    const title = "Images that have all but one of them, and why it cannot be added";
    const why = element("ul", {}, clashes.map(clash => linked("",
      lines.filter(line => line[1] === clash).map(([target]) => target), `: ${clash}`)));
    if (clashes.length > 5) return [details(title, [why])];
    return clashes.length ? [element("h3", { text: title }), why] : [];
  }

  /** The pairs of requested packages that no image has, and without a recorded reason. */
  function unaudited(data, requests) {
    const packages = requests.filter(({ name }) => !FACTS.includes(name) && data.versions[name]);
    const pairs = packages.flatMap((left, number) =>
      packages.slice(number + 1).map(right => [left, right]));
    const together = ([left, right]) =>
      having(data, left).some(number => having(data, right).includes(number));
    const open = pairs.filter(pair => {
      const { obstacles, defects } = reasons(data, pair);
      return !together(pair) && !obstacles.length && !defects.length;
    });
    return open.map(([left, right]) => `${left.line} with ${right.line}: no audit of their code is` +
      " recorded, so whether they work together is not known; imgbuild resolve checks it");
  }

  function refused(data, request) {
    const about = candidates(data, request).map(version => `${request.name} ${version} in `);
    return data.refusals.filter(({ what }) => about.some(text => what.startsWith(text)))
      .map(({ what, reason }) => ({ kind: "defect", text: `refused: ${what}: ${reason}` }));
  }

  /** The notes on the requested versions, as `imgbuild resolve` selects them. */
  function notes(data, requests) {
    const allowed = (note, { name, specifier }) => {
      const version = note.packages[name];
      return version && (versions.satisfies(version, specifier) || specifier.startsWith(`==${version}.`));
    };
    const asked = requests.filter(({ name }) => name !== "cuda");
    const cuda = requests.find(({ name }) => name === "cuda");
    const rows = new Map([...data.targets, ...data.unlocked].map(row => [row.name, row]));
    return data.notes.filter(note => {
      const named = asked.filter(({ name }) => name in note.packages);
      const stated = named.filter(({ name }) => note.stated.includes(name));
      if (asked.length === 1 ? !stated.length : named.length < 2) return false;
      if (cuda && !allows(cuda, rows.get(note.target).cuda)) return false;
      const compared = (stated.length ? stated : named).filter(({ specifier }) => specifier);
      if (!named.some(({ specifier }) => /(^|,)\s*(===?|~=)/.test(specifier))) return false;
      const fits = compared.map(each => allowed(note, each));
      return stated.length ? fits.every(Boolean)
        : fits.some(Boolean) && compared.every(({ name }) => note.packages[name]);
    });
  }

  /** Which images have what a request allows, and what these have of the other requests. */
  function where(data, request, requests) {
    const numbers = having(data, request);
    const targetsOf = every => distinct(every.map(number => data.targets[data.images[number].target]));
    if (!numbers.length) {
      const others = Object.keys(data.versions[request.name] || {}).sort(versions.compare);
      return [element("li", { text: others.length
        ? `${request.line}: in no image; the images have ${others.join(", ")}`
        : `${request.line}: no image has this package${data.sources[request.name] ? `: ${data.sources[request.name]}` : ""}` })];
    }
    const beside = requests.filter(other => other !== request).map(({ name }) => {
      const here = Object.entries(data.versions[name] || {})
        .map(([version, every]) => [version, every.filter(number => numbers.includes(number))])
        .filter(([, every]) => every.length);
      const some = targetsOf(here.flatMap(([, every]) => every)).length;
      const found = here.map(([version]) => version).sort(versions.compare).join(", ");
      return !some ? `no ${name}` : `${name} ${found}`.trim()
        + (some < targetsOf(numbers).length ? ` (${some} of them)` : "");
    });
    return [linked(
      `${request.line}: in ${count(targetsOf(numbers).length, "image")}`
      + `${beside.length ? `, with ${beside.join(" and ")}` : ""}: `, targetsOf(numbers))];
  }

  window.imgbuildTogether = Object.assign(answerTogether, { excluded });
})();
