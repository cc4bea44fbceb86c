// Versions of Python packages (PEP 440) and requirement files, as the library packaging reads them.
// tests/integration/test_site_answers.py compares the results with that library's.
(function () {
  "use strict";

  const VERSION = new RegExp(
    "^v?(?:([0-9]+)!)?([0-9]+(?:\\.[0-9]+)*)" +
      "(?:[-_.]?(alpha|a|beta|b|preview|pre|c|rc)[-_.]?([0-9]+)?)?" +
      "((?:-([0-9]+))|(?:[-_.]?(post|rev|r)[-_.]?([0-9]+)?))?" +
      "([-_.]?dev[-_.]?([0-9]+)?)?(?:\\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?$",
  );
  const CLAUSE = /^(===|~=|==|!=|<=|>=|<|>)\s*([^\s,;)]+)$/;
  const LETTERS = { alpha: "a", beta: "b", c: "rc", pre: "rc", preview: "rc" };
  const ABSENT = null;

  /** The parts of a version; null if it is not one. */
  function parse(text) {
    const match = VERSION.exec(String(text).trim().toLowerCase());
    if (!match) return ABSENT;
    return {
      epoch: Number(match[1] || 0),
      release: match[2].split(".").map(Number),
      pre: match[3] ? [LETTERS[match[3]] || match[3], Number(match[4] || 0)] : ABSENT,
      post: match[5] ? Number(match[6] || match[8] || 0) : ABSENT,
      dev: match[9] ? Number(match[10] || 0) : ABSENT,
      local: match[11]
        ? match[11].split(/[-_.]/).map(part => (/^\d+$/.test(part) ? Number(part) : part))
        : ABSENT,
    };
  }

  function order(left, right) {
    return left < right ? -1 : left > right ? 1 : 0;
  }

  function orderLists(left, right, compare) {
    for (let index = 0; index < Math.max(left.length, right.length); index++) {
      if (index >= left.length) return -1;
      if (index >= right.length) return 1;
      const result = compare(left[index], right[index]);
      if (result) return result;
    }
    return 0;
  }

  function withoutZeros(release) {
    let end = release.length;
    while (end > 0 && release[end - 1] === 0) end--;
    return release.slice(0, end);
  }

  // A pre-release before its release, which is before a post-release; .dev before all of them.
  function preKey(version) {
    if (version.pre) return [1, version.pre[0], version.pre[1]];
    return version.post === ABSENT && version.dev !== ABSENT ? [0, "", 0] : [2, "", 0];
  }

  function localPart(left, right) {
    if (typeof left !== typeof right) return typeof left === "number" ? 1 : -1;
    return order(left, right);
  }

  /** Negative, 0 or positive, as `left` is older than, equal to or newer than `right`. */
  function compare(left, right) {
    const post = function (version) {
      return version.post === ABSENT ? -1 : version.post;
    };
    const dev = function (version) {
      return version.dev === ABSENT ? Infinity : version.dev;
    };
    return (
      order(left.epoch, right.epoch) ||
      orderLists(withoutZeros(left.release), withoutZeros(right.release), order) ||
      orderLists(preKey(left), preKey(right), order) ||
      order(post(left), post(right)) ||
      order(dev(left), dev(right)) ||
      (left.local || right.local
        ? !left.local
          ? -1
          : !right.local
            ? 1
            : orderLists(left.local, right.local, localPart)
        : 0)
    );
  }

  function publicPart(version) {
    return Object.assign({}, version, { local: ABSENT });
  }

  function sameBase(left, right) {
    return (
      left.epoch === right.epoch &&
      orderLists(withoutZeros(left.release), withoutZeros(right.release), order) === 0
    );
  }

  /** The release and what follows it as parts, for `==1.2.*`. */
  function parts(version) {
    const rest = [];
    if (version.pre) rest.push(version.pre[0] + version.pre[1]);
    if (version.post !== ABSENT) rest.push(`post${version.post}`);
    if (version.dev !== ABSENT) rest.push(`dev${version.dev}`);
    return rest;
  }

  function startsWith(version, prefix) {
    if (version.epoch !== prefix.epoch) return false;
    const release = version.release.slice();
    while (release.length < prefix.release.length) release.push(0);
    const wanted = prefix.release.concat(parts(prefix));
    let has = parts(prefix).length
      ? release
          .slice(0, Math.max(prefix.release.length, version.release.length))
          .concat(parts(version))
      : release;
    if (parts(prefix).length && has.length > wanted.length + 1) has = has.slice(0, wanted.length);
    return wanted.every((part, index) => has[index] === part);
  }

  function isPre(version) {
    return version.pre !== ABSENT || version.dev !== ABSENT;
  }

  function allows(operator, text, version, raw) {
    if (operator === "===") return String(raw).toLowerCase() === text.toLowerCase();
    const wildcard = /\.\*$/.test(text);
    const bound = parse(wildcard ? text.slice(0, -2) : text);
    if (!bound) return false;
    const open = publicPart(version);
    switch (operator) {
      case "==":
        if (wildcard) return startsWith(open, bound);
        return compare(bound.local ? version : open, bound) === 0;
      case "!=":
        return !allows("==", text, version, raw);
      case "<=":
        return compare(open, bound) <= 0;
      case ">=":
        return compare(open, bound) >= 0;
      case "<":
        if (compare(version, bound) >= 0) return false;
        return (
          isPre(bound) ||
          !isPre(version) ||
          !sameBase(version, bound) ||
          version.post !== bound.post
        );
      case ">":
        if (compare(version, bound) <= 0) return false;
        if (version.local && compare(open, bound) === 0) return false;
        return (
          bound.post !== ABSENT ||
          version.post === ABSENT ||
          bound.dev !== ABSENT ||
          !sameBase(version, bound) ||
          orderLists(preKey(version), preKey(bound), order) !== 0
        );
      default: { // ~=
        const series = Object.assign({}, bound, { pre: ABSENT, post: ABSENT, dev: ABSENT });
        series.release = bound.release.slice(0, -1);
        return bound.release.length > 1 && compare(open, bound) >= 0 && startsWith(open, series);
      }
    }
  }

  /** The clauses of a specifier; null if it cannot be read. */
  function clauses(specifier) {
    const texts = specifier
      .split(",")
      .map(text => text.trim())
      .filter(Boolean);
    const read = texts.map(text => CLAUSE.exec(text));
    const known = clause => clause && (clause[1] === "===" ||
      parse(/^[!=]=$/.test(clause[1]) ? clause[2].replace(/\.\*$/, "") : clause[2]));
    return read.every(known) ? read : ABSENT;
  }

  /** Whether `specifier` allows `text`, pre-releases included. */
  function satisfies(text, specifier) {
    const version = parse(text);
    const read = clauses(specifier);
    if (!version || !read) return false;
    return read.every(clause => allows(clause[1], clause[2], version, text));
  }

  /** Whether no version satisfies both specifiers, by an exact version or by their bounds. */
  function disjoint(left, right) {
    const both = [...clauses(left) || [], ...clauses(right) || []];
    const exact = both.filter(([, operator, text]) => operator === "==" && !text.endsWith("*"));
    if (exact.length) return exact.some(([, , text]) => !(satisfies(text, left) && satisfies(text, right)));
    const lowest = both.filter(([, operator]) => [">=", ">", "~="].includes(operator));
    const highest = both.filter(([, operator]) => ["<=", "<"].includes(operator));
    return lowest.some(([, low, from]) => highest.some(([, high, to]) => {
      const order = compare(parse(from), parse(to));
      return order > 0 || (order === 0 && (low === ">" || high === "<"));
    }));
  }

  /** PEP 503. */
  function normalize(name) {
    return name.toLowerCase().replace(/[-_.]+/g, "-");
  }

  // Which people name with packages.
  const ARCHES = { "arm64": "arm64", "aarch64": "arm64", "x86-64": "x86_64", "amd64": "x86_64" };

  /** The data, with CUDA release, Python and architecture of each image as if they were packages. */
  function withFacts(data) {
    const facts = { cuda: {}, python: {} };
    data.images.forEach(({ arch, cuda, target }, number) => {
      (facts.cuda[cuda] ||= []).push(number);
      (facts.python[data.targets[target].python] ||= []).push(number);
      for (const name of Object.keys(ARCHES).filter(each => ARCHES[each] === arch)) {
        ((facts[name] ||= {})[""] ||= []).push(number);
      }
    });
    return { ...data, versions: { ...data.versions, ...facts } };
  }

  // A build for a CUDA release: +cu128, +cu12torch2.8, +cu.13.0.torch.2.11.
  const BUILD = /^([^!]*)\+cu\.?(\d{2})\.?(\d)?(?!\d)[\w.]*$/i;

  /** A specifier without builds for CUDA releases, and a specifier of each of these releases. */
  function withoutBuilds(specifier) {
    const releases = [];
    const texts = specifier.split(",").map(text => text.trim().replace(BUILD, (_, rest, major, minor) => {
      releases.push(`==${major}.${minor || "*"}`);
      return rest;
    }));
    return [releases.length ? texts.join(",") : specifier, releases];
  }

  const TOKEN = /\(|\)|"[^"]*"|'[^']*'|not\s+in\b|[a-z_.]+|[<>=!~]+/g;

  /** Whether an environment marker holds (PEP 508); true if it cannot be read. */
  function applies(marker, environment) {
    const tokens = marker.match(TOKEN) || [];
    const take = () => tokens.shift() || "";
    const value = token => /^["']/.test(token) ? token.slice(1, -1) : environment[token] ?? "";
    function compared() {
      const [left, operator, right] = [take(), take().replace(/\s+/, " "), take()];
      const [first, second] = [value(left), value(right)];
      if (operator === "in") return second.includes(first);
      if (operator === "not in") return !second.includes(first);
      if (/_version$/.test(left) && clauses(operator + second)) return satisfies(first, operator + second);
      if (operator === "!=") return first !== second;
      return operator === "==" ? first === second : true;
    }
    function either() {
      let found = both();
      while (tokens[0] === "or") { take(); found = both() || found; }
      return found;
    }
    function both() {
      let found = one();
      while (tokens[0] === "and") { take(); found = one() && found; }
      return found;
    }
    function one() {
      if (tokens[0] !== "(") return compared();
      take();
      const found = either();
      take();
      return found;
    }
    if (marker.length > 1000) return true; // nested too deeply
    const found = either();
    return tokens.length > 0 || found;
  }

  /** What markers name in an image. */
  function environmentOf({ arch }, { python }) {
    return {
      extra: "", implementation_name: "cpython", os_name: "posix", platform_system: "Linux",
      platform_machine: arch === "arm64" ? "aarch64" : arch, platform_python_implementation: "CPython",
      python_full_version: python, python_version: python.split(".", 2).join("."), sys_platform: "linux",
    };
  }

  /**
   * The requirements of a text, one a line: name, specifier, marker, and the line. `loose`: "torch 2.7" and
   * "torch==2.7" mean 2.7 with all its patch releases, as does "torch 2.7.x". `skipped` are lines
   * that are not compared. "torch==2.8.0+cu128" means 2.8.0 and CUDA 12.8, see `withFacts`.
   */
  function requirements(text, loose) {
    const read = [],
      skipped = [];
    text
      .replace(/\\\r?\n/g, " ")
      .split(/\r?\n/)
      .forEach(whole => {
        const line = whole
          .replace(/(^|\s)#.*$/, "")
          .replace(/\s--hash=\S+/g, "")
          .trim();
        if (!line) return;
        const match = /^([A-Za-z0-9][\w.-]*)\s*(\[[^\]]*\])?\s*\(?([^;@()]*)\)?\s*(;.*)?$/.exec(
          line,
        );
        let specifier = match ? match[3].trim() : "";
        if (match && loose && /^v?\d[\w.!+]*$/.test(specifier)) specifier = `==${specifier}`;
        let releases = [];
        [specifier, releases] = withoutBuilds(specifier);
        if (match && loose) specifier = specifier.replace(/^(==\s*\d[\d.]*)\.x$/i, "$1.*");
        if (match && loose)
          specifier = specifier.replace(/^==\s*(\d+(?:\.\d+)*(?:\.?post\d+)?)$/, (_, version) =>
            /post/.test(version) ? `==${version}` : `==${version}.*`,
          );
        const [shown] = line.split(/\s*;/);
        if (!match || (specifier && !clauses(specifier))) skipped.push(shown);
        else {
          const marker = (match[4] || "").slice(1);
          const asked = one => read.some(({ name, specifier: other }) => name === "cuda" && other === one);
          read.push({ name: normalize(match[1]), specifier, line: shown, marker });
          releases.filter(one => !asked(one)).forEach(one => read.push({
            name: "cuda", specifier: one, line: `CUDA ${one.slice(2)} of ${shown}`, marker,
          }));
        }
      });
    return { read, skipped };
  }

  /** Requests that are separated by commas, semicolons, words or spaces, one a line. */
  function separated(text) {
    return text.replace(/['"]/g, "")
      .replace(/;|,(?=\s*[A-Za-z])|\s+(?:with|and)\s+|\s\+\s/g, "\n")
      .replace(/([\d*])[^\S\n]+(?=[A-Za-z])/g, "$1\n");
  }

  /** Whether `text` is the version of `==VERSION`, a post release or a local build of it. */
  function sameRelease(text, specifier) {
    const [clause] = clauses(specifier) || [];
    const wanted = clause && clause[1] === "==" ? parse(clause[2]) : ABSENT;
    const version = parse(text);
    return Boolean(wanted && version && !wanted.local && wanted.post === ABSENT && wanted.pre === ABSENT &&
      !version.pre && version.dev === ABSENT && sameBase(version, wanted));
  }

  const minor = ({ release: [major, number = 0] }) => major * 1000 + number;

  /** How many minor releases, at most 10, a version is away from those that a specifier names. */
  const distance = (specifier, text) => Math.min(10, ...(clauses(specifier) || [])
    .map(clause => parse(clause[2].replace(/\.\*$/, ""))).filter(Boolean)
    .map(bound => Math.abs(minor(bound) - minor(parse(text)))));

  const CLASHES = 4; // of a version and an image that are listed
  const permits = (request, version) =>
    !request.specifier || satisfies(version, request.specifier);

  /** The version of a package in the image `number`. */
  const versionOf = (data, name, number) => Object.entries(data.versions[name] || {})
    .filter(([, numbers]) => numbers.includes(number)).map(([text]) => text)[0];

  /**
   * What every known version of a request requires, by its metadata or its code, in another version
   * than an image has (`has`: name → version); "" if nothing is known to be in the way.
   */
  function unfit(data, request, has) {
    const known = Object.entries(data.requires[request.name] || {}).filter(([text]) =>
      permits(request, text) || sameRelease(text, request.specifier));
    const reasons = known.map(([text, lines]) => {
      const learned = data.constraints
        .filter(entry => entry.package === request.name && satisfies(text, entry.versions))
        .map(entry => entry.needs);
      // torch first, then the packages for which people choose an image
      const rank = ({ name }) => (name === "torch" ? 0 : data.requires[name] ? 1 : 2);
      const clashes = requirements([...lines, ...learned].join("\n"), false).read
        .filter(need => !need.marker && has(need.name) && !permits(need, has(need.name)))
        .sort((left, right) => rank(left) - rank(right));
      const shown = clashes.slice(0, CLASHES);
      const more = clashes.length - shown.length;
      const there = [...new Set(shown.map(({ name }) => `${name} ${has(name)}`))];
      return clashes.length && `${request.name} ${text} requires` +
        ` ${shown.map(({ line }) => line).join(", ")}; the image has ${there.join(", ")}` +
        `${more ? `; and ${more} more` : ""}`;
    });
    return known.length && reasons.every(Boolean) ? reasons[0] : "";
  }

  window.imgbuildVersions = {
    allows: permits,
    applies,
    ARCHES,
    compare(left, right) {
      return compare(parse(left), parse(right));
    },
    disjoint,
    distance,
    environmentOf,
    normalize,
    parse,
    requirements,
    sameRelease,
    satisfies,
    separated,
    unfit,
    versionOf,
    withFacts,
  };
})();
