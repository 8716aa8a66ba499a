// Formulas and fields as data: gpuguide.costs.formulas and gpuguide.costs.fields, which also made the trees.
"use strict";
window.gpuguide ??= {};
gpuguide.formulas = (() => {
  const OPERATIONS = {
    "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b,
    "//": (a, b) => Math.floor(a / b), "%": (a, b) => a % b, "**": (a, b) => a ** b,
    "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
    "==": (a, b) => a === b, "!=": (a, b) => a !== b, not: (a) => !a, negative: (a) => -a,
    min: Math.min, max: Math.max, ceil: Math.ceil, at: (table, key) => table[key],
    in: (value, ...options) => options.includes(value),
  };

  // The value of a tree, and of a name; each formula is computed once, when it is asked for.
  function values({ trees, constants }, given) {
    const known = new Map(Object.entries({ ...constants, ...given }));
    function named(name) {
      if (!known.has(name)) {
        if (!(name in trees)) throw new Error(`There is no formula named ${name}.`);
        known.set(name, of(trees[name]));
      }
      return known.get(name);
    }
    function of(tree) {
      if (typeof tree === "string") return named(tree);
      if (!Array.isArray(tree)) return tree;
      const [sign, ...parts] = tree;
      if (sign === "text") return parts[0];
      if (sign === "if") return of(of(parts[0]) ? parts[1] : parts[2]);
      if (sign === "and") return parts.every(of);
      if (sign === "or") return parts.some(of);
      return OPERATIONS[sign](...parts.map(of));
    }
    return { of, named, filled: (text) => text.replaceAll(/\{(\w+)\}/g, (_, name) => named(name)) };
  }

  const options = (field, given) => (field.by ? field.choices[given[field.by]] : field.choices) ?? [];

  function fault(field, given) {
    const value = given[field.name];
    if (field.whole) {
      const [low, high] = field.whole;
      if (!Number.isInteger(value) || value < low || value > high) {
        return `it must be a whole number from ${low} to ${high}.`;
      }
    }
    const known = options(field, given);
    return known.length && !known.includes(value) ? `choose one of ${known.join(", ")}.` : "";
  }
  // A sentence for each field that makes no sense. A rule is asked only where its fields make sense by themselves.
  function faults(fields, rules, given, formulas) {
    const found = {};
    for (const field of fields) {
      const wrong = field.by in found ? "" : fault(field, given);
      if (wrong) found[field.name] = `${field.name} is ${given[field.name]}; ${wrong}`;
    }
    for (const rule of rules) {
      if ([rule.field, ...rule.names].some((name) => name in found)) continue;
      const known = values(formulas, given);
      if (!known.of(rule.holds)) found[rule.field] = `${rule.field} is ${known.filled(rule.says)}`;
    }
    return found;
  }

  return { values, options, faults };
})();
