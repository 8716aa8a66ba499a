// The search box: finds names as one types, by the keyboard and for screen readers (the combobox pattern of WAI-ARIA).
// It needs search-entries.js, which is loaded when the box is opened. Without it, Enter asks the search page.
const searchBox = {
  entries: null,
  kinds: [],

  // Called by search-entries.js.
  receive(kinds, rows) {
    this.kinds = kinds;
    this.entries = rows.map(([kind, name, address, detail, ...also]) => {
      const names = [name, ...also];
      return { kind, name, address, detail, words: words(names.join(" ")), rest: words(detail), joined: names.map(joined) };
    });
    this.show();
  },

  // --- finding ---

  find(query) {
    const asked = words(query).filter((word, _, all) => !FILLERS.has(word) || all.every((each) => FILLERS.has(each)));
    if (!asked.length) return [];
    const together = joined(query);
    for (const fits of [begins, nearly]) {
      const found = this.entries
        .map((entry) => ({ entry, ...score(entry, query, asked, together, fits) }))
        .filter((result) => result.score > 0)
        .sort((one, other) => other.all - one.all || other.score - one.score || one.entry.name.length - other.entry.name.length);
      const whole = found.filter((result) => result.all).length;
      if (found.length) return whole ? found.slice(0, whole) : found; // what has only some of the words counts if nothing has all
    }
    return [];
  },

  // At most twelve results, of one kind at most five: the kinds in the order of their best.
  grouped(results) {
    const groups = new Map();
    for (const { entry } of results.slice(0, 40)) {
      if (!groups.has(entry.kind)) groups.set(entry.kind, []);
      const group = groups.get(entry.kind);
      if (group.length < 5) group.push(entry);
    }
    let left = 12;
    return [...groups].map(([kind, found]) => {
      const kept = found.slice(0, left);
      left -= kept.length;
      return [this.kinds[kind], kept];
    }).filter(([, kept]) => kept.length);
  },

  // --- showing ---

  start(dialog) {
    this.dialog = dialog;
    this.input = dialog.querySelector("input");
    this.list = document.getElementById("search-box-results");
    this.status = document.getElementById("search-box-status");
    this.root = document.documentElement.dataset.content_root;
    this.input.addEventListener("focus", () => this.load());
    this.input.addEventListener("input", () => this.show());
    this.input.addEventListener("keydown", (event) => this.key(event));
    dialog.addEventListener("click", (event) => {
      if (event.target.closest("[role=option]")) dialog.close(); // the place may be on this page
    });
  },

  load() {
    if (this.loading) return;
    this.loading = true;
    const script = document.createElement("script");
    script.src = `${this.root}_static/search-entries.js`;
    document.head.append(script);
  },

  show() {
    const query = this.input.value.trim();
    const groups = query && this.entries ? this.grouped(this.find(query)) : [];
    const count = groups.reduce((sum, [, found]) => sum + found.length, 0);
    this.list.replaceChildren(...groups.map(([kind, found]) => this.group(kind, found)));
    if (query && this.entries) this.list.append(this.everywhere(query));
    this.options = [...this.list.querySelectorAll("[role=option]")];
    this.options.forEach((option, index) => { option.id = `search-box-${index}`; });
    this.list.hidden = !this.options.length;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.choose(this.options.length ? 0 : -1);
    this.status.textContent = !query || !this.entries ? "" : count === 1 ? "1 result" : `${count || "No"} results`;
  },

  group(kind, found) {
    const box = element("div", { role: "group", "aria-label": kind });
    box.append(element("div", { class: "search-box-kind", "aria-hidden": "true" }, kind));
    box.append(...found.map((entry) => this.option(entry.name, entry.detail, this.root + entry.address)));
    return box;
  },

  everywhere(query) {
    return this.option(`Search all text for “${query}”`, "", `${this.root}search.html?q=${encodeURIComponent(query)}`);
  },

  option(name, detail, address) {
    const link = element("a", { role: "option", href: address, tabindex: "-1", "aria-selected": "false" });
    link.append(element("span", { class: "search-box-name" }, name));
    if (detail) link.append(" ", element("span", { class: "search-box-detail" }, detail));
    return link;
  },

  choose(index) {
    this.options.forEach((option, each) => option.setAttribute("aria-selected", String(each === index)));
    this.chosen = index;
    if (index < 0) return this.input.removeAttribute("aria-activedescendant");
    this.input.setAttribute("aria-activedescendant", this.options[index].id);
    this.options[index].scrollIntoView({ block: "nearest" });
  },

  key(event) {
    const last = this.options?.length - 1;
    if (event.isComposing || !(last >= 0)) return;
    if (event.key === "ArrowDown") this.choose(this.chosen === last ? 0 : this.chosen + 1);
    else if (event.key === "ArrowUp") this.choose(this.chosen === 0 ? last : this.chosen - 1);
    else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) this.options[this.chosen].click();
    else return;
    event.preventDefault();
  },
};

