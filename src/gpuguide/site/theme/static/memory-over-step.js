// Memory over the moments of a step: stacked parts, the capacity, the peak, and the setting before as an outline.
"use strict";
window.gpuguide ??= {};

// Mirrors gpuguide.site.directives.calculators.step_drawing.stack; the tests compare the two.
gpuguide.stepStack = (moments, order, capacity) => {
  let grounds = moments.map(() => 0);
  const parts = [];
  for (const part of order) {
    const sizes = moments.map((moment) => moment.parts[part]);
    if (sizes.every((size) => size === 0)) continue;
    const tops = grounds.map((ground, at) => ground + sizes[at]);
    const lows = grounds;
    parts.push({ part, spans: tops.map((top, at) => [lows[at], top]) });
    grounds = tops;
  }
  const peak = moments.reduce((best, { total }, at) => (total > moments[best].total ? at : best), 0);
  return { parts, totals: grounds, above: grounds.map((total) => Math.max(0, total - capacity)), peak };
};

// Mirrors step_drawing.describe.
gpuguide.stepSentence = (moments, at, peak, capacity, words) => {
  const { binary } = gpuguide.calculator;
  const { name, parts, total } = moments[at];
  const largest = words.order.filter((part) => parts[part]).sort((one, other) => parts[other] - parts[one]).slice(0, 2);
  const shown = largest.map((part) => `${words.parts[part]} ${binary(parts[part])}`).join(" and ");
  const over = total - capacity;
  return `At ${words.moments[name]}${at === peak ? ", the peak" : ""}: ${binary(total)}, of which ${shown}; `
    + `${binary(Math.abs(over))} ${over > 0 ? "above" : "below"} the capacity.`;
};

