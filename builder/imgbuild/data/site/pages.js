// What pages do with a script: copy buttons, the filters of the table, and the three questions.
// Texts of a matrix are only ever written as text, never as HTML.
(function () {
  "use strict";

  var versions = window.imgbuildVersions, machines = window.imgbuildMachine;

  function element(name, attributes, children) {
    var made = document.createElement(name);
    Object.keys(attributes || {}).forEach(function (key) {
      if (key === "text") made.textContent = attributes[key];
      else made.setAttribute(key, attributes[key]);
    });
    (children || []).forEach(function (child) { if (child) made.appendChild(child); });
    return made;
  }

  function each(selector, action, within) {
    Array.prototype.forEach.call((within || document).querySelectorAll(selector), action);
  }

  function size(bytes) {
    return (bytes / 1e9).toFixed(1) + " GB";
  }

  function count(number, noun) {
    return number + " " + noun + (number === 1 ? "" : "s");
  }

  // -- copy buttons

  function addCopyButtons() {
    each("[data-copy]", function (place) {
      var code = place.querySelector("code");
      var label = place.getAttribute("data-copy");
      var button = element("button", { type: "button", class: "copy", "aria-label": "Copy " + label, text: "Copy" });
      button.addEventListener("click", function () {
        copy(code.textContent).then(function (done) {
          button.textContent = done ? "Copied" : "Select and copy";
          setTimeout(function () { button.textContent = "Copy"; }, 2000);
        });
      });
      place.appendChild(button);
    });
  }

  function copy(text) {
    var older = function () {
      var area = element("textarea", { class: "away", "aria-hidden": "true" });
      area.value = text;
      document.body.appendChild(area);
      area.select();
      var done = document.execCommand("copy");
      area.remove();
      return done;
    };
    if (!navigator.clipboard) return Promise.resolve(older());
    return navigator.clipboard.writeText(text).then(function () { return true; }, older);
  }

  // -- what a form has, kept in the address, so that an answer can be shared

  function restore(form) {
    var given = new URLSearchParams(location.hash.slice(1));
    each("[name]", function (field) {
      if (!given.has(field.name)) return;
      if (field.type === "checkbox") field.checked = given.get(field.name) === "yes";
      else field.value = given.get(field.name);
    }, form);
  }

  function remember(form) {
    var values = new URLSearchParams();
    each("[name]", function (field) {
      var value = field.type === "checkbox" ? (field.checked ? "yes" : "") : field.value.trim();
      if (value && value.length < 4000) values.set(field.name, value);
    }, form);
    var text = values.toString();
    history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
  }

  function whenChanged(form, answer) {
    form.hidden = false;
    restore(form);
    var again = function () { remember(form); answer(); };
    form.addEventListener("input", again);
    form.addEventListener("change", again);
    form.addEventListener("submit", function (event) { event.preventDefault(); again(); });
    form.addEventListener("reset", function () { setTimeout(again, 0); });
    window.addEventListener("hashchange", function () { restore(form); answer(); });
    answer();
  }

  // -- the table of targets

  function filterTable(form) {
    var rows = Array.prototype.slice.call(document.querySelectorAll("tr[data-images]"));
    rows.forEach(function (row) {
      row.images = JSON.parse(row.getAttribute("data-images"));
      row.words = function (name) { return (row.getAttribute("data-" + name) || "").split(" "); };
      row.pins = JSON.parse(row.getAttribute("data-pins"));
    });
    var status = document.getElementById("count");
    whenChanged(form, function () {
      var value = {}, shown = 0, active = 0;
      each("[name]", function (field) {
        value[field.name] = field.type === "checkbox" ? field.checked : field.value.trim();
        if (value[field.name] && field.type !== "checkbox") active++;
      }, form);
      rows.forEach(function (row) {
        row.hidden = !matches(row, value, form.hasAttribute("data-branches"));
        if (!row.hidden && row.closest("#current")) shown++;
      });
      var total = document.querySelectorAll("#current tr[data-images]").length;
      var more = document.querySelectorAll("#retired tr[data-images]:not([hidden])").length;
      status.textContent = (active ? shown + " of " : "") + count(total, "image") +
        (active && more ? "; " + more + " retired match" : "");
      each("#none", function (text) { text.hidden = shown > 0; });
    });
  }

  function matches(row, value, branches) {
    var equal = ["cuda", "python"].every(function (name) {
      return !value[name] || row.getAttribute("data-" + name) === value[name];
    });
    var listed = ["stack", "tested"].every(function (name) {
      return !value[name] || row.words(name).indexOf(value[name]) >= 0;
    });
    var gpu = (value.gpu || "").split(" ");
    var image = row.images.some(function (each) {
      return (!value.arch || each[0] === value.arch) &&
        (!value.driver || (each[1] && !machines.older(value.driver, each[1], branches))) &&
        (!gpu[0] || (each[2].split(" ").indexOf(gpu[0]) >= 0 && (!gpu[1] || each[0] === gpu[1])));
    });
    var wanted = versions.requirements((value.packages || "").replace(/[;]|,(?=\s*[A-Za-z])/g, "\n"), true).read;
    var has = wanted.every(function (request) {
      var version = row.pins[request.name];
      return version && (!request.specifier || versions.satisfies(version, request.specifier));
    });
    return equal && listed && image && has;
  }

  // -- answers

  function link(data, target) {
    return element("a", { href: "targets/" + target.name + ".html", text: target.name });
  }

  function heading(data, target, image, state, words) {
    return element("div", { class: "answer-head" }, [
      element("h3", {}, [link(data, target)]),
      element("span", { class: "chip " + state, text: words }),
      target.recommended ? element("span", { class: "chip", text: "recommended: " + target.recommended }) : null,
      target.retired ? element("span", { class: "chip", text: "retired" }) : null,
    ]);
  }

  function describe(target, image) {
    return element("p", { class: "muted", text: [
      image.arch, "CUDA " + image.cuda, "Python " + target.python, target.pins.join(", "),
      size(image.size) + " to pull",
    ].join(" · ") });
  }

  function list(texts) {
    return texts.length ? element("ul", {}, texts.map(function (text) { return element("li", { text: text }); })) : null;
  }

  function show(place, children) {
    place.textContent = "";
    children.forEach(function (child) { if (child) place.appendChild(child); });
  }

  function more(summary, children) {
    if (!children.length) return null;
    return element("details", {}, [element("summary", { text: summary })].concat(children));
  }

  /** The image of each target that is judged best, in the order of the data, or of `before`. */
  function best(images, value, before) {
    var chosen = {};
    images.forEach(function (image, order) {
      var entry = { image: image, order: order, value: value(image, order) };
      var other = chosen[image.target];
      if (!other || before(entry, other) < 0) chosen[image.target] = entry;
    });
    return Object.keys(chosen).map(function (key) { return chosen[key]; }).sort(function (left, right) {
      return before(left, right) || left.order - right.order;
    });
  }

  // -- what runs on my machine

  function answerMachine(form, data) {
    var place = document.getElementById("answer"), field = function (name) { return form.elements[name].value.trim(); };
    var states = ["fits", "unknown", "no"], words = { fits: "runs", unknown: "not known", no: "does not run" };
    whenChanged(form, function () {
      var machine = machines.read(field("machine"), data.gpus);
      if (field("driver")) machine.driver = field("driver");
      if (field("gpu")) machine.gpus = [JSON.parse(field("gpu"))];
      if (field("arch")) machine.arch = field("arch");
      if (!machine.gpus.length && !machine.driver) return show(place, []);
      var judged = best(data.images, function (image) { return machines.judge(machine, image, data); },
        function (left, right) {
          var rank = function (entry) {
            return states.indexOf(entry.value.state) * 4 + (data.targets[entry.image.target].retired ? 2 : 0) +
              (entry.value.complete ? 0 : 1);
          };
          return rank(left) - rank(right);
        });
      var card = function (entry) {
        var target = data.targets[entry.image.target], verdict = entry.value;
        return element("article", { class: "answer", "data-target": target.name, "data-state": verdict.state }, [
          heading(data, target, entry.image, verdict.state, words[verdict.state]),
          describe(target, entry.image), list(verdict.reasons.concat(verdict.remarks)),
        ]);
      };
      var of = function (state) { return judged.filter(function (entry) { return entry.value.state === state; }); };
      var current = function (entry) { return !data.targets[entry.image.target].retired; };
      var fits = of("fits"), newest = fits.filter(current)[0];
      var suggested = fits.filter(function (entry) { return current(entry) && data.targets[entry.image.target].recommended; });
      var said = [
        machine.gpus.length ? machine.gpus.map(function (each) {
          return each.name + (each.capability ? " (compute capability " + each.capability + ")" : " (unknown)");
        }).filter(function (text, index, all) { return all.indexOf(text) === index; }).join(", ") : "no GPU given",
        machine.driver ? "driver " + machine.driver : "no driver given",
        machines.architecture(machine) + (machine.arch || machine.gpus.some(function (each) { return each.arch; }) ? "" : " (assumed)"),
      ];
      var cuda = data.releases.filter(function (release) { return release.driver && machine.driver && !machines.older(machine.driver, release.driver, data.branches); }).pop();
      show(place, [
        element("p", { id: "machine-read", text: "Compared: " + said.join(", ") + "." +
          (cuda ? " This driver runs CUDA " + cuda.cuda + " and older." : "") }),
        element("p", { class: "verdict", text: fits.length
          ? count(fits.filter(current).length, "image") + " run" + (fits.filter(current).length === 1 ? "s" : "") + " on it" +
            (newest ? "; the newest " + (newest.value.complete ? "of the driver's own CUDA release or an older one " : "") +
              "is " + data.targets[newest.image.target].name : "") +
            (suggested.length ? "; recommended: " + suggested.map(function (entry) { return data.targets[entry.image.target].name; }).join(", ") : "") + "."
          : of("unknown").length ? "Whether an image runs on it is not known." : "No image runs on it." }),
      ].concat(fits.filter(current).map(card), of("unknown").filter(current).map(card), [
        more(count(of("no").filter(current).length, "image") + " do not run on it, and why", of("no").filter(current).map(card)),
        more("Retired images", judged.filter(function (entry) { return !current(entry); }).map(card)),
      ]));
    });
  }

  // -- which image for this requirements.txt

  function imageVersion(data, name, number) {
    var all = data.versions[name] || {};
    return Object.keys(all).filter(function (version) { return all[version].indexOf(number) >= 0; })[0] || "";
  }

  function comparison(data, requests, number) {
    var result = { has: [], other: [], absent: [] };
    requests.forEach(function (request) {
      var version = imageVersion(data, request.name, number);
      if (!version) result.absent.push(request.line);
      else if (!request.specifier || versions.satisfies(version, request.specifier)) result.has.push(request.name + " " + version);
      else result.other.push(request.line + ": the image has " + version);
    });
    return result;
  }

  function answerRequirements(form, data) {
    var place = document.getElementById("answer");
    whenChanged(form, function () {
      var given = versions.requirements(form.elements.requirements.value, false);
      if (!given.read.length && !given.skipped.length) return show(place, []);
      var arch = form.elements.arch.value;
      var images = data.images.filter(function (image) { return !arch || image.arch === arch; });
      var numbers = images.map(function (image) { return data.images.indexOf(image); });
      var before = function (left, right) {
        var target = function (entry) { return data.targets[entry.image.target]; };
        return left.value.other.length - right.value.other.length || left.value.absent.length - right.value.absent.length ||
          target(left).retired - target(right).retired || !target(left).recommended - !target(right).recommended;
      };
      var compared = best(images, function (image, order) { return comparison(data, given.read, numbers[order]); }, before);
      var card = function (entry) {
        var target = data.targets[entry.image.target], value = entry.value;
        var state = value.other.length ? "no" : value.absent.length ? "unknown" : "fits";
        var words = value.other.length ? count(value.other.length, "conflict")
          : value.absent.length ? "has " + value.has.length + " of " + given.read.length : "has all";
        return element("article", { class: "answer", "data-target": target.name, "data-state": state }, [
          heading(data, target, entry.image, state, words), describe(target, entry.image),
          list(value.other),
          value.absent.length ? element("p", { text: "To add: " + value.absent.join(", ") }) : null,
          value.has.length ? more("In the image: " + value.has.length, [element("p", { text: value.has.join(", ") })]) : null,
          !value.other.length && value.absent.length ? element("pre", {}, [element("code", {
            text: "imgbuild init mine --extends " + target.name + "\nimgbuild add --requirements requirements.txt" })]) : null,
        ]);
      };
      var good = compared.filter(function (entry) { return !entry.value.other.length; });
      var complete = good.filter(function (entry) { return !entry.value.absent.length; });
      show(place, [
        element("p", { class: "verdict", text: complete.length
          ? count(complete.length, "image") + (complete.length === 1 ? " has" : " have") + " everything."
          : good.length ? "No image has everything; " + good.length + " can be extended without a conflict."
            : compared.length ? "No image fits; these come nearest." : "No image is for this architecture." }),
        given.skipped.length ? element("p", { class: "muted", text: "Not compared: " + given.skipped.join("; ") }) : null,
        given.read.some(function (request) { return request.marker; })
          ? element("p", { class: "muted", text: "Environment markers are not evaluated." }) : null,
      ].concat(compared.slice(0, 6).map(card), [
        more("The other " + (compared.length - 6) + " images", compared.slice(6).map(card)),
      ]));
    });
  }

  // -- why not these versions together

  function answerTogether(form, data) {
    var place = document.getElementById("answer");
    whenChanged(form, function () {
      var text = form.elements.versions.value.replace(/[;]|,(?=\s*[A-Za-z])|\s+(?:with|and)\s+|\s\+\s/g, "\n");
      var given = versions.requirements(text, true);
      if (!given.read.length) return show(place, []);
      var together = data.images.filter(function (image, number) {
        var value = comparison(data, given.read, number);
        return !value.other.length && !value.absent.length;
      });
      var names = together.map(function (image) { return data.targets[image.target]; })
        .filter(function (target, index, all) { return all.indexOf(target) === index; });
      var found = names.length ? [] : reasons(data, given.read);
      show(place, [
        element("p", { class: "verdict", text: names.length ? "These versions are together in " + count(names.length, "image") + "."
          : found.length ? "No image has these versions together. The recorded reasons:"
            : "No image has these versions together, and no reason is recorded." }),
        names.length ? element("ul", {}, names.map(function (target) { return element("li", {}, [link(data, target)]); })) : null,
        list(found),
        names.length ? null : element("div", {}, [
          element("h3", { text: "What the images have" }), list(given.read.map(function (request) { return where(data, request); })),
          element("p", { text: "To solve and audit exactly these versions:" }),
          element("pre", {}, [element("code", { text: "imgbuild resolve " + given.read.map(function (request) {
            return "'" + request.name + request.specifier + "'"; }).join(" ") })]),
        ]),
        given.skipped.length ? element("p", { class: "muted", text: "Not understood: " + given.skipped.join("; ") }) : null,
      ]);
    });
  }

  function known(data, request) {
    var all = Object.keys(Object.assign({}, data.versions[request.name], data.requires[request.name]));
    return all.filter(function (version) { return !request.specifier || versions.satisfies(version, request.specifier); });
  }

  /** The versions that a request allows: those of the catalogue, and the one that it names. */
  function candidates(data, request) {
    var named = /^==\s*([^*,]+?)(?:\.\*)?$/.exec(request.specifier);
    return known(data, request).concat(named ? [named[1]] : []);
  }

  function reasons(data, requests) {
    var found = [], add = function (text) { if (found.indexOf(text) < 0) found.push(text); };
    requests.forEach(function (request) {
      known(data, request).forEach(function (version) {
        requests.forEach(function (other) {
          if (other === request) return;
          var possible = candidates(data, other);
          var excludes = function (specifier) {
            return possible.length && !possible.some(function (one) { return versions.satisfies(one, specifier); });
          };
          ((data.requires[request.name] || {})[version] || []).forEach(function (line) {
            var need = versions.requirements(line, false).read[0];
            if (need && need.name === other.name && excludes(need.specifier)) {
              add(request.name + " " + version + " requires " + line);
            }
          });
          data.constraints.forEach(function (entry) {
            var need = versions.requirements(entry.needs, false).read[0];
            if (entry.package === request.name && need && need.name === other.name &&
              versions.satisfies(version, entry.versions) && excludes(need.specifier)) add("learned: " + entry.text);
          });
          data.rules.forEach(function (rule) {
            if (rule.package === request.name && rule.other === other.name && (!rule.versions || versions.satisfies(version, rule.versions)) &&
              possible.length && possible.every(function (one) { return versions.satisfies(one, rule.clash); })) add("known: " + rule.why + "; " + rule.cure);
          });
        });
      });
      data.refusals.forEach(function (refusal) {
        var about = new RegExp("(^|[^a-z0-9-])" + request.name + "([^a-z0-9-]|$)");
        if (about.test(refusal.what) && candidates(data, request).some(function (version) { return refusal.what.indexOf(version) >= 0; })) {
          add("refused: " + refusal.what + ": " + refusal.reason);
        }
      });
    });
    return found;
  }

  function where(data, request) {
    var all = data.versions[request.name] || {};
    var matching = known(data, request).filter(function (version) { return all[version]; });
    var names = function (version) {
      return all[version].map(function (number) { return data.targets[data.images[number].target].name; })
        .filter(function (name, index, every) { return every.indexOf(name) === index; }).join(", ");
    };
    if (matching.length) return matching.map(function (version) { return request.name + " " + version + " is in " + names(version); }).join("; ");
    var others = Object.keys(all).sort(versions.compare);
    return request.line + (others.length ? " is in no image; the images have " + others.join(", ") : ": no image has this package");
  }

  // -- start

  function start() {
    addCopyButtons();
    var questions = { machine: answerMachine, requirements: answerRequirements, together: answerTogether };
    each("form[data-question]", function (form) {
      var question = form.getAttribute("data-question");
      if (question === "filter") filterTable(form);
      else if (window.imgbuildData) questions[question](form, window.imgbuildData);
    });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
