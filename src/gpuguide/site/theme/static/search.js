// What is found for a query, for the search box and the search page. MiniSearch finds the entries that have the words
// and weighs how rare a word is and where it stands; what is asked here is which words to look for (synonyms, endings),
// and which kind of thing a person most likely means. What it knows of words stands in search_words.toml and comes with
// the entries. Both files that it needs are loaded at the first query.
const siteSearch = {
  root: document.documentElement.dataset.content_root ?? "",
  ready: null,

  // Resolves when queries can be answered.
  load() {
    this.ready ??= Promise.all(["minisearch/minisearch.js", "search-entries.js"].map((name) => this.script(name)))
      .then(() => this.index());
    return this.ready;
  },

  script(name) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      Object.assign(script, { src: `${this.root}_static/${name}`, onload: resolve, onerror: reject });
      document.head.append(script);
    });
  },

  // Called by search-entries.js.
  receive({ kinds, same, forms, last, elsewhere }, rows) {
    const all = rows.flatMap((row) => (kinds[row[0]] === "Library" ? libraryRows(row) : [row]));
    this.entries = all.map(([kind, name, address, detail = "", also = "", text = "", listed = ""], id) => (
      { id, kind: kinds[kind], name, address: address.endsWith("#") ? address + anchorOf(name) : address, detail, also, text, listed }));
    this.same = same.map((group) => group.map(stems));
    this.forms = Object.entries(forms).map(([form, meant]) => [new RegExp(`^(?:${form})$`), [joined(meant)]]);
    this.last = { pages: last.pages.map((page) => `${page}.html`), sections: new Set(last.sections) };
    this.elsewhere = Object.entries(elsewhere).map(([maker, names]) => [maker, names.map(stems).sort((one, other) => other.length - one.length)]);
  },

  async index() {
    this.mini = new MiniSearch({
      fields: ["name", "also", "detail", "text", "listed"],
      extractField: (entry, field) => field === "also" ? `${entry.also} ${entry.kind} ${asOneWord(entry.name)}` : entry[field],
      tokenize: words,
      processTerm: stem,
    });
    for (const entry of this.entries) {
      const calls = [entry.name, ...entry.also.split(" | ")];
      entry.calls = calls.map(joined);
      entry.asks = entry.kind === "Library" ? [] : calls.map((call) => new Set(stems(call)));
      entry.last = this.standsLast(entry);
    }
    await this.mini.addAllAsync(this.entries, { chunkSize: 300 }); // in pieces, so that typing goes on
  },

  // --- finding ---

  // The entries for a query, best first, each with the words in its text that were asked for.
  find(query) {
    return this.answer(query).found;
  },

  // The same, with the makers of GPUs that the query names and that are not here, and whether all its words were found.
  answer(query) {
    const { asked, makers } = this.withoutElsewhere(this.asked(query));
    if (!asked.length) return { found: [], makers, whole: makers.length > 0 };
    const code = /\w[_.]\w/.test(query);
    const parts = this.parts(asked);
    const said = new Set(parts.flatMap(everyWord)), kinds = namedKinds(said);
    const boostDocument = (id) => {
      const { kind, last, asks } = this.entries[id];
      const weight = (code && kind === "Library" ? 1 : KINDS[kind]) * (kinds.has(kind) ? 3 : 1);
      return last && !asked.every((word) => asks.some((ask) => ask.has(word))) ? weight * LAST : weight;
    };
    const options = { ...OPTIONS, boostDocument };
    if (asked.join("").length === 1) Object.assign(options, { fields: ["name"], prefix: true }); // somebody begins to type
    const all = this.mini.search({ combineWith: "AND", queries: parts }, options);
    const some = all.length < 5 && parts.length > 1 ? this.mini.search({ combineWith: "OR", queries: parts }, options) : [];
    const whole = joined(query), core = asked.join("");
    const found = new Map();
    for (const result of [...all, ...some]) {
      if (found.has(result.id) || found.size >= all.length + MOST_OF_SOME) continue;
      const entry = this.entries[result.id];
      const named = nameBonus(entry, whole, core, code || !/\s/.test(query.trim()));
      const bonus = named * questionBonus(entry, asked);
      const had = found.size < all.length ? 1 : shareOf(parts, result);
      if (had < 0.5) continue; // what has one word of three answers nothing
      found.set(result.id, { entry, score: result.score * bonus * (had < 1 ? 0.5 * had ** 2 : 1), match: meant(result.match, said) });
    }
    const ranked = [...found.values()].sort((one, other) => other.score - one.score);
    return { found: this.spread(ranked), makers, whole: all.length > 0 };
  },

  // The words without the names of other makers' GPUs, and those makers.
  withoutElsewhere(asked) {
    const makers = [], left = [...asked];
    for (const [maker, names] of this.elsewhere) {
      for (const name of names) {
        const at = left.findIndex((_, index) => name.every((word, next) => left[index + next] === word));
        if (at < 0) continue;
        left.splice(at, name.length);
        if (!makers.includes(maker)) makers.push(maker);
      }
    }
    const others = makers.length ? left.filter((word) => !["gpu", "vs"].includes(word)) : left;
    return { asked: others, makers };
  },

  // Words that are spelt nearly like those that stand nowhere here, for who found nothing.
  near(query) {
    this.spelt ??= spellings(this.entries);
    const unknown = words(query.slice(0, 300)).filter((word) => /^\p{L}{4,24}$/u.test(word) && !this.spelt.has(word));
    const nearest = unknown.slice(0, 4).map((word) => nearestOf(word, this.spelt));
    return [...new Set(nearest.flat())].slice(0, 4);
  },

  standsLast({ kind, name, address }) {
    const page = address.split("#")[0];
    if (kind === "Figure") return false;
    return this.last.pages.some((each) => page === each) || (kind === "Section" && this.last.sections.has(name));
  },

  // The words of a query that say something; all of them where none does. What nobody types by hand is cut short.
  asked(query) {
    const all = words(query.slice(0, 300)).filter((word) => word.length <= 40).slice(0, 16);
    const telling = all.filter((word) => !FILLERS.has(word));
    return [...new Set((telling.length ? telling : all).map(stem))];
  },

  // The query as MiniSearch takes it: one part for each word, or for several that have synonyms together.
  parts(asked) {
    const parts = [];
    for (let at = 0; at < asked.length;) {
      let longest = 1, others = [];
      for (const group of this.same) {
        for (const phrase of group) {
          if (phrase.length < longest || !phrase.every((word, index) => asked[at + index] === word)) continue;
          if (phrase.length > longest) others = [];
          longest = phrase.length;
          others.push(...group.filter((other) => other !== phrase && !other.includes("s"))); // "tok/s" is asked for only
        }
      }
      if (longest === 1) others.push(...this.forms.filter(([form]) => form.test(asked[at])).map(([, meant]) => meant));
      const here = this.phrase(asked.slice(at, at + longest));
      const same = others.map((other) => ({ ...this.phrase(other), prefix: false, fuzzy: false, boost: SYNONYM }));
      parts.push(same.length ? { combineWith: "OR", queries: [here, ...same] } : here);
      at += longest;
    }
    return parts;
  },

  phrase(stemmed) {
    return { combineWith: "AND", queries: stemmed };
  },

  // No page has more than three of the first ten, so that one long page does not hide the others, and no address two.
  spread(ranked) {
    const seen = new Map(), addresses = new Set(), first = [], later = [];
    for (const result of ranked) {
      if (addresses.has(result.entry.address)) continue;
      addresses.add(result.entry.address);
      const page = result.entry.address.split("#")[0];
      seen.set(page, (seen.get(page) ?? 0) + 1);
      (seen.get(page) <= 3 || first.length >= 10 ? first : later).push(result);
    }
    return [...first.slice(0, 10), ...later, ...first.slice(10)];
  },

  // --- showing, and leading there ---

  // What stands around the first words that were asked for: pieces of text, of which every second was asked for.
  excerpt({ entry, match }) {
    const stemmed = Object.keys(match).filter((word) => match[word].includes("text"));
    if (entry.kind === "Glossary") return [entry.detail];
    const pieces = [...entry.text.matchAll(WORD)].filter(([word]) => stemmed.includes(stem(words(word)[0] ?? "")));
    if (!pieces.length) return [(AS_IT_BEGINS.has(entry.kind) && beginning(entry.text)) || entry.detail].filter(Boolean);
    const from = pieces[0].index < 60 ? 0 : entry.text.lastIndexOf(" ", pieces[0].index - 40) + 1;
    const shown = [from ? "… " : ""];
    let at = from;
    for (const { 0: word, index } of pieces.filter(({ index }) => index >= from && index < from + 170)) {
      shown[shown.length - 1] += entry.text.slice(at, index);
      shown.push(word, "");
      at = index + word.length;
    }
    const end = entry.text.lastIndexOf(" ", Math.max(from + 190, at + 20));
    shown[shown.length - 1] += entry.text.slice(at, Math.max(end, at)) + (end + 1 < entry.text.length ? " …" : "");
    return shown;
  },

  // What is said of an answer, also to a screen reader: text and links.
  report({ found, makers, whole }, query) {
    const said = [];
    if (makers.length) {
      said.push(`gpuguide has NVIDIA GPUs only, nothing measured on those of ${makers.join(" or ")}: see `);
      said.push(element("a", { href: `${this.root}docs/hardware.html` }, "Hardware"), ". ");
    }
    if (found.length) said.push(found.length === 1 ? "1 result" : `${found.length} results`, whole ? "" : ", none with all of these words");
    if (whole && (found.length || makers.length)) return said;
    const shown = [...query].length > 60 ? `${[...query].slice(0, 60).join("")} …` : query;
    const near = this.near(query).flatMap((word, index) => [index ? " or " : "", this.nearLink(word)]);
    if (!found.length) said.push(`Nothing here for “${shown}”. `);
    if (near.length) said.push(found.length ? ". " : "", "Near words that stand here: ", ...near, ".");
    else if (!found.length) said.push("Fewer or more common English words may find it.");
    return said;
  },

  nearLink(word) {
    return element("a", { href: `${this.root}search.html?q=${encodeURIComponent(word)}`, "data-query": word }, word);
  },

  // A result's two lines, in an element that is a link.
  fill(link, result) {
    const { entry } = result;
    const name = element("span", { class: "search-name" }, entry.name);
    const line = element("span", { class: "search-detail" });
    this.excerpt(result).forEach((piece, index) => line.append(index % 2 ? element("mark", {}, piece) : piece));
    const inside = ["Section", "Checklist", "Answer", "Figure"].includes(entry.kind) ? ` in ${entry.detail}` : "";
    link.append(name, " ", element("span", { class: "search-kind" }, entry.kind + (line.textContent === entry.detail ? "" : inside)));
    if (line.textContent) link.append(" ", line);
    return link;
  },

  // The address of a result. Words that stand in its text and not in its name are marked there (find-on-page.js).
  href({ entry, match }) {
    const inText = Object.keys(match).filter((word) => match[word].some((field) => field === "text" || field === "listed"));
    const inName = Object.values(match).some((fields) => fields.includes("name") || fields.includes("also"));
    if (inName || !inText.length) return this.root + entry.address;
    const [page, anchor] = entry.address.split("#");
    return `${this.root}${page}?find=${encodeURIComponent(inText.join(" "))}${anchor ? `#${anchor}` : ""}`;
  },
};

