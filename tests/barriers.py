"""What keeps people from using a page, as axe finds it, without asking the same question twice.

Most of axe's time goes into colours: it takes the thousand words of a listing one by one. Yet the contrast of a text
depends on its look alone: the colour, size and weight of its letters and what lies behind it. So one text of each look
is measured, and a look that has passed on one page is not measured on the next. The other rules look at elements, not
at colours, and what is seen of a page in the dark is what is seen in the light: an outline that has passed is not
looked at again. All rules are asked in one run, for before the first rule axe takes a second to read a page.
"""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe, AxeResults

RULES_OF_COLOUR = {"color-contrast": "[data-look]", "link-in-text-block": "a[href][data-look]"}
"""The rules of axe that look at colours, and the elements that they are to look at here"""
LOOKS = """() => {
    const grounds = new Map([[null, ""]]);
    const ground = element => {
        if (!grounds.has(element)) {
            const { backgroundColor, backgroundImage, opacity } = getComputedStyle(element);
            const own = [backgroundColor, backgroundImage, opacity].join();
            const below = ground(element.parentElement);
            grounds.set(element, own === "rgba(0, 0, 0, 0),none,1" ? below : `${below} ${own}`);
        }
        return grounds.get(element);
    };
    const blocks = new Map();
    const aroundLink = link => {
        let block = link.parentElement;
        while (getComputedStyle(block).display.startsWith("inline")) block = block.parentElement;
        if (!blocks.has(block)) {
            const texts = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
            let beside = false;
            while (texts.nextNode() && !beside) {
                beside = texts.currentNode.data.trim() !== "" && !texts.currentNode.parentElement.closest("a");
            }
            blocks.set(block, `${beside ? "in text" : "alone"} ${getComputedStyle(block).color}`);
        }
        return blocks.get(block);
    };
    const looks = {};
    for (const element of document.body.querySelectorAll("*")) {
        const link = element.matches("a[href]");
        const says = link || element.matches("input, select, textarea")
            || [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
        if (!says || !element.checkVisibility()) continue;
        const { color, fontSize, fontWeight, textShadow, textDecorationLine } = getComputedStyle(element);
        const look = [color, fontSize, fontWeight, textShadow, textDecorationLine, ground(element)];
        if (link) look.push(aroundLink(element));
        looks[look.join("|")] ??= element;
    }
    window.looks = looks;
    return Object.keys(looks);
}"""
"""Finds one element of each look of text, and of each look of a link with that of the text around it"""

OUTLINE = """() => {
    const drawn = ["class", "style", "src", "srcset"];
    const outline = [];
    for (const element of document.querySelectorAll("*")) {
        if (!element.checkVisibility() && element.closest("body")) continue;
        const attributes = [...element.attributes]
            .filter(({ name }) => !drawn.includes(name) && !name.startsWith("data-"))
            .map(({ name, value }) => `${name}=${value}`).sort();
        outline.push(element.localName, ...attributes, element.scrollWidth > element.clientWidth);
    }
    return outline.join("|");
}"""
"""All elements that are seen, with what a screen reader learns about them, and whether they can be scrolled"""

SCROLLED_BY_KEYBOARD = """() => [...document.querySelectorAll("pre, div.math, .pst-scrollable-table-container")]
    .every(element => element.scrollWidth <= element.clientWidth || element.tabIndex === 0)"""
"""What is wider than its place takes the focus, so that the arrow keys move it; the theme sees to it after a resize"""

_passed: set[str] = set()


def resize(page: Any, width: int) -> None:
    """Give a page another width, and wait until the theme has seen to it."""
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function(SCROLLED_BY_KEYBOARD)


def found(page: Any) -> str:
    """Return what axe finds wrong with a page as it is now, or nothing; what has passed before is not asked again."""
    outline = page.evaluate(OUTLINE)
    new = sorted(set(page.evaluate(LOOKS)) - _passed)
    if not new and outline in _passed:
        return ""
    page.evaluate("found => found.forEach(look => looks[look].setAttribute('data-look', ''))", new)
    _load(page)
    selectors = [{"id": rule, "selector": selector} for rule, selector in RULES_OF_COLOUR.items()]
    page.evaluate("rules => axe.configure({ rules })", selectors)
    report = _run(page, {"runOnly": list(RULES_OF_COLOUR)} if outline in _passed else {})
    page.evaluate("document.querySelectorAll('[data-look]').forEach(each => each.removeAttribute('data-look'))")
    if not report:
        _passed.update([outline, *new])
    return report


def found_everywhere(page: Any) -> str:
    """Return what axe finds wrong when every rule looks at every element, or nothing."""
    _load(page)
    return _run(page, {})


def _load(page: Any) -> None:
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)


def _run(page: Any, options: dict[str, Any]) -> str:
    # With `preload`, axe asks for the style sheets anew, which a page from a file may not.
    options = {"resultTypes": ["violations"], "preload": False, **options}
    results = AxeResults(page.evaluate("options => axe.run(document, options)", options))
    return str(results.generate_report()) if results.violations_count else ""
