// Which images run on a machine: its GPUs, driver and architecture against the data of the images.
// Which GPU runs which image was decided by imgbuild's own code; here only versions are compared.
(function () {
  "use strict";

  // What looks like the name of a GPU, whether or not the table has it.
  const UNKNOWN = /\b(?:GTX|RTX|Quadro|Tesla|Titan|GeForce|NVIDIA)(?: (?:GTX|RTX))? [A-Z]{0,3}\d{2,4}\w*/gi;

  const AMD = /\b(?:(?:Radeon|Instinct)(?: (?:RX|PRO|[A-Z]{0,2}\d{2,4}\w*))*|MI\d{2,3}[AX]?)\b/gi;

  // The CUDA release that nvidia-smi or a person names next to the driver.
  const CUDA = /\bCUDA(?:[ _]version)?\s*[:=]?\s*\d+(?:\.\d+)*/gi;
  const ARCH = /^(?:x86[_-]64|amd64|arm64|aarch64)$/i;

  /** The numbers of a version, as imgbuild compares drivers. */
  function numbers(version) {
    return (String(version).match(/\d+/g) || []).map(Number);
  }

  /** `branches`: a version without its last numbers ("580") is the newest that begins with them. */
  function older(version, other, branches) {
    if (!version || !other) return false;
    const left = numbers(version),
      right = numbers(other);
    for (let index = 0; index < right.length; index++) {
      if (index >= left.length) return !branches;
      if (left[index] !== right[index]) return left[index] < right[index];
    }
    return false;
  }

  /** A name in lower case without the words of the manufacturer, spaces and hyphens. */
  function plain(name, table) {
    return name
      .toLowerCase()
      .replace("max-q", "maxq")
      .split(/[\s_/()-]+/)
      .filter(word => table.brands.indexOf(word) < 0)
      .join("");
  }

  /** The GPU of the table that a name means, which may be cut off by "..."; null if none. */
  function find(name, table) {
    if (name.length > 80) return null;
    const stated = /^sm_?(\d{1,2})(\d)a?$/i.exec(name);
    if (stated) return { capability: `${stated[1]}.${stated[2]}`, arch: "" };
    const cut = /\.\.\.?\s*$/.test(name);
    const words = name
      .replace(/\.\.\.?\s*$/, "")
      .trim()
      .split(/\s+/);
    for (let length = words.length; length > 0; length--) {
      const text = plain(words.slice(0, length).join(" "), table);
      for (let index = 0; text && index < table.patterns.length; index++) {
        const pattern = table.patterns[index];
        if (new RegExp(`^(?:${pattern[0]}${table.variant})$`).test(text))
          return table.models[pattern[1]];
      }
      if (!cut) return null;
    }
    return null;
  }

  function gpu(name, capability, table) {
    const model = find(name, table);
    return { arch: "", tegra: false, ...model, name, capability: capability || (model || {}).capability || "" };
  }

  /** The machine of `imgbuild doctor --json`. */
  function ofDoctor(value, table) {
    const host = (value && value.host) || value;
    if (!host || !Array.isArray(host.gpus)) return null;
    return {
      arch: typeof host.arch === "string" ? host.arch : "",
      driver: String(host.driver || ""),
      gpus: host.gpus.map(each =>
        gpu(String(each.name || "?"), String(each.capability || ""), table),
      ),
    };
  }

  /** A machine from what `nvidia-smi` or `imgbuild doctor --json` writes, or from "A100 535". */
  function read(written, table) {
    const text = written.replace(CUDA, "");
    try {
      const value = ofDoctor(JSON.parse(written), table);
      if (value) return value;
    } catch (error) {
      /* not JSON */
    }
    let driver = "",
      names = [];
    const stated = /driver(?:[ _]version)?\s*[:=]?\s*(\d{3}(?:\.\d+){0,3})/i.exec(text);
    if (stated) driver = stated[1];
    text.split(/\r?\n/).forEach(line => {
      const row =
        /^\|\s*\d+\s+(.+?)\s+(?:On|Off|N\/A)\s*\|/.exec(line) ||
        /^\s*GPU \d+:\s*(.+?)\s*\(UUID/.exec(line) ||
        /^\s*Product Name\s*:\s*(.+?)\s*$/.exec(line);
      if (row) {
        names.push(row[1]);
        return;
      }
      const cells = line.split(",").map(cell => cell.trim());
      const version = cells.filter(cell => /^\d{3}\.\d+(\.\d+)?$/.test(cell))[0];
      if (cells.length > 1 && version) {
        driver = driver || version;
        const named = cells.filter(
          cell => /[A-Za-z]{1,}.*\d|[A-Z]{2}/.test(cell) && !/^\d/.test(cell) && !ARCH.test(cell),
        );
        const known = named.filter(cell => find(cell, table));
        names.push(...(known.length ? known : named.slice(0, 1)));
      }
    });
    if (!names.length) names = inWords(text, table);
    if (!names.length) names = text.match(UNKNOWN) || text.match(AMD) || [];
    if (!driver) {
      const rest = names.reduce((left, name) => left.replace(name, " "), text);
      const alone = /(?:^|[\s,;])([3-9]\d{2}(?:\.\d+){0,2})(?=$|[\s,;])/.exec(rest);
      if (alone) driver = alone[1];
    }
    const gpus = names.map(name => gpu(name, "", table));
    const arm = /\b(?:arm64|aarch64)\b/i.test(text);
    const arch = arm ? "arm64" : /\b(?:x86_64|amd64)\b/i.test(text) ? "x86_64" : "";
    return { arch, driver, gpus };
  }

  /** The line that `read` reads as the same machine: nothing else of a pasted text. */
  function summary(machine) {
    const names = machine.gpus.map(each => each.name);
    return [
      ...names.filter((name, index) => names.indexOf(name) === index),
      machine.driver ? `driver ${machine.driver}` : "",
      machine.arch,
    ].filter(Boolean).join(", ");
  }

  /** The GPUs that are named in a line of free text: the longest names first. */
  function inWords(text, table) {
    const words = text
        .trim()
        .split(/[\s,;]+/)
        .slice(0, 40),
      names = [];
    for (let start = 0; start < words.length; start++) {
      for (let end = Math.min(words.length, start + 4); end > start; end--) {
        const name = words.slice(start, end).join(" ");
        if (find(name, table)) {
          names.push(name);
          start = end - 1;
          break;
        }
      }
    }
    return names;
  }

  /** The architecture of a machine: as stated, or of a GPU that is built with a processor. */
  function architecture(machine) {
    if (machine.arch) return machine.arch;
    const bound = machine.gpus.filter(each => each.arch)[0];
    return bound ? bound.arch : "x86_64";
  }

  /** A machine of each architecture, if GPUs of several are named: GPUs without a bound one are x86_64. */
  function split(machine) {
    const other = machine.gpus.filter(each => !each.arch);
    if (machine.arch || !other.length || other.length === machine.gpus.length) return [machine];
    return [
      { ...machine, gpus: other },
      { ...machine, gpus: machine.gpus.filter(each => each.arch) },
    ];
  }

  /** Whether a machine runs an image: "fits", "no" or "unknown", with reasons and remarks. */
  function judge(machine, image, data) {
    const reasons = [],
      unknown = [],
      remarks = [];
    let limited = false; // the driver may be too old to compile kernels that a GPU needs
    const arch = architecture(machine);
    if (image.arch !== arch) reasons.push(`it is for ${image.arch}, the machine is ${arch}`);
    if (!image.driver) unknown.push(`which driver CUDA ${image.cuda} needs is not known`);
    else if (!machine.driver)
      unknown.push(`the driver is not given; it needs ${image.driver} or newer`);
    else if (older(machine.driver, image.driver, data.branches)) {
      reasons.push(
        `CUDA ${image.cuda} needs driver ${image.driver} or newer,` +
          ` the machine has ${machine.driver}`,
      );
    } else if (older(machine.driver, image.driverFull, data.branches)) {
      remarks.push(data.restriction.replace("{}", machine.driver));
    }
    if (!machine.gpus.length) unknown.push("no GPU is given");
    if (
      data.branches &&
      older(machine.driver, image.driver, false) &&
      !older(machine.driver, image.driver, true)
    ) {
      remarks.push(`of driver ${machine.driver}, release ${image.driver} or newer is needed`);
    }
    machine.gpus.forEach(each => {
      if (each.name.search(AMD) >= 0) reasons.push(`${each.name} is not an NVIDIA GPU`);
      else if (!each.capability) unknown.push(`${each.name} is not in the tables of GPUs`);
      else if (!image.gpus || data.capabilities.indexOf(each.capability) < 0) {
        unknown.push(`compute capability ${each.capability} is not in the tables`);
      } else if (image.gpus.indexOf(each.capability) < 0) {
        reasons.push(`it has no code for ${each.name} (${each.capability})` +
          (each.tegra ? ", and code for other GPUs does not run on a Tegra" : ""));
      } else if (image.later.indexOf(each.capability) >= 0) {
        const tooOld = older(machine.driver, image.driverFull, data.branches);
        limited ||= tooOld;
        remarks.push(tooOld
          ? `some kernels for ${each.name} are PTX only, which driver ${machine.driver} may be too` +
            ` old to compile: ${image.driverFull} or newer does`
          : `the driver compiles some kernels for ${each.name} at first use`);
      }
    });
    const distinct = function (texts) {
      return texts.filter((text, index) => texts.indexOf(text) === index);
    };
    const state = reasons.length ? "no" : unknown.length ? "unknown" : "fits";
    return {
      state,
      needsDriverOnly: state === "unknown" && unknown.length === 1 && !machine.driver,
      limited: state === "fits" && limited,
      unrestricted: state === "fits" && older(machine.driver, image.driverFull, data.branches)
        ? image.driverFull : "",
      reasons: distinct(reasons.concat(unknown)),
      remarks: distinct(remarks),
    };
  }

  window.imgbuildMachine = { architecture, find, gpu, judge, older, read, split, summary };
})();