const OPTIONS = {
  boost: { name: 5, also: 4, detail: 1.5, text: 1, listed: 0.4 },
  prefix: (term) => term.length >= 2,
  fuzzy: (term) => term.length >= 5 && !/\d/.test(term) ? 0.2 : false,
  weights: { prefix: 0.5, fuzzy: 0.25 },
  processTerm: (term) => term, // they are stemmed already
  tokenize: (term) => [term],
};
const SYNONYM = { name: 3, also: 3, detail: 0.8, text: 0.5, listed: 0.2 };
const MOST_OF_SOME = 20; // entries with only some of the words
const LAST = 0.05; // of what stands last, unless its name is asked for

// What somebody most likely means comes first where names and texts fit equally well.
const KINDS = {
  Tutorial: 1.6, Calculator: 1.7, Page: 1.2, Section: 1, Checklist: 1.3, Answer: 0.7, Figure: 0.7, Glossary: 1.3, GPU: 1.5, Measurement: 0.55, Claim: 0.5, Library: 0.15,
};

// The kinds of things that a query names, synonyms included: a plot is a figure. "GPU" is not said to see the table.
function namedKinds(said) {
  return new Set(Object.keys(KINDS).filter((kind) => kind !== "GPU" && said.has(stem(kind.toLowerCase()))));
}

