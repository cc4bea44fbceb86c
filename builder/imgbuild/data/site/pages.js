// The filters of tables, which images run on a machine, which have the packages of a project.
(function () {
  "use strict";

  const versions = window.imgbuildVersions;
  const machines = window.imgbuildMachine;
  const {
    addCopyButtons, all, commands, count, details, distinct, element, heading, link, list, members, paragraph, results, show, showCurrentPage,
    skipped, unpacked, whenChanged,
  } = window.imgbuildElements;
  const { allows, separated } = versions;

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

  function filterTable(form, plain) {
    const data = versions.withFacts(plain);
    const packages = packagesOf(data);
    const rows = all(".targets tbody tr").map(row => {
      const name = row.querySelector("a").textContent;
      const number = data.targets.findIndex(target => target.name === name);
      const images = data.images.filter(image => image.target === number);
      return {
        row, images, ...data.targets[number],
        body: row.parentElement,
        size: images[0].size,
        date: row.querySelector(".date").textContent.trim(),
        current: row.closest("#current") !== null,
        versions: packages.get(name),
      };
    });
    whenChanged(form, value => {
      const gpu = form.querySelector("[name=gpu]").selectedOptions[0];
      const wanted = { ...value, kind: gpu ? gpu.getAttribute("data-gpu") || "" : "" };
      for (const each of rows) each.row.hidden = !matches(each, wanted, data.branches);
      const smaller = (left, right) => left.size - right.size;
      const ordered = value.order === "size" ? [...rows].sort(smaller) : rows;
      for (const each of ordered) each.body.append(each.row);
      const shown = rows.filter(each => !each.row.hidden);
      const current = shown.filter(each => each.current).length;
      const more = shown.length - current;
      const total = count(rows.filter(each => each.current).length, "image");
      const active = Object.entries(value).some(([name, text]) => text && name !== "order");
      document.getElementById("count").textContent = (active
        ? `${current} of ${total}${more ? `; ${more} retired match` : ""}`
        : total) + driverHint(value.driver) + packageHint(value.packages, data);
      document.getElementById("restrictions").hidden = !all(".restricted").length;
      document.getElementById("none").hidden = current > 0;
      const why = document.getElementById("why");
      why.hidden = !value.packages.trim();
      why.firstElementChild.href = `together.html#${new URLSearchParams({ versions: value.packages })}`;
      planned(value, active, data.unlocked);
    });
  }

  function driverHint(driver) {
    if (!driver || /^\d{3}(\.\d+)*$/.test(driver)) return "";
    if (/^1\d(\.\d+)?$/.test(driver)) {
      return `. ${driver} looks like a CUDA release; a driver has three digits first, such as 535.161.08.`;
    }
    return `. “${driver}” is not a driver: expected numbers such as 535.161.08.`;
  }

  function packageHint(text, data) {
    const { read, skipped: unread } = versions.requirements(separated(text), true);
    const absent = distinct(read.map(({ name }) => name)).filter(name => !data.versions[name]);
    return (unread.length ? `. Not understood: ${unread.join("; ")}.` : "") +
      (absent.length ? `. No image has a package with this name: ${absent.join(", ")}.` : "");
  }

  /** Lists the matching rows without a lock, for which there is no image. */
  function planned({ arch, cuda, packages, python, stack }, active, unlocked) {
    const place = document.getElementById("rows");
    const { read } = versions.requirements(separated(packages), true);
    const rows = unlocked.filter(row => (!cuda || row.cuda === cuda) &&
      (!arch || row.arches.includes(arch)) &&
      read.every(each => !(each.name in row.pins) || allows(each, row.pins[each.name])) &&
      (!python || row.python === python) && (!stack || stack in row.pins));
    place.hidden = !(active && (cuda || python || stack) && rows.length);
    place.textContent =
      `Planned, but not locked, so without an image: ${rows.map(row => row.name).join(", ")}.`;
  }

  /** Marks an image that a driver runs only with a restriction. */
  function restrict(row, limited) {
    for (const chip of all(".restricted", row)) chip.remove();
    if (limited) {
      row.querySelector(".summary").before(
        element("span", { class: "chip unknown restricted", text: "with a restriction" }));
    }
  }

  function matches({ row, images, cuda, date, python, versions: has }, value, branches) {
    const [capability, arch] = value.kind.split(" ");
    const unread = value.driver && !/^\d/.test(value.driver);
    const runs = images.filter(image =>
      [value.arch, arch].every(wanted => !wanted || wanted === image.arch) &&
      (!value.driver || unread ||
        (image.driver && !machines.older(value.driver, image.driver, branches))) &&
      (!capability || (image.gpus || []).includes(capability)) &&
      (!value.tested || image.tested.some(name =>
        (value.tested === "several" ? /^\d+ /.test(name)
          : [name, name.replace(/^\d+ /, "")].includes(value.tested)))));
    const requests = versions.requirements(separated(value.packages), true).read;
    const limited = value.driver && !unread && runs.length > 0 &&
      runs.every(image => machines.older(value.driver, image.driverFull, branches));
    restrict(row, limited);
    return runs.length > 0 && (!value.cuda || cuda === value.cuda) && (!value.until || date <= value.until) &&
      (!value.python || python === value.python) && (!value.stack || value.stack in has) &&
      requests.every(request => (has[request.name] || []).some(each => allows(request, each)));
  }

  /** The changes of one image alone. */
  function filterChanges(form) {
    whenChanged(form, ({ image }) => {
      for (const entry of all("[data-image]")) entry.hidden = !entry.dataset.image.includes(image.trim());
      for (const heading of all("h2[id]")) {
        heading.hidden = all("[data-image]", heading.nextElementSibling).every(each => each.hidden);
      }
      document.getElementById("none").hidden = all("[data-image]").some(each => !each.hidden);
    });
  }

  /** Lets a reader choose the GPUs, the repository and the image in commands and files. */
  function chooseValues() {
    const place = document.getElementById("choices");
    if (!place || !all(".g").length) return;
    const option = text => element("option", { text });
    const gpus = element("select", {}, ["1", "2", "4", "8"].map(option));
    gpus.value = "8";
    place.className = "filters";
    const add = (text, input, marks, empty) => {
      input.addEventListener("input", () => all(marks).forEach(mark => {
        mark.textContent = input.value.trim() || empty;
      }));
      if (all(marks).length) place.append(element("label", { text }, [input]));
    };
    const written = placeholder => element("input", { placeholder, size: "28" });
    add("GPUs of a node", gpus, ".g");
    add("Your repository, to push to", written("REGISTRY/REPOSITORY"), ".r", "REGISTRY/REPOSITORY");
    add("Image, with its digest", written("REGISTRY/REPOSITORY@sha256:…"), ".i", "IMAGE");
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

  function card(target, image, state, words, children, style = "muted") {
    const facts = [
      image.arch, `CUDA ${image.cuda}`, `Python ${target.python}`, target.pins.join(", "),
      `${(image.size / 1e9).toFixed(1)} GB compressed`,
    ];
    const chip = (text, name) => element("span", { class: `chip ${name}`, text });
    const attributes = { class: "answer", "data-target": target.name, "data-state": state };
    return element("article", attributes, [
      element("h3", {}, [link(target)]),
      chip(words, state),
      target.recommended ? chip(`recommended for ${target.recommended}`, "") : null,
      target.retired ? chip("retired", "") : null,
      paragraph(facts.join(" · "), style),
      ...children,
      details(`${count(target.incompatible.length, "known incompatibility", "known incompatibilities")} of its versions`,
        target.incompatible.length ? [list(target.incompatible)] : []),
    ]);
  }

  // -- what runs on my machine

  const NOTHING = "No GPU and no driver was found in this text. Paste the output of nvidia-smi, or" +
    " write, such as: A100, driver 535";
  const NO_DRIVER = "The driver version cannot be read: expected numbers such as 580.65.06.";
  const WORDS = { fits: "runs", unknown: "not known", no: "does not run" };

  function answerMachine(form, data) {
    const target = entry => data.targets[entry.image.target];
    const rank = entry => Object.keys(WORDS).indexOf(entry.value.state) * 32 +
      (target(entry).retired ? 16 : 0) + (entry.value.state !== "fits" || entry.value.unrestricted ? 8 : 0) +
      (entry.value.limited ? 4 : 0) +
      (!target(entry).recommended ? 2 : target(entry).special ? 1 : 0);
    const shown = entry => card(
      target(entry), entry.image, entry.value.state, WORDS[entry.value.state],
      [paragraph([entry.value.unrestricted && `full driver: ${entry.value.unrestricted}`,
        testedOn(entry.image)].filter(Boolean).join("; "), "muted")], "facts-line",
    );
    // As `imgbuild doctor` groups them: by equal remarks, in the order of the first image of each.
    const grouped = entries => {
      const groups = new Map();
      for (const entry of entries) {
        const texts = [...entry.value.reasons, ...entry.value.remarks];
        const key = texts.join("\n");
        if (!groups.has(key)) groups.set(key, { texts, entries: [] });
        groups.get(key).entries.push(entry);
      }
      return [...groups.values()].map(({ texts, entries: same }) => element("section", { class: "group" }, [
        texts.length ? paragraph(`${count(same.length, "image")}: ${texts.join("; ")}.`, "why") : null,
        ...same.map(shown),
      ]));
    };
    const answer = machine => {
      const other = entry => entry.image.arch !== machines.architecture(machine);
      const judged = best(
        data.images.map((image, number) => [image, number]),
        image => machines.judge(machine, image, data),
        (left, right) => rank(left) - rank(right) || other(left) - other(right),
      );
      const current = judged.filter(entry => !target(entry).retired);
      const [fits, unknown, no] = Object.keys(WORDS).map(
        state => current.filter(entry => entry.value.state === state));
      return { able: [...fits, ...unknown].map(target), parts: [
        element("p", { class: "machine-read", text: describeMachine(machine, data) }),
        heading(verdict(fits, unknown, target, newerDriver(machine, data))),
        ...grouped(fits), ...grouped(unknown),
        details(`${count(no.length, "image")} that cannot run on it, and why`, grouped(no)),
        details("Retired images", grouped(judged.filter(entry => target(entry).retired))),
      ] };
    };
    whenChanged(form, value => {
      const machine = machines.read(value.machine, data.gpus);
      if (/^\d{3}(\.\d+)*$/.test(value.driver)) machine.driver = value.driver;
      else if (value.driver) return show([paragraph(NO_DRIVER, "notice")]);
      if (value.gpu) machine.gpus = [machines.gpu(value.gpu, "", data.gpus)];
      if (value.arch) machine.arch = value.arch;
      if (!machine.gpus.length && !machine.driver) {
        return show([value.machine ? paragraph(NOTHING, "notice") : null]);
      }
      const answers = machines.split(machine).map(answer);
      show([...inAll(answers, machine.driver), ...answers.flatMap(({ parts }) => parts)]);
    }, value => ({ ...value, machine: machines.summary(machines.read(value.machine, data.gpus)) }));
  }

  /** The images of all machines, if there are several. */
  function inAll([{ able }, ...others], driver) {
    if (!others.length) return [];
    const common = able.filter(target => others.every(each => each.able.includes(target)));
    return [
      heading(common.length ? `${count(common.length, "image")} for the GPUs of both architectures.`
        : `No image is for the GPUs of both architectures${driver ? ` and driver ${driver}` : ""}.`),
      element("p", {}, common.flatMap((target, number) => [number ? ", " : "", link(target)])),
      common.length ? paragraph("Each has one name for both, and a machine gets the files" +
        " of its architecture. Below, the architectures are compared one by one.", "muted") : null,
    ];
  }

  /** Where the image was tested, which is not where it runs. */
  function testedOn({ arch, tested, failed }) {
    if (failed.length) return `${results({ tested, failed })} (${arch})`;
    return tested.length ? `tested on ${tested.join(", ")} (${arch}), and on no other GPU`
      : `not tested on a GPU on ${arch}`;
  }

  function describeMachine(machine, data) {
    const gpus = machine.gpus.map(({ name, capability }) =>
      `${name} (${capability ? `compute capability ${capability}` : "unknown"})`);
    const assumed = machine.arch || machine.gpus.some(gpu => gpu.arch) ? "" : " (assumed)";
    const facts = [
      distinct(gpus).map(text => [gpus.filter(gpu => gpu === text).length, text])
        .map(([number, text]) => (number > 1 ? `${number} × ${text}` : text)).join(", ") || "no GPU given",
      machine.driver ? `driver ${machine.driver}` : "no driver given",
      machines.architecture(machine) + assumed,
    ];
    const able = data.releases.filter(({ driver }) =>
      driver && machine.driver && !machines.older(machine.driver, driver, data.branches));
    const newest = able.length ? able[able.length - 1].cuda : "";
    const releases = newest ? ` This driver runs images of CUDA ${newest} and older, also where` +
      " nvidia-smi shows an older release: minor releases of CUDA are compatible." : "";
    return `Compared: ${facts.join(", ")}.${releases}`;
  }

  /** Whether an image that is not retired would run on a machine with another driver, and which. */
  function newerDriver(machine, data) {
    const current = data.images.filter(image => !data.targets[image.target].retired &&
      image.arch === machines.architecture(machine));
    const lacking = machine.gpus.filter(gpu => current.every(image => machines.judge(
      { ...machine, gpus: [gpu], driver: image.driverFull }, image, data).state === "no"));
    if (lacking.length) {
      return ` None has code for ${distinct(lacking.map(({ name }) => name)).join(", ")}: no driver changes this.`;
    }
    const drivers = current.filter(image => machine.driver &&
      machines.older(machine.driver, image.driver, data.branches) &&
      machines.judge({ ...machine, driver: image.driver }, image, data).state === "fits")
      .map(image => image.driver)
      .sort((left, right) => (machines.older(left, right, false) ? -1 : 1));
    return drivers.length ? ` With driver ${drivers[0]} or newer, images run on it.` : "";
  }

  function verdict(fits, unknown, target, cure) {
    if (!fits.length) {
      if (unknown.some(({ value }) => value.needsDriverOnly)) {
        return `${count(unknown.length, "image")} for this hardware; which of them run depends on the driver, which is not given.`;
      }
      return unknown.length ? "Whether an image runs on it is not known." : `No image runs on it.${cure}`;
    }
    const [first] = fits; // the first of doctor's
    const recommended = fits.map(target).filter(each => each.recommended).map(each => each.name);
    const more = recommended.length ? `; recommended: ${recommended.join(", ")}` : "";
    return `${count(fits.length, "image")} ${fits.length === 1 ? "runs" : "run"} on it;` +
      ` the first is ${target(first).name}${more}.`;
  }

  // -- which image for this requirements.txt

  /**
   * What the image `number` has of the requests whose markers hold for it: `has`; `near`, post releases of a
   * version that is asked for; `other`, versions that do not fit, and what cannot be added, main packages
   * first; `absent`, what is not in it; `source`, packages without wheels; `compiled`, what needs an nvcc
   * that the image does not have. `cost` is that of `imgbuild init` for changes and additions.
   */
  function comparison(data, every, number) {
    const image = data.images[number];
    const environment = versions.environmentOf(image, data.targets[image.target]);
    const requests = every.filter(({ marker }) => !marker || versions.applies(marker, environment));
    const result = { number: requests.length, has: [], near: [], other: [], absent: [], source: [], compiled: [], cost: 0 };
    const version = name => versions.versionOf(data, name, number);
    const weight = ({ name }) => data.weights[name] || 1;
    const clashes = [];
    for (const request of requests) {
      const there = version(request.name);
      const clash = there ? "" : versions.unfit(data, request, version);
      if (!there && data.weights[request.name]) {
        result.cost += weight(request) * (data.engines.includes(request.name) ? 2 : .5);
      }
      if (clash) clashes.push([request, `${request.line} cannot be added: ${clash}`]);
      else if (!there) {
        (data.sources[request.name] ? result.source : result.absent).push(request.line);
        const words = data.compiled[request.name];
        if (words && !version("nvidia-cuda-nvcc")) result.compiled.push(`${request.line}: ${words}`);
      }
      else if (allows(request, there)) result.has.push(`${request.name} ${there}`);
      else if (versions.sameRelease(there, request.specifier)) {
        result.near.push({ ...request, version: there });
      } else {
        result.cost += weight(request) * (1 + versions.distance(request.specifier, there) / 20);
        clashes.push([request, `${request.line}: the image has ${there}`]);
      }
    }
    result.other = clashes.sort(([left], [right]) => weight(right) - weight(left)).map(([, text]) => text);
    return result;
  }

  function answerRequirements(form, plain) {
    const data = versions.withFacts(plain);
    const target = entry => data.targets[entry.image.target];
    const before = (left, right) =>
      target(left).retired - target(right).retired ||
      left.value.cost - right.value.cost ||
      left.value.other.length - right.value.other.length ||
      left.value.near.length + left.value.absent.length + left.value.source.length -
        right.value.near.length - right.value.absent.length - right.value.source.length ||
      !target(left).recommended - !target(right).recommended ||
      (left.image.arch !== "x86_64") - (right.image.arch !== "x86_64");
    whenChanged(form, value => {
      const { text, file, note } = window.imgbuildDeclared(value.requirements, data.forms);
      const given = versions.requirements(text, false);
      const more = note && paragraph(note, "muted");
      if (!given.read.length && !given.skipped.length) return show([more]);
      if (!given.read.length) {
        return show([skipped("No line is a requirement, such as vllm>=0.11", given.skipped),
          paragraph("Paste the file that a line with -r names; imgbuild init reads such files itself.", "muted")]);
      }
      const images = data.images.map((image, number) => [image, number])
        .filter(([image]) => !value.arch || image.arch === value.arch);
      const judge = (_, number) => comparison(data, given.read, number);
      const compared = best(images, judge, before);
      const current = compared.filter(entry => !target(entry).retired);
      const card = entry => requirementCard(entry, target(entry), data, file);
      show([
        heading(requirementVerdict(current, plannedFor(data, given.read))),
        skipped("Not compared", given.skipped),
        more,
        list(given.read.filter(({ name }) => data.sources[name] && !data.versions[name])
          .map(({ name }) => `${name}: ${data.sources[name]}`)),
        ...contradictions(data, given.read),
        ...current.slice(0, 6).map(card),
        details(`The other ${count(current.length - 6, "image")}`, current.slice(6).map(card)),
        details("Retired images", compared.filter(entry => target(entry).retired).map(card)),
      ]);
    });
  }

  /** What no image can have: the lines whose versions exclude each other. */
  function contradictions(data, requests) {
    const same = text => text.split("; ").sort().join("; ");
    const every = window.imgbuildTogether.excluded(data, requests, "obstacle");
    const lines = every.filter((text, number) => every.findIndex(other => same(other) === same(text)) === number);
    return lines.length ? [paragraph("These lines exclude each other, so no image can have them:"), list(lines)] : [];
  }

  /** The rows without a lock whose pins are among what is asked for, if one of them is an engine. */
  const plannedFor = ({ engines, unlocked }, requests) => unlocked.filter(({ pins }) => {
    const named = requests.filter(({ name }) => name in pins);
    return named.some(({ name, specifier }) => specifier && engines.includes(name)) &&
      named.every(request => allows(request, pins[request.name]));
  }).map(({ name }) => name);

  function requirementVerdict(compared, rows) {
    const good = compared.filter(({ value }) => !value.other.length);
    const complete = good.filter(({ value }) =>
      !value.absent.length && !value.near.length && !value.source.length).length;
    if (complete) {
      return `${count(complete, "image")} ${complete === 1 ? "has" : "have"} everything.`;
    }
    const [{ value: first } = {}] = good;
    if (first && first.source.length && !first.absent.length && !first.near.length) {
      return `No image has everything: ${first.source.join(", ")} is published as source only. The first has the rest.`;
    }
    if (good.some(({ value }) => value.near.length && !value.absent.length)) {
      return "No image has exactly these versions; the first has them all, with post releases.";
    }
    if (good.length) {
      return `No image has everything. The missing packages have no recorded conflict with` +
        ` ${count(good.length, "image")}; imgbuild lock solves and audits what is added.`;
    }
    const planned = rows.length ? ` Planned for such versions, but not locked, so without an image: ${rows.join(", ")}.` : "";
    return compared.length ? `No image fits.${planned} These are the closest.`
      : "No image is for this architecture.";
  }

  const CONFLICTS = 8, ADDITIONS = 20; // of an image that are not folded

  function requirementCard({ image, value }, target, { registry, wheels }, file) {
    const wheel = wheels[image.wheel];
    const { number, has, near, other, absent, source, compiled } = value;
    const [state, words] = other.length ? ["no", count(other.length, "conflict")]
      : near.length ? ["unknown", "fits with a change"]
        : absent.length + source.length ? ["unknown", `has ${has.length} of ${number}`] : ["fits", "has all"];
    return card(target, image, state, words, [
      list([...other.slice(0, CONFLICTS), ...near.map(each => `${each.line}: the image has ${each.version}, a post release` +
        ` of that version. Write ${each.name}==${each.version} or` +
        ` ${each.name}${each.specifier.replace(/===?/, "~=")}`)]),
      details(`${other.length - CONFLICTS} more conflicts`, other.length > CONFLICTS ? [list(other.slice(CONFLICTS))] : []),
      absent.length > ADDITIONS ? details(`To add: ${absent.length} packages`, [paragraph(absent.join(", "))])
        : absent.length ? paragraph(`To add: ${absent.join(", ")}`) : null,
      list(compiled),
      source.length ? paragraph(`Not added, since the index has no wheel: ${source.join(", ")}. imgbuild init leaves it out.` +
        (wheel ? ` A wheel for this image has in its name: ${wheel}` : "")) : null,
      details(`In the image: ${has.length}`, has.length ? [paragraph(has.join(", "))] : []),
      other.length ? paragraph("Remove or change these lines, or let imgbuild solve for a new image:" +
        ` imgbuild init --from ${file}`, "muted") : null,
      ...other.length ? [] : commandsOf(target, file, registry, absent.length > 0, near.length > 0),
    ]);
  }

  /** How to use an image without a conflict: as it is, or as a project that adds packages to it. */
  function commandsOf({ name, digest }, file, registry, incomplete, changed) {
    const project = commands(`the commands that make a project of ${name}`,
      [`imgbuild init --from ${file} --extends ${name}`, "imgbuild lock", "imgbuild build",
        "imgbuild run -- python train.py"]);
    if (incomplete) return [project];
    const runs = [...registry ? [`docker pull ${registry}@${digest}`] : [], `imgbuild run ${name} -- python train.py`];
    return [
      paragraph("Use it as it is, with its own packages; these commands do not read the file:"), commands(`the commands that run ${name}`, runs),
      paragraph(changed ? "Or, after the change, as a project with a lock and packages that you add:"
        : "Or as a project, with a lock and packages that you add:"), project,
    ];
  }

  // -- start

  /** The data with the images of each version and the lines of requirements in place of numbers. */
  function expanded(data) {
    const each = (table, read) => Object.fromEntries(Object.entries(table).map(([name, every]) => [
      name, Object.fromEntries(Object.entries(every).map(([version, value]) => [version, read(value)])),
    ]));
    const sets = data.sets.map(members);
    return {
      ...data,
      versions: each(data.versions, set => sets[set]),
      requires: each(data.requires, lines => lines.map(line => data.lines[line])),
    };
  }

  async function start() {
    chooseValues();
    addCopyButtons();
    showCurrentPage();
    if (!window.DecompressionStream) {
      for (const form of all("form[data-question]")) form.before(paragraph("This browser is too old for the form.", "notice"));
      return;
    }
    for (const name of ["imgbuildData", "imgbuildCompared"]) {
      if (window[name]) window[name] = await unpacked(window[name]);
    }
    const data = window.imgbuildData && expanded(window.imgbuildData);
    const questions = {
      filter: filterTable, machine: answerMachine, requirements: answerRequirements,
      together: window.imgbuildTogether, compare: window.imgbuildCompare,
    };
    for (const form of all("form[data-question]")) {
      const question = form.getAttribute("data-question");
      if (question === "changes") filterChanges(form);
      else if (question === "failures") window.imgbuildFindFailures(form, data);
      else if (data) questions[question](form, data);
    }
  }

  window.imgbuildStarted = start(); // the script is at the end of the page
})();
