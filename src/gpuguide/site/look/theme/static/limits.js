// The shortest time of an operation on a GPU: gpuguide.costs.limits, line by line. The tests compare the two.
"use strict";
window.gpuguide ??= {};
gpuguide.costs ??= {};
gpuguide.costs.limits = (known, local) => {
  const element = known.element_size;
  const stored = known.stored;

  function sizes(faults, values) {
    for (const [name, value] of Object.entries(values)) {
      if (!Number.isInteger(value) || value < 1 || value > known.largest) {
        faults[name] = `${name} is ${value}; it must be a whole number from 1 to ${known.largest}.`;
      }
    }
  }
  function choice(faults, name, value, choices) {
    if (!choices.includes(value)) faults[name] = `${name} is ${value}; choose one of ${choices.join(", ")}.`;
  }

  // Each operation: what is wrong with its input, and what it costs.
  const operations = {
    matmul: {
      faults({ rows, inner, columns, format }) {
        const faults = {};
        sizes(faults, { rows, inner, columns });
        choice(faults, "format", format, known.formats);
        return faults;
      },
      cost({ rows, inner, columns, format }) {
        const moved = (rows * inner + inner * columns + rows * columns) * element[format];
        return { flops: 2 * rows * inner * columns, moved, through: "memory", format };
      },
    },
    attention: {
      faults({ batch, heads, kv_heads, head_dim, seq_len, format }) {
        const faults = {};
        sizes(faults, { batch, heads, kv_heads, head_dim, seq_len });
        choice(faults, "format", format, known.formats);
        if (!("heads" in faults) && !("kv_heads" in faults) && heads % kv_heads) {
          faults.kv_heads = `kv_heads is ${kv_heads}; it must divide the ${heads} heads.`;
        }
        return faults;
      },
      cost({ batch, heads, kv_heads, head_dim, seq_len, causal, format }) {
        const pairs = causal ? (seq_len * (seq_len + 1)) / 2 : seq_len ** 2;
        const moved = batch * seq_len * head_dim * (2 * heads + 2 * kv_heads) * element[format];
        return { flops: 4 * batch * heads * head_dim * pairs, moved, through: "memory", format };
      },
    },
    decode: {
      faults({ shape, batch, context, weights, cache }) {
        const faults = {};
        sizes(faults, { batch, context });
        choice(faults, "weights", weights, known.weights);
        choice(faults, "cache", cache, known.caches);
        if (!("context" in faults) && context > shape.context) {
          faults.context = `context is ${context}; the model knows ${shape.context} positions.`;
        }
        return faults;
      },
      cost({ shape, batch, context, weights, cache }) {
        const whole = local(shape, 1);
        const matrices = shape.layers * whole.matrices;
        const rest = stored[weights === "fp32" ? "fp32" : "bf16"];
        const others = shape.layers * (whole.layer - whole.matrices) + whole.norm;
        const read = matrices * stored[weights] + (others + whole.head + batch * shape.hidden) * rest;
        const keys = shape.kv_heads * shape.head_dim;
        const queries = shape.heads * shape.head_dim;
        const cached = 2 * shape.layers * keys * batch * (context + 1) * stored[cache];
        const flops = 2 * batch * (matrices + whole.head) + 4 * shape.layers * batch * queries * (context + 1);
        return { flops, moved: read + cached, through: "memory", format: weights === "fp32" ? "fp32" : "bf16" };
      },
    },
    all_reduce: {
      faults({ size, gpus, format }) {
        const faults = {};
        sizes(faults, { size, gpus });
        choice(faults, "format", format, known.formats);
        if (gpus === 1) faults.gpus = `gpus is ${gpus}; an all-reduce needs at least 2.`;
        return faults;
      },
      cost({ size, gpus, format }) {
        const share = (gpus - 1) / gpus;
        return { flops: (share * size) / element[format], moved: 2 * share * size, through: "link", format };
      },
    },
    scan: {
      faults({ rows, columns, element_size, place }) {
        const faults = {};
        sizes(faults, { rows, columns, element_size });
        choice(faults, "place", place, known.places);
        if (!("element_size" in faults) && element_size > 16) {
          faults.element_size = `element_size is ${element_size}; a value has from 1 to 16 bytes.`;
        }
        return faults;
      },
      cost({ rows, columns, element_size, place }) {
        const values = rows * columns;
        return { flops: values, moved: values * element_size, through: place, format: "fp32" };
      },
    },
  };

  // Why a GPU cannot do it, or null.
  function lacking(operation, machine) {
    if (!(operation.through in machine.bandwidth)) {
      return `The bandwidth of the ${operation.through} of ${machine.name} is not known.`;
    }
    if (!(operation.format in machine.arithmetic)) {
      const has = Object.keys(machine.arithmetic).join(", ");
      return `${machine.name} has no rate for ${operation.format}; choose one of ${has}.`;
    }
    return null;
  }

  function limit(operation, machine) {
    const rate = machine.arithmetic[operation.format];
    const bandwidth = machine.bandwidth[operation.through];
    const arithmeticTime = operation.flops / rate.value;
    const movingTime = operation.moved / bandwidth.value;
    const launchTime = machine.launch ? machine.launch.value : 0;
    const longest = Math.max(arithmeticTime, movingTime);
    const time = launchTime + longest;
    const slower = arithmeticTime >= movingTime ? "arithmetic" : operation.through;
    return { operation, rate, bandwidth, arithmeticTime, movingTime, launchTime, time,
      bound: launchTime > longest ? "launch" : slower,
      intensity: operation.flops / operation.moved,
      ridge: rate.value / bandwidth.value,
      throughput: operation.flops / time };
  }

  return { operations, lacking, limit };
};
