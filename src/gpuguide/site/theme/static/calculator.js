// What the calculators share: a form made from a list of fields, its state in the address, and results as tables.
"use strict";
window.gpuguide ??= {};
gpuguide.calculator = (() => {
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }
  function svg(name, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // --- numbers as a reader writes them ---------------------------------------------------------------------

  function significant(value) {
    if (value === 0) return "0";
    const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return value.toFixed(Math.min(digits, 6));
  }
  const scaled = (value, unit) => {
    const steps = [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1], ["m", 1e-3], ["µ", 1e-6],
      ["n", 1e-9]];
    const [prefix, size] = steps.find(([, least]) => value >= 0.9995 * least) ?? steps.at(-1);
    return value === 0 ? `0 ${unit}` : `${significant(value / size)} ${prefix}${unit}`;
  };
  const binary = (bytes) => {
    const steps = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
    const [unit, size] = steps.find(([, least]) => bytes >= 0.9995 * least) ?? steps.at(-1);
    return bytes === 0 ? "0" : `${significant(bytes / size)} ${unit}`;
  };

  const percent = (share) => (share > 0 && share < 1e-3 ? "< 0.1%" : `${significant(100 * share)}%`);

  // --- the form --------------------------------------------------------------------------------------------

  // A field: name, label, kind (number, choice or flag), the options of a choice (a list, or a function of all fields).
  class Form {
    constructor(place, groups, changed) {
      this.inputs = new Map();
      this.boxes = new Map();
      this.fields = groups.flatMap((group) => group.fields);
      this.form = element("form", { class: "gg-form", autocomplete: "off" });
      for (const group of groups) {
        const box = element("div", { class: "gg-fields" });
        for (const field of group.fields) box.append(this.made(field));
        if (group.folded) {
          this.form.append(element("details", { class: "gg-fold" }, element("summary", {}, group.title), box));
        } else {
          this.form.append(element("fieldset", {}, element("legend", {}, group.title), box));
        }
      }
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("input", (event) => changed(event.target.name));
      place.append(this.form);
    }
    made(field) {
      const id = `gg-${field.name}`;
      const common = { id, name: field.name, "aria-describedby": `${id}-fault` };
      const label = element("label", { for: id }, field.label);
      let input;
      if (field.kind === "choice") {
        input = element("select", common);
        fill(input, listed(field, {}));
      } else if (field.kind === "flag") {
        input = element("input", { ...common, type: "checkbox" });
      } else {
        input = element("input", { ...common, type: "text", inputmode: "numeric", spellcheck: "false" });
      }
      const fault = element("span", { class: "gg-fault", id: `${id}-fault` });
      const order = field.kind === "flag" ? [input, label, fault] : [label, input, fault];
      const box = element("div", { class: `gg-field gg-field-${field.kind}` }, ...order);
      this.inputs.set(field.name, { field, input, fault, box });
      return box;
    }
    // Whole numbers as numbers; whatever else was typed as text, for the message that refuses it.
    read() {
      const state = {};
      for (const [name, { field, input }] of this.inputs) {
        if (field.kind === "flag") state[name] = input.checked;
        else if (field.kind === "choice") state[name] = field.number ? Number(input.value) : input.value;
        else state[name] = number(input.value);
      }
      return state;
    }
    write(state) {
      for (const [name, value] of Object.entries(state)) {
        const found = this.inputs.get(name);
        if (!found) continue;
        if (found.field.kind === "flag") found.input.checked = value === true || value === "true";
        else found.input.value = value;
      }
    }
    options(name, options, value) {
      const { input } = this.inputs.get(name);
      const wanted = value ?? input.value;
      fill(input, options);
      const known = [...input.options].map((option) => option.value);
      input.value = known.includes(wanted) ? wanted : known[0];
    }
    show(shown) {
      for (const [name, { box }] of this.inputs) box.hidden = name in shown && !shown[name];
    }
    // Mark each field that is wrong, for screen readers with the sentence; nothing moves. Returns the sentences, in
    // which fields go by their labels.
    judge(faults) {
      const said = [];
      for (const [name, { field, input, fault, box }] of this.inputs) {
        const wrong = !box.hidden && name in faults ? named(faults[name], field) : "";
        input.setAttribute("aria-invalid", wrong ? "true" : "false");
        fault.textContent = wrong;
        if (wrong) {
          said.push(wrong);
          box.closest("details")?.setAttribute("open", "");
        }
      }
      return said;
    }
  }

  const named = (sentence, field) => (sentence.startsWith(`${field.name} is `)
    ? `“${field.label}” is ${sentence.slice(field.name.length + 4)}` : sentence);
  const listed = (field, state) => (typeof field.options === "function" ? field.options(state) : field.options);

  // A number as people write it: 4096, 4 096, 1,000,000, 1e9. What is none stays text, for the sentence that refuses it.
  function number(text) {
    const plain = String(text).trim().replaceAll(/(?<=\d)[ _,](?=\d{3})/g, "");
    if (plain === "") return "empty";
    const value = /^-?\d+(\.\d+)?(e\+?\d+)?$/i.test(plain) ? Number(plain) : NaN;
    return Math.abs(value) <= Number.MAX_SAFE_INTEGER ? value : plain;
  }
  function fill(select, options) {
    select.replaceChildren();
    const groups = new Map();
    for (const { value, label, group } of options) {
      const option = element("option", { value }, label ?? String(value));
      if (!group) {
        select.append(option);
        continue;
      }
      if (!groups.has(group)) {
        groups.set(group, element("optgroup", { label: group }));
        select.append(groups.get(group));
      }
      groups.get(group).append(option);
    }
  }
  // A field of a cost model as the form shows it.
  function formField({ name, label, whole, choices, by, words = {} }) {
    if (whole) return { name, label, kind: "number" };
    if (!choices) return { name, label, kind: "flag" };
    const shown = (values) => options(values ?? [], words);
    const number = !by && choices.every((choice) => typeof choice === "number");
    return { name, label, kind: "choice", number, options: by ? (state) => shown(choices[state[by]]) : shown(choices) };
  }
  const options = (values, labels = {}) => values.map((value) => ({ value, label: labels[value] ?? String(value) }));

  // --- the address -----------------------------------------------------------------------------------------

  // Values that the address gives for known fields; of choices only those that exist. What is left out is reported.
  function fromAddress(form, first) {
    const given = new URLSearchParams(location.search);
    const state = { ...first };
    const notices = [];
    for (const [name, { field }] of form.inputs) {
      const options = field.kind === "choice" ? listed(field, state) : [];
      if (options.length && !options.some(({ value }) => String(value) === String(state[name]))) {
        state[name] = options[0].value;
      }
      if (!given.has(name)) continue;
      const value = given.get(name).slice(0, 40);
      const known = field.kind === "flag" ? ["true", "false"] : options.map((option) => String(option.value));
      if (field.kind !== "number" && !known.includes(value)) {
        const standing = options.find((option) => String(option.value) === String(state[name]));
        notices.push(`The address asks for “${field.label}”: “${value}”, which is not known here; shown is `
          + `${standing?.label ?? state[name]}.`);
      } else {
        state[name] = field.kind === "flag" ? value === "true" : value;
      }
    }
    for (const name of new Set(given.keys())) {
      if (!form.inputs.has(name)) {
        notices.push(`The address also says “${name.slice(0, 40)}=${given.get(name).slice(0, 40)}”, which this calculator `
          + "does not know; it is left out.");
      }
    }
    return { state, notices };
  }
  function toAddress(state, first) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(state)) {
      if (value !== "" && String(value) !== String(first[name])) query.set(name, value);
    }
    const text = query.toString();
    history.replaceState(null, "", `${location.pathname}${text && "?"}${text}${location.hash}`);
  }

  // --- results ---------------------------------------------------------------------------------------------

  function table(caption, header, rows) {
    const head = element("tr", {}, ...header.map((text) => element("th", { scope: "col" }, text)));
    const body = rows.map((row) => element("tr", {}, ...row.map((cell, place) => {
      const content = Array.isArray(cell) ? cell : [cell];
      return place ? element("td", {}, ...content) : element("th", { scope: "row" }, ...content);
    })));
    const made = element("table", { class: "table gg-result" }, element("caption", {}, caption),
      element("thead", {}, head), element("tbody", {}, ...body));
    return element("div", { class: "gg-scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
  }
  // Shows the remarks and, if there are faults, the first of them in place of a verdict, over pale results. Returns
  // whether there are.
  function refuse({ verdict, said, answer }, remarks, faults, ...advice) {
    const wrong = faults.length > 0;
    said.replaceChildren(...remarks.map((text) => element("p", { class: "gg-notice" }, text)));
    answer.classList.toggle("gg-waiting", wrong);
    verdict.className = wrong ? "gg-verdict-line gg-bad" : "gg-verdict-line";
    if (wrong) verdict.replaceChildren(faults[0], ...advice);
    return wrong;
  }
  function code(text) {
    const shown = element("pre", { tabindex: "0" }, element("code", {}, text));
    return element("div", { class: "highlight gg-call" }, shown);
  }
  const python = (value) => (typeof value === "boolean" ? (value ? "True" : "False")
    : typeof value === "number" ? String(value) : JSON.stringify(value));

  const data = (name) => JSON.parse(document.getElementById(name).textContent);

  return { element, svg, scaled, binary, significant, percent, Form, formField, number, fromAddress, toAddress, table,
    refuse, code, python, data };
})();
