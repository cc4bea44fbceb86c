// What differs between two images: facts, Python packages, Debian packages, layers.
(function () {
  "use strict";

  const { commands, count, details, element, link, members, paragraph, results, show, table, whenChanged } = window.imgbuildElements;
  const COLUMNS = ["Package", "From", "To"];
  const FEW = 12; // rows of a list that is shown at once
  const size = number => [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].filter(([unit]) => number >= unit)
    .map(([unit, name]) => `${(number / unit).toFixed(1)} ${name}`)[0] || `${number} bytes`;

  /** Package → version in the image or list `number`; `holds` are the numbers that have a version. */
  function versionsOf(every, number) {
    return new Map(Object.entries(every).flatMap(([name, versions]) =>
      Object.entries(versions).filter(([, holds]) => holds.includes(number))
        .map(([version]) => [name, version])));
  }

  /** What differs: only in the first, only in the second, in another version. */
  function difference(left, right) {
    const names = [...new Set([...left.keys(), ...right.keys()])].sort();
    const differing = names.filter(name => left.get(name) !== right.get(name));
    return {
      changed: differing.filter(name => left.has(name) && right.has(name)),
      removed: differing.filter(name => !right.has(name)),
      added: differing.filter(name => !left.has(name)),
      equal: names.length - differing.length,
    };
  }

  function packageSection(title, left, right, names) {
    const { changed, removed, added, equal } = difference(left, right);
    const number = changed.length + removed.length + added.length;
    const rows = every => every.map(name => [name, left.get(name) || "–", right.get(name) || "–"]);
    const part = (label, every) => {
      const list = details(`${label}: ${every.length}`, [table(COLUMNS, rows(every))]);
      list.open = every.length <= FEW;
      return list;
    };
    return [
      element("h2", { text: `${title}: ${number} differ, ${equal} are equal` }),
      element("div", { class: "columns compared" }, [
        ["Another version", changed], [`Only in ${names[0]}`, removed], [`Only in ${names[1]}`, added],
      ].filter(([, every]) => every.length).map(([label, every]) => element("div", {}, [part(label, every)]))),
    ];
  }

  function layerSection(compared, left, right, names, pythons) {
    const content = number => compared.same[number] ?? number; // layers can have several names
    const there = new Set(compared.stacks[left].map(content));
    const sum = every => every.reduce((total, number) => total + compared.layers[number].size, 0);
    const fresh = compared.stacks[right].filter(number => !there.has(content(number)));
    const same = compared.stacks[right].filter(number => there.has(content(number)));
    return [
      paragraph(`From ${names[0]} to ${names[1]}: ${count(fresh.length, "layer")} to download,` +
        ` ${size(sum(fresh))}; equal: ${count(same.length, "layer")}, ${size(sum(same))}`, "verdict"),
      same.length || pythons[0] === pythons[1] ? null
        : paragraph(`Layers of packages have the folder of their Python, which is ${pythons.join(" and ")}.`),
      details("The layers to download", fresh.length ? [table(["Layer", "Size"], fresh.map(number => [
        compared.layers[number].name, size(compared.layers[number].size),
      ]))] : []),
    ];
  }

  /** The layers by number: names have the sizes of their layers, in the order of the numbers. */
  function layersOf({ layers }) {
    return layers.flatMap(([name, ...sizes]) => sizes.map(size => ({ name, size })));
  }

  function answerCompare(form, data) {
    const compared = {
      ...window.imgbuildCompared,
      layers: layersOf(window.imgbuildCompared),
    };
    const debian = Object.fromEntries(Object.entries(compared.debian).map(([name, every]) => [name,
      Object.fromEntries(Object.entries(every).map(([version, set]) => [version, members(compared.sets[set])]))]));
    const named = new Map(data.images.map((image, number) =>
      [`${data.targets[image.target].name} ${image.arch}`, number]));
    const fields = ["left", "right"].map(name => form.querySelector(`[name=${name}]`));
    document.getElementById("swap").addEventListener("click", () => {
      [fields[0].value, fields[1].value] = [fields[1].value, fields[0].value];
      form.dispatchEvent(new Event("input"));
    });
    whenChanged(form, value => {
      const numbers = [named.get(value.left), named.get(value.right)];
      if (numbers.some(number => number === undefined)) return show([]);
      if (numbers[0] === numbers[1]) return show([paragraph("This is the same image twice.", "notice")]);
      const images = numbers.map(number => data.images[number]);
      const targets = images.map(image => data.targets[image.target]);
      const python = numbers.map(number => versionsOf(data.versions, number));
      const names = targets[0] === targets[1] ? images.map(image => image.arch)
        : targets.map(target => target.name);
      const facts = [
        ["CUDA", ...images.map(image => image.cuda)],
        ["Oldest driver", ...images.map(image => image.driver || "not known")],
        ["Python", ...targets.map(target => target.python)],
        ["Base", ...targets.map(target => target.base)],
        ["Architecture", ...images.map(image => image.arch)],
        ["Download", ...images.map(image => size(image.size))],
        ["Unpacked", ...images.map(image => size(image.unpacked))],
        ["Tested on", ...images.map(image => results(image) || "no GPU")],
        ...distinctMain(targets, python),
      ];
      const lists = numbers.map(number => compared.lists[number]);
      show([
        ...layerSection(compared, ...numbers, names, targets.map(target => target.python)),
        table(["Property", ...images.map((image, side) =>
          element("span", {}, [link(targets[side]), ` ${image.arch}`]))],
        facts.filter(([, left, right]) => left !== right)),
        paragraph(`Equal: ${facts.filter(([, left, right]) => left === right)
          .map(([name, text]) => `${name} ${text}`).join(", ") || "none"}`, "muted"),
        ...moveCommands(targets),
        ...packageSection("Python packages", ...python, names),
        ...lists[0] === lists[1] ? [element("h2", { text: "Debian packages: all are equal" })]
          : packageSection("Debian packages", ...lists.map(list => versionsOf(debian, list)), names),
      ]);
    });
  }

  /** How to see the same in a terminal, and how to move a project. */
  function moveCommands([left, right]) {
    if (left === right) return [];
    return [
      paragraph(`To compare them in a terminal, and to see what moving a project to ${right.name} changes` +
        " (without --dry-run, it is moved):"),
      commands("the commands that move a project", [
        `imgbuild diff ${left.name} ${right.name}`, `imgbuild update --to ${right.name} --dry-run`,
      ]),
    ];
  }

  /** The versions of transformers and of the packages that one of the two images pins. */
  function distinctMain(targets, python) {
    const pins = [...new Set([...targets.flatMap(target => target.pins.map(pin => pin.split(" ")[0])), "transformers"])];
    return pins.map(name => [name, ...python.map(every => every.get(name) || "–")]);
  }

  window.imgbuildCompare = answerCompare;
})();
