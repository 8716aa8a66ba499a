// The calculator of saves: reads the form, asks failures.js, and shows what other intervals lose.
"use strict";
(() => {
  const place = document.getElementById("gg-how-often-to-save");
  if (!place) return;
  const { element, scaled, significant, percent, Form, formField, fromAddress, toAddress, table, refuse, code, python,
    data } = gpuguide.calculator;
  const known = data("gg-how-often-to-save-data");
  const failures = gpuguide.costs.failures(known.failures);
  const first = known.first;

  const fieldsOf = (names) => names.map((name) => formField(known.failures.fields.find((field) => field.name === name)));
  const form = new Form(place, [
    { title: "What fails", fields: fieldsOf(["gpus", "failures", "restart"]) },
    { title: "What is saved", fields: fieldsOf(["state", "rate", "saving", "stall"]) },
  ], () => show([]));
  const verdict = element("p", { class: "gg-verdict-line", role: "status" });
  const said = element("div", {});
  const answer = element("div", { class: "gg-answer" });
  place.append(verdict, said, answer);

  // Seconds, as people count them.
  function duration(seconds) {
    const [unit, size] = [["days", 86400], ["h", 3600], ["min", 60]].find(([, least]) => seconds >= 2 * least) ?? ["", 1];
    return unit ? `${significant(seconds / size)} ${unit}` : scaled(seconds, "s");
  }

  function show(remarks) {
    const state = form.read();
    form.show({ stall: state.saving === "asynchronous" });
    const wrong = form.judge(failures.faults(state));
    toAddress(state, first);
    if (refuse({ verdict, said, answer }, remarks, wrong)) return;
    const plan = failures.plan(state);
    verdict.replaceChildren("Save every ", element("strong", {}, duration(plan.interval)),
      `. Then ${percent(plan.lost)} of the time is lost.`);
    answer.replaceChildren(shares(plan), intervals(state, plan), ways(state), counts(plan), call(state));
  }

  // --- the tables ------------------------------------------------------------------------------------------

  const shares = (plan) => table("Where the time goes", ["part", "share of the time"], [
    ["work that counts", percent(plan.kept)],
    ["waiting for saves", percent(plan.saves)],
    ["restarts, and work that a failure undoes", percent(plan.repeated)]]);

  // Shorter and longer intervals, with what each loses as a bar: one scale for all, from zero.
  function intervals(state, best) {
    const plans = known.multiples.map((multiple) => failures.plan(state, multiple * best.interval))
      .filter((plan) => state.saving === "blocking" || plan.interval >= plan.write);
    const most = Math.max(...plans.map((plan) => plan.lost));
    const rows = plans.map((plan) => {
      const chosen = plan.interval === best.interval;
      const every = `every ${duration(plan.interval)}`;
      const bar = element("span", { class: `gg-rate${chosen ? " gg-chosen" : ""}`, "aria-hidden": "true" });
      bar.style.width = `${(100 * plan.lost) / most}%`;
      return [[chosen ? element("strong", {}, every) : every, bar], percent(plan.lost)];
    });
    const made = table("Other intervals", ["save", "lost"], rows);
    made.querySelector("table").classList.add("gg-links");
    return made;
  }
  function ways(state) {
    const rows = Object.entries(known.ways).map(([saving, words]) => {
      const plan = failures.plan({ ...state, saving });
      return [words, duration(plan.interval), percent(plan.lost)];
    });
    return table("If training waits", ["training waits", "save every", "lost"], rows);
  }
  const counts = (plan) => table("Counted on the way", ["quantity", "value"], [
    ["mean time between two failures of the job", duration(plan.mean_time_between_failures)],
    ["time to write a checkpoint", duration(plan.write)],
    ["failures per day", significant(86400 / plan.mean_time_between_failures)],
    ["saves per day", significant(86400 / plan.interval)]]);
  function call(state) {
    const words = Object.entries(state).map(([name, value]) => `${name}=${python(value)}`).join(", ");
    const text = `from gpuguide.costs import failures\n\nfailures.plan_saves(${words}).interval`;
    return element("details", { class: "gg-fold" }, element("summary", {}, "The same in Python"), code(text));
  }

  const { state, notices: remarks } = fromAddress(form, first);
  form.write(state);
  show(remarks);
})();
