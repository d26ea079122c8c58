"""Why a target is refused: each reason once, with its name, its sentence and what to do about it.

Learners and questions raise ``Reason.NAME.error(…)``: `NotIdentifiable` where answers cannot
determine something, `ModelMismatch` where they contradict the model class. The error keeps the
name as its ``reason``, for programs that treat reasons differently; sentences may change.
Numbers in a sentence are named, and given where it is raised.
"""

from collections.abc import Mapping
from enum import Enum, unique
from typing import Any

from unsoftmax.errors import DimensionRefused, ModelMismatch, NotIdentifiable

# What targets of labels are compared with.
_SIGN = "the sign of a single attention head"
_COARSER = "or the target computes more coarsely than float64 (float32 supports 16 bits)"

# What feed-forward layers are compared with, and what else may explain what is missed.
_ONE_LAYER = "feed-forward layer of one hidden layer of ReLUs"
_CLOSE = "or neurons are too close to each other for these answers:"
_SEED = "another seed may separate them."

RefusalError = NotIdentifiable | ModelMismatch
"""What is raised by the name of a reason."""

_Row = tuple[type[RefusalError], str, str]


def _mismatch(sentence: str, remedy: str = "") -> _Row:
    return ModelMismatch, sentence, remedy


def _not_identifiable(sentence: str, remedy: str = "") -> _Row:
    return NotIdentifiable, sentence, remedy


def _dimension(sentence: str, remedy: str = "") -> _Row:
    return DimensionRefused, sentence, remedy


