"""What keeps people from using a page, as axe finds it, without asking the same question twice.

Most of axe's time goes into colours: it takes the thousand words of a listing one by one. Yet the contrast of a text
depends on its look alone: the colour, size and weight of its letters and what lies behind it. So one text of each look
is measured, and a look that has passed on one page is not measured on the next. The other rules look at elements, not
at colours, and what is seen of a page in the dark is what is seen in the light: an outline that has passed is not
looked at again.
"""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe, AxeResults

RULES_OF_COLOUR = ["color-contrast", "link-in-text-block"]
STRUCTURE = {"resultTypes": ["violations"], "rules": {rule: {"enabled": False} for rule in RULES_OF_COLOUR}}
COLOUR = {"resultTypes": ["violations"], "runOnly": RULES_OF_COLOUR}
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

_passed: set[str] = set()


def found(page: Any) -> str:
    """Return what axe finds wrong with a page as it is now, or nothing; what has passed before is not asked again."""
    return _in_structure(page) + _in_colours(page)


def found_everywhere(page: Any) -> str:
    """Return what axe finds wrong when every rule looks at every element, or nothing."""
    return _run(page, "document", {"resultTypes": ["violations"]})


def _in_structure(page: Any) -> str:
    outline = page.evaluate(OUTLINE)
    report = "" if outline in _passed else _run(page, "document", STRUCTURE)
    if not report:
        _passed.add(outline)
    return report


def _in_colours(page: Any) -> str:
    new = sorted(set(page.evaluate(LOOKS)) - _passed)
    report = _run(page, "{include: context.map(look => looks[look])}", COLOUR, new) if new else ""
    if not report:
        _passed.update(new)
    return report


def _run(page: Any, context: str, options: dict[str, Any], given: list[str] | None = None) -> str:
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    options = options | {"preload": False}  # else it asks for the style sheets anew, which a page from a file may not
    results = AxeResults(page.evaluate(f"([context, options]) => axe.run({context}, options)", [given, options]))
    return str(results.generate_report()) if results.violations_count else ""
