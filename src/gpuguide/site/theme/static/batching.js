// Rows of a batch over time: the same requests in static batches, in continuous ones and with prefill in chunks.
"use strict";
window.gpuguide ??= {};

// Mirrors gpuguide.inference.serving.Scheduler. Times are in decode steps, each token of a prompt takes `prefill_token`.
gpuguide.serveRequests = (requests, { rows, policy, chunk, prefill_token }) => {
  const texts = requests.map((request, number) => ({ ...request, number, slot: null, read: 0, drawn: 0, times: [] }));
  const queue = [...texts].sort((one, other) => one.arrival - other.arrival || one.number - other.number);
  const held = Array(rows).fill(null);
  const steps = [];
  let [reading, writing, now] = [[], [], 0];

  function leave(text) {
    text.left_at = steps.length;
    held[text.slot] = null;
  }
  function end(ended) {
    for (const text of ended) text.ended_at = steps.length;
    writing = writing.filter((text) => text.ended_at === undefined);
    if (policy === "static") {
      const holders = held.filter(Boolean);
      if (holders.every((text) => text.ended_at !== undefined)) holders.forEach(leave);
    } else ended.forEach(leave);
  }
  function admit() {
    if (policy === "static" && held.some(Boolean)) return;
    while (held.includes(null) && queue.length && queue[0].arrival <= now) {
      const text = queue.shift();
      text.slot = held.indexOf(null);
      text.entered_at = steps.length;
      held[text.slot] = text;
      reading.push(text);
    }
  }
  // Pieces that begin at the same position are read together, padded to the longest of them.
  function nextGroup(left, budget) {
    const start = left[0].read;
    const longest = Math.min(left[0].prompt - start, budget);
    const group = [left[0]];
    for (const text of left.slice(1)) {
      if ((group.length + 1) * longest > budget) break;
      if (text.read === start && 2 * (text.prompt - text.read) > longest) group.push(text);
    }
    const ending = group.filter((text) => text.prompt - text.read <= longest);
    for (const text of group) text.read += Math.min(longest, text.prompt - start);
    return { group, ending, cost: group.length * longest };
  }
  function prefill() {
    let [left, budget, computed] = [[...reading], chunk, 0];
    const begun = [];
    while (left.length && budget > 0) {
      const { group, ending, cost } = nextGroup(left, budget);
      budget -= cost;
      computed += cost;
      left = left.filter((text) => !group.includes(text));
      begun.push(...ending);
    }
    for (const text of begun) {
      text.began_at = steps.length;
      text.drawn = 1;
    }
    reading = reading.filter((text) => !begun.includes(text));
    writing.push(...begun);
    end(begun.filter((text) => text.length === 1));
    return { computed, begun };
  }

  while (queue.length || held.some(Boolean)) {
    if (!held.some(Boolean)) now = Math.max(now, queue[0].arrival);
    admit();
    const { computed, begun } = prefill();
    // A static batch begins together, when all of its prompts have been read.
    const batch = policy === "static" && reading.length ? [] : [...writing];
    const start = now;
    now += computed * prefill_token + (batch.length ? 1 : 0);
    for (const text of begun) text.times.push(now);
    for (const text of batch) {
      text.drawn += 1;
      text.times.push(now);
    }
    steps.push({ start, end: now, writing: batch.length, read: computed });
    end(batch.filter((text) => text.drawn === text.length));
  }
  return { texts, steps };
};

// The requests that the sliders ask for: of each, what was drawn once is stretched by spread and rate.
gpuguide.drawRequests = ({ draws, median_prompt, median_text, longest }, { spread, rate }) => {
  let arrival = 0;
  return draws.map(([prompt, text, gap]) => {
    arrival += rate ? gap / rate : 0;
    const size = (median, normal, most) => Math.min(Math.max(Math.round(median * Math.exp(spread * normal)), 1), most);
    return { arrival, prompt: size(median_prompt, prompt, longest), length: size(median_text, text, longest) };
  });
};

