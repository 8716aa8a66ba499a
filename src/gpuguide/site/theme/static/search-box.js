// The search box: results as one types, by the keyboard and for screen readers (the combobox pattern of WAI-ARIA).
// Without its files, Enter asks the search page.
const searchBox = {
  start(dialog) {
    this.dialog = dialog;
    this.input = dialog.querySelector("input");
    this.list = document.getElementById("search-box-results");
    this.status = document.getElementById("search-box-status");
    this.input.addEventListener("focus", () => siteSearch.load().then(() => { this.ready = true; this.show(); }));
    this.input.addEventListener("input", () => this.show());
    this.input.addEventListener("keydown", (event) => this.key(event));
    dialog.addEventListener("click", (event) => {
      const near = event.target.closest("[data-query]");
      if (near) this.askInstead(event, near.dataset.query);
      if (event.target.closest("[role=option]")) dialog.close(); // the place may be on this page
    });
  },

  show() {
    const query = this.input.value.trim();
    const answer = query && this.ready ? siteSearch.answer(query) : null, found = answer?.found ?? [];
    this.list.replaceChildren(...found.slice(0, SHOWN).map((result) => this.option(result)));
    if (found.length > SHOWN) this.list.append(this.everything(query, found.length));
    this.options = [...this.list.children];
    this.options.forEach((option, index) => { option.id = `search-box-${index}`; });
    this.list.hidden = !this.options.length;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.choose(this.options.length ? 0 : -1);
    const tells = answer && (!found.length || answer.makers.length || !answer.whole); // more than the list shows
    this.status.classList.toggle("visually-hidden", !tells);
    this.status.replaceChildren(...(answer ? siteSearch.report(answer, query) : []));
  },

  askInstead(event, query) {
    event.preventDefault();
    this.input.value = query;
    this.input.focus();
    this.show();
  },

  option(result) {
    const option = element("a", { role: "option", href: siteSearch.href(result), tabindex: "-1", "aria-selected": "false" });
    return siteSearch.fill(option, result);
  },

  everything(query, count) {
    const address = `${siteSearch.root}search.html?q=${encodeURIComponent(query)}`;
    return element("a", { role: "option", href: address, tabindex: "-1", "aria-selected": "false" }, `All ${count} results`);
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

const SHOWN = 10;

const searchDialog = document.getElementById("pst-search-dialog");
if (searchDialog) searchBox.start(searchDialog);
