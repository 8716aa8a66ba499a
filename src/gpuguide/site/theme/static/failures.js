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
    return { mean_time_between_failures: named("M"), write: named("write"), interval: named("tau"), kept: named("kept"),
      saves: named("saves"), repeated: named("repeated"), lost: named("lost") };
  }

  return { faults, plan };
};