function everyWord(part) {
  return typeof part === "string" ? [part] : part.queries.flatMap(everyWord);
}

// Of the words that an entry has, those that are worth showing: not what is merely spelt like a word of the query.
function meant(match, said) {
  const close = (word) => said.has(word) || [...said].some((each) => each.length >= 4 && word.startsWith(each));
  return Object.fromEntries(Object.entries(match).filter(([word]) => close(word)));
}

// What is called as the query says counts most, then what begins with it. Who writes a space does not mean a name in
// code.
function nameBonus(entry, whole, core, mayBeCode) {
  if (entry.kind === "Library" && !mayBeCode) return 0.4;
  if (whole.length === 1) return entry.calls[0].startsWith(whole) ? 10 : 1;
  if (entry.calls[0] === whole) return 4;
  if (entry.calls.includes(whole)) return 3.5;
  if (core.length >= 3 && entry.calls.some((call) => stem(call) === core)) return 2.5;
  return whole.length >= 3 && entry.calls[0].startsWith(whole) ? 1.6 : 1;
}

// Who asks a page's own question, in whatever order, means that page; the fewer words it has besides, the surer.
function questionBonus({ kind, asks }, asked) {
  if (asked.length < 2 || !QUESTIONED.has(kind)) return 1;
  const rest = asks.filter((ask) => asked.every((word) => ask.has(word))).map((ask) => ask.size - asked.length);
  return rest.length ? 1 + 2 / (1 + Math.min(...rest)) : 1;
}

