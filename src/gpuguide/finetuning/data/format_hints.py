"""Hints for error messages: the format that unreadable data has, and how to convert it.

Nothing here decides which files are read.
"""

from __future__ import annotations

from collections.abc import Collection

AS_MESSAGES = (
    'Write each as {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}.'
)
AS_LINES = (
    "Write it as JSON Lines with a column text or messages: pandas.read_csv(FILE).to_json(NAME, orient='records', "
    "lines=True)"
)
SHAREGPT = f"That is the ShareGPT form, which is not read. {AS_MESSAGES}"
FORMS: dict[tuple[str, ...], str] = {
    ("instruction", "output"): f"That is the Alpaca form, which is not read. {AS_MESSAGES}",
    ("conversations",): SHAREGPT,
    ("conversation",): SHAREGPT,
    ("chosen", "rejected"): (
        "Those are pairs of a preference, as for DPO, and no preference is trained here. To learn the chosen ones: "
        f"{AS_MESSAGES}"
    ),
    ("prompt", "completion"): f"Pairs of prompt and completion are not read. {AS_MESSAGES}",
    ("prompt", "response"): f"Pairs of prompt and response are not read. {AS_MESSAGES}",
    ("instruction", "response"): f"Pairs of instruction and response are not read. {AS_MESSAGES}",
    ("question", "answer"): f"Pairs of question and answer are not read. {AS_MESSAGES}",
    ("input", "output"): f"Pairs of input and output are not read. {AS_MESSAGES}",
    ("content",): 'If that is the text, name it text: {"text": "..."}.',
}
"""Known forms of samples by their characteristic fields"""
ENDINGS: dict[str, str] = {
    **dict.fromkeys((".csv", ".tsv", ".tab"), f"is a table, no text. {AS_LINES}"),
    **dict.fromkeys((".xls", ".xlsx", ".ods"), f"is a spreadsheet, no text. {AS_LINES}"),
    **dict.fromkeys((".gz", ".zst", ".bz2", ".xz", ".zip", ".tar", ".tgz", ".7z"), "is packed. Unpack it first"),
    **dict.fromkeys((".doc", ".docx", ".odt", ".pdf", ".epub"), "is a document. Export its text first"),
    **dict.fromkeys((".arrow", ".feather"), "is an Arrow file, no text. Write it as Parquet or as JSON Lines"),
}
"""File extensions of formats that are no text, although some could be read as one"""


def form_hint(fields: Collection[str]) -> str:
    """Return a hint on samples with these fields, with a space before it; an empty string if the form is unknown.

    >>> form_hint(["question", "answer"])[:40]
    ' Pairs of question and answer are not re'
    """
    hint = next((hint for names, hint in FORMS.items() if set(names) <= set(fields)), "")
    return hint and f" {hint}"


def message_hint(fields: Collection[str]) -> str:
    """Return a hint on messages with these fields, as :func:`form_hint` does on samples."""
    return f" {SHAREGPT}" if {"from", "value"} <= set(fields) else ""


def line_hint(line: str) -> str:
    """Return a hint on a line that is no JSON: the probable cause and its remedy."""
    begins = line.lstrip()[:1]
    if line.rstrip().endswith("},"):
        return " A comma follows the object; in JSON Lines there is none."
    if begins == "[":
        return " The file must hold one object in each line, not one list. jq -c '.[]' makes lines of a list."
    if begins == "{":
        return " The file must hold one object in each line, on that line alone. jq -c . makes one line of each object."
    return ""
