// How often to save, from the formulas of gpuguide.costs.failures. The tests compare the two.
"use strict";
window.gpuguide ??= {};
gpuguide.costs ??= {};
gpuguide.costs.failures = (model) => {
  const { values, faults: wrong } = gpuguide.formulas;

  const faults = (input) => wrong(model.fields, model.rules, input, model.formulas);
  // The plan with the best interval, or with another one: `tau`, in seconds.
  function plan(input, tau) {
    const { named } = values(model.formulas, tau === undefined ? input : { ...input, tau });
    const { M: mean_time_between_failures, tau: interval, ...rest } = Object.fromEntries(
      ["M", "write", "tau", "kept", "saves", "repeated", "lost"].map((name) => [name, named(name)]));
    return { mean_time_between_failures, interval, ...rest };
  }

  return { faults, plan };
};
