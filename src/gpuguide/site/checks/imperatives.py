"""Whether a sentence tells its reader to do something, by the verbs that such sentences begin with.

A list of verbs, because what tells an imperative from a noun needs a model of English: one that the list lacks is
added to it.
"""

from __future__ import annotations

import re

_VERBS = """
accept accumulate act add adjust admit adopt aim alias align allocate allow amortise amortize annotate answer append
apply approach arrange ask assert assume attach average avoid balance base batch begin benchmark bind blame block
bound break bring bucket budget build bypass cache calculate call cap capture carry cast change check choose chunk
claim clear clip clone close collect combine commit compare compile compress compute concatenate configure confirm
consider consult contrast control convert copy correct count cover create cross cut debug decide declare decode
decrease define delay delete deploy derive describe detach determine diagnose disable discard distribute distrust
divide donate double double-check download drain draw drop ease edit enable end enlarge enqueue ensure enter equip
estimate evaluate evict examine exclude execute expand expect export expose express extend extract factor feed fetch
fill filter find fine-tune finish fit fix flatten flush fold follow force form free freeze fuse gain gather generalise
generate get give go grant group grow guard halve hand handle hash help hide hit hoist hold identify ignore implement
import include increase index initialise initialize inject inline insert inspect install interleave invert invest
isolate iterate join judge jump keep label launch lay lead learn leave lengthen let lift limit link list load lock log
look loop lower make manage map mark mask match materialise materialize maximise maximize mean measure merge mind
minimise minimize mix modify monitor mount move multiply name normalise normalize note number observe obtain offload
omit open operate optimise optimize order overlap overwrite pack pad page parallelise parallelize partition pass patch
pay perform permute pick pin place plan plot point pre-allocate pre-compute preallocate precompute predict prefer
prefetch prefill preload prepare preserve press pretrain prevent print prioritise prioritize process profile protect
prove provide prune publish pull push put quantise quantize query queue raise rank read realise rebuild recall
recognise recompute record recover recycle reduce refill refuse register reject release rely remain remember remove
rename render reorder repeat replace replay report request require rerun rescale rescore reserve reset reshape resize
restart restore restrict resume retrain retry retune return reuse reverse review rewrite roll rotate round route rule
run sample save scale scan schedule score see seed select send separate serve set settle shape shard share shift
shorten show shrink shuffle shut simplify size skip slice slow smooth solve sort spare specify speed spend split
spread stack stage standardise start state stay step stick stop store stream stress subtract summarise summarize
supply support suspect swap switch sync synchronise synchronize tackle take target tell test think threshold throw tie
tile time tolerate touch trace track trade train transfer transpose treat trim trust try tune turn type understand
unfreeze unpack unroll unscale update upgrade use validate vary verify visit wait walk want warm watch weigh weight
widen work wrap write zero zip
"""
VERBS = frozenset(_VERBS.split())
"""Verbs that instructions begin with"""
BEFORE_THE_VERB = frozenset(
    (
        "also",
        "always",
        "and",
        "but",
        "do",
        "don't",
        "either",
        "else",
        "first",
        "finally",
        "instead",
        "never",
        "not",
        "now",
        "only",
        "or",
        "please",
        "rather",
        "so",
        "then",
        "therefore",
    )
)
"""Words that may stand before the verb"""
_CLAUSE = re.compile(r"[,;:.]\s+|\s+[-–—]\s+")


def is_instruction(sentence: str) -> bool:
    """Return whether one of the clauses of a sentence begins with the imperative of a verb.

    >>> is_instruction("Pin the memory that you send.")
    True
    >>> is_instruction("For one user, quantise the weights.")
    True
    >>> is_instruction("Bandwidth has to be asked for.")
    False
    """
    return any(_begins_with_verb(clause) for clause in _CLAUSE.split(sentence))


def _begins_with_verb(clause: str) -> bool:
    for word in clause.split():
        bare = word.strip("*_`“”\"'()").lower().replace("’", "'")
        if bare not in BEFORE_THE_VERB:
            return bare in VERBS or bare.partition("-")[0] in VERBS
    return False