// A drawing that stays on the page while what it shows is replaced, so that the cursor and the outline stay as well.
gpuguide.stepDrawing = (words) => {
  const { element, svg, binary } = gpuguide.calculator;
  const LEVEL = 0.36;  // of a moment's width is level to either side; between moments the drawing only joins them
  const answer = element("p", { class: "gg-step-answer", role: "status" });
  const holder = element("div", { class: "gg-step-place" });
  const slider = element("input", { type: "range", id: "gg-step-moment", min: 0, step: 1 });
  const label = element("label", { for: slider.id, class: "gg-step-label" }, "Moment of the step");
  const control = element("div", { class: "gg-step-control" }, label, slider);
  const legend = element("ul", { class: "gg-step-parts" });
  const caption = element("figcaption", {});
  const figure = element("figure", { class: "gg-drawing gg-step-figure" }, answer, holder, control, legend, caption);
  let shown = null;  // moments, gpu
  let before = null;  // the moments of the setting before
  let chosen = null;  // a moment, or the peak
  let toMoment = () => 0;

  const phase = (name) => name.split(", ");
  const same = (one, other) => one.length === other.length
    && one.every(({ name, total }, at) => name === other[at].name && total === other[at].total);

  // What was shown before is an outline if it is a step of the same kind and takes something else.
  function show(moments, gpu, old) {
    before = old && old.length === moments.length && old[0].name === moments[0].name && !same(old, moments) ? old : null;
    if (shown && shown.moments[0].name !== moments[0].name) chosen = null;
    shown = { moments, gpu };
    draw();
  }

  function tickStep(top) {
    const unit = [2 ** 40, 2 ** 30, 2 ** 20, 2 ** 10, 1].find((size) => top >= size) ?? 1;
    const rough = top / unit / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    return unit * power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  }

  function draw() {
    const { moments, gpu } = shown;
    const capacity = gpu.memory;
    const { parts, totals, peak } = gpuguide.stepStack(moments, words.order, capacity);
    const at = chosen ?? peak;
    const width = Math.max(280, holder.clientWidth || 700);
    const small = width < 560;
    const [left, right, top, bottom] = [62, width - (small ? 18 : 8), 34, small ? 244 : 284];
    const height = bottom + (small ? 64 : 46);
    const highest = Math.max(totals[peak], ...(before ?? []).map(({ total }) => total));
    const near = capacity <= 3 * highest;  // or its line would press all else to the ground
    const most = 1.14 * (near ? Math.max(highest, capacity) : 1.2 * highest);
    const column = (right - left) / moments.length;
    const y = (size) => bottom - ((bottom - top) * size) / most;
    const middle = (index) => left + (index + 0.5) * column;
    toMoment = (across) => Math.min(moments.length - 1, Math.max(0, Math.floor((across - left) / column)));
    const edge = (sizes) => sizes.flatMap((size, index) => [-LEVEL, LEVEL].map((side) =>
      `${(middle(index) + side * column).toFixed(1)},${y(size).toFixed(1)}`));
    const text = (across, down, content, anchor = "middle", kind = "") => {
      const made = svg("text", { x: across.toFixed(1), y: down.toFixed(1), "text-anchor": anchor, class: kind });
      made.textContent = content;
      return made;
    };
    const level = (size, kind) => svg("path", { class: kind, d: `M${left},${y(size).toFixed(1)}H${right}` });

    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "gg-step", role: "img",
      "aria-label": `Memory over one step on ${gpu.name}, which has ${binary(capacity)}: `
        + `${moments.map(({ name, total }) => `${name} ${binary(total)}`).join("; ")}.` });
    const hatch = svg("pattern", { id: "gg-step-hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)" }, svg("path", { class: "gg-step-hatch gg-step-under", d: "M2.5,0V7" }),
      svg("path", { class: "gg-step-hatch", d: "M2.5,0V7" }));
    const beyond = svg("clipPath", { id: "gg-step-beyond" }, svg("rect", { x: left, y: 0, width: right - left,
      height: Math.max(0, y(capacity)).toFixed(1) }));
    picture.append(svg("defs", {}, hatch, beyond));
    const step = tickStep(most);
    for (let size = 0; size <= most; size += step) {
      picture.append(level(size, "gg-grid"), text(left - 8, y(size) + 4, tick(size), "end"));
    }
    picture.append(svg("rect", { class: "gg-step-band", x: (left + at * column).toFixed(1), y: top - 8,
      width: column.toFixed(1), height: bottom - top + 8 }));
    for (const { part, spans } of parts) {
      const points = [...edge(spans.map(([, high]) => high)), ...edge(spans.map(([low]) => low)).reverse()];
      picture.append(svg("polygon", { style: `fill:var(--gg-part-${part})`, points: points.join(" ") }));
    }
    if (totals[peak] > capacity) {
      const points = [...edge(totals), ...edge(totals.map(() => 0)).reverse()].join(" ");
      picture.append(svg("polygon", { fill: "url(#gg-step-hatch)", "clip-path": "url(#gg-step-beyond)", points }));
    }
    if (before) {
      picture.append(...["gg-step-ghost gg-step-under", "gg-step-ghost"].map((kind) => svg("polyline", { class: kind,
        points: edge(before.map(({ total }) => total)).join(" ") })));
    }
    const start = peak < moments.length / 2;  // then there is room for words to its right
    const name = small ? binary(capacity) : `${gpu.name}: ${binary(capacity)}`;
    if (near) picture.append(level(capacity, "gg-step-capacity"));
    picture.append(text(start ? right : left + 4, near ? y(capacity) - 7 : top - 14, near ? name : `↑ ${name}`,
      start ? "end" : "start"));
    const [x, crest] = [middle(peak), y(totals[peak])];
    picture.append(svg("circle", { class: "gg-step-ring gg-step-under", cx: x.toFixed(1), cy: crest.toFixed(1), r: 7 }),
      svg("circle", { class: "gg-step-ring", cx: x.toFixed(1), cy: crest.toFixed(1), r: 7 }),
      text(x + (start ? 12 : -12), crest - 11, `peak: ${binary(totals[peak])}`, start ? "start" : "end",
        "gg-step-peak"));
    const line = svg("path", { class: "gg-step-cursor", d: `M${middle(at).toFixed(1)},${top - 8}V${bottom}` });
    if (at !== peak) picture.append(line);
    picture.append(...names(moments, at, middle, bottom, small, text), ...phases(moments, left, column, height, text));
    holder.replaceChildren(picture);
    control.style.marginLeft = `${left + column / 2 - 10}px`;
    control.style.width = `${(moments.length - 1) * column + 20}px`;
    slider.max = moments.length - 1;
    slider.value = at;
    slider.setAttribute("aria-valuetext", `${moments[at].name}, ${binary(totals[at])}`);
    answer.textContent = gpuguide.stepSentence(moments, at, peak, capacity, words);
    legend.replaceChildren(...parts.toReversed().map(({ part, spans }) => {
      const size = spans[at][1] - spans[at][0];
      return element("li", { class: size ? "" : "gg-step-none" }, element("span", { class: `gg-swatch gg-part-${part}` }),
        words.parts[part], " ", element("span", { class: "gg-step-size" }, binary(moments[at].parts[part])));
    }));
    caption.replaceChildren(element("strong", {}, "Memory over one step."), ` ${said(totals[peak])}`);
  }

  // What a tick says: whole numbers where they are.
  const tick = (size) => binary(size).replace(/\.0+(?= )/, "");

  // What happens at each moment, below it; on a phone by turns in two rows.
  const names = (moments, at, middle, bottom, small, text) => moments.map(({ name }, index) =>
    text(middle(index), bottom + 19 + (small && index % 2 ? 16 : 0), phase(name)[0], "middle",
      index === at ? "gg-step-peak" : ""));

  // Moments of one pass, one beside the other, under one line.
  function phases(moments, left, column, height, text) {
    const runs = [];
    moments.forEach(({ name }, index) => {
      const pass = phase(name)[1];
      if (!pass) return;
      if (runs.at(-1)?.pass === pass && runs.at(-1).to === index - 1) runs.at(-1).to = index;
      else runs.push({ pass, from: index, to: index });
    });
    return runs.flatMap(({ pass, from, to }) => [
      svg("path", { class: "gg-step-phase", d: `M${left + from * column + 3},${height - 20}H${left + (to + 1) * column - 3}` }),
      text(left + ((from + to + 1) / 2) * column, height - 6, pass, "middle", "gg-step-pass")]);
  }

  function said(now) {
    const between = "Between the moments the drawing only joins them.";
    const beyond = now > shown.gpu.memory ? "Hatched: what is above the capacity. " : "";
    if (!before) return `${beyond}${between}`;
    const was = Math.max(...before.map(({ total }) => total));
    const change = now < was ? `${binary(was - now)} less` : now > was ? `${binary(now - was)} more` : "as much";
    return `${beyond}Dashed: the setting before, ${binary(was)} at its peak; now it is ${change}. ${between}`;
  }

  function choose(index) {
    if (index === chosen) return;
    chosen = index;
    draw();
  }
  const pointed = (event) => choose(toMoment(event.clientX - holder.getBoundingClientRect().left));
  slider.addEventListener("input", () => choose(Number(slider.value)));
  holder.addEventListener("pointerdown", pointed);
  holder.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" || event.buttons) pointed(event);
  });
  window.addEventListener("resize", () => shown && draw());
  return { figure, show };
};
