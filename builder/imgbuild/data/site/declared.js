// Reads requirements from a pyproject.toml, a Dockerfile or an environment.yml of Conda, as
// imgbuild.project does. tests/integration/test_site_files.py compares the results.
(function () {
  "use strict";

  function pyproject(text) {
    const found = /^dependencies\s*=\s*\[(.*)\]\s*$/m.exec(text) ||
      /^dependencies\s*=\s*\[([\s\S]*?)^\s*\]/m.exec(text);
    const lines = (found ? found[1] : "").replace(/^\s*#.*$/gm, "").matchAll(/"([^"]*)"|'([^']*)'/g);
    return [...lines].map(([, first, second]) => first || second);
  }

  // -- Dockerfile

  const VERSION = "v?(\\d+\\.\\d+(?:\\.\\d+)*(?:(?:\\.?post|rc|a|b|\\.?dev)\\d+)?)";
  const VARIABLE = /\$(?:(\w+)|\{(\w+)(?::?-([^{}]*))?\})/g;
  const WORD = /(?:"[^"]*"|'[^']*'|[^\s"';|&])+|&&|\|\||[;|&\n]/g;
  const MARKS = ["&&", "||", ";", "|", "&", "\n"];
  const minor = text => text.split(".").slice(0, 2).join(".");

  /** The requirements in the tag of an image; the line `FROM` if its contents are not known. */
  function fromTag(image, { images, parts, own, plain }) {
    const [name] = image.split("@");
    const [, place, tag = ""] = /^(.*?)(?::([^/]*))?$/.exec(name);
    const repository = place.replace(/^(?:docker\.io|registry\.hub\.docker\.com|index\.docker\.io)\//, "")
      .replace(/^library\//, "");
    const first = new RegExp(`^${VERSION}`).exec(tag);
    const target = /^cu\d{3}-/.test(tag); // the name of a target, with prefixes of versions
    const packages = target ? { ...parts, ...own } : parts;
    const lines = [];
    if (first && /(^|\/)python3?$/.test(repository)) lines.push(`python==${minor(first[1])}.*`);
    else if (first && /(^|\/)nvidia\/cuda$/.test(repository)) lines.push(`cuda==${minor(first[1])}`);
    else if (images[repository]) lines.push(images[repository] + (first ? `==${first[1]}` : ""));
    for (const part of tag.split(/[-_]/)) {
      const cuda = /^cu(?:da)?(\d\d)\.?(\d)(?:\d|\.\d+)?$/.exec(part);
      const python = /^(?:py|python|cp)3\.?(\d{1,2})(?:\.\d+)?$/.exec(part);
      const named = new RegExp(`^([a-z]+)${VERSION}$`).exec(part);
      if (cuda) lines.push(`cuda==${cuda[1]}.${cuda[2]}`);
      else if (python) lines.push(`python==3.${python[1]}.*`);
      else if (named && packages[named[1]]) lines.push(`${packages[named[1]]}==${named[2]}${target && /^[\d.]+$/.test(named[2]) ? ".*" : ""}`);
    }
    return lines.length || plain.includes(repository) ? lines : [`FROM ${image}`];
  }

  /** What pip, uv or Conda install in the words of a command. */
  function installed(words, forms) {
    const at = words.findIndex((word, index) => (word === "install" || word === "create" || word === "add"
      ? words.slice(0, index).some(each => (word === "add" ? /^uv$/ : /(?:^|\/)(?:pip[\d.]*|conda|mamba|micromamba)$/)
        .test(each)) : false));
    if (at < 0) return [];
    const conda = /(?:conda|mamba)$/.test(words[0]);
    const lines = [];
    for (let index = at + 1; index < words.length; index++) {
      const word = words[index];
      const valued = forms.options.includes(word) || conda && /^-[cnp]$|^--(?:name|channel|prefix)$/.test(word);
      if (!conda && /^(?:-r|-c|-e|--requirements?|--constraints?|--editable)$/.test(word)) lines.push(`${word} ${words[++index]}`);
      else if (valued) index++;
      else if (!word.startsWith("-")) lines.push(conda ? fromConda(word, forms) : word);
    }
    return lines;
  }

  /** The commands of a script, as lists of words. */
  function commandsOf(script) {
    const commands = [[]];
    for (const [word] of script.matchAll(WORD)) {
      if (MARKS.includes(word)) commands.push([]);
      else commands[commands.length - 1].push(word.replace(/"([^"]*)"|'([^']*)'/g, (_, first, second) => first ?? second));
    }
    return commands.filter(words => words.length);
  }

  /** The last stage of a Dockerfile and the stages on which it is based. */
  function dockerfile(text, forms) {
    const plain = text.replace(/^\s*#.*$\n?/gm, "").replace(/\\[ \t]*\r?\n/g, " ")
      .replace(/<<-?\s*["']?(\w+)["']?[^\n]*\n([\s\S]*?)\n\s*\1(?=\s|$)/g, (_, word, body) => body.replace(/\r?\n/g, " ; "));
    const stages = [];
    const variables = {};
    for (const line of plain.split(/\r?\n/)) {
      const [, name, value] = /^\s*(FROM|ARG|ENV|RUN)\s+(.*?)\s*$/i.exec(line) || [];
      if (!name) continue;
      const filled = value.replace(VARIABLE, (whole, first, second, other) => variables[first || second] || other || whole);
      const kind = name.toUpperCase();
      if (kind === "FROM") {
        const [base, , label = ""] = filled.replace(/--\S+\s+/g, "").split(/\s+/);
        stages.push({ base, label: label.toLowerCase(), lines: [] });
      } else if (kind === "RUN") {
        const shell = filled.replace(/^(?:--\S+\s+)+/, "").replace(/^\[(.*)\]$/, (_, words) => words.replace(/,/g, " "));
        if (stages.length) for (const words of commandsOf(shell)) stages[stages.length - 1].lines.push(...installed(words, forms));
      } else {
        for (const [, key, given] of filled.replace(/^(\w+)\s+(?=[^=]+$)/, "$1=").matchAll(/(\w+)=("[^"]*"|\S+)/g)) {
          variables[key] = given.replace(/"/g, "");
        }
      }
    }
    const chain = stages.slice(-1);
    for (let before; chain.length && (before = stages.slice(0, stages.indexOf(chain[0])).reverse()
      .find(({ label }) => label && label === chain[0].base.toLowerCase()));) chain.unshift(before);
    return chain.length ? [...fromTag(chain[0].base, forms), ...chain.flatMap(({ lines }) => lines)] : [];
  }

  // -- environment.yml

  function fromConda(entry, { renamed, cuda, omitted, prefixes }) {
    const [, name, written] = /^(?:[^:\s]+::)?([\w.-]+)\s*([^[]*)/.exec(entry.replace(/^["']|["']$/g, "").toLowerCase()) || [];
    if (!name) return entry;
    const text = written.replace(/\s/g, "");
    const exact = /^={0,2}([\w.!+]+)=[\w.*]+$/.exec(text);
    const fuzzy = /^=?([\d.]*\d)(\.?\*)?$/.exec(text);
    const version = exact ? `==${exact[1]}`
      : fuzzy ? (fuzzy[1].split(".").length > 2 && !fuzzy[2] ? `==${fuzzy[1]}` : `==${fuzzy[1]}.*`) : text.replace(/^\*$/, "");
    const release = /\d+\.\d+/.exec(text);
    if (name === "python") return release ? `python==${release[0]}.*` : "";
    if (cuda.includes(name)) return release ? `cuda==${release[0]}` : "";
    if (renamed[name]) return renamed[name] + version;
    return omitted.includes(name) || prefixes.some(each => name.startsWith(each)) ? "" : name + version;
  }

  function environment(text, forms) {
    const lines = [];
    let inside = false, pip = -1;
    for (const whole of text.split(/\r?\n/)) {
      const line = whole.replace(/(^|\s)#.*$/, "");
      const [, space, entry] = /^(\s*)-\s*(.*?)\s*$/.exec(line) || [];
      if (entry === undefined) {
        if (/^\S/.test(line)) inside = /^dependencies:/.test(line);
      } else if (inside) {
        if (space.length <= pip) pip = -1;
        if (/^pip\s*:/.test(entry)) pip = space.length;
        else lines.push(pip < 0 ? fromConda(entry, forms) : entry.replace(/^(["'])(.*)\1$/, "$2"));
      }
    }
    return lines;
  }

  const FORMS = [
    [/^\s*\[(?:project|build-system|tool\.[\w.-]+)\]/m, "pyproject.toml", pyproject,
      "the dependencies of [project] are compared. imgbuild init also reads extras, groups and sources."],
    [/^\s*FROM[ \t]+\S/mi, "Dockerfile", dockerfile,
      "the tag of the base and what pip, uv and conda install are compared. imgbuild init also reads Debian packages and the files that it names."],
    [/^dependencies:\s*$/m, "environment.yml", environment,
      "Python, CUDA and the packages on the Python index are compared. imgbuild init also reads Debian packages."],
  ];

  /** The requirements of a file, one a line, with its name and what is compared of it. */
  window.imgbuildDeclared = function (text, forms) {
    const [, file = "requirements.txt", read, note] = FORMS.find(([shape]) => shape.test(text)) || [];
    return read ? { file, note: `Read as ${file}: ${note}`, text: read(text, forms).filter(Boolean).join("\n") }
      : { file, note: "", text };
  };
})();
