"""The lint for typed measurements: what it finds, what it leaves alone, and that our own pages pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuguide.site.checks import hand_typed

FOUND = {
    "A copy runs at 3.02 TB/s.": "3.02 TB/s",
    "It moves 55 GB/s on this GPU.": "55 GB/s",
    "That is 710 TFLOP/s.": "710 TFLOP/s",
    "That is 710 TFLOPS.": "710 TFLOPS",
    "The launch takes 4.5 µs.": "4.5 µs",
    "The launch takes 4.5 us.": "4.5 us",
    "It took 120 milliseconds.": "120 milliseconds",
    "It took 12 s.": "12 s",
    "It wrote 1,500 tokens a second.": "1,500 tokens a second",
    "It wrote 1500 tokens/s.": "1500 tokens/s",
    "It reached 69 % of the peak.": "69 %",
    "It reached 69% of the peak.": "69%",
    "The card drew 690 W at 65 °C.": "690 W",
    "It ran at 1.98 GHz.": "1.98 GHz",
    "It is 2.3× faster.": "2.3×",
    "It is 2.3x faster.": "2.3x",
    "It is 14 times as fast.": "14 times as",
    "It is 3-fold.": "3-fold",
    "| size | rate |\n|---|---|\n| 1 | 3 TB/s |": "3 TB/s",
    "- an item of 3 TB/s": "3 TB/s",
    "# A heading with 3 TB/s": "3 TB/s",
    "**Bold with 3 TB/s.**": "3 TB/s",
    "[a link of 3 TB/s](page.md)": "3 TB/s",
    ":::{note}\nIt runs at 3 TB/s.\n:::": "3 TB/s",
    "```{note}\n:class: tip\n\nIt runs at 3 TB/s.\n```": "3 TB/s",
    '```{code-cell} ipython3\nplotting.show(draw, alt="A curve.", caption="It peaks at 3 TB/s.")\n```': "3 TB/s",
    '```{code-cell} ipython3\n:tags: [hide-input]\n\n%matplotlib inline\nshow(alt="3 TB/s " "at most")\n```': "3 TB/s",
}
LEFT_ALONE = [
    "It runs at {measured}`ceilings/copy:bandwidth`, {ratio}`a/b/c:time` times, {glue:text}`rate` GB/s.",
    "A card promises {datasheet}`h100-sxm memory_bandwidth`; assume {given}`40 µs`.",
    "The product of 8192 × 8192 matrices, 4096 x N, 16 × (d + 1) and 64 × 12 × 512 numbers.",
    "64 KiB, 80 GB, 1.5 GiB, 4096 tokens, 20 samples, 12 layers, PCIe 5.0, torch 2.13, p25–p75, in 2026.",
    "`3 TB/s` in code, $t = 3\\,\\text{ms} / 4 s$ in a formula, ~~~ and so on.",
    "$$\nt = 12 ms\n$$",
    "```sh\ngpuguide bench run --time-limit 600 s  # 3 TB/s\n```",
    "```{code-cell} ipython3\ntime.sleep(0.05)  # 50 ms\nprint('3 TB/s')\nshow(caption=f'{rate} 3')\n```",
    "```{code-cell} ipython3\nthis is no Python, 3 ms\n```",
    "<!-- 3 TB/s -->",
    "% 3 TB/s is a comment",
    "[a page](https://example.org/3%20s)",
    "---\ntitle: 3 TB/s\n---\n\nText.",
]


@pytest.mark.parametrize("text", FOUND)
def test_a_typed_quantity_is_found_with_its_line(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"---\nkey: value\n---\n\n# Title\n\nFirst\nand second line.\n\n{text}\n", encoding="utf-8")
    (line, quantity, remedy), *others = hand_typed.hand_typed(page)
    assert quantity == FOUND[text]
    assert FOUND[text] in page.read_text(encoding="utf-8").splitlines()[line - 1]
    assert len(others) == text.count("°C")
    assert "{measured}" in remedy
    assert "{given}" in remedy


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_what_is_looked_up_or_no_measurement_is_left_alone(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert hand_typed.hand_typed(page) == []


def test_lines_of_one_paragraph_are_told_apart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("One\ntwo with 3 ms\nthree with {given}`1 s`\nfour with 5 ms\n", encoding="utf-8")
    assert [(line, text) for line, text, _ in hand_typed.hand_typed(page)] == [(2, "3 ms"), (4, "5 ms")]