gpuguide.percentile = (numbers, share) => {
  const sorted = [...numbers].sort((one, other) => one - other);
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  return sorted[below] + (place - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
};

gpuguide.summariseServing = ({ texts, steps }, rows) => {
  const wrote = steps.filter(({ writing }) => writing);
  const first = texts.map(({ times, arrival }) => times[0] - arrival);
  const between = texts.flatMap(({ times }) => times.slice(1).map((time, place) => time - times[place]));
  const both = (numbers) => (numbers.length ? [0.5, 0.95].map((share) => gpuguide.percentile(numbers, share)) : [0, 0]);
  return {
    time: steps.at(-1).end,
    throughput: texts.reduce((all, { length }) => all + length, 0) / steps.at(-1).end,
    occupancy: wrote.reduce((all, { writing }) => all + writing, 0) / (rows * wrote.length || 1),
    first: both(first),
    between: both(between),
  };
};

(() => {
  const POLICIES = [["static", "static batches"], ["continuous", "continuous batching"],
    ["chunked", "chunked prefill"]];

  function start(place) {
    const { element, svg, significant } = gpuguide.calculator;
    const known = JSON.parse(place.querySelector("script").textContent);
    const figure = place.closest("figure");
    const { id } = figure;
    const slider = (name, attributes) => element("input", { type: "range", id: `${id}-${name}`, ...attributes });
    const select = (name, options, chosen) => element("select", { id: `${id}-${name}` }, ...options.map(([value, label]) =>
      element("option", { value, selected: value === chosen }, label)));
    const policy = select("policy", POLICIES, known.policy);
    const rate = select("rate", [[0, "all at once"], ...known.rates.map((each) => [each, `${each} a step`])], 0);
    const rows = slider("rows", { min: 2, max: 16, step: 1 });
    const spread = slider("spread", { min: 0, max: 1.5, step: 0.25 });
    const reset = element("button", { type: "button", class: "gg-press" }, "Reset");
    const knob = (label, input, ...more) => element("div", { class: "gg-knob" },
      element("label", { for: input.id }, label, ...more), input);
    const value = () => element("output", { "aria-hidden": "true" });
    const [rowsValue, spreadValue] = [value(), value()];
    const form = element("form", { class: "gg-knobs", autocomplete: "off" }, knob("Policy", policy),
      knob("Arrivals", rate), knob("Rows", rows, " ", rowsValue), knob("Spread of lengths", spread, " ", spreadValue),
      element("div", { class: "gg-presses" }, reset));
    const answer = element("p", { class: "gg-try-answer gg-batch-answer", role: "status" });
    const holder = element("div", { class: "gg-batch-place" });
    const keys = element("p", { class: "gg-batch-keys" }, ...[["write", "decode"], ["read", "prefill"],
      ["ended", "ended, row waits"], ["followed", `request ${known.followed + 1}`]].map(([kind, words]) => element("span", {},
      element("span", { class: `gg-batch-swatch gg-batch-${kind}` }), words)));
    const body = element("tbody");
    const table = element("table", { class: "gg-states gg-policies" }, element("caption", {},
      `The same requests with each policy. Times are in decode steps; ${1 / known.prefill_token} tokens of a prompt take `
        + `as long as one, and a chunk has ${known.chunk}.`), element("thead", {}, element("tr", {},
      ...["policy", "tokens a step", "rows in use", "first token p50 / p95", "between tokens p50 / p95"].map((name) =>
        element("th", { scope: "col" }, name)))), body);

    function run(name, requests) {
      const chunk = name === "chunked" ? known.chunk : Infinity;
      const way = name === "static" ? "static" : "continuous";
      const served = gpuguide.serveRequests(requests, { rows: Number(rows.value), policy: way, chunk,
        prefill_token: known.prefill_token });
      return { served, summary: gpuguide.summariseServing(served, Number(rows.value)) };
    }

    function picture({ served: { texts, steps } }, longest, words) {
      const width = place.clientWidth < 520 ? 340 : 640;
      const count = Number(rows.value);
      const tall = Math.max(13, Math.min(26, 208 / count));
      const [left, right, top] = [4, width - 4, 4];
      const strip = top + count * tall + 6;
      const x = (time) => left + (time / longest) * (right - left);
      const when = (step) => steps[step]?.start ?? steps.at(-1).end;
      const box = (from, to, y, height, kind) => svg("rect", { class: kind, x: x(from).toFixed(2), y: y.toFixed(1),
        width: Math.max(x(to) - x(from) - 0.8, 0.4).toFixed(2), height: height.toFixed(1), rx: 2 });
      const made = svg("svg", { viewBox: `0 0 ${width} ${strip + 42}`, class: "gg-batch", role: "img" });
      made.setAttribute("aria-label", words);
      const text = (across, down, content, anchor) => {
        const label = svg("text", { x: across.toFixed(1), y: down.toFixed(1), "text-anchor": anchor });
        label.textContent = content;
        return label;
      };
      for (let row = 0; row < count; row += 1) {
        made.append(box(0, longest, top + row * tall, tall - 2, "gg-batch-free"));
      }
      for (const { number, slot, entered_at, began_at, ended_at, left_at } of texts) {
        const y = top + slot * tall;
        const [from, begun, until, gone] = [entered_at, began_at, ended_at, left_at].map(when);
        const wrote = until > begun ? until : begun;
        if (begun > from) made.append(box(from, begun, y, tall - 2, "gg-batch-read"));
        if (wrote > begun) {
          const tint = number === known.followed ? "gg-batch-followed" : `gg-batch-tint-${number % 3}`;
          made.append(box(begun, wrote, y, tall - 2, `gg-batch-write ${tint}`));
        }
        if (gone > wrote) made.append(box(wrote, gone, y, tall - 2, "gg-batch-ended"));
        if (x(wrote) - x(begun) > 18) {
          made.append(text((x(begun) + x(wrote)) / 2, y + tall / 2 + 3, String(number + 1), "middle"));
        }
      }
      for (const { start, read } of steps.filter((step) => step.read)) {
        made.append(box(start, start + read * known.prefill_token, strip, 7, "gg-batch-read"));
      }
      const ten = 10 ** Math.floor(Math.log10(longest));
      const every = longest / ten < 2 ? ten / 4 : longest / ten < 5 ? ten / 2 : ten;
      for (let time = 0; time <= longest; time += every) {
        made.append(svg("line", { class: "gg-grid", x1: x(time), x2: x(time), y1: top, y2: strip + 12 }),
          text(x(time), strip + 24, String(time), time === 0 ? "start" : x(time) > right - 12 ? "end" : "middle"));
      }
      made.append(text((left + right) / 2, strip + 38, "time in decode steps; the strip shows when prompts are prefilled",
        "middle"));
      return made;
    }

    function changed() {
      rowsValue.textContent = rows.value;
      const stretch = Number(spread.value);
      spreadValue.textContent = stretch ? `σ = ${stretch}` : "none";
      spread.setAttribute("aria-valuetext", stretch ? `sigma ${stretch}` : "none, all alike");
      const requests = gpuguide.drawRequests(known, { spread: stretch, rate: Number(rate.value) });
      const runs = new Map(POLICIES.map(([name]) => [name, run(name, requests)]));
      const longest = Math.max(...[...runs.values()].map(({ summary }) => summary.time));
      const percent = (share) => `${(100 * share).toFixed(0)}%`;
      const both = (numbers) => numbers.map(significant).join(" / ");
      body.replaceChildren(...POLICIES.map(([name, label]) => {
        const { throughput, occupancy, first, between } = runs.get(name).summary;
        return element("tr", { class: name === policy.value ? "gg-states-now" : null },
          element("th", { scope: "row" }, label), ...[significant(throughput), percent(occupancy), both(first),
            both(between)].map((words) => element("td", {}, words)));
      }));
      const [, label] = POLICIES.find(([name]) => name === policy.value);
      const chosen = runs.get(policy.value);
      const { time, throughput, occupancy, first } = chosen.summary;
      const words = `${requests.length} requests in ${rows.value} rows, ${label}: done after ${time.toFixed(0)} steps, `
        + `${significant(throughput)} tokens a step, ${percent(occupancy)} of the rows in use. Half of the first tokens `
        + `come within ${significant(first[0])} steps, 95% within ${significant(first[1])}.`;
      holder.replaceChildren(picture(chosen, longest, words));
      if (answer.textContent !== words) answer.textContent = words;
    }
    function again() {
      policy.value = known.policy;
      rate.value = 0;
      rows.value = known.rows;
      spread.value = known.spread;
      changed();
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", changed);
    reset.addEventListener("click", again);
    window.addEventListener("resize", changed);
    place.append(form, answer, holder, keys, table);
    figure.classList.add("gg-tried");
    again();
  }
  document.querySelectorAll('.gg-try[data-kind="batching"]').forEach(start);
})();