// Words that say nothing about what is sought.
const FILLERS = new Set("a an and are as at be can do does for from good how i in is it me my of on or the to what when which why will with".split(" "));

// "Événement KV-cache, 1.5" gives ["evenement", "kv", "cache", "1.5"].
function words(text) {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().match(/[\p{L}\p{N}]+(?:\.\p{N}+)*/gu) ?? [];
}

function joined(text) {
  return words(text).join("");
}

// How well a word of an entry fits one that was asked for, between 0 and 1.
function begins(word, asked) {
  if (word === asked) return 1;
  if (word.startsWith(asked)) return 0.6 + 0.3 * (asked.length / word.length);
  if (asked === `${word}s`) return 0.9;
  return asked.length >= 3 && word.includes(asked) ? 0.3 : 0;
}

// The same for a mistyped word: one letter too many, missing, other or out of place.
function nearly(word, asked) {
  if (asked.length < 5 || Math.abs(word.length - asked.length) > 1) return begins(word, asked);
  let start = 0;
  while (start < word.length && word[start] === asked[start]) start += 1;
  let end = 0;
  while (end < Math.min(word.length, asked.length) - start && word.at(-1 - end) === asked.at(-1 - end)) end += 1;
  const left = word.slice(start, word.length - end), right = asked.slice(start, asked.length - end);
  const swapped = left.length === 2 && left[0] === right[1] && left[1] === right[0];
  return left.length <= 1 && right.length <= 1 ? 0.5 : swapped ? 0.5 : 0;
}

// A name that is what was asked for counts most, then one that begins with it, then words of the name, then others.
// Who writes an underscore means a name in code, and who writes a space does not: that name begins with it at most.
function score(entry, query, asked, together, fits) {
  const best = (list, word) => list.reduce((most, each) => Math.max(most, fits(each, word)), 0);
  const values = asked.map((word) => Math.max(best(entry.words, word), 0.4 * best(entry.rest, word)));
  const speaks = query.trim().includes(" ") && KIND_BONUS[entry.kind] === 0;
  const whole = !speaks && together.length >= 2 && entry.joined.some((name) => name === together);
  const start = together.length >= 3 && entry.joined.some((name) => name.startsWith(together));
  const all = start || values.every((value) => value > 0);
  if (!all && !values.some((value, index) => value >= 0.5 && asked[index].length >= 3)) return { all, score: 0 };
  const fit = values.reduce((sum, value) => sum + value, 0) / asked.length;
  const code = query.includes("_") && entry.name.includes(query.trim());
  return { all, score: fit + (whole ? 1.5 : start ? 0.6 : 0) + (code ? 1 : 0) + KIND_BONUS[entry.kind] - 0.004 * entry.words.length };
}

// In the order of the kinds: what somebody most likely means comes first where names fit equally well.
const KIND_BONUS = [0.25, 0.3, 0.3, 0.15, 0.1, 0];

function element(tag, attributes, text) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

const searchDialog = document.getElementById("pst-search-dialog");
if (searchDialog) searchBox.start(searchDialog);
