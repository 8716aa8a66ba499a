"""Words of our own for what the field has a word for, each with that word: the list that the lint looks through.

Only what is wrong wherever it stands. ``write`` and ``read``, ``sum`` and ``product``, ``floor`` and ``room`` are
everyday words as well, and what they stand for a reader has to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

INSTEAD = {
    r"(?:thin|skinny|narrow) products?": "low-rank matmul",
    r"products? with (?:a|the|one) vectors?|matrix[-–]vector products? of": "matrix–vector product (GEMV)",
    r"products? of (?:two |the |these )?matrices|matrix products?": "matmul",
    r"(?:writ(?:e|es|ing|ten)|wrote) (?:a |the |one |long |short |many )?texts?": "generate text",
    r"(?:all|those|everyone) who writes?": "sequences that decode",
    r"read(?:s|ing)? (?:a |the |its |one |each |long |short |whole )*prompts?": "prefill",
    r"prompts? (?:is|are|was|were) read": "prefill",
    r"time to (?:the |a )?first word": "time to first token (TTFT)",
    r"times? between (?:two )?tokens": "inter-token latency (ITL)",
    r"(?:limited|bound) by (?:the )?(?:memory|bytes|bandwidth)": "memory-bound",
    r"(?:limited|bound) by (?:the )?arithmetic": "compute-bound",
    r"waits? for (?:the )?memory|waits? for (?:the |its )?bytes": "is memory-bound",
    r"waits? for (?:the )?arithmetic": "is compute-bound",
    r"sums? over (?:the |all |two |both )?gpus": "all-reduce",
    r"add(?:s|ed|ing)? up (?:the )?batches": "gradient accumulation",
    r"gpus that share a matrix": "tensor parallel",
    r"groups? with other data": "data parallel",
    r"divided (?:weights|gradients|moments)": "sharded (ZeRO, FSDP)",
    r"counted (?:tokens|positions)": "tokens with a loss, the loss mask",
    r"held against": "compared with",
    r"the other way round": "conversely",
    r"all the same": "nevertheless",
}
"""What not to write, as a regular expression in lower case, and what the field says instead"""

_ANY = re.compile("|".join(rf"(\b(?:{words})\b)" for words in INSTEAD), re.IGNORECASE)


def find_private_words(text: str) -> Iterator[tuple[str, str]]:
    """Yield each private word of a text, and what to write instead.

    >>> list(find_private_words("A thin product waits for memory."))
    [('thin product', 'low-rank matmul'), ('waits for memory', 'is memory-bound')]
    """
    instead = list(INSTEAD.values())
    for found in _ANY.finditer(text):
        yield found[0], instead[(found.lastindex or 1) - 1]
