// A roofline to point at: what bounds a kernel of this arithmetic intensity, and what it can reach.
"use strict";
(() => {
  function start(place) {
    const { element, svg, scaled, significant } = gpuguide.calculator;
    const known = JSON.parse(place.querySelector("script").textContent);
    const figure = place.closest("figure");
    const [least, most] = known.range;
    const top = 3 * Math.max(...known.roofs.map(({ rate }) => rate));
    const bottom = known.bandwidth * least * 0.7;
    let chosen = known.first;
    let intensity = known.points.at(-1)?.intensity ?? 1;

    const choice = element("select", { id: `${figure.id}-format` }, ...known.roofs.map(({ name }) =>
      element("option", { value: name, selected: name === chosen }, name)));
    const slider = element("input", { type: "range", id: `${figure.id}-intensity`, min: Math.log10(least),
      max: Math.log10(most), step: 0.02 });
    const form = element("form", { class: "gg-knobs", autocomplete: "off" },
      element("div", { class: "gg-knob" }, element("label", { for: choice.id }, "Number format"), choice),
      element("div", { class: "gg-knob gg-knob-wide" },
        element("label", { for: slider.id }, "Operations for each byte"), slider));
    const answer = element("p", { class: "gg-try-answer", role: "status" });
    const holder = element("div", { class: "gg-roofline-place" });
    place.append(form, answer, holder);
    figure.classList.add("gg-tried");

    const rateOf = (name) => known.roofs.find((roof) => roof.name === name).rate;
    let toIntensity = () => intensity;

    function draw() {
      const [width, height] = place.clientWidth < 520 ? [340, 320] : [640, 380];  // text keeps its size on a phone
      const [left, low, high, right] = [92, height - 44, 14, width - 48];
      const log = Math.log10;
      const x = (value) => left + (log(value / least) / log(most / least)) * (right - left);
      const y = (value) => low - (log(value / bottom) / log(top / bottom)) * (low - high);
      toIntensity = (share) => least * (most / least) ** Math.min(1, Math.max(0, (share * width - left)
        / (right - left)));
      const text = (across, down, words, anchor = "middle") => {
        const made = svg("text", { x: across.toFixed(1), y: down.toFixed(1), "text-anchor": anchor });
        made.textContent = words;
        return made;
      };
      const line = (points, kind) => svg("polyline", { class: kind,
        points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") });
      // Beside what drops from a point, and away from the names of roofs.
      const name = (across, down, words) => (across > (left + right) / 2 ? text(across - 5, down, words, "end")
        : text(across + 7, down, words, "start"));
      const rate = rateOf(chosen);
      const bend = rate / known.bandwidth;
      const reached = Math.min(rate, intensity * known.bandwidth);
      const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "gg-roofline", role: "img" });
      picture.setAttribute("aria-label", `Roofline of ${known.device} in ${chosen}, which bends at ${significant(bend)} `
        + "operations per byte.");
      const every = width < 520 ? 2 : 1;
      for (let power = Math.ceil(log(least)); power <= log(most); power += every) {
        picture.append(line([[10 ** power, bottom], [10 ** power, top]], "gg-grid"),
          text(x(10 ** power), low + 18, String(10 ** power)));
      }
      for (let power = Math.ceil(log(bottom)); power <= log(top); power += 1) {
        picture.append(line([[least, 10 ** power], [most, 10 ** power]], "gg-grid"),
          text(left - 8, y(10 ** power) + 4, scaled(10 ** power, "FLOP/s").replace(".00", "").replace(".0", ""), "end"));
      }
      let lowest = 0;  // names of roofs that lie close keep apart
      for (const roof of [...known.roofs].sort((one, other) => other.rate - one.rate)) {
        const ridge = roof.rate / known.bandwidth;
        const kind = roof.name === chosen ? "gg-roof" : "gg-roof gg-roof-other";
        lowest = Math.max(y(roof.rate) + 4, lowest + 15);
        picture.append(line([[least, least * known.bandwidth], [ridge, roof.rate], [most, roof.rate]], kind),
          text(right + 6, lowest, roof.name, "start"));
      }
      for (const point of known.points.filter(({ format }) => format === chosen)) {
        picture.append(svg("circle", { class: "gg-measured-point", cx: x(point.intensity).toFixed(1),
          cy: y(point.rate).toFixed(1), r: 5 }),
        name(x(point.intensity), y(point.rate) + 16, point.name));
      }
      picture.append(line([[intensity, bottom], [intensity, reached]], "gg-drop"),
        line([[least, reached], [intensity, reached]], "gg-drop"),
        svg("circle", { class: "gg-point", cx: x(intensity).toFixed(1), cy: y(reached).toFixed(1), r: 6 }),
        text((left + right) / 2, height - 6, "operations for each byte, FLOP/B"));
      holder.replaceChildren(picture);
      slider.value = log(intensity);
      slider.setAttribute("aria-valuetext", `${significant(intensity)} operations per byte`);
      const bound = intensity < bend ? "memory bandwidth is the limit" : "arithmetic is the limit";
      answer.textContent = `At ${significant(intensity)} FLOP/B in ${chosen}, at most ${scaled(reached, "FLOP/s")}: `
        + `${bound}, ${(100 * Math.min(1, intensity / bend)).toFixed(0)}% of the arithmetic can be used. `
        + `The roof bends at ${significant(bend)} FLOP/B.`;
    }
    function pointed(event) {
      const box = holder.getBoundingClientRect();
      intensity = toIntensity((event.clientX - box.left) / holder.firstElementChild.getBoundingClientRect().width);
      draw();
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      chosen = choice.value;
      intensity = 10 ** Number(slider.value);
      draw();
    });
    holder.addEventListener("pointerdown", pointed);
    holder.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse" || event.buttons) pointed(event);
    });
    window.addEventListener("resize", draw);
    draw();
  }
  document.querySelectorAll('.gg-try[data-kind="roofline"]').forEach(start);
})();