const QUESTIONED = new Set(["Tutorial", "Calculator", "Page"]);

// As search_entries.anchor_of, which leaves these anchors out of the list.
function anchorOf(name) {
  return name.replaceAll("’", "'").normalize("NFKD").replace(/[^\x00-\x7f]/g, "").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
}

// How many of a query's parts an entry has.
function shareOf(parts, { queryTerms }) {
  const had = new Set(queryTerms);
  return parts.filter((part) => everyWord(part).some((word) => had.has(word))).length / parts.length;
}

// Words that say nothing about what is sought.
const FILLERS = new Set("a an and are as at be can do does for from good how i in is it me much many my of on or per the to what when where which why will with you your".split(" "));

const WORD = /[\p{L}\p{N}]+(?:\.\p{N}[\p{L}\p{N}]*)*/gu;

// "Événement KV-cache, 1.5B" gives ["evenement", "kv", "cache", "1.5b"].
function words(text) {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().match(WORD) ?? [];
}

// A word without its ending: sampling, sampled and samples are one, and so are American and British spelling.
function stem(word) {
  if (!/^[a-z]{4,}$/.test(word)) return word;
  return word.replace(/is(?=(?:e|es|ed|ing|ation|ations)$)/, "iz").replace(/(?<=^...+)(?:ations?|ings?|ed|es|e|(?<![siu])s)$/, "");
}

function stems(text) {
  return words(text).filter((word, _, all) => !FILLERS.has(word) || all.every((each) => FILLERS.has(each))).map(stem);
}

function joined(text) {
  return words(text).join("");
}

// "KV cache" is also found as "kvcache". Whole sentences are not written so.
function asOneWord(name) {
  const parts = words(name);
  return parts.length > 1 && parts.length < 5 ? parts.join("") : "";
}

// A module or class and all that is in it, in one row, as a row for each name. What follows from a name is not written.
function libraryRows([kind, around, page, inside]) {
  return inside.split(", ").map((each) => {
    const [type, name] = each.split(" "), full = ["gpuguide", around, name].filter(Boolean).join(".");
    const anchor = type === "module" ? `module-${full}` : full;
    return [kind, full.replace(/^gpuguide\./, ""), `${page}#${anchor}`, `${type} ${full}`, `${full} | ${name || full}`];
  });
}

const AS_IT_BEGINS = new Set(["Section", "Checklist", "Answer", "Figure", "Claim"]); // where an excerpt says more than on which page it is

// As much of a text as two lines hold.
function beginning(text) {
  return text.length <= 180 ? text : `${text.slice(0, text.lastIndexOf(" ", 170))} …`;
}

// Every word of letters on the site, and how often it stands there.
function spellings(entries) {
  const counts = new Map();
  for (const { kind, name, also, text } of entries) {
    if (kind === "Library") continue;
    for (const word of words(`${name} ${also} ${text}`)) {
      if (/^\p{L}{4,}$/u.test(word)) counts.set(word, (counts.get(word) ?? 0) + 1);
    }
  }
  return counts;
}

// Up to two words at the least number of letters that were missed, added, changed or swapped; the commoner first.
function nearestOf(word, counts) {
  let least = Math.floor(word.length / 3), nearest = [];
  for (const [other, count] of counts) {
    if (Math.abs(other.length - word.length) > least) continue;
    const far = distance(word, other, least);
    if (far < least) nearest = [];
    if (far <= least) nearest.push([other, count]);
    least = Math.min(least, far);
  }
  return nearest.sort(([, one], [, two]) => two - one).slice(0, 2).map(([other]) => other);
}

// The letters to change, add, drop or swap to get from one word to another (optimal string alignment); more than `most`
// are not counted.
function distance(one, two, most) {
  let before = [], last = Array.from({ length: two.length + 1 }, (_, index) => index);
  for (let row = 1; row <= one.length; row += 1) {
    const here = [row];
    for (let column = 1; column <= two.length; column += 1) {
      const same = one[row - 1] === two[column - 1];
      here[column] = Math.min(last[column] + 1, here[column - 1] + 1, last[column - 1] + (same ? 0 : 1));
      const swapped = row > 1 && column > 1 && one[row - 1] === two[column - 2] && one[row - 2] === two[column - 1];
      if (swapped) here[column] = Math.min(here[column], before[column - 2] + 1);
    }
    if (Math.min(...here) > most) return Infinity;
    [before, last] = [last, here];
  }
  return last[two.length];
}

function element(tag, attributes, text) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}