@unique
class Reason(Enum):
    """The kind of error, the sentence, and the remedy where there is one.

    Examples
    --------
    >>> error = Reason.SAMPLES_ALL_0.error(k=1000)
    >>> error.reason, type(error).__name__
    ('SAMPLES_ALL_0', 'NotIdentifiable')
    """

    # Any learner
    MORE_THAN_PLANNED = _mismatch("More than {limit} would be needed: {why}.")
    NO_NUMBERS = _mismatch(
        "What is computed of the answers is no number ({error}): they are too large or too small "
        "for float64, too coarse, or contradict each other. The target is not of the class that "
        "is learned, or its answers are not what it computes."
    )
    SINGULAR_EQUATIONS = _mismatch(
        "The answers lead to equations that are singular: the target is {contrary}, or its "
        "answers are too coarse."
    )
    FRESH_ANSWERS_MISSED = _mismatch(
        "The recovered {model} misses fresh answers by {missed:.1e} of their size where "
        "{allowed:.1e} is expected. The target is {contrary}."
    )
    NO_TEST_TELLS = _not_identifiable(
        "The answers do not determine W, {lacking}: what they leave undetermined changes every "
        "fresh answer too much for a test. {known} is determined."
    )
    POSITIONS_MATTER = _mismatch(
        "Scores depend on positions: answers change when tokens before the last one change "
        "places{how}"
    )
    ANSWERS_VARY = _mismatch(
        "The same question got different answers: they vary by {noise:.1e} from call to call and "
        "are only {size:.1e} large. Nothing can be learned from them as values of a function;",
        "average the answers or fix the target.",
    )
    ANSWERS_DRIFT = _mismatch(
        "The target drifts from query to query: the same questions got other answers a little "
        "later, and all have moved alike, by up to {share:.1e} of them."
    )
    OPENING_CHANGED = _mismatch(
        "Tokens that were asked first are answered otherwise now, by {changed:.1e} of their "
        "answers: the target drifts or is noisy. A search sees kinks then that are none, or none "
        "that are, and ended so: {refusal}"
    )
    BEYOND_TOLERANCE = _mismatch(
        "The same question got answers that differ by {moved:.1e}, more than twice the tolerance "
        "of {tolerance:.1e}:",
        "give a larger tolerance.",
    )
    NO_ROOM_IN_FLOAT64 = _not_identifiable(
        "Answers of about {size:.0e} leave float64 no room to compute with:",
        "scale the target's output to between {least:.0e} and {most:.0e}.",
    )
    ANSWERS_ARE_LABELS = _mismatch(
        "Answers take few values, such as {values}: these are labels, not values of {what}.",
        "LabelHead learns a single attention head from its labels.",
    )
    ONE_NUMBER = _mismatch(
        "The target answers with one number. This learner reads vectors: {instead}."
    )
    OTHER_DIMENSION = _dimension(
        "The target takes tokens of dimension {dim}, the learner asks {asked}:", "use dim={dim}."
    )

    TAKES_IDS = _mismatch(
        "The target takes ids of a vocabulary, and this learner asks vectors:",
        "TokenHeadLearner(vocabulary=V) learns from ids, LowRankHead(dim, table=E) where the "
        "vectors of ids are known, AttentionLayerLearner(dim, table=E) a whole layer; verify takes "
        "table=E as well.",
    )
    TAKES_VECTORS = _mismatch(
        "The target takes vectors of dimension {dim}, and this learner asks ids of a vocabulary:",
        "LowRankHead({dim}) learns from vectors. Where it takes ids, us.oracles.from_ids says so.",
    )
    OTHER_VOCABULARY = _mismatch(
        "The target takes ids of a vocabulary of {held}, and those of {asked} are to be asked:",
        "ids must be those of the target's own tokenizer.",
    )

    # Heads behind a vocabulary
    COPIES_DIFFER = _mismatch(
        "A token alone and copies of it are answered otherwise, by {unlike:.1e} of the values: "
        "positions are added to tokens, or the target puts tokens of its own beside them (BOS, "
        "CLS, a prompt).",
        "Ask the ids that come behind its tokenizer, without tokens of its own; positions are "
        "learned where they are known, with LowRankHead(dim, table=vectors by position and id).",
    )
    NOT_OF_THE_TABLE = _mismatch(
        "Ids are not answered by an affine map of their vectors: fresh ones miss it by "
        "{missed:.1e} of the values. The table is not the target's, or its ids are those of "
        "another tokenizer, or positions, a norm or a token of the target's own is missing in it."
    )
    LAST_ID_ADDS = _mismatch(
        "The last id adds something itself to answers, whatever stands before it, and that is not "
        "its vector: a residual connection that is scaled or projected, or a head that weighs the "
        "last token alone.",
        "Take it off the answers, or ask what stands before it is added.",
    )
    CURVES_OF_NO_HEADS = _mismatch(
        "Copies of an id beside another one are not answered as {heads} heads or fewer do, whose "
        "weights are shares of the counts: a norm or a network stands behind them, or weights are "
        "no softmax."
    )
    RATIOS_TOO_FEW = _not_identifiable(
        "Copies of an id beside another one are answered as {heads} heads or more do, in sequences "
        "of up to {context} ids: their counts have too few ratios to tell so many apart.",
        "A larger context has more.",
    )
    NUMBERS_TOO_FEW = _not_identifiable(
        "Answers have {span} numbers, too few for {heads} heads or more: what their values are is "
        "not told apart.",
        "Take more numbers of the answers: H heads of rank r need H times r, and at least 2H.",
    )
    BEHIND_A_NORM = _not_identifiable(
        "A LayerNorm stands behind the layer: its scale and shift are determined, and M and c, "
        "with the residual connection, up to one factor and the mean that the norm takes out. "
        "Which heads there are is not learned from ids behind a norm.",
        "verify tells whether it serves weights that you have, with table=E.",
    )
    TABLE_TOO_SMALL = _not_identifiable(
        "The table has {ids} ids and spans {dimension} dimensions: too few ids are left to ask.",
        "TokenHeadLearner learns the function of ids without a table.",
    )
    IDS_ORDER_MATTERS = _mismatch(
        "Answers change when ids before the last one change places{how}, by {moved:.1e} of the "
        "values: scores depend on positions, or the target cuts sequences.",
        "Where it cuts them give the length it takes as context, now {context}.",
    )
    LOGITS_CONTRADICT = _mismatch(
        "Logits of ids contradict each other: they miss those of rank {rank} by {strain:.0f} times "
        "their errors. The target is no single head whose answer depends on how often each id "
        "stands before the last one; it may have several heads."
    )
    VALUES_ALIKE = _not_identifiable(
        "All ids are answered alike alone, by {value:.3g}: no answer shows how tokens are weighed."
        "{why}"
    )
    BAGS_SATURATED = _not_identifiable(
        "Weights are 0 or 1 wherever they were asked, whatever the counts of tokens: the values of "
        "ids are determined, their logits are not.",
        "A larger context lets more copies count.",
    )
    LOGITS_DROWN = _not_identifiable(
        "Answers as coarse as these cannot tell one head from several: {shown}. The values of ids "
        "are determined, how they are weighed is not.",
        "Finer answers tell.",
    )
    VOCABULARY_RANK_ABOVE = _mismatch(
        "Logits of ids have rank {found}, above rank = {rank}:",
        "raise it, or leave it out and it is found.",
    )
    BAGS_MISSED = _mismatch(
        "The recovered head misses fresh sequences of ids by {missed:.1e} of their size where "
        "{allowed:.1e} is expected: the target is no single head whose answer depends on how often "
        "each id stands before the last one. It may have positions, cut sequences at a length "
        "below context = {context}, add tokens of its own, or have several heads."
    )

    # Single attention heads: values
    VALUE_IS_0 = _not_identifiable(
        "v = 0{known}. The softmax weights nothing, so W is free: no query can determine it."
    )
    LONGER_SEQUENCES_CONTRADICT = _mismatch(
        "Single tokens are answered {how}, longer sequences are not: the target is {contrary}."
    )
    TOKENS_NOT_LINEAR = _mismatch(
        "Single tokens are not answered by {form}: the answers miss it by {missed:.1e} of their "
        "size. The target is not an attention head or a sum of heads{otherwise}."
    )
    TOKENS_NOT_LINEAR_NEAR_0 = _mismatch(
        "Single tokens of norm {norm:g} are not answered by x·v + c: it is missed by up to "
        "{missed:.1e}, each time the same, beside values of {size:.1e}. The target is no sum of "
        "attention heads, or adds something to one."
    )
    ZERO_IS_NOT_ANSWERED_BY_0 = _mismatch(
        "The zero token is answered by {c:.3g}: the target has biases;", "learn with biases=True."
    )

    # Single attention heads: logits
    WEIGHTS_BEYOND_1 = _mismatch(
        "{outside} of {asked} answers to two tokens lie outside of what any attention weights "
        "between them can give: the target is {contrary}."
    )
    WEIGHTS_BEYOND_1_OR_ROUNDED = _not_identifiable(
        "The answers are too coarse to determine W, or the target is no single attention head: "
        "{outside} of {asked} answers to two tokens lie outside of what exact answers allow, and "
        "no answer told whether they are rounded or the head's values are round. v is determined."
    )
    BEYOND_HEAD_AND_TOLERANCE = _mismatch(
        "{impossible} of {asked} answers to two tokens are further than the tolerance from all "
        "that a single attention head{bounded} can answer: the target is none{least} or the "
        "tolerance is too small."
    )
    LOGITS_OUT_OF_REACH = _not_identifiable(
        "{lost} of {asked} logits are out of the answers' reach: {cause}. {known} is determined, "
        "W is not."
    )
    LOGITS_TWO_APART_OUT_OF_REACH = _not_identifiable(
        "Logits of tokens two apart are out of the answers' reach. v is determined, W is not."
    )
    W_DROWNS = _not_identifiable(
        "The answers are too coarse to determine W: its norm is {size:.1e}, and its error may be "
        "{error:.1e}. v is determined."
    )
    NORM_BOUND_EXCEEDED = _mismatch(
        "‖W‖_F is at least {norm:.3g}, more than the norm bound of {bound:g}:", "give a larger one."
    )
    FOUND_RANK_CONTRADICTED = _not_identifiable(
        "The rank was found to be {rank}, and a further answer contradicts it: by chance the "
        "{asked} tokens asked hide part of W. v is determined.",
        "Say rank=, or ask other tokens by another seed=.",
    )
    TOO_FEW_MEASUREMENTS = _not_identifiable(
        "{seen}: v is determined, W is not.", "Ask more, {usual} usually suffice for rank {rank}."
    )
    RANK_ABOVE_OR_COARSE = _not_identifiable(
        "{seen}: W has a higher rank than {rank} (raise rank), or the answers are too coarse. v "
        "is determined."
    )
    RANK_ABOVE = _mismatch(
        "{seen}, and they would have shown a W of rank {rank} or less. W has a higher rank (raise "
        "rank), or the target is not a single attention head{otherwise}."
    )

    # Rotary positions, in one head, several and whole layers
    TURNING_UNKNOWN = _not_identifiable(
        "The answers do not determine how scores turn with distance: what they leave undetermined "
        "{does}."
    )
    SCORES_DO_NOT_TURN = _mismatch(
        "Scores change with distance, and not as planes that turn: {seen}. These are no rotary "
        "positions alone, or the rank is above the one given (leave rank out and it is found), "
        "or keys or queries of a plane depend on those of others and have a lower rank than their "
        "planes, which no learner here recovers."
    )
    GIVEN_FREQUENCIES_UNSEEN = _mismatch(
        "Scores do not turn with distance, as they would at the given frequencies, {given} "
        "radians per token: the head has no rotary positions.",
        "Leave out rotary and rotary_base.",
    )
    OTHER_FREQUENCIES = _mismatch(
        "Scores turn with distance at other frequencies than those of the given rotary: {found} "
        "radians per token were found, {given} were given.",
        "rotary=True without rotary_base finds them.",
    )
    RANK_IS_ODD = _mismatch(
        "Keys and queries have the odd rank {rank}, but rotary planes have two coordinates each: "
        "no base fits.",
        "rotary=True without rotary_base finds frequencies of any rank.",
    )
    RANK_BELOW_PLANES = _mismatch(
        "Keys and queries have rank {rank} together, below the {assumed} assumed:",
        "LowRankHead with rank={rank}, biases=True and rotary=True is for these. Keys or queries "
        "that have a lower rank than their planes are recovered by none.",
    )
    GROUPS_OF_OTHER_RANKS = _mismatch(
        "Scores of the {groups} groups of heads have ranks {ranks}. {otherwise}"
    )
    GROUPS_TURN_DIFFERENTLY = _mismatch("Heads turn at different frequencies. {otherwise}")
    DISTANCE_CHANGES_NORMS = _mismatch(
        "A distance of {distance} tokens changes the norm of scores by {changed:.1e}, which a "
        "rotation never does. {otherwise}"
    )
    FARTHER_KEYS_LEAVE_SPAN = _mismatch(
        "Scores of keys farther away leave the span of those nearer by, as happens if they have "
        "rank {rank} and planes have more rows. {otherwise}"
    )
    BIASES_DECIDE_WEIGHTS = _mismatch(
        "Tokens of no norm get weights that all show in answers: keys and queries have biases so "
        "large that they decide the weights. {otherwise}"
    )
    WEIGHTS_BELOW_0_WITH_BIASES = _mismatch(
        "Some answers give a token a negative weight: with these biases of keys and queries its "
        "weight is below the errors of answers. {otherwise}"
    )
    VALUES_TOO_FEW_FOR_BIASES = _not_identifiable(
        "Values have so few dimensions that one answer shows a head's weight of only one key; if "
        "keys and queries have biases it must show that of another token too."
    )
    QUERIES_HAVE_BIASES = _mismatch(
        "Beside long tokens attention weights are the same for a query token and its opposite, as "
        "where queries have biases.",
        "Learn with biases=True.",
    )
    TWO_BEFORE_IS_NO_HEADS = _not_identifiable(
        "Scores of a token two before the query token were not read: answers to [a; z; b], with a "
        "token z that takes all other heads' weight, are no head's. The target is no sum of "
        "attention heads with rotary positions, or has biases."
    )
    TWO_BEFORE_SATURATES = _not_identifiable(
        "How a head weighs a token two before the query token was not read: no token is short "
        "enough to leave its weight between 0 and 1, or to leave the other heads to one token "
        "alone. Biases alone saturate a head there, as large ones do, or scores are very large, "
        "or the target is no sum of attention heads with rotary positions.",
        "Another seed asks other tokens, which may do.",
    )
    VALUES_DO_NOT_ADD_UP = _not_identifiable(
        "The values of the heads whose scores change do not add up to what single tokens are "
        "answered by: some head scores all tokens alike, or two score oppositely. Beside biases "
        "and rotary positions these are not told apart."
    )
    NO_TOKEN_SHUTS_OTHERS = _not_identifiable(
        "No token shuts all heads but one: for every query token what some heads score by, "
        "W(1) b, depends on what others do. How they turn with distance is not read."
    )
    MORE_HEADS_THAN_DIMENSIONS = _not_identifiable(
        "The target has {heads} heads with scores, more than its {dim} dimensions: with rotary "
        "positions heads are opened one by one by a token that shuts the others, and there is "
        "none for so many."
    )

    # Several heads
    MORE_HEADS = _mismatch(
        "The target has {heads} heads, more than max_heads = {most}:", "raise max_heads."
    )
    MORE_CHANGES_THAN_HEADS = _mismatch(
        "Along half a circle the answers change more than {most} times: the target has more heads "
        "(raise max_heads), or W so small that the longest offsets asked do not switch a head, or "
        "is {contrary}."
    )
    NO_SEARCH_FOUND_HEADS = _mismatch(
        "None of {searches} gave {what}. Possible reasons: {reasons}."
    )
    TOKENS_TOO_SHORT = _mismatch(
        "Tokens no longer than radius = {radius:g} do not switch the heads one by one: along every "
        "half circle that was tried gates stay open, or two of them open together; and the poles "
        "of answers along lines do not tell them apart.",
        "Give a larger radius, if the target allows one. If that does not help, heads are too "
        "close or too many for the precision of these answers.",
    )
    GATES_STAY_OPEN = _mismatch(
        "Tokens that were tried do not switch the heads one by one: along every half circle gates "
        "stay open, or two of them open together; and the poles of answers along lines do not tell "
        "them apart. Then heads are too close or too many for the precision of these answers."
    )
    TOO_COARSE_FOR_HEADS = _mismatch(
        "Answers are too coarse: those to single tokens miss x·v + c by {missed:.1e} of their "
        "size, {times:.0f} times more than the {most:.0e} up to which several heads are looked "
        "for. Or the target is no sum of attention heads, or clips tokens or answers."
    )
    PILOTS_MISSED = _mismatch(
        "The heads that predict best miss a fresh answer by {share:.1e} of its size: the target "
        "is no sum of attention heads, or has heads whose hyperplanes are the same for every "
        "query token."
    )
    MORE_MISSED_THAN_PILOTS = _mismatch(
        "The heads that predicted {pilots} answers to {share:.1e} of their size miss fresh ones "
        "by {missed:.1e}."
    )

    # Heads in orthogonal subspaces
    SOME_HEADS_UNSEEN = _not_identifiable(
        "The answers are too coarse for {unseen} of {heads} heads: with bounds like theirs fresh "
        "sequences tell nothing of them, where their logits are moderate.",
        "LowRankHead and ApproximateHead learn a single head from coarse answers.",
    )
    WEAKER_HEADS_LEFT = _mismatch(
        "After {times} times that heads were found, weaker ones are left: the target is not a sum "
        "of heads in mutually orthogonal subspaces, or they are too different."
    )
    PART_WITHOUT_LOGIT = _not_identifiable(
        "A part of Σ v_h, {size:.1e} large, is weighed by no logit that shows beside other heads: "
        "whether its W is 0 cannot be told."
    )
    TOO_COARSE_FOR_SUBSPACES = _not_identifiable(
        "The answers are too coarse to find subspaces: noise is {noise:.0e} of what logits show "
        "at the scale at which they are small."
    )
    NOT_LINEAR_IN_LOGITS = _mismatch(
        "At no scale are answers linear in the logits: {missing:.0e} is missing at one that "
        "should be small. The target is not a sum of heads in mutually orthogonal subspaces "
        "without biases, or its answers are too coarse, or some heads' scores are hidden beside "
        "others'."
    )

    # Networks of ReLUs
    BENDS_EVERYWHERE = _mismatch(
        "Along a line the answers bend everywhere: the target is smooth (GELU, SiLU, tanh, "
        "attention, a normalisation), has more than {most} neurons, or its answers are too noisy "
        "to tell kinks from noise."
    )
    MORE_KINKS = _mismatch(
        "Along a line the answers have more than {most} kinks, or kinks too close to each other "
        "for their precision: the target has more neurons (raise max_neurons, where the learner "
        "takes it), is no network of one hidden layer of ReLUs, or its answers are too coarse or "
        "noisy."
    )
    ANSWERS_JUMP = _mismatch(
        "Along a line the answers jump: pieces on both sides of {place:.6g} do not meet. The "
        "target is not continuous, or its answers are coarser than they look."
    )
    MORE_NEURONS = _mismatch(
        "The target has {neurons} distinct neurons, more than max_neurons = {most}:",
        "raise max_neurons.",
    )
    NOT_HOMOGENEOUS = _mismatch(
        "A token {factor:g} times as long is not answered {factor:g} times as large: the target "
        "is no ReLU network without biases;",
        "learn it with biases=True.",
    )
    NOISE_HIDES_KINKS = _not_identifiable(
        "Answers to tokens close together differ by {noise:.0e} of their size: that is noise, or "
        "the target jumps (labels), and no kinks are told from it."
    )
    FRESH_ANSWERS_ALL_ALIKE = _mismatch(
        "Neurons were found, but {asked} fresh tokens of all lengths are all answered by {y:g}: "
        "the target jumps (labels), or is no ReLU network."
    )
    NEURON_FAR_OUT_MISSED = _mismatch(
        "Along a line through 0 the answers depart from the network of {neurons} neurons that was "
        "found, at a distance of {distance:.0e} by {missed:.1e} of their size: there is a neuron "
        "that no search found, or the target is no ReLU network of one hidden layer."
    )
    NEURONS_NOT_SEPARATED = _not_identifiable(
        "Answers look precise to {noise:.0e} of their size alone, be they rounded, noisy or small "
        "beside the terms that they are made of; that does not separate the {neurons} neurons "
        "found: fresh answers are missed by {missed:.0e}.",
        "Where they are float32, float64 answers may separate them.",
    )
    SWEEPS_MISS_FRESH_ANSWERS = _mismatch(
        "After {sweeps} sweeps a network of {neurons} neurons misses fresh answers by "
        "{missed:.1e} of their size. The target is no ReLU network of one hidden layer, or has "
        "neurons so close to each other that float64 answers do not separate them."
    )

    # A head, or several, before a network
    NETWORK_IS_CONSTANT = _not_identifiable(
        "The network is constant, {c:g}: no answer depends on the attention, and W is free."
    )
    NETWORK_IS_FLAT = _not_identifiable(
        "The network is flat, or turns, along every segment tried from some query tokens: its "
        "answers do not tell where on them the pooled token is. The network is determined, W is "
        "not."
    )
    NETWORK_HAS_BIASES = _mismatch(
        "The network has biases: T(X) − T(−X) is not a single head.",
        'Use attention="local", which allows them.',
    )
    DIFFERENCE_IS_0 = _not_identifiable(
        "A w_o = 0: T(X) − T(−X) is 0 whatever W is, and the antisymmetric part determines "
        "nothing.",
        'attention="local" learns W all the same.',
    )
    LAST_TOKEN_ALONE = _mismatch(
        "Answers depend on the last token alone: no head shows.",
        "ReluNetworkLearner learns the network of single tokens, which is all there is.",
    )
    NO_KINK = _mismatch(
        "Single tokens are answered by x·l + c without a kink: there is no ReLU network to be "
        "seen.",
        "MultiHeadLearner learns several heads alone.",
    )
    NEURONS_SWITCH_APART = _mismatch(
        "Neurons that switch together at single tokens switch apart in sequences: beside "
        "hyperplanes answers are missed by a layer that predicts them far away. There two "
        "neurons, whose first layers have one sum over heads, are read as one, or as none where "
        "their weights cancel: a target with neurons that share a hyperplane at single tokens is "
        "not recovered."
    )
    NEURONS_CANCEL = _mismatch(
        "Within a cell of the network that single tokens show, what heads pass on jumps where the "
        "query token crosses a hyperplane that no single token shows: neurons share it whose "
        "weights cancel there. A target with such neurons is not recovered."
    )
    NEURON_UNSEEN_BY_TOKENS = _mismatch(
        "Sequences show a neuron that no single token shows: its first layers cancel in their sum "
        "over heads, so that it depends on differences of tokens alone. Neurons are found at "
        "single tokens here: a target with such a neuron is not recovered."
    )
    TOO_COARSE_FOR_GATES = _not_identifiable(
        "The answers are too coarse for several heads before a network, whose gates are read from "
        "tokens 10⁴ times as long as the offsets that tell them apart: float64 answers are "
        "needed. Heads are not determined; the network {network}"
    )
    HYPERPLANE_TOO_FAR = _not_identifiable(
        "A neuron's hyperplane is {away:.0e} from 0. Heads are read beyond all of them, where "
        "offsets that open their gates are lost in float64 beside such long tokens. The network "
        "of single tokens is determined."
    )
    NO_CELL_BETWEEN_NEURONS = _not_identifiable(
        "Some neurons cannot be told apart far from 0: no cell lies between their hyperplanes "
        "there, or there are fewer than two dimensions. The network of single tokens is "
        "determined."
    )

    # Attention layers: single tokens and the search for heads
    TOKENS_NOT_AFFINE = _mismatch(
        "Answers to single tokens are not affine{where}: one differs by {missed:.1e}, where the "
        "rounding of answers explains {explained:.1e}. Something else is added or stands "
        "behind{such}."
    )
    TOO_COARSE_FOR_A_LAYER = _mismatch(
        "Answers to single tokens are off by {noise:.1e} of their size: they are too coarse or "
        "too noisy to recover a layer, or the target is no affine map of single tokens."
    )
    ERRORS_LEAVE_NO_WEIGHTS = _mismatch(
        "Answers are off by {noise:.1e} of their norm, and errors of that size make weights of "
        "the {heads} heads negative: answers are too coarse for this layer.",
        "polish=True asks more.",
    )
    FIRST_TOKEN_DOES_NOT_COUNT = _not_identifiable(
        "With two tokens the answer does not depend on the first: no head is seen, so no W is "
        "determined. The target is an affine map of the last token, or constant, or its heads "
        "have W = 0."
    )
    TOKENS_WEIGHED_ALIKE = _not_identifiable(
        "A head weighs all tokens alike (W = 0), or one head's W is the negative of another's. "
        "Sequences of two tokens do not distinguish (W, M) and an even mean from (−W, −M) and "
        "another even mean, nor such heads from each other."
    )
    QUERY_TOKEN_DOES_NOT_COUNT = _not_identifiable(
        "Beside {tokens} query tokens a long first token adds the same to the answer, and that "
        "differs from half of what it adds by itself by {missed:.1e} of it. Either no head's "
        "weights depend on the query token, or the target is no layer of softmax attention (the "
        "largest numbers of all tokens, for example)."
    )
    HEADS_WEIGH_ALIKE = _not_identifiable(
        "With weights of 0 or 1 the answers show {hard} heads, with other weights {soft}: some "
        "heads weigh tokens so similarly (W beside 2W, for example) that two tokens do not tell "
        "them apart."
    )
    GATES_NEVER_OPEN_ALONE = _not_identifiable(
        "No query token opens the gate of a single head: two heads switch together for every "
        "query token (W and 2W, or more heads than dimensions), or a head has no W."
    )
    GATES_NOT_0_OR_1 = _mismatch(
        "Beside offsets of norm {norm:.1g} the answers are no sums of {rank} vectors with weights "
        "of 0 and 1. Attention is no softmax of scores x·(W x_N + w) there (clipped scores, a "
        "window, a nonlinearity){many}, or answers are too coarse."
    )
    VALUES_CANCEL = _mismatch(
        "Single tokens show a sum of the maps M_h that is {share:.1e} of what two tokens show: "
        "values of heads cancel in their sum, beside which heads are told apart, or single tokens "
        "are answered otherwise than sequences. Such a layer is not recovered."
    )
    JUMPS_DO_NOT_COUNT_HEADS = _mismatch(
        "Beside one long offset answers have rank {rank}, but they jump {jumps} times along half "
        "a circle of query tokens: they are no sums of heads with weights of 0 or 1."
    )
    NO_NORM_OPENS_ALL_GATES = _mismatch(
        "At no norm of tokens are the gates of all heads between 0 and 1: scores are no x·(W x_N "
        "+ w), those of some heads are a million times those of others, or answers are too coarse."
    )
    HEADS_WEIGH_AS_A_MEAN = _not_identifiable(
        "All heads weigh all tokens nearly alike: at the longest tokens that were asked answers "
        "differ from those of a mean by {off:.1e} of their size at most. They show the sum of all "
        "maps M_h, and hardly single heads."
    )
    SOFT_GATES_UNFOUND = _mismatch(
        "The answers to copies of two tokens are no sums of {rank} vectors with weights "
        "σ(l + log m/k), l affine in the query token: attention is no softmax of scores "
        "x·(W x_N + w), or answers are too coarse."
    )
    SOFT_GATES_UNFOUND_ELSEWHERE = _mismatch(
        "Beside {lost} of {offsets} offsets the gates of {heads} heads are not found that one "
        "offset showed: attention is no softmax of scores x·(W x_N + w), or answers are too "
        "coarse."
    )

    # Attention layers: maps and scores
    NO_SUMS_OF_MAPS = _mismatch(
        "With gates of 0 or 1 the answers are no sums of the maps M_h: they are not linear in the "
        "tokens (a tanh, a clipped or quantised answer), or two heads are too close to be told "
        "apart."
    )
    MAPS_DO_NOT_ADD_UP = _mismatch(
        "With gates of 0 or 1 the answers of single heads do not add up to those of all: there "
        "are more heads than long tokens showed, or something else is added."
    )
    OPENING_TOKENS_TOO_CLOSE = _mismatch(
        "The query tokens that open a single head are so close together that steps between "
        "offsets are rounded away: two heads are too close to be told apart, or answers are too "
        "coarse."
    )
    VALUES_SPAN_TOO_LITTLE = _not_identifiable(
        "The values of {heads} heads span {span} dimensions or fewer, which do not show their "
        "weights at once:",
        "MultiHeadLearner learns them from one output.",
    )
    NO_MODERATE_WEIGHTS = _mismatch(
        "No length of keys gives all heads moderate weights: scores are no x·(W x_N + w), or "
        "answers are too coarse to read weights from."
    )
    WEIGHTS_BELOW_0 = _mismatch(
        "Some answers give a head's keys negative weights, however short the keys are: the target "
        "is no layer of softmax attention, or its answers are too coarse."
    )

    # A norm before a layer, attention or feed-forward
    NOT_AFTER_A_NORM = _mismatch(
        "Long single tokens are not answered as after a LayerNorm or RMSNorm: the difference from "
        "the zero token's answer is not linear in the normalised token.",
        "Leave out norm to find out whether one stands behind the layer or none.",
    )
    EPS_IS_0 = _not_identifiable(
        "Tokens of all lengths get the same answers: the eps of the LayerNorm or RMSNorm before "
        "the layer is (nearly) 0, and no token is short when it is normalised."
    )
    NO_TOKEN_HALF_BENT = _mismatch(
        "Short tokens are not answered as after a LayerNorm or RMSNorm with an eps: no token has "
        "half the effect of a long one."
    )
    EPS_DIFFERS = _mismatch(
        "Short tokens of different directions show values of eps that differ by {apart:.1e}: no "
        "LayerNorm or RMSNorm is before the layer."
    )
    GROWS_AFTER_NO_NORM = _mismatch(
        "Answers grow with tokens, and not as tokens do: no LayerNorm or RMSNorm is before the "
        "layer."
    )
    NO_NEURON_SEEN = _mismatch(
        "Long tokens of all directions are answered alike, but for the token itself: no neuron is "
        "seen."
    )
    BENDS_OR_NOISE = _mismatch(
        "Answers bend wherever tokens are long, or are noisy, and tell no eps: a layer of few "
        "ReLUs would be affine in long normalised tokens of one direction."
    )

    # A block of hidden states
    BLOCK_WIDTH = _mismatch(
        "Answers have {numbers} numbers and tokens {dim}. They must be equal: a block answers with "
        "the hidden state of the last token."
    )
    BLOCK_WITHOUT_RESIDUAL = _mismatch(
        "A long token does not come back from the block: {share:.1e} of it does, where a residual "
        "connection around each part, with a norm before it, gives 1. There is no residual "
        "connection, or a part has no norm before it."
    )
    BLOCK_POST_NORM = _mismatch(
        "A LayerNorm or RMSNorm stands behind the block (post-norm, as in BERT). Its scale and "
        "shift are determined, up to one sign, of an RMSNorm up to each number's sign, and as far "
        "as its eps is nothing beside the variance of what it normalises: lengths that would be "
        "the same differ by {apart:.1e}. What is before it is not recovered, but for one token "
        "where answers show it: the centre, of which attention and the residual connection leave "
        "nothing for the norm between the parts.",
        "Parts of post-norm blocks are recovered one by one: AttentionLayerLearner and "
        'FeedForwardLearner with norm="post".',
    )
    BLOCK_WITHOUT_NORM = _mismatch(
        "The length of long keys counts, by {apart:.1e} of what attention adds: no LayerNorm or "
        "RMSNorm is before attention, or there is more than one block."
    )
    BLOCK_BY_PLACE = _mismatch(
        "Copies of tokens, or their order, change what attention adds by {apart:.1e}: positions "
        "take part, or a window. They are not such rotary positions as are recovered, those of a "
        "block with an RMSNorm, keys without biases and moderate scores: {why}"
    )
    BLOCK_VARIES = _mismatch(
        "The same sequence was answered twice with a difference of {apart:.1e}: dropout is on, or "
        "answers are noisy. Nothing is recovered from a block that varies."
    )
    BLOCK_TOO_COARSE = _mismatch(
        "Answers are off by {coarse:.1e} of their size; a block's attention takes {most:.0e} or "
        "less, as float64 gives. A float64 replica of the same weights would show maps and scores "
        "to about 1e-12 and 1e-9."
    )
    BLOCK_ATTENTION_FAINT = _not_identifiable(
        "Answers are off by {coarse:.1e} of what attention adds beside long query tokens, by the "
        "roundoffs of the rest of an answer: too much to tell its heads, if there are any. {why}"
    )
    BLOCK_IN_PARALLEL = _mismatch(
        "What stands beside attention does not see what attention adds: it is in parallel to it, "
        "or nothing is there. No whole block of attention and, behind it, a feed-forward part is "
        "recovered.",
        'part="attention" recovers the attention.',
    )
    BLOCK_FOLLOWED_BY_OTHER = _mismatch(
        "Attention is recovered; what follows it is not: it is no feed-forward layer (of ReLUs, or "
        "of smooth neurons such as GELU and SwiGLU) after a LayerNorm or RMSNorm, or one that "
        "could not be read. {why}",
        'part="attention" returns the attention alone, whatever follows it.',
    )
    BLOCK_EPS_SMALL = _not_identifiable(
        "The norm after attention has an eps of about {eps:.0e}. Short inputs are made {times:.0e} "
        "times as long by it, with the roundoffs of what attention adds: these hide the neurons "
        "there. The constant c that attention adds is determined."
    )
    BLOCK_NOTHING_FOLLOWS = _not_identifiable(
        "The same is added to all tokens after attention: nothing of what follows it shows."
    )
    BLOCK_NO_CELL = _mismatch(
        "Answers bend about all directions of the norm after attention that were tried: what "
        "follows is no layer of ReLUs, or has too many neurons."
    )
    BLOCK_CENTRE_OPEN = _not_identifiable(
        "What follows attention shows its input in fewer than {dim} directions, at {cells} "
        "places: too few neurons are active to find what attention's constant adds to it."
    )
    BLOCK_HEADS_FILL = _not_identifiable(
        "{heads} heads or more fill the {shown} coordinates that show them: there are more heads "
        "than answers can tell apart, or attention is none of softmax (a nonlinearity in its "
        "values, a second block)."
    )

    # A norm behind a layer, attention or feed-forward
    NO_RESIDUAL_WIDTH = _mismatch(
        "Answers have {numbers} numbers and tokens {dim}. They must be equal: a layer behind a "
        "norm is recovered only with its residual connection."
    )
    GROWS_BEHIND_NO_NORM = _mismatch(
        "Answers grow with tokens, as behind no LayerNorm or RMSNorm:",
        "leave out norm to find out whether one stands before the layer or none.",
    )
    NORM_SCALE_IS_0 = _not_identifiable(
        "The scale of the LayerNorm or RMSNorm is 0, or nearly 0, at {still} of {outputs} outputs "
        "({named}): the layer has no effect on the answers there."
    )
    OUTPUTS_ARE_CONSTANT = _mismatch(
        "{still} of {outputs} outputs are the same for all long tokens: their scale is 0, and "
        "what is before the norm cannot be seen there; or the target is no layer with a residual "
        "and a norm behind."
    )
    NEITHER_NORM_BEHIND = _mismatch(
        "Answers to long tokens are on no ellipsoid in a hyperplane, as behind a LayerNorm, nor "
        "on one along the axes, as behind an RMSNorm: neither is the last operation."
    )
    HYPERPLANE_WITHOUT_ELLIPSOID = _mismatch(
        "Answers to long tokens lie in a hyperplane, as behind a LayerNorm, but not all as far "
        "from one point: the target has another function behind."
    )
    TOO_FEW_DIRECTIONS = _mismatch(
        "Answers to long tokens span too few directions: x is not added before the norm, or the "
        "target is another one."
    )
    RESIDUAL_UNSEEN = _not_identifiable(
        "No residual connection is seen: without one, the sign and the size of all M_h and c "
        "behind a LayerNorm or RMSNorm are not determined."
    )
    RESIDUAL_UNDETERMINED = _mismatch(
        "The answers do not determine how much of x is in what is normalised: no residual "
        "connection, or too many neurons for so few outputs."
    )
    SIGNS_OF_SCALE_UNKNOWN = _mismatch(
        "Behind an RMSNorm, heads beside a residual connection agree with {found} choices of the "
        "signs of its scale where one is right: something else is added, or answers are too coarse "
        "to tell the signs of small entries."
    )
    DIRECTIONS_DO_NOT_ADD_UP = _mismatch(
        "Long single tokens are not answered by a linear map behind a LayerNorm: the directions "
        "of their answers do not add up as the tokens do."
    )
    TOKEN_NOT_NORMALISED_AFFINE = _mismatch(
        "The answer to a fresh single token differs by {missed:.1e} from a normalised affine map: "
        "the target is none, or its answers are too coarse for a layer behind a LayerNorm."
    )
    LAYER_ADDS_SOMETHING = _mismatch(
        "Answers differ from a normalised affine map by {missed:.1e} for single tokens of "
        "moderate norm, by {noise:.1e} for long ones: the layer adds something to its heads."
    )
    NO_HEADS_BEHIND = _mismatch("No second token changes an answer: there are no heads.")
    TOO_FEW_DIMENSIONS_BEHIND = _not_identifiable(
        "{dim} dimensions are too few behind {norm} for this number of heads: an answer "
        "gives only {numbers} numbers, too few to tell heads apart."
    )
    TOO_MANY_HEADS_BEHIND = _mismatch("{heads} or more heads: more than {most} are not told apart.")
    GATES_OPEN_ONCE = _mismatch("A query token opens gates that no other one asked opens alike.")
    NO_SUMS_BEHIND = _mismatch("Two-token answers are no sums of gates that are 0 or 1.")
    GATES_LEFT_BEHIND = _mismatch(
        "Two-token answers are sums of {heads} gates, of which {found} are found: some are not 0 "
        "or 1 for the longest tokens, or something else is added to the heads."
    )
    GATES_ALIKE_BEHIND = _mismatch(
        "Two-token answers are sums of {heads} gates of 0 or 1, and {found} fit: query tokens of "
        "{plane} dimensions, for which there is room, do not tell the gates of heads from sums of "
        "them."
    )
    NOTHING_BENDS = _mismatch(
        "Along a line nothing bends: behind the norm is x and an affine function, no neuron. Of "
        "such a target nothing but the norm is recovered here."
    )

    # Feed-forward layers
    LAYER_IS_SMOOTH = _mismatch(
        "{where} answers bend everywhere: the target is smooth (GELU, SiLU, tanh, attention, a "
        "normalisation), no feed-forward layer of ReLUs, which alone have hyperplanes to be found. "
        "Smooth layers are recovered where no activation is given."
    )
    JACOBIAN_WITHOUT_GAP = _mismatch(
        "Jacobians at {points} points are independent as far as answers show, in {room} "
        "dimensions: the target has too many neurons for its dimension, is no feed-forward layer "
        "of one hidden layer, or its answers are too coarse or noisy.",
        "Ask a target that computes and answers in float64.",
    )
    JACOBIAN_FADES = _mismatch(
        "Jacobians at {points} points show more and more directions, of {room}, the closer one "
        "looks, with no gap: neurons hardly bend among these tokens, differ very much in size, or "
        "the target is no feed-forward layer of one hidden layer."
    )
    MEMBERS_MISSING = _mismatch(
        "Jacobians span {rows} dimensions, and {found} neurons of {each} each were found in them: "
        "neurons are too close to each other or hardly bend among these tokens, or the target is "
        "no feed-forward layer of one hidden layer whose neurons are all alike:",
        _SEED,
    )
    LAYER_IS_QUADRATIC = _not_identifiable(
        "Along a line answers are quadratic at all lengths: the layer is bilinear (its neurons are "
        "products without an activation), or sums squares. Such a function is a quadratic, which "
        "(d + 1)(d + 2)/2 tokens determine; its neurons are not determined."
    )
    NO_ACTIVATION_SUITS = _mismatch(
        "The derivatives of neurons miss the curves of all known activations: {activation} is the "
        "nearest, by {missed:.0e}. The activation is another one, neurons have several or hardly "
        "bend among these tokens, or answers are too coarse or noisy."
    )
    NEURONS_UNLIKE = _mismatch(
        "{unlike} of {count} neurons miss the curve of {activation}, which suits the others, by up "
        "to {missed:.0e}: their activation is another one, or none that is known, or answers hardly"
        " show how they bend."
    )
    OTHER_GATES = _mismatch(
        "Neurons were said to be {said}, and have {each} rows each in the target's Jacobians."
    )
    TOO_COARSE_FOR_NEURONS = _mismatch(
        "{what} off by {noise:.0e} of their size, by rounding or noise: too coarse {purpose} "
        "({most:.0e} is the limit).",
        "Ask a target that computes and answers in float64.",
    )
    TOO_NOISY_FOR_NEURONS = _mismatch(
        "The answers are off by {noise:.0e} of their size, and no rounding explains it: too noisy "
        "to see single neurons ({most:.0e} is the limit).",
        "Ask a target that answers the same question the same way.",
    )
    NEITHER_NORM_FITS = _mismatch(
        "Answers do not grow with tokens, as where a norm is before a layer or behind it; neither "
        "fits. {ways}"
    )
    NEITHER_BENT_NOR_SMOOTH = _mismatch(
        "The target fits neither a layer of ReLUs nor one of smooth neurons. {ways}"
    )
    NEURONS_ARE_RELUS = _mismatch(
        "Of {count} neurons {sharp} or more do not bend beside their hyperplanes as far as answers "
        "show, as ReLUs: neurons have several activations, or weights that are too unlike."
    )
    BENDS_UNSEEN = _mismatch(
        "Of {count} neurons {unseen} bend where answers to tokens of ordinary lengths hardly show "
        "it: they are much sharper than others, as ReLUs are, or their hyperplanes are far away."
    )
    SEEN_FROM_FAR_ALONE = _mismatch(
        "Behind the norm eps is too small to tell lengths of sums: smooth layers are recovered "
        "there where from far they are ReLUs, as neurons of GELU, SiLU and softplus without gates "
        "are. {refusal}"
    )
    FADES_AS_WITH_A_NORM = _mismatch(
        "Answers to long tokens come near to a limit as a power of the length, as where a norm is; "
        "those of sigmoids without one do so much faster."
    )
    SMOOTH_NEITHER_WAY = _mismatch("The target fits no layer of smooth neurons. {ways}")
    HYPERPLANES_ELSEWHERE = _mismatch(
        "{off} of {crossed} hyperplanes that one line crosses are not there, or other, elsewhere: "
        "the target has more than one hidden layer, or is no feed-forward layer of ReLUs; or "
        "neurons whose columns of B are parallel were taken for one."
    )
    LINE_CONTRADICTED = _mismatch(
        "In {directions} of {dim} directions the answers beside a line contradict the {neurons} "
        "neurons that it showed: the target is no feed-forward layer of one hidden layer of "
        "ReLUs, or has neurons too close to each other for these answers."
    )
    HYPERPLANES_MISSED = _mismatch(
        "The layer of {neurons} neurons that was found misses answers beside their hyperplanes by "
        f"{{missed:.1e}} of their size. The target is no {_ONE_LAYER} behind a norm, {_CLOSE}",
        _SEED,
    )
    TOKENS_SHOW_OTHER_NEURONS = _mismatch(
        "Tokens show neurons that chords through them do not: the target is no "
        f"{_ONE_LAYER}, or neurons have parallel columns of B, {_CLOSE}",
        _SEED,
    )
    NEURONS_SHOW_AT_NO_TOKEN = _mismatch(
        "{neurons} neurons bend answers along chords, and show at no token: the target is no "
        f"{_ONE_LAYER}, {_CLOSE}",
        _SEED,
    )

    # Labels: constant, or of something else
    NO_LABELS = _mismatch(
        "A label is 1 (or True) where f(X) > 0 and 0 or −1 elsewhere; the target answered "
        "{answers}.",
        "If it answers values wrap it: us.oracles.labels(oracle).",
    )
    LABELS_ALL_0 = _not_identifiable(
        "Every label is 0, as with v = 0: then the softmax weights nothing, so W is free and no "
        "query can determine it. (A constant far below 0 on top of a head would look the same.)"
    )
    SAMPLES_ALL_0 = _not_identifiable(
        "All of {k:,} labels are 0, as with v = 0: then the softmax weights nothing, so W is free "
        "and no query can determine it."
    )
    TOKENS_ALL_0 = _mismatch(
        "Single tokens are all labelled 0, as if v = 0, but longer sequences are not: the target "
        f"is not {_SIGN} without biases."
    )
    SAMPLES_ALL_ALIKE = _mismatch(
        "All of {k:,} single tokens are labelled {label}, but x and −x have opposite labels for "
        "every attention head without biases."
    )
    LABELS_ALL_1 = _mismatch(
        "A token and its negative are both labelled 1: the labels are constant, or a constant is "
        "added before the sign is taken. f([−x]) = −f([x]) for every attention head without "
        "biases."
    )
    SIGNS_CONTRADICT = _mismatch(
        "A token x, −x and both scaled by 2⁻⁶⁰ are labelled {labels} instead of 1, 0, 1, 0: the "
        "labels contradict each other, or a constant is added before the sign is taken. The "
        f"target is not {_SIGN} without biases."
    )
    MEAN_IS_NO_SIGN = _mismatch(
        "The labels of single tokens have a mean of norm {norm:.4f} instead of 1: some labels are "
        f"wrong, or they are not the sign of x·v. The target is not {_SIGN} without biases."
    )
    FLIPS_CONTRADICT = _mismatch(
        "The labels contradict each other: {wrong} of {asked} just outside of the intervals that "
        "bisection found say that the flip is outside. They must flip once along every line "
        f"asked. Either some labels are wrong, {_COARSER}, or it is not {_SIGN} without biases."
    )
    SCALE_CONTRADICTS = _mismatch(
        "The labels contradict each other: those that chose the size of the tokens say that "
        "logits are {which} than they were found to be. Some labels are wrong, or they are not "
        f"{_SIGN}."
    )
    LABELS_UNPREDICTED = _mismatch(
        "The recovered head gives fresh sequences the wrong label where its answer, up to "
        "{missed:.1e} of their size, is certain to have the right sign. The target is not "
        f"{_SIGN} without biases over {{dim}} dimensions, or some labels are wrong, or it "
        "computes more coarsely than float64 (float32 supports 16 bits)."
    )

    # Labels: beyond what is asked, or what was said
    NO_SOFT_LABELS = _not_identifiable(
        "Logits are out of reach: tokens scaled down by 2^{halvings} leave them beyond ±{logit}, "
        "as with hard attention or none. v is determined up to its norm, W is not."
    )
    LOGITS_LOST = _not_identifiable(
        "{lost} of {all} logits are out of reach, far larger than the others at every scale tried:",
        "try another seed. v is determined up to its norm.",
    )
    BELOW_MARGIN = _not_identifiable(
        "An entry of v is {entry:.2g}, below margin={margin:g}: Theorem B.1 does not reach W then.",
        'Use a smaller margin, or method="bisect", which needs none.',
    )
    ABOVE_NORM_BOUND = _mismatch(
        "The labels are those of a head with ‖W‖_F = {norm:.3g}, which contradicts norm_bound = "
        "{bound:.3g}:",
        "leave it out, bisection needs none.",
    )
    CONTRARY_TO_MARGIN = _mismatch(
        "The labels are those of a head whose smallest |v_i| is {entry:.3g}‖v‖, which contradicts "
        "margin = {margin:.3g}:",
        "leave it out, bisection needs none.",
    )

    # A network that a function has learned
    ALGORITHM_MISSES = _mismatch(
        "The network of {name} misses fresh points by {missed:.1e} of the answers' size where "
        "{most:.1e} is {word}: the algorithm does not learn this target, or the target is no such "
        "network."
    )

    # Questions about targets: verify and audit
    SERVES_OTHER_DIMENSION = _dimension(
        "These weights take tokens of dimension {claimed}, the target takes {dim}: it does not "
        "serve them."
    )
    SERVES_OTHER_NUMBERS = _dimension(
        "The target answers with {numbers}, these weights with {claimed}: it does not serve them."
    )
    TOO_MANY_TO_FIND = _not_identifiable("it was not found within {most:,} queries.")
    ORDINARY_MISSED = _mismatch(
        "the recovered model misses ordinary sequences by {missed:.1e}, where answers are up to "
        "{size:.1e}."
    )
    ORDINARY_MISSED_AS_CERTIFIED = _not_identifiable(
        "the recovered model misses ordinary sequences by {missed:.1e}, where answers are up to "
        "{size:.1e}, as its certificate allows."
    )

    # Questions about targets: defend
    USE_IS_CONSTANT = _not_identifiable(
        "All legitimate sequences get the same answer: there is nothing to defend, and no loss "
        "can be measured.",
        "A sampler may draw others.",
    )
    TOO_COARSE_TO_DEFEND = _not_identifiable(
        "The target's own answers are too coarse to judge defences by: {name} is known to "
        "{error:.1e} at a norm of {norm:.1e}."
    )
    TOKENS_ROUND_TO_0 = _not_identifiable(
        "Every answer to a single token of norm {radius:g} rounds to 0."
    )
    VALUES_ROUND_TO_0 = _not_identifiable("Answers to single tokens round to 0.")
    TOKENS_ALL_ALIKE = _not_identifiable("Answers to single tokens are all alike.")

    def __init__(self, kind: type[RefusalError], sentence: str, remedy: str) -> None:
        self.kind, self.sentence, self.remedy = kind, sentence, remedy

    def error(
        self,
        determined: Mapping[str, Any] | None = None,
        *,
        also: str = "",
        kind: type[RefusalError] | None = None,
        **said: object,
    ) -> RefusalError:
        """Return the error to raise; ``said`` are the numbers of the sentence, by name.

        ``also`` is what was noticed of these answers, behind the sentence; ``kind`` a class derived
        from the reason's own, where the search goes on differently after it.
        """
        parts = (self.sentence.format_map(said), also.strip(), self.remedy.format_map(said))
        text = " ".join(part for part in parts if part)
        return (kind or self.kind)(text, determined=determined or {}, reason=self.name)


def has_remedy(name: str) -> bool:
    """Whether the reason of this name says what to do; "" is none.

    Examples
    --------
    >>> has_remedy("MORE_HEADS"), has_remedy("NO_LABELS"), has_remedy("ANSWERS_DRIFT")
    (True, True, False)
    """
    return name in Reason.__members__ and bool(Reason[name].remedy)


def reworded(error: RefusalError, text: str) -> RefusalError:
    """Return a refusal for the same reason, in other words."""
    kind = NotIdentifiable if isinstance(error, NotIdentifiable) else ModelMismatch
    return kind(text, determined=error.determined, reason=error.reason)
