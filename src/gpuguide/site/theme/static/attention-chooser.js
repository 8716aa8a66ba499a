// Backends for attention: what a call needs rules some out, with the reason, and the first that stays is named.
"use strict";
window.gpuguide ??= {};

// Mirrors gpuguide.plotting.attention_backends.find_backend, whose `declare` gives what is known.
gpuguide.findBackend = ({ backends, rules, preferences, calls, pieces }, settings) => {
  const applies = ({ when }) => Object.entries(when).every(([name, values]) => values.includes(settings[name]));
  const reasons = (verdict) => Object.fromEntries(Object.keys(backends).map((name) => [name, rules
    .filter((rule) => rule.backend === name && rule.verdict === verdict && applies(rule)).map(({ reason }) => reason)]));
  const preference = preferences.find(applies);
  const [refusals, limits, notes] = ["refuses", "limit", "note"].map(reasons);
  const staying = preference.backends.filter((name) => !refusals[name].length);
  const fewest = Math.min(...staying.map((name) => limits[name].length));
  const backend = staying.find((name) => limits[name].length === fewest) ?? "";
  const call = calls.find((each) => each.backend === backend && applies(each));
  const timed = applies({ when: preference.timed_when });
  return {
    backend,
    limited: Boolean(backend && limits[backend].length),
    name: call?.name || backends[backend] || "",
    code: call ? call.code.replaceAll(/\{(\w+)\}/g, (_, piece) => pieces[piece].find(applies)?.text ?? "") : "",
    order: preference.backends,
    source: preference.source,
    refusals,
    limits,
    notes,
    times: timed ? preference.times : {},
    timed: timed ? preference.timed : "",
  };
};

(() => {
  const STATES = { first: "use this", stays: "stays", limit: "with a limit", refuses: "refuses" };

  function start(place) {
    const { element } = gpuguide.calculator;
    const known = JSON.parse(place.querySelector("script").textContent);
    const figure = place.closest("figure");
    const inputs = new Map();
    const form = element("form", { class: "gg-chooser-form", autocomplete: "off" });
    const flags = element("div", { class: "gg-chooser-flags" });
    for (const { name, label, values } of known.settings) {
      const id = `${figure.id}-${name}`;
      if (label) {
        const input = element("select", { id }, ...values.map(([value, words]) => element("option", { value }, words)));
        inputs.set(name, { read: () => input.value, clear: () => { input.selectedIndex = 0; } });
        form.append(element("div", { class: "gg-knob gg-chooser-knob" }, element("label", { for: id }, label), input));
      } else {
        const [[off], [on, words]] = values;
        const input = element("input", { id, type: "checkbox" });
        inputs.set(name, { read: () => (input.checked ? on : off), clear: () => { input.checked = false; } });
        flags.append(element("label", { for: id }, input, words));
      }
    }
    const reset = element("button", { type: "button", class: "gg-press" }, "Reset");
    flags.append(reset);
    form.append(flags);
    const answer = element("p", { class: "gg-try-answer gg-chooser-answer", role: "status" });
    const code = element("code");
    const copy = element("button", { type: "button", class: "gg-press" }, "Copy");
    const copied = element("span", { class: "visually-hidden", role: "status" });
    const title = element("span", {});
    const call = element("div", { class: "gg-chooser-call" }, element("div", { class: "gg-chooser-title" }, title, copy,
      copied), element("pre", { tabindex: "0", role: "group", "aria-label": "The call" }, code));
    const rows = new Map(Object.entries(known.backends).map(([backend, label]) => {
      const parts = { state: element("span", { class: "gg-chooser-state" }), name: element("span", {
        class: "gg-chooser-name" }, label), bar: element("span", { class: "gg-chooser-bar" }),
      time: element("span", { class: "gg-chooser-time" }), why: element("span", { class: "gg-chooser-why" }) };
      const row = element("li", { class: "gg-chooser-row" }, parts.name, parts.state,
        element("span", { class: "gg-chooser-shaft", "aria-hidden": "true" }, parts.bar), parts.time, parts.why);
      return [backend, { row, ...parts }];
    }));
    const list = element("ol", { class: "gg-chooser-list" });
    const timed = element("p", { class: "gg-chooser-timed" });

    const several = (count) => (count > 1 ? `${count} backends refuse` : `${count || "No"} backend refuses`);
    const called = (name) => (name === "memory-efficient" ? "the memory-efficient kernel" : name);
    function say(found) {
      const refusing = Object.values(found.refusals).filter((reasons) => reasons.length).length;
      if (!found.backend) {
        return "All backends refuse. Compute the formula yourself, or change what the call needs.";
      }
      const kept = found.limited ? `Use ${called(found.name)}. None stays without a limit, and this one has the fewest: it `
        + `${found.limits[found.backend].join("; it ")}.` : `Use ${called(found.name)}, the first that stays without a limit.`;
      return `${kept} ${several(refusing)}. ${found.source}`;
    }
    function changed() {
      const settings = Object.fromEntries([...inputs].map(([name, { read }]) => [name, read()]));
      const found = gpuguide.findBackend(known, settings);
      const longest = Math.max(...Object.values(found.times), 1);
      for (const backend of found.order) {
        const { row, state, name, bar, time, why } = rows.get(backend);
        const [refusals, limits, notes] = [found.refusals, found.limits, found.notes].map((each) => each[backend]);
        const verdict = refusals.length ? "refuses" : backend === found.backend ? "first" : limits.length ? "limit"
          : "stays";
        row.dataset.verdict = verdict;
        name.textContent = backend === found.backend ? found.name : known.backends[backend];
        state.textContent = STATES[verdict];
        const factor = found.times[backend];
        bar.style.width = `${(100 * (factor ?? 0)) / longest}%`;
        time.textContent = factor ? `${factor.toFixed(1)}×` : "";
        row.dataset.timed = factor ? "yes" : "no";
        const reasons = refusals.length ? refusals : [...limits, ...notes];
        why.textContent = reasons.length ? `It ${reasons.join("; it ")}.` : "";
        list.append(row);
      }
      code.textContent = found.code;
      call.hidden = !found.code;
      title.textContent = `Call of ${called(found.name)}`;
      copied.textContent = "";
      copy.textContent = "Copy";
      timed.textContent = found.timed ? `Bars: ${found.timed}, as a multiple of the fastest.`
        : "No bars: nothing was measured with these settings.";
      const words = say(found);
      if (answer.textContent !== words) answer.textContent = words;
    }
    async function take() {
      try {
        await navigator.clipboard.writeText(code.textContent);
        copy.textContent = "Copied";
        copied.textContent = "The call is copied.";
      } catch {
        getSelection().selectAllChildren(code);
        copied.textContent = "The call is selected: copy it with the keyboard.";
      }
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", changed);
    reset.addEventListener("click", () => {
      inputs.forEach(({ clear }) => clear());
      changed();
    });
    copy.addEventListener("click", take);
    place.append(form, answer, call, list, timed);
    figure.classList.add("gg-tried");
    changed();
  }
  document.querySelectorAll('.gg-try[data-kind="attention-chooser"]').forEach(start);
})();
